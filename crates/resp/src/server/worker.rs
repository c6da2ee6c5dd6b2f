//! An event loop: one thread, one session of the store, and the connections given to it.
//!
//! Each wake-up has four steps. Every connection with work takes a turn; one commit covers all their writes;
//! their replies are settled on that commit's ticket; durable replies are sent. Waiting replies are sent when
//! the engine reports that more is durable.
//!
//! Then the engine may have work for this thread ([`EngineSession::turn`]). The loop does one slice, and
//! serves clients before the next; while there is more, it does not sleep.

use super::Shared;
use super::statistics::Statistics;
use crate::connection::peer::Peer;
use crate::connection::stream::Stream;
use crate::connection::{Connection, Tools};
use crate::keyspace::Scratch;
use crate::reply::Reply;
use everdram::engine::{Engine, EngineSession};
use everdram::{Error, Ticket};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Token of the mailbox; a connection's token is its slot number.
const MAILBOX: Token = Token(usize::MAX);
/// How often time limits are checked while there are connections.
const TICK: Duration = Duration::from_millis(100);
/// Bytes read at once. Large arguments are read directly to their place.
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// Messages from other threads to an event loop.
pub(crate) enum Message {
    /// A new connection, and whether it counts as authenticated.
    Accept(Stream, Arc<Peer>, bool),
    /// Some connection was killed.
    Killed,
    /// The sync for this client's WAITAOF is done.
    Synced {
        client: u64,
        outcome: Result<(), String>,
    },
    /// Finish what has arrived, then end.
    Drain,
}

/// Messages that wait for their event loop.
pub(crate) struct Mailbox {
    messages: Mutex<Vec<Message>>,
    waker: Waker,
    /// Whether replies wait for durability, so that the engine's news needs a wake-up.
    waits: AtomicBool,
    /// Whether the engine had news since the loop last checked.
    news: AtomicBool,
    pub(crate) statistics: Statistics,
}

impl Mailbox {
    pub(crate) fn new(poll: &Poll) -> std::io::Result<Self> {
        let waker = Waker::new(poll.registry(), MAILBOX)?;
        let statistics = Statistics::new();
        Ok(Mailbox {
            messages: Mutex::default(),
            waker,
            waits: AtomicBool::new(false),
            news: AtomicBool::new(false),
            statistics,
        })
    }

    pub(crate) fn send(&self, message: Message) {
        self.messages.lock().push(message);
        self.wake();
    }

    /// Called when more is durable, or the engine has failed.
    pub(crate) fn durable_advanced(&self) {
        if self.waits.load(Ordering::SeqCst) && !self.news.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake an event loop");
        }
    }
}

pub(crate) struct Worker {
    poll: Poll,
    index: usize,
    shared: Arc<Shared>,
    engine: Arc<dyn Engine>,
    session: Box<dyn EngineSession>,
    scratch: Scratch,
    read_buffer: Vec<u8>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    open: usize,
    /// Slots with work; each at most once.
    ready: Vec<usize>,
    /// Slots of the current wake-up.
    running: Vec<usize>,
    /// Slots whose replies wait for durability.
    waiting: Vec<usize>,
    uncommitted: bool,
    /// Turns before the loop may sleep: the engine had work for this thread, and may have more.
    turns: u32,
    /// The error line for replies that will never be durable, once the engine has failed.
    failure: Option<Vec<u8>>,
    /// The durable ticket when replies were last released.
    released: Ticket,
    /// The durable ticket at the last tick.
    released_at_tick: Ticket,
    next_tick: Instant,
    /// Deadline for clients to take their replies, once the server stops.
    drain_until: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(poll: Poll, index: usize, shared: Arc<Shared>) -> Result<Self, Error> {
        let engine = Arc::clone(&shared.engine);
        let session = Arc::clone(&engine).session()?;
        Ok(Worker {
            poll,
            index,
            shared,
            engine,
            session,
            scratch: Scratch::default(),
            read_buffer: vec![0; READ_BUFFER_BYTES],
            connections: Vec::new(),
            free: Vec::new(),
            open: 0,
            ready: Vec::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            uncommitted: false,
            turns: 0,
            failure: None,
            released: Ticket::NONE,
            released_at_tick: Ticket::NONE,
            next_tick: Instant::now(),
            drain_until: None,
        })
    }

    /// Runs until drained.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while self.drain_until.is_none() || self.open > 0 {
            match self.poll.poll(&mut events, self.poll_timeout()) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                self.note_event(event);
            }
            // Slots freed above may be reused only now: events of this round name the old connections.
            self.read_mail();
            self.take_turns();
            self.settle();
            self.release();
            self.tick();
            self.help_engine();
        }
        Ok(())
    }

    /// Does a slice of the engine's own work, if the engine wants that.
    fn help_engine(&mut self) {
        self.turns = self.turns.saturating_sub(1);
        match self.session.turn() {
            Ok(true) => {
                // A single worker gives every second turn to its clients; that alone does not let it sleep.
                self.turns = 2;
                self.mailbox().statistics.turns.add(1);
            }
            Ok(false) => {}
            // The next writer gets the error.
            Err(error) => tracing::debug!(%error, "the store's own work failed"),
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        if !self.ready.is_empty() || self.turns > 0 {
            return Some(Duration::ZERO);
        }
        (self.open > 0).then(|| self.next_tick.saturating_duration_since(Instant::now()))
    }

    fn note_event(&mut self, event: &mio::event::Event) {
        let slot = event.token().0;
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            connection.readable = true;
            connection.closed_by_peer |= event.is_read_closed() || event.is_error();
        }
        enqueue(&mut self.ready, slot, connection);
    }

    fn read_mail(&mut self) {
        let messages = std::mem::take(&mut *self.mailbox().messages.lock());
        for message in messages {
            match message {
                Message::Accept(stream, peer, authenticated) => {
                    self.adopt(stream, peer, authenticated)
                }
                Message::Killed => self.close_killed(),
                Message::Synced { client, outcome } => self.answer_synced(client, &outcome),
                Message::Drain => self.start_draining(),
            }
        }
    }

    fn mailbox(&self) -> &Mailbox {
        self.shared.mailbox(self.index)
    }

    fn adopt(&mut self, mut stream: Stream, peer: Arc<Peer>, authenticated: bool) {
        let slot = self.free.pop().unwrap_or(self.connections.len());
        let interests = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self
            .poll
            .registry()
            .register(&mut stream, Token(slot), interests)
        {
            tracing::warn!(%error, "cannot watch a new connection");
            self.shared.forget(peer.id);
            if slot < self.connections.len() {
                self.free.push(slot);
            }
            return;
        }
        let mut connection = Connection::new(stream, peer, authenticated);
        enqueue(&mut self.ready, slot, &mut connection);
        match self.connections.get_mut(slot) {
            Some(place) => *place = Some(connection),
            None => self.connections.push(Some(connection)),
        }
        self.open += 1;
    }

    fn close_killed(&mut self) {
        for (slot, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection
                && connection.client.peer.killed.load(Ordering::Relaxed)
            {
                connection.client.close_now |= !connection.client.close_after_reply;
                enqueue(&mut self.ready, slot, connection);
            }
        }
    }

    fn answer_synced(&mut self, client: u64, outcome: &Result<(), String>) {
        for (slot, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection
                && connection.client.id == client
                && connection.client.awaiting_sync.take().is_some()
            {
                write_synced(connection, outcome);
                enqueue(&mut self.ready, slot, connection);
            }
        }
    }

    fn start_draining(&mut self) {
        if self.drain_until.is_none() {
            self.drain_until = Some(Instant::now() + self.shared.settings.drain_timeout);
            for (slot, connection) in self.connections.iter_mut().enumerate() {
                if let Some(connection) = connection {
                    connection.readable = true;
                    enqueue(&mut self.ready, slot, connection);
                }
            }
        }
    }

    fn take_turns(&mut self) {
        std::mem::swap(&mut self.ready, &mut self.running);
        let now_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO)
            .as_millis();
        let mut tools = Tools {
            shared: &self.shared,
            session: &mut *self.session,
            engine: &*self.engine,
            scratch: &mut self.scratch,
            statistics: &self.shared.mailbox(self.index).statistics,
            read_buffer: &mut self.read_buffer,
            uncommitted: &mut self.uncommitted,
            now: Instant::now(),
            now_ms: u64::try_from(now_ms).unwrap_or(u64::MAX),
        };
        for &slot in &self.running {
            if let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) {
                connection.queued = false;
                connection.take_turn(&mut tools);
            }
        }
    }

    /// Commits the writes of the turns and makes their replies wait for it.
    fn settle(&mut self) {
        let mut commit = Ok(Ticket::NONE);
        if std::mem::take(&mut self.uncommitted) {
            commit = self.session.commit();
            self.mailbox().statistics.commits.add(1);
        }
        let refusal = commit.as_ref().err().map(refusal_line);
        if let Some(line) = &refusal {
            tracing::error!(error = %String::from_utf8_lossy(line), "a commit failed");
        }
        let durable = self.engine.durable();
        let mut running = std::mem::take(&mut self.running);
        for slot in running.drain(..) {
            let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            if let Some(turn) = connection.turn.take() {
                let mut ticket = turn.depends;
                match (&commit, &refusal) {
                    (Ok(committed), _) if turn.on_commit => ticket = ticket.max(*committed),
                    (_, Some(line)) if turn.on_commit => {
                        connection
                            .output
                            .refuse_from(turn.start, turn.replies, line);
                        // A refusal shows nothing that it would have to wait for.
                        ticket = Ticket::NONE;
                    }
                    _ => {}
                }
                connection.output.settle(ticket, durable, turn.replies);
            }
            self.finish(slot);
        }
        self.running = running;
    }

    /// After a turn or a release: sends, closes, or keeps the connection for another turn.
    fn finish(&mut self, slot: usize) {
        let draining = self.drain_until.is_some();
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        if let (Some(line), Some(_)) = (&self.failure, connection.output.waits_for()) {
            connection.output.refuse_held(line);
        }
        if draining && !connection.has_work() && !connection.client.is_held() {
            connection.client.close_after_reply = true;
        }
        if connection.output.waits_for().is_some() && !connection.waiting {
            connection.waiting = true;
            self.waiting.push(slot);
        }
        connection.flush(&self.shared.mailbox(self.index).statistics);
        connection.publish(&self.shared);
        if connection.is_done() {
            self.close(slot);
        } else if connection.has_work() {
            enqueue(&mut self.ready, slot, connection);
        }
    }

    /// Sends what has become durable, and requests the rest.
    fn release(&mut self) {
        let Some(ticket) = self.wanted() else { return };
        self.mailbox().waits.store(true, Ordering::SeqCst);
        // Clear this before reading what is durable: later news causes another wake-up.
        let news = self.mailbox().news.swap(false, Ordering::SeqCst);
        self.engine.request(ticket);
        let durable = self.engine.durable();
        if news && durable == self.released {
            self.probe_engine();
        }
        if durable > self.released || self.failure.is_some() {
            self.released = durable;
            let mut waiting = std::mem::take(&mut self.waiting);
            for slot in waiting.drain(..) {
                if let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) {
                    connection.waiting = false;
                    connection.output.release(durable);
                    self.finish(slot);
                }
            }
            // Connections that `finish` found still waiting are in the new list.
            waiting.append(&mut self.waiting);
            self.waiting = waiting;
        }
        self.mailbox()
            .waits
            .store(!self.waiting.is_empty(), Ordering::SeqCst);
    }

    /// The largest ticket that a reply waits for.
    fn wanted(&self) -> Option<Ticket> {
        let waiting = self
            .waiting
            .iter()
            .filter_map(|&slot| self.connections.get(slot)?.as_ref());
        waiting
            .filter_map(|connection| connection.output.waits_for())
            .max()
    }

    /// Nothing became durable for a while, or despite news. A failed engine reports that at a commit.
    fn probe_engine(&mut self) {
        if self.failure.is_none()
            && let Err(error) = self.session.commit()
        {
            tracing::error!(%error, "the store has failed: replies that waited for it are refused");
            self.failure = Some(refusal_line(&error));
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if now < self.next_tick || self.open == 0 {
            return;
        }
        self.next_tick = now + TICK;
        if !self.waiting.is_empty() && self.engine.durable() == self.released_at_tick {
            self.probe_engine();
        }
        self.released_at_tick = self.engine.durable();
        let too_late = self.drain_until.is_some_and(|until| now >= until);
        for slot in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            let held = connection.client.is_held();
            connection.tick(
                &self.shared,
                &self.shared.mailbox(self.index).statistics,
                now,
            );
            let expired =
                matches!(connection.client.awaiting_sync, Some(Some(until)) if until <= now);
            if expired {
                connection.client.awaiting_sync = None;
                write_waitaof(connection, 0);
            }
            connection.client.close_now |= too_late;
            let resumes = held && !connection.client.is_held();
            if expired || resumes || connection.is_done() {
                self.finish(slot);
            }
        }
    }

    fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) else {
            return;
        };
        if let Err(error) = self.poll.registry().deregister(&mut connection.stream) {
            tracing::debug!(%error, "cannot stop watching a connection");
        }
        self.shared.forget(connection.client.id);
        self.free.push(slot);
        self.open -= 1;
    }
}

fn enqueue(ready: &mut Vec<usize>, slot: usize, connection: &mut Connection) {
    if !connection.queued {
        connection.queued = true;
        ready.push(slot);
    }
}

fn write_synced(connection: &mut Connection, outcome: &Result<(), String>) {
    match outcome {
        Ok(()) => write_waitaof(connection, 1),
        Err(text) => {
            let resp3 = connection.client.resp3;
            Reply::new(connection.output.buffer(), resp3).error(&format!("MISCONF {text}"));
            connection.output.settle(Ticket::NONE, Ticket::NONE, 1);
        }
    }
}

fn write_waitaof(connection: &mut Connection, local: i64) {
    let resp3 = connection.client.resp3;
    crate::commands::server::write_waitaof(
        &mut Reply::new(connection.output.buffer(), resp3),
        local,
    );
    connection.output.settle(Ticket::NONE, Ticket::NONE, 1);
}

fn refusal_line(error: &Error) -> Vec<u8> {
    let mut line = Vec::new();
    Reply::new(&mut line, false).error(&format!("MISCONF the write is not durable: {error}"));
    line
}
