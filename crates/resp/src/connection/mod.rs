//! One connection on its event loop: bytes in, requests run, replies out.
//!
//! A *turn* reads what has arrived and runs its requests. The worker then commits and settles the turn, and
//! only then may replies leave. After a turn the query buffer holds at most one unfinished request. If the
//! turn ended early for fairness it may hold whole ones; they run before anything more is read.

pub(super) mod client;
mod metrics;
pub(super) mod output;
pub(super) mod peer;
pub(super) mod stream;

use crate::context::Context;
use crate::dispatch::{Outcome, dispatch};
use crate::keyspace::{Direct, Scratch};
use crate::reply::Reply;
use crate::request::args::Args;
use crate::request::frame::{FrameLimits, Parser};
use crate::server::Shared;
use crate::server::statistics::Statistics;
use client::Client;
use everdram::Ticket;
use everdram::engine::{Engine, EngineSession};
use metrics::Metrics;
use output::Output;
use peer::Peer;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use stream::Stream;

/// Bytes that a connection may read before others get their turn.
const READ_BYTES_PER_TURN: usize = 1 << 20;
/// Least growth of the query buffer for an argument that is being received.
const GROW_QUERY_BYTES: usize = 64 * 1024;
/// Capacity that an empty query buffer keeps.
const KEEP_QUERY_BYTES: usize = 64 * 1024;

/// Tools of the event loop for a turn.
pub(crate) struct Tools<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) session: &'a mut dyn EngineSession,
    pub(crate) engine: &'a dyn Engine,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) statistics: &'a Statistics,
    /// Buffer for the first read.
    pub(crate) read_buffer: &'a mut [u8],
    /// Whether the session has writes that are not committed.
    pub(crate) uncommitted: &'a mut bool,
    pub(crate) now: Instant,
    pub(crate) now_ms: u64,
}

/// A turn that must be settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Where its replies start in the output.
    pub(crate) start: usize,
    pub(crate) replies: usize,
    /// Must be durable before its replies leave.
    pub(crate) depends: Ticket,
    /// Whether they also depend on the commit that ends the turn.
    pub(crate) on_commit: bool,
}

pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) client: Client,
    pub(crate) output: Output,
    /// The turn to be settled.
    pub(crate) turn: Option<Turn>,
    /// Whether the socket may have more to read.
    pub(crate) readable: bool,
    /// Whether the peer has closed its side: the end of the stream follows what can be read.
    pub(crate) closed_by_peer: bool,
    /// Whether it is in its worker's list of connections to run.
    pub(crate) queued: bool,
    /// Whether it is in its worker's list of connections whose replies wait to be durable.
    pub(crate) waiting: bool,
    /// Whether the buffer may hold a whole request.
    runnable: bool,
    query: Vec<u8>,
    parser: Parser,
    last_active: Instant,
    /// Since when the output has been above its soft limit.
    above_soft_since: Option<Instant>,
}

impl Connection {
    pub(crate) fn new(stream: Stream, peer: Arc<Peer>, authenticated: bool) -> Self {
        let last_active = peer.since;
        Connection {
            stream,
            client: Client::new(peer, authenticated),
            output: Output::default(),
            turn: None,
            readable: true,
            closed_by_peer: false,
            waiting: false,
            queued: false,
            runnable: false,
            query: Vec::new(),
            parser: Parser::default(),
            last_active,
            above_soft_since: None,
        }
    }

    /// Whether another turn would have work.
    pub(crate) fn has_work(&self) -> bool {
        !self.client.is_closing() && !self.client.is_held() && (self.readable || self.runnable)
    }

    /// Reads what has arrived and runs it.
    pub(crate) fn take_turn(&mut self, tools: &mut Tools<'_>) {
        if !self.has_work() {
            return;
        }
        let mut turn = Turn {
            start: self.output.buffer().len(),
            replies: 0,
            depends: Ticket::NONE,
            on_commit: false,
        };
        let mut commands_left = tools.shared.settings.limits.commands_per_turn.max(1);
        let mut bytes_left = READ_BYTES_PER_TURN.max(self.parser.announced());
        loop {
            // Requests postponed for fairness come first; nothing is read before them.
            if !self.runnable {
                let taken = self.read(tools);
                bytes_left = bytes_left.saturating_sub(taken);
            }
            self.run(tools, &mut turn, &mut commands_left);
            self.parser.compact(&mut self.query);
            self.check_request_size(tools);
            if self.runnable || !self.has_work() || commands_left == 0 || bytes_left == 0 {
                break;
            }
        }
        if self.query.is_empty() && self.query.capacity() > READ_BYTES_PER_TURN {
            self.query = Vec::new();
        }
        self.turn = Some(turn);
    }

    /// Reads once; returns the number of bytes.
    fn read(&mut self, tools: &mut Tools<'_>) -> usize {
        // Small requests go through the loop's buffer, so that connections need no large one of their own.
        // Large arguments are read directly to their place.
        let missing = self.parser.missing_bytes(self.query.len());
        if missing >= tools.read_buffer.len() && !self.make_room(missing) {
            self.close_for_query(tools);
            return 0;
        }
        let spare = self.query.capacity() - self.query.len();
        let direct = spare >= tools.read_buffer.len() || (missing > 0 && spare > missing);
        let (room, outcome) = if direct {
            (spare, self.stream.read_into(&mut self.query))
        } else {
            (tools.read_buffer.len(), self.stream.read(tools.read_buffer))
        };
        match outcome {
            Ok(0) => {
                // Requests before the end are still answered.
                self.readable = false;
                self.runnable = true;
                self.client.close_after_reply = true;
                0
            }
            Ok(count) => {
                self.runnable = true;
                if !direct {
                    self.keep(tools, count);
                }
                // A short read has emptied the socket: later bytes cause a new event.
                self.readable = count == room || self.closed_by_peer;
                tools.statistics.read_bytes.add(count as u64);
                self.last_active = tools.now;
                count
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => {
                self.readable = false;
                self.client.close_now |= error.kind() != ErrorKind::WouldBlock;
                0
            }
        }
    }

    /// Reserves room for the `missing` bytes of an argument and one more, so that its last read is a short
    /// one. It grows little beyond the received bytes: an announced length alone takes no memory.
    fn make_room(&mut self, missing: usize) -> bool {
        let step = missing.min(self.query.len().max(GROW_QUERY_BYTES)) + 1;
        let addressable = self.query.len().saturating_add(step) <= u32::MAX as usize;
        addressable && self.query.try_reserve_exact(step).is_ok()
    }

    /// Moves `count` bytes from the read buffer to the query buffer.
    fn keep(&mut self, tools: &mut Tools<'_>, count: usize) {
        let bytes = tools.read_buffer.get(..count).unwrap_or_default();
        let addressable = self.query.len().saturating_add(count) <= u32::MAX as usize;
        if !addressable || self.query.try_reserve(count).is_err() {
            self.close_for_query(tools);
            return;
        }
        self.query.extend_from_slice(bytes);
    }

    /// After a turn the buffer holds one unfinished request; the argument being received is not counted
    /// against the limit.
    fn check_request_size(&mut self, tools: &mut Tools<'_>) {
        let limit = tools.shared.config.query_buffer_bytes.load(Relaxed);
        let limit = limit.saturating_add(self.parser.announced());
        if !self.runnable && self.query.len() > limit {
            self.close_for_query(tools);
        }
    }

    fn close_for_query(&mut self, tools: &mut Tools<'_>) {
        tracing::warn!(client = %self.client.peer.address, "closed a connection: its request is too large");
        tools.statistics.query_limit_closes.add(1);
        self.client.close_now = true;
    }

    /// Runs whole requests of the buffer, up to the limit of a turn.
    fn run(&mut self, tools: &mut Tools<'_>, turn: &mut Turn, commands_left: &mut usize) {
        // The end of the stream closes the connection, but only after the requests before it.
        let ended = std::mem::take(&mut self.client.close_after_reply);
        let mut keys = Direct::new(tools.session, tools.engine, tools.scratch);
        let mut metrics = Metrics {
            shared: tools.shared,
            statistics: tools.statistics,
            uncommitted: tools.uncommitted,
            before: Instant::now(),
            now_ms: tools.now_ms,
        };
        while *commands_left > 0
            && self.runnable
            && !self.client.is_closing()
            && !self.client.is_held()
        {
            *commands_left -= 1;
            let limits = frame_limits(tools.shared, self.client.authenticated);
            match self.parser.next(&mut self.query, &limits) {
                Ok(false) => self.runnable = false,
                Ok(true) => self.execute(&mut keys, &mut metrics, turn),
                Err(error) => {
                    self.output.buffer().extend_from_slice(&error.line());
                    turn.replies += 1;
                    self.client.close_after_reply = true;
                }
            }
        }
        turn.depends = turn.depends.max(keys.depends());
        if ended {
            // If requests are left for the next turn, that turn reads the end again.
            let unfinished = self.runnable || self.client.is_held();
            self.readable = unfinished;
            self.client.close_after_reply |= !unfinished;
        }
    }

    /// Runs the request that the parser found.
    fn execute(&mut self, keys: &mut Direct<'_>, metrics: &mut Metrics<'_>, turn: &mut Turn) {
        let args = Args::new(&self.query, self.parser.spans());
        let unsent = self.output.pending();
        let out = self.output.buffer();
        let start = out.len();
        let mut ctx = Context {
            args,
            keys,
            reply: Reply::new(out, self.client.resp3),
            client: &mut self.client,
            shared: metrics.shared,
            now_ms: metrics.now_ms,
        };
        let outcome = dispatch(&mut ctx);
        let nanoseconds = metrics.lap();
        let replied = self.output.buffer().get(start).copied();
        turn.replies += usize::from(replied.is_some());
        metrics.count(&outcome, nanoseconds, replied == Some(b'-'));
        if let Outcome::Executed(_, command) = outcome {
            metrics.note_dependence(command, turn);
            metrics.note_slow(command, &args, &self.client, nanoseconds);
        }
        if self.client.multi.is_none() {
            self.client.multi_bytes = 0;
        }
        // The limit is on unread output, not on one reply: any value can be read.
        let counted = if self.client.authenticated {
            unsent
        } else {
            self.output.pending()
        };
        if counted > output_limit(metrics.shared, self.client.authenticated) {
            self.close_for_output(metrics.statistics);
        }
    }

    fn close_for_output(&mut self, statistics: &Statistics) {
        tracing::warn!(client = %self.client.peer.address, "closed a connection: it does not read its replies");
        statistics.output_limit_closes.add(1);
        self.client.close_now = true;
    }

    /// Sends what may leave.
    pub(crate) fn flush(&mut self, statistics: &Statistics) {
        let mut sent = 0;
        while !self.client.close_now && !self.output.to_send().is_empty() {
            match self.stream.write(self.output.to_send()) {
                Ok(0) => self.client.close_now = true,
                Ok(count) => {
                    sent += count as u64;
                    self.output.advance(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.client.close_now = true,
            }
        }
        if sent > 0 {
            statistics.sent_bytes.add(sent);
        }
    }

    /// Whether the connection can be dropped.
    pub(crate) fn is_done(&self) -> bool {
        self.client.close_now || (self.client.close_after_reply && self.output.pending() == 0)
    }

    /// Publishes its state for other threads, and counts its buffers among those of all connections.
    pub(crate) fn publish(&mut self, shared: &Shared) {
        let held = self.query.capacity() + self.output.capacity() + self.client.multi_bytes;
        if shared.note_buffers(&self.client.peer, held) && !self.client.close_now {
            tracing::warn!(client = %self.client.peer.address, "closed a connection: buffers are full");
            shared.evicted.fetch_add(1, Relaxed);
            self.client.close_now = true;
        }
        let peer = &self.client.peer;
        peer.touch(self.last_active);
        let queued = self
            .client
            .multi
            .as_ref()
            .map_or(-1, |multi| multi.queued.len() as i64);
        peer.queued.store(queued, Relaxed);
        peer.resp3.store(self.client.resp3, Relaxed);
        peer.query_bytes.store(self.query.len() as u64, Relaxed);
        peer.query_room
            .store((self.query.capacity() - self.query.len()) as u64, Relaxed);
        peer.output_bytes
            .store(self.output.pending() as u64, Relaxed);
        peer.output_room.store(
            (self.output.capacity() - self.output.pending()) as u64,
            Relaxed,
        );
    }

    /// Applies time limits, and frees memory of an idle connection.
    pub(crate) fn tick(&mut self, shared: &Shared, statistics: &Statistics, now: Instant) {
        let idle = now.saturating_duration_since(self.last_active);
        let timeout_s = shared.config.timeout_s.load(Relaxed);
        if self.client.paused_until.is_some_and(|until| until <= now) {
            self.client.paused_until = None;
        }
        let busy = self.client.is_held() || self.output.pending() > 0;
        if timeout_s > 0 && !busy && idle.as_secs() >= timeout_s {
            self.client.close_now = true;
        }
        let age = now.saturating_duration_since(self.client.peer.since);
        if !self.client.authenticated && age >= shared.settings.preauth_timeout {
            self.client.close_now = true;
        }
        let soft = shared.config.output_soft_bytes.load(Relaxed);
        if soft > 0 && self.output.pending() > soft {
            let since = *self.above_soft_since.get_or_insert(now);
            let limit_s = shared.config.output_soft_s.load(Relaxed);
            if now.saturating_duration_since(since).as_secs() >= limit_s {
                self.close_for_output(statistics);
            }
        } else {
            self.above_soft_since = None;
        }
        if idle.as_secs() >= 2 {
            if self.query.is_empty() && self.query.capacity() > KEEP_QUERY_BYTES {
                self.query = Vec::new();
            }
            self.output.shrink();
        }
        self.publish(shared);
    }
}

fn frame_limits(shared: &Shared, authenticated: bool) -> FrameLimits {
    let limits = &shared.settings.limits;
    let bulk = shared.config.proto_max_bulk_len.load(Relaxed);
    FrameLimits {
        arguments_max: if authenticated {
            limits.arguments
        } else {
            limits.unauthenticated_arguments
        },
        bulk_bytes_max: if authenticated {
            bulk.min(u64::from(u32::MAX / 2))
        } else {
            limits.unauthenticated_bulk_bytes
        },
        inline_bytes_max: limits.inline_bytes,
        authenticated,
    }
}

fn output_limit(shared: &Shared, authenticated: bool) -> usize {
    if !authenticated {
        return shared.settings.limits.unauthenticated_output_bytes;
    }
    match shared.config.output_hard_bytes.load(Relaxed) {
        0 => usize::MAX,
        limit => limit,
    }
}
