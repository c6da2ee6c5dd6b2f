//! An event loop of the door: one thread, one link, one session of the store.
//!
//! Each wake-up has four steps, as in the Redis door. Every message that arrived is carried out; one commit
//! covers all their writes; replies that are durable leave, and the others wait for news of the engine. Then
//! there may be work for this thread: values that have arrived in the landing area, and the engine's own.

mod expel;

use super::connection::Connection;
use super::counters::Counters;
use super::in_place::Reads;
use super::lends::Lends;
use super::memory::Shortages;
use super::request::{Expelled, Reply, Tools, status_of};
use super::slots::Giver;
use super::{Shared, StartError};
use crate::link::{Buffer, Conn, Event, Link, LinkError, Request, Waker};
use crate::wire::{
    self, BY_CLIENT, BY_CLIENT_TOLD, CREDITS_MAX, Head, IN_PLACE, INLINE_BYTES, Kind, LENT, Status,
};
use everdram::engine::EngineSession;
use everdram::landing::Grant;
use everdram::{Error, Ticket};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a loop with waiting replies asks whether the engine has failed.
const TICK: Duration = Duration::from_millis(100);
/// How long a loop sleeps while replies wait: news may come while it begins to.
const SLEEP_HELD: Duration = Duration::from_millis(5);
/// Replies that a connection may leave where they are, at most.
const UNREAD_MAX: usize = 4 * CREDITS_MAX as usize;
/// Room for bodies that is kept from wake-up to wake-up, in bytes.
const BODIES_KEPT: usize = 1 << 20;

/// What other threads have for a loop.
pub(super) struct Mailbox {
    requests: Mutex<Vec<Request>>,
    waker: Waker,
    /// Whether replies wait for durability, so that the engine's news needs a wake-up.
    waits: AtomicBool,
    /// The loop has failed: nobody takes what is handed over.
    is_dead: AtomicBool,
    pub(super) counters: Counters,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Mailbox {
        Mailbox {
            requests: Mutex::default(),
            waker,
            waits: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// Hands over a connection; `false`: it is refused.
    pub(super) fn hand(&self, request: Request) -> bool {
        let mut requests = self.requests.lock();
        if self.is_dead.load(Ordering::SeqCst) {
            return false;
        }
        requests.push(request);
        drop(requests);
        self.wake();
        true
    }

    fn die(&self) -> usize {
        let mut requests = self.requests.lock();
        self.is_dead.store(true, Ordering::SeqCst);
        std::mem::take(&mut *requests).len()
    }

    pub(super) fn wake(&self) {
        (self.waker)();
    }

    /// More is durable, or the engine has failed.
    pub(super) fn durable_advanced(&self) {
        if self.waits.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }
}

/// A reply whose state is not durable yet.
struct Held {
    conn: Conn,
    ticket: Ticket,
    head: Head,
    body: Vec<u8>,
}

pub(super) struct EventLoop {
    link: Box<dyn Link>,
    number: usize,
    shared: Arc<Shared>,
    session: Box<dyn EngineSession>,
    pub(super) connections: HashMap<Conn, Connection>,
    events: Vec<Event>,
    /// Connections that have not said the password, since when, the oldest first.
    strangers: VecDeque<(Conn, Instant)>,
    /// Whether a write was submitted in this wake-up.
    is_uncommitted: bool,
    /// Replies of this wake-up, and whose they are.
    replies: Vec<(Conn, Reply)>,
    bodies: Vec<u8>,
    landed: Vec<u8>,
    /// Gives slots of the landing area, if clients can write there durably.
    giver: Option<Giver>,
    /// For values that clients read in place, if they may.
    reads: Option<Reads>,
    /// For values that clients write where they stay, if they may.
    lends: Option<Lends>,
    /// The bits of what the door offers beside the usual.
    ways: u64,
    /// Grants of closed connections.
    to_release: Vec<u32>,
    /// Connections that were given slots in this wake-up.
    to_apply: Vec<Conn>,
    held: Vec<Held>,
    /// When to ask whether the engine has failed, if nothing becomes durable until then.
    probe_at: Instant,
    /// The engine may have more work for this thread.
    has_work: bool,
    /// When the events that are handled were there.
    now: Instant,
    /// How often something was wanting when this loop last looked who keeps it, when it may look again, and
    /// whether it must.
    shortages: Shortages,
    look_at: Instant,
    has_suspects: bool,
}

impl EventLoop {
    pub(super) fn new(
        link: Box<dyn Link>,
        number: usize,
        shared: Arc<Shared>,
    ) -> Result<EventLoop, StartError> {
        let landing = shared.landing.clone().filter(|_| link.can_commit());
        let giver = landing.map(Giver::new);
        let lease = shared.settings.read_lease;
        let reads = lease.and_then(|lease| Some(Reads::new(shared.engine.readable()?, lease)));
        let lender = shared.engine.lender().filter(|_| shared.settings.lends);
        let lends = lender.map(|pool| Lends::new(Arc::clone(&shared.engine), pool));
        Ok(EventLoop {
            session: Arc::clone(&shared.engine).session()?,
            ways: {
                let offers = [
                    (giver.is_some(), BY_CLIENT),
                    (giver.is_some() && link.can_tell(), BY_CLIENT_TOLD),
                    (reads.is_some(), IN_PLACE),
                    (lends.is_some(), LENT),
                ];
                let offers = offers.into_iter().filter(|(offers, _)| *offers);
                offers.map(|(_, way)| way).sum()
            },
            giver,
            reads,
            lends,
            link,
            number,
            shared,
            connections: HashMap::new(),
            events: Vec::new(),
            strangers: VecDeque::new(),
            is_uncommitted: false,
            replies: Vec::new(),
            bodies: Vec::new(),
            landed: Vec::new(),
            to_release: Vec::new(),
            to_apply: Vec::new(),
            held: Vec::new(),
            probe_at: Instant::now(),
            has_work: false,
            now: Instant::now(),
            shortages: Shortages::default(),
            look_at: Instant::now(),
            has_suspects: false,
        })
    }

    /// Runs until the door stops.
    pub(super) fn run(mut self) {
        let mut stop_at = None;
        loop {
            if let Err(error) = self.turn(self.timeout(), stop_at.is_some()) {
                tracing::error!(%error, "a loop of the fabric door has failed");
                break;
            }
            if stop_at.is_none() && self.shared.is_stopping.load(Ordering::SeqCst) {
                stop_at = Some(Instant::now() + self.shared.settings.drain_timeout);
            }
            let is_over = |until| self.held.is_empty() || Instant::now() >= until;
            if stop_at.is_some_and(is_over) {
                break;
            }
        }
        let refused = self.mailbox().die();
        self.forget(refused);
        let open: Vec<Conn> = self.connections.keys().copied().collect();
        open.into_iter().for_each(|conn| self.close(conn));
        self.settle();
        self.release_slots();
    }

    /// One wake-up. A loop that is stopping takes no more requests.
    pub(super) fn turn(
        &mut self,
        timeout: Option<Duration>,
        is_stopping: bool,
    ) -> Result<(), LinkError> {
        let mut events = std::mem::take(&mut self.events);
        self.link.wait(timeout, &mut events)?;
        self.now = Instant::now();
        for event in events.drain(..) {
            self.handle(event, is_stopping);
        }
        self.events = events;
        self.accept(is_stopping);
        self.expel_strangers();
        self.expel_silent();
        self.settle();
        self.release_slots();
        self.release();
        self.apply_arrived();
        self.help_engine();
        Ok(())
    }

    /// Whether the engine has more work for this thread.
    #[cfg(feature = "modelled")]
    pub(super) fn has_work(&self) -> bool {
        self.has_work
    }

    fn mailbox(&self) -> &Mailbox {
        // Loops are numbered by their mailboxes; the modulus only avoids a panic path.
        &self.shared.mailboxes[self.number % self.shared.mailboxes.len()]
    }

    fn timeout(&self) -> Option<Duration> {
        match (self.has_work, self.held.is_empty()) {
            (true, _) => Some(Duration::ZERO),
            (false, false) => Some(SLEEP_HELD),
            (false, true) => (self.has_suspects || !self.strangers.is_empty()).then_some(TICK),
        }
    }

    fn forget(&self, count: usize) {
        self.shared
            .connections
            .fetch_sub(count as u64, Ordering::Relaxed);
    }

    fn handle(&mut self, event: Event, is_stopping: bool) {
        match event {
            Event::Message(conn, buffer) => {
                let is_sound = !is_stopping && self.carry_out(conn, &buffer);
                // The request was carried out, so its buffer may take the next one.
                let again = is_sound && self.connections.contains_key(&conn);
                let given = self.link.give_back(buffer, again);
                if !is_sound && !is_stopping {
                    self.mailbox().counters.expelled.add(1);
                    self.close(conn);
                } else if given.is_err() {
                    self.close(conn);
                }
            }
            Event::Told(from, word) => {
                if let Some(conn) = self.told(from, word, is_stopping) {
                    self.mailbox().counters.expelled.add(1);
                    self.close(conn);
                }
            }
            Event::Closed(conn) => self.close(conn),
            // A door writes and reads nothing of its clients.
            Event::Opened | Event::Written(_) | Event::Committed(..) | Event::Read(..) => {}
        }
    }

    /// Carries out a message; `false`: its connection is to be closed.
    fn carry_out(&mut self, conn: Conn, buffer: &Buffer) -> bool {
        let Some(connection) = self.connections.get_mut(&conn) else {
            // What it sent before it was closed.
            return true;
        };
        connection.hear(self.now);
        let bytes = self.link.message(buffer);
        let message = wire::read_up_to(bytes, self.link.body_bytes());
        let message = message.filter(|message| !message.head.is_reply);
        let may_ask =
            connection.under_way < connection.credits && self.link.unsent(conn) < UNREAD_MAX;
        let Some(message) = message.filter(|_| may_ask) else {
            return false;
        };
        let body_bytes = self.link.body_bytes();
        // Those that need the link mostly have short messages.
        let copy;
        let needs_link = match message.head.kind {
            Kind::Prepare | Kind::Done => true,
            Kind::Get => message.head.place == IN_PLACE,
            _ => false,
        };
        let (bytes, link): (&[u8], Option<&mut dyn Link>) = match needs_link {
            true => {
                copy = bytes.to_vec();
                (&copy, Some(&mut *self.link))
            }
            false => (bytes, None),
        };
        let mailbox = &self.shared.mailboxes[self.number % self.shared.mailboxes.len()];
        let mut tools = Tools {
            session: &mut *self.session,
            link,
            body_bytes,
            conn,
            is_uncommitted: self.is_uncommitted,
            bodies: &mut self.bodies,
            landed: &mut self.landed,
            giver: self.giver.as_mut(),
            ways: self.ways,
            reads: self.reads.as_mut(),
            lends: self.lends.as_mut(),
            memory: &self.shared.memory,
            password: &self.shared.settings.password,
            hello: &self.shared.hello,
            counters: &mailbox.counters,
        };
        let key = bytes.get(message.key).unwrap_or_default();
        let body = bytes.get(message.body).unwrap_or_default();
        let outcome = tools.carry_out(connection, &message.head, key, body);
        match outcome {
            Ok(reply) => {
                self.is_uncommitted |= reply.is_on_commit;
                connection.under_way += 1;
                connection.requests += 1;
                mailbox.counters.requests.add(1);
                self.replies.push((conn, reply));
                true
            }
            Err(Expelled) => false,
        }
    }

    /// A client tells with its durable write that the value of a grant is there (RDMP-CC-Imm). Returns the
    /// connection that is to be closed for it, if any.
    fn told(&mut self, from: Option<Conn>, word: u32, is_stopping: bool) -> Option<Conn> {
        let giver = self.giver.as_mut();
        // Where the link does not know who tells it, nobody can be blamed for what is nobody's.
        let Some((conn, giver)) = giver.and_then(|giver| Some((giver.teller(word)?, giver))) else {
            return from;
        };
        if from.is_some_and(|from| from != conn) {
            return from;
        }
        let connection = self.connections.get_mut(&conn)?;
        connection.hear(self.now);
        let may_ask =
            connection.under_way < connection.credits && self.link.unsent(conn) < UNREAD_MAX;
        let told = connection.slots.told(giver, word).filter(|_| may_ask);
        let Some((number, sequence)) = told else {
            return Some(conn);
        };
        if is_stopping {
            return None;
        }
        connection.under_way += 1;
        connection.requests += 1;
        // Whoever applies arrivals waits for keys that this session may hold until it commits.
        let committed = match self.is_uncommitted {
            true => self.session.commit().map(drop),
            false => Ok(()),
        };
        let head = Head::request(Kind::Done, sequence);
        let begin = self.bodies.len();
        let head = match committed.and_then(|()| giver.landing.arrived(number)) {
            Ok(true) => {
                self.mailbox().counters.written.add(1);
                head.reply(Status::Ok)
            }
            // What was told of is not there. The client learns that its put is not known to be done.
            Ok(false) => return Some(conn),
            Err(error) => {
                let text = error.to_string();
                let text = text.as_bytes();
                self.bodies
                    .extend_from_slice(text.get(..INLINE_BYTES).unwrap_or(text));
                head.reply(status_of(&error))
            }
        };
        self.mailbox().counters.requests.add(1);
        let reply = Reply {
            head,
            body: begin..self.bodies.len(),
            depends: Ticket::NONE,
            is_on_commit: false,
            slot: None,
        };
        self.replies.push((conn, reply));
        None
    }

    fn accept(&mut self, is_stopping: bool) {
        let requests = std::mem::take(&mut *self.mailbox().requests.lock());
        for request in requests {
            if is_stopping {
                self.forget(1);
                continue;
            }
            let connection = Connection::new();
            match self
                .link
                .accept(request, usize::from(connection.credits) + 1)
            {
                Ok(conn) => {
                    self.connections.insert(conn, connection);
                    self.strangers.push_back((conn, Instant::now()));
                    self.mailbox().counters.accepted.add(1);
                }
                Err(error) => {
                    self.forget(1);
                    tracing::debug!(%error, "a connection could not be accepted");
                }
            }
        }
    }

    /// Commits what was submitted. Replies that may leave do, and the others are held.
    fn settle(&mut self) {
        let commit = match std::mem::take(&mut self.is_uncommitted) {
            true => self.session.commit(),
            false => Ok(Ticket::NONE),
        };
        if let Err(error) = &commit {
            tracing::error!(%error, "a commit failed");
        }
        let granted = self.commit_grants();
        let mut granted = granted.as_ref().map(|grants| grants.iter());
        let durable = self.shared.engine.durable();
        let bodies = std::mem::take(&mut self.bodies);
        let mut replies = std::mem::take(&mut self.replies);
        for (conn, reply) in replies.drain(..) {
            let Reply {
                head,
                body,
                depends,
                is_on_commit,
                slot,
            } = reply;
            let body = bodies.get(body).unwrap_or_default();
            if let Some(slot) = slot {
                match &mut granted {
                    Ok(grants) => self.tell_grant(conn, &head, slot, grants.next()),
                    Err(error) => {
                        self.refuse(conn, &head, error);
                        // Its slots are not what it believes.
                        self.close(conn);
                    }
                }
                continue;
            }
            match &commit {
                Err(error) if is_on_commit => self.refuse(conn, &head, error),
                commit => {
                    let committed = commit.as_ref().copied().unwrap_or(Ticket::NONE);
                    let ticket = match is_on_commit {
                        true => depends.max(committed),
                        false => depends,
                    };
                    if ticket <= durable {
                        self.send(conn, head, body);
                        continue;
                    }
                    if self.held.is_empty() {
                        self.probe_at = Instant::now() + TICK;
                    }
                    self.held.push(Held {
                        conn,
                        ticket,
                        head,
                        body: body.to_vec(),
                    });
                }
            }
        }
        (self.replies, self.bodies) = (replies, bodies);
        self.bodies.clear();
        self.bodies.shrink_to(BODIES_KEPT);
    }

    /// Makes the grants of this wake-up durable.
    fn commit_grants(&mut self) -> Result<Vec<Grant>, Error> {
        let granted = self.giver.as_mut().map(|giver| giver.granter.commit());
        granted.unwrap_or(Ok(Vec::new())).inspect_err(|error| {
            tracing::error!(%error, "grants of the landing area failed");
        })
    }

    /// Tells a grant to its client, from which moment on it may write.
    fn tell_grant(&mut self, conn: Conn, head: &Head, slot: usize, grant: Option<&Grant>) {
        let (Some(grant), Some(giver)) = (grant, &self.giver) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&conn) else {
            self.to_release.push(grant.number);
            return;
        };
        let slots = &mut connection.slots;
        match slots.give(slot, grant, &giver.landing, &mut *self.link, conn) {
            Ok(given) => {
                let answer = Head {
                    grant: u64::from(grant.number),
                    sum: grant.nonce,
                    place: given.address,
                    ..*head
                };
                let mut body = [given.key.to_le_bytes(), grant.generation.to_le_bytes()].concat();
                let word = given.word.map(u64::from);
                body.extend(word.iter().flat_map(|word| word.to_le_bytes()));
                self.send(conn, answer, &body);
                self.to_apply.push(conn);
            }
            Err(error) => {
                tracing::error!(%error, "a slot of the landing area cannot be exposed");
                self.close(conn);
            }
        }
    }

    /// Releases the slots of closed connections. The session has committed: whoever applies an arrival waits
    /// for keys.
    fn release_slots(&mut self) {
        let Some(giver) = &self.giver else {
            return;
        };
        for number in self.to_release.drain(..) {
            if let Err(error) = giver.landing.release(number) {
                // It stays until its key is asked for, or the pool is opened again.
                tracing::warn!(%error, "what a client has written could not be applied yet");
            }
        }
    }

    /// Applies what has arrived from clients who were just told where to write next: their replies have left.
    /// The session has committed.
    fn apply_arrived(&mut self) {
        let Some(giver) = &self.giver else {
            return;
        };
        for conn in self.to_apply.drain(..) {
            let connection = self.connections.get_mut(&conn);
            let applied = connection.map_or(Ok(()), |one| one.slots.apply_some(&giver.landing));
            if let Err(error) = applied {
                // It stays, and whoever asks for its key is told.
                tracing::debug!(%error, "what a client has written could not be applied yet");
            }
        }
    }

    fn refuse(&mut self, conn: Conn, head: &Head, error: &Error) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && head.kind == Kind::Get
        {
            // Nobody will ask for the parts of what was not shown.
            connection.long.take_if(|long| long.number == head.grant);
        }
        let head = head.reply(status_of(error));
        let text = format!("this is not durable: {error}");
        let text = text.as_bytes();
        self.send(conn, head, text.get(..INLINE_BYTES).unwrap_or(text));
    }

    fn send(&mut self, conn: Conn, mut head: Head, body: &[u8]) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.under_way -= 1;
        connection.hear(self.now);
        if head.kind == Kind::Get
            && let Some(long) = &mut connection.long
        {
            long.is_shown |= long.number == head.grant;
        }
        let mut more = connection.more_credits();
        if more > 0 {
            let bytes = usize::from(more) * self.link.body_bytes();
            connection.buffers = self.shared.memory.share(bytes, true);
            more *= u16::from(connection.buffers.is_some());
        }
        connection.credits += more;
        head.credits = connection.credits;
        let mut posted = (0..more).map(|_| self.link.post(conn));
        let posted = posted.find_map(Result::err).map_or(Ok(()), Err);
        let bytes = head.to_bytes(&[], body);
        if let Err(error) = posted.and_then(|()| self.link.send(conn, &[&bytes, body])) {
            tracing::debug!(%error, "a reply could not be sent");
            self.close(conn);
        }
    }

    /// Sends what has become durable, and asks for the rest.
    fn release(&mut self) {
        let Some(wanted) = self.held.iter().map(|held| held.ticket).max() else {
            return;
        };
        // Before what is durable is read: later news causes another wake-up.
        self.mailbox().waits.store(true, Ordering::SeqCst);
        self.shared.engine.request(wanted);
        let durable = self.shared.engine.durable();
        let held = std::mem::take(&mut self.held);
        let before = held.len();
        for one in held {
            match one.ticket <= durable {
                true => self.send(one.conn, one.head, &one.body),
                false => self.held.push(one),
            }
        }
        let now = Instant::now();
        let is_stuck = self.held.len() == before;
        if is_stuck && now < self.probe_at {
            return;
        }
        self.probe_at = now + TICK;
        if is_stuck && let Err(error) = self.session.commit() {
            // The engine has failed: what waits will never be durable.
            for one in std::mem::take(&mut self.held) {
                self.refuse(one.conn, &one.head, &error);
            }
        }
    }

    /// Does a slice of the engine's own work, if the engine wants that.
    fn help_engine(&mut self) {
        self.has_work = match self.session.turn() {
            Ok(has_worked) => has_worked,
            Err(error) => {
                // The next writer gets the error.
                tracing::debug!(%error, "the store's own work failed");
                false
            }
        };
    }

    fn close(&mut self, conn: Conn) {
        self.link.close(conn);
        if let Some(connection) = self.connections.remove(&conn) {
            let loans = connection.grants.end(&mut *self.link);
            loans
                .into_iter()
                .for_each(|loan| self.shared.engine.take_back(loan));
            connection.readable.end(&mut *self.link);
            let slots = connection.slots;
            self.to_release
                .extend(slots.end(&mut *self.link, self.giver.as_mut()));
            self.forget(1);
            self.held.retain(|held| held.conn != conn);
        }
    }
}
