//! Waiting: completions and connection events become events of the port.
//!
//! What completed before a connection ended is told before its end. Therefore an end found in the queue of
//! connection events waits until the queue of completions was empty once.

use crate::domain::Taken;
use crate::fabric::Happened;
use crate::listener::milliseconds;
use crate::port::Port;
use crate::slab::Job;
use crate::{Buffer, Conn, Error};
use std::time::{Duration, Instant};

/// What a wait brings.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection is open. First of all its events.
    Opened(Conn),
    /// A message arrived.
    Message(Conn, Buffer),
    /// A write with this token is complete, or failed. [`crate::Completion`] says what complete means.
    Written(Conn, u64, Result<(), Error>),
    /// A read with this token is complete, with its bytes, or failed.
    Read(Conn, u64, Result<Vec<u8>, Error>),
    /// A peer has made bytes durable here by itself, and tells this port so: [`crate::Completion`]. The
    /// provider does not say which peer, so the four bytes must be a secret of whoever may tell them.
    Told(u32),
    /// A connection is over: refused, ended by the peer, or failed. Last of all its events; nothing of it can
    /// arrive.
    Closed(Conn),
}

impl Event {
    /// The connection; none where the provider does not say.
    pub(crate) fn conn(&self) -> Conn {
        match *self {
            Event::Told(_) => Conn::NONE,
            Event::Opened(conn)
            | Event::Message(conn, _)
            | Event::Written(conn, ..)
            | Event::Read(conn, ..)
            | Event::Closed(conn) => conn,
        }
    }
}

/// Completions handled before the user sees them.
const TURN: usize = 512;
/// The queue of connection events is read this often while completions keep coming.
const EVENTS_EVERY: Duration = Duration::from_millis(1);
/// Longest sleep, in ms. The end of a connection without receive buffers wakes nobody; and `fi_cq_signal` is
/// lost if it comes between the library's look at the signal and its sleep.
const SLEEP_MS: i32 = 100;
/// Longest sleep while operations or closings wait for the provider.
const SLEEP_STALLED_MS: i32 = 10;
/// Longest sleep while connections open: that wakes nobody either. At first, and when it takes long.
const SLEEP_OPENING_MS: (i32, i32) = (1, 10);
const OPENING_IS_LONG: Duration = Duration::from_millis(100);

impl Port {
    /// Waits for events and adds them, at most for `timeout`, counted in whole milliseconds (`None`: for
    /// ever). Returns as soon as there are any, or when woken; then there may be none.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the library cannot read its queues. The port is of no more use then; drop it.
    pub fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<Event>) -> Result<(), Error> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.begin_waiting();
        // The library looks before it sleeps, so a first look without sleep would only cost a call.
        loop {
            let left = until.map_or(i32::MAX, |until| {
                milliseconds(until.saturating_duration_since(Instant::now()))
            });
            let mut is_woken = self.queue.take_wake();
            let sleep_ms = if is_woken || !self.ready.is_empty() {
                0
            } else {
                self.longest_sleep().min(left)
            };
            self.turn(sleep_ms)?;
            is_woken |= self.queue.take_wake();
            if is_woken || left == 0 || !self.ready.is_empty() {
                into.append(&mut self.ready);
                return Ok(());
            }
        }
    }

    fn longest_sleep(&self) -> i32 {
        if !self.over.is_empty() {
            0
        } else if self.opening > 0 {
            let is_long = self.opening_since.elapsed() > OPENING_IS_LONG;
            if is_long {
                SLEEP_OPENING_MS.1
            } else {
                SLEEP_OPENING_MS.0
            }
        } else if !self.stalled.is_empty() || !self.closing.is_empty() {
            SLEEP_STALLED_MS
        } else {
            SLEEP_MS
        }
    }

    /// Reads both queues once, with a sleep if there is nothing.
    fn turn(&mut self, sleep_ms: i32) -> Result<(), Error> {
        let dead = self.dead.len();
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let (mut is_empty, mut wait_ms) = (false, sleep_ms);
        let taken = loop {
            match self.queue.take(wait_ms, &mut completions) {
                // A queue that gave less than it could is asked again only if something waits for it to be
                // empty.
                Ok(Taken::Some) if dead == 0 && self.over.is_empty() => break Ok(()),
                Ok(Taken::None) if wait_ms == 0 => {
                    is_empty = true;
                    break Ok(());
                }
                Ok(_) if completions.len() >= TURN => break Ok(()),
                Ok(_) => wait_ms = 0,
                Err(error) => break Err(error),
            }
        };
        let had = !completions.is_empty();
        let mut has_failure = false;
        for completion in &completions {
            has_failure |= completion.code != 0;
            // Such a completion has a context of nobody's, which may look like one of this port.
            match completion.told.filter(|_| self.can_tell) {
                Some(told) => {
                    let told = u32::try_from(told).ok().map(Event::Told);
                    self.ready.extend(told);
                }
                None => self.complete(completion.context, completion.bytes, completion.code),
            }
        }
        self.completions = completions;
        taken?;
        if is_empty {
            self.free_dead(dead);
            for conn in std::mem::take(&mut self.over) {
                self.fail(conn);
            }
        }
        if !had || has_failure || self.opening > 0 || self.events_read.elapsed() > EVENTS_EVERY {
            self.read_events()?;
        }
        self.close_again();
        if !self.stalled.is_empty() {
            self.begin_waiting();
        }
        Ok(())
    }

    /// Frees slots whose endpoints were closed before the completion queue was empty.
    fn free_dead(&mut self, count: usize) {
        if self.closing.is_empty() {
            for index in self.dead.drain(..count) {
                self.slab.release(index);
            }
        }
    }

    fn complete(&mut self, context: usize, bytes: usize, code: i32) {
        let Some(index) = self.slab.index_of(context) else {
            return;
        };
        let (job, conn, token, is_dead) = {
            let slot = self.slab.slot(index);
            (slot.job, slot.conn, slot.token, slot.is_dead)
        };
        if is_dead || matches!(job, Job::Free | Job::Held) {
            return;
        }
        if code != 0 {
            let library = self.domain.library();
            match job {
                Job::Write(_) => self.ready.push(Event::Written(
                    conn,
                    token,
                    Err(library.error("fi_write", code as isize)),
                )),
                Job::Read => self.ready.push(Event::Read(
                    conn,
                    token,
                    Err(library.error("fi_read", code as isize)),
                )),
                Job::Free | Job::Receive | Job::Held | Job::Send => {}
            }
            self.slab.release(index);
            self.fail(conn);
            return;
        }
        self.opened(conn);
        match job {
            Job::Receive => {
                let slot = self.slab.slot_mut(index);
                slot.job = Job::Held;
                slot.bytes = bytes.min(slot.bytes);
                self.ready.push(Event::Message(conn, Buffer(index)));
            }
            Job::Send => self.slab.release(index),
            Job::Write(_) => {
                self.slab.release(index);
                self.ready.push(Event::Written(conn, token, Ok(())));
            }
            Job::Read => {
                let bytes = self.slab.bytes(index).to_vec();
                self.slab.release(index);
                self.ready.push(Event::Read(conn, token, Ok(bytes)));
            }
            Job::Free | Job::Held => {}
        }
    }

    /// The connection is open, by an event or by what it does.
    fn opened(&mut self, conn: Conn) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if !connection.is_open {
            connection.is_open = true;
            self.opening -= 1;
            if !connection.waiting.is_empty() {
                self.stalled.push(conn);
            }
            self.ready.push(Event::Opened(conn));
        }
    }

    fn read_events(&mut self) -> Result<(), Error> {
        self.events_read = Instant::now();
        while let Some(happened) = self.events.next(0)? {
            match happened {
                Happened::Connected(id) => {
                    if let Some(&conn) = self.names.get(&id.addr()) {
                        self.opened(conn);
                    }
                }
                Happened::Over(id) => {
                    if let Some(&conn) = self
                        .names
                        .get(&id.addr())
                        .filter(|conn| !self.over.contains(conn))
                    {
                        self.over.push(conn);
                    }
                }
                Happened::Request { .. } | Happened::Other => {}
            }
        }
        Ok(())
    }
}
