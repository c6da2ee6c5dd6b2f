//! A link within one process: both ends are threads here, and no library is needed.
//!
//! Who writes plays the network adapter of the other side (`adapter.rs`): its thread copies the bytes into
//! the memory that the peer exposes. A message waits with the receiver until it has a buffer for it, as on a
//! network.
//!
//! A network may be modelled ([`Network::with_delays`]): each end has a clock of its own (`inside/time.rs`),
//! and what goes over a connection carries the time at which it is there.

mod time;

use crate::adapter::Adapter;
use crate::link::{Access, Area, Buffer, Conn, Event, Link, LinkError, Listen, Request, Waker};
use crate::wire::{INLINE_BYTES, VALUE_BYTES_MAX};
use everdram_pm::Window;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use time::Time;
pub use time::{NETWORK_PRESETS, NetworkPreset};

/// A network of this process. Clones are the same network.
#[derive(Clone, Default)]
pub struct Network {
    calls: Arc<Calls>,
}

#[derive(Default)]
struct Calls {
    waiting: Mutex<VecDeque<Call>>,
    bell: Condvar,
    /// What the ports of doors draw from, if anything.
    seed: Option<AtomicU64>,
    /// How long messages take, if that is modelled.
    delays: Option<&'static NetworkPreset>,
    /// The longest body of a message, if it is not [`INLINE_BYTES`].
    body_bytes: Option<usize>,
}

/// The other end of a connection.
#[derive(Clone)]
struct Far {
    mailbox: Arc<Mailbox>,
    conn: Conn,
}

impl Far {
    /// Delivers something that is there at a time of a modelled network; 0: at once.
    fn deliver(&self, due_ns: u64, arrival: Arrival) {
        self.mailbox.deliver(due_ns, arrival);
    }
}

/// What arrived at a port.
enum Arrival {
    Opened(Conn, Far),
    Bytes(Conn, Vec<u8>),
    /// One-sided access of this end has ended.
    Ended(Event),
    /// The peer says this with a write that has landed.
    Told(Conn, u32),
    Closed(Conn),
}

/// A port, as other threads see it.
#[derive(Default)]
struct Mailbox {
    state: Mutex<State>,
    bell: Condvar,
    /// The clock of this end, on a modelled network.
    time: Option<Time>,
}

impl Mailbox {
    fn deliver(&self, due_ns: u64, arrival: Arrival) {
        self.state.lock().put(due_ns, arrival);
        self.bell.notify_all();
    }
}

#[derive(Default)]
struct State {
    /// What has arrived, and the time at which it is there, the earliest first.
    arrived: VecDeque<(u64, Arrival)>,
    is_woken: bool,
    /// Memory that peers reach.
    adapter: Adapter,
    /// Connections that have not ended at this end: peers reach memory over those alone.
    open: HashSet<Conn>,
    /// Connections that were closed before anybody accepted them.
    cancelled: HashSet<Conn>,
}

impl State {
    fn put(&mut self, due_ns: u64, arrival: Arrival) {
        let place = self.arrived.partition_point(|(due, _)| *due <= due_ns);
        self.arrived.insert(place, (due_ns, arrival));
    }
}

/// The clock of an end of a modelled network. It runs while the end works, and nobody else's work counts:
/// ends may take turns on one thread, each as if it had a core of its own.
#[cfg(feature = "modelled")]
#[derive(Clone)]
pub struct EndClock(Arc<Mailbox>);

#[cfg(feature = "modelled")]
impl EndClock {
    fn time<T>(&self, of: impl FnOnce(&Time) -> T) -> Option<T> {
        self.0.time.as_ref().map(of)
    }

    /// The end works from now on.
    pub fn run(&self) {
        self.time(Time::run);
    }

    /// The end does not work from now on.
    pub fn pause(&self) {
        self.time(Time::pause);
    }

    /// Its time in nanoseconds. All ends of a network began at 0.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.time(Time::now_ns).unwrap_or(0)
    }

    /// Nanoseconds that it has worked.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.time(Time::busy_ns).unwrap_or(0)
    }

    /// When the next thing arrives that it has not taken in, at the earliest now; `None`: nothing is under
    /// way to it.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        let next = self.0.state.lock().arrived.front().map(|(due, _)| *due);
        next.map(|due| due.max(self.now_ns()))
    }

    /// Waits until the next thing has arrived; nothing is under way to it, and it does not wait.
    pub fn await_next(&self) {
        if let Some(next_ns) = self.next_ns() {
            self.time(|time| time.wait_for(next_ns, None));
        }
    }
}

/// A connection that is asked for. Dropped, it is refused.
pub(crate) struct Call {
    from: Option<Far>,
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(from) = self.from.take() {
            from.deliver(0, Arrival::Closed(from.conn));
        }
    }
}

/// The listening end of a network.
pub(crate) struct Ear(Arc<Calls>);

impl Network {
    /// A network on which nobody listens yet.
    #[must_use]
    pub fn new() -> Network {
        Network::default()
    }

    /// A network whose writes into windows of pools land in pieces, in an order that is drawn from a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Network {
        let calls = Calls {
            seed: Some(AtomicU64::new(seed)),
            ..Calls::default()
        };
        Network {
            calls: Arc::new(calls),
        }
    }

    /// A modelled network: what goes over it takes as long as the preset says, by clocks of its ends. Who
    /// measures lets them take turns on one thread. Bodies of messages have up to `body_bytes`, where other
    /// networks take [`INLINE_BYTES`].
    #[must_use]
    pub fn with_delays(preset: &'static NetworkPreset, body_bytes: usize) -> Network {
        let calls = Calls {
            delays: Some(preset),
            body_bytes: Some(body_bytes.min(VALUE_BYTES_MAX)),
            ..Calls::default()
        };
        Network {
            calls: Arc::new(calls),
        }
    }

    /// A port that asks for connections.
    pub(crate) fn own_port(&self) -> Port {
        let mut port = Port::new();
        if let Some(preset) = self.calls.delays {
            port.mailbox = Arc::new(Mailbox {
                time: Some(Time::new(preset)),
                ..Mailbox::default()
            });
        }
        port.body_bytes = self.calls.body_bytes.unwrap_or(INLINE_BYTES);
        port
    }

    /// A port for connections that this network asks for.
    pub(crate) fn port(&self) -> Port {
        let port = self.own_port();
        if let Some(seed) = &self.calls.seed {
            // Each port has an order of its own.
            let seed = seed.fetch_add(1, Ordering::Relaxed);
            port.mailbox.state.lock().adapter = Adapter::seeded(seed);
        }
        port
    }

    pub(crate) fn listen(&self) -> Ear {
        Ear(Arc::clone(&self.calls))
    }
}

impl Listen for Ear {
    fn wait(&mut self, timeout: Duration) -> Result<Option<Request>, LinkError> {
        let until = Instant::now() + timeout;
        let mut waiting = self.0.waiting.lock();
        while waiting.is_empty() && !self.0.bell.wait_until(&mut waiting, until).timed_out() {}
        let call = waiting.pop_front();
        Ok(call.map(|call| Box::new(call) as Request))
    }

    fn address(&self) -> String {
        "inside this process".into()
    }
}

/// What one end knows of a connection.
#[derive(Default)]
struct Near {
    far: Option<Far>,
    /// Messages that the peer may send before a buffer is given back.
    buffers: usize,
    /// Messages that wait for a buffer.
    early: VecDeque<Vec<u8>>,
}

/// One end.
pub(crate) struct Port {
    mailbox: Arc<Mailbox>,
    connections: HashMap<Conn, Near>,
    last: u64,
    /// Messages that the owner is reading, and whose they are.
    read: Vec<Option<(Conn, Vec<u8>)>>,
    written: Vec<Event>,
    guesses: bool,
    /// The longest body of a message.
    body_bytes: usize,
}

impl Port {
    pub(crate) fn new() -> Port {
        Port {
            mailbox: Arc::default(),
            connections: HashMap::new(),
            last: 0,
            read: Vec::new(),
            written: Vec::new(),
            guesses: false,
            body_bytes: INLINE_BYTES,
        }
    }

    /// One that does not know whether its durable writes are durable.
    #[cfg(test)]
    pub(crate) fn guessing() -> Port {
        let mut port = Port::new();
        port.guesses = true;
        port
    }

    /// Asks for a connection.
    pub(crate) fn connect(&mut self, network: &Network, buffers: usize) -> Conn {
        let conn = self.add(None, buffers);
        let from = Some(self.place(conn));
        network.calls.waiting.lock().push_back(Call { from });
        network.calls.bell.notify_all();
        conn
    }

    fn place(&self, conn: Conn) -> Far {
        Far {
            mailbox: Arc::clone(&self.mailbox),
            conn,
        }
    }

    fn add(&mut self, far: Option<Far>, buffers: usize) -> Conn {
        self.last += 1;
        let near = Near {
            far,
            buffers,
            early: VecDeque::new(),
        };
        self.connections.insert(Conn(self.last), near);
        self.mailbox.state.lock().open.insert(Conn(self.last));
        Conn(self.last)
    }

    fn far(&self, conn: Conn) -> Result<&Far, LinkError> {
        let near = self.connections.get(&conn);
        near.and_then(|near| near.far.as_ref())
            .ok_or(LinkError::Closed)
    }

    fn take_in(&mut self, arrival: Arrival, into: &mut Vec<Event>) {
        match arrival {
            Arrival::Opened(conn, far) => match self.connections.get_mut(&conn) {
                Some(near) => {
                    near.far = Some(far);
                    into.push(Event::Opened);
                }
                None => far.deliver(0, Arrival::Closed(far.conn)),
            },
            Arrival::Bytes(conn, bytes) => {
                if let Some(near) = self.connections.get_mut(&conn) {
                    near.early.push_back(bytes);
                    self.hand_over(conn, into);
                }
            }
            Arrival::Ended(event) => into.push(event),
            Arrival::Told(conn, told) => into.push(Event::Told(Some(conn), told)),
            Arrival::Closed(conn) => {
                if self.connections.remove(&conn).is_some() {
                    self.mailbox.state.lock().open.remove(&conn);
                    into.push(Event::Closed(conn));
                }
            }
        }
    }

    /// Messages for which there are buffers.
    fn hand_over(&mut self, conn: Conn, into: &mut Vec<Event>) {
        let Some(near) = self.connections.get_mut(&conn) else {
            return;
        };
        while near.buffers > 0
            && let Some(bytes) = near.early.pop_front()
        {
            near.buffers -= 1;
            let place = self.read.iter().position(Option::is_none);
            let place = place.unwrap_or(self.read.len());
            match self.read.get_mut(place) {
                Some(slot) => *slot = Some((conn, bytes)),
                None => self.read.push(Some((conn, bytes))),
            }
            into.push(Event::Message(conn, Buffer(place as u32)));
        }
    }
}

impl Link for Port {
    fn accept(&mut self, request: Request, buffers: usize) -> Result<Conn, LinkError> {
        let mut call = request.downcast::<Call>().map_err(|_| LinkError::Foreign)?;
        let from = call.from.take().ok_or(LinkError::Closed)?;
        let conn = self.add(Some(from.clone()), buffers);
        let mut state = from.mailbox.state.lock();
        if state.cancelled.remove(&from.conn) {
            drop(state);
            self.connections.remove(&conn);
            self.mailbox.state.lock().open.remove(&conn);
            return Err(LinkError::Closed);
        }
        let opened = Arrival::Opened(from.conn, self.place(conn));
        state.put(0, opened);
        from.mailbox.bell.notify_all();
        Ok(conn)
    }

    fn post(&mut self, conn: Conn) -> Result<(), LinkError> {
        let near = self.connections.get_mut(&conn).ok_or(LinkError::Closed)?;
        near.buffers += 1;
        Ok(())
    }

    fn send(&mut self, conn: Conn, parts: &[&[u8]]) -> Result<(), LinkError> {
        let far = self.far(conn)?;
        let message = parts.concat();
        let due_ns = self.sent(message.len());
        far.deliver(due_ns, Arrival::Bytes(far.conn, message));
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<Event>) -> Result<(), LinkError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        into.append(&mut self.written);
        let open: Vec<Conn> = self.connections.keys().copied().collect();
        for conn in open {
            self.hand_over(conn, into);
        }
        let mailbox = Arc::clone(&self.mailbox);
        let mut state = mailbox.state.lock();
        while into.is_empty() && state.arrived.is_empty() && !state.is_woken {
            // Whoever sleeps does not work.
            let _idle = mailbox.time.as_ref().map(Time::idle);
            match until {
                None => mailbox.bell.wait(&mut state),
                Some(until) => {
                    if mailbox.bell.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
            }
        }
        let has_other = std::mem::take(&mut state.is_woken) || !into.is_empty();
        let arrived = match (&mailbox.time, state.arrived.front()) {
            (None, _) | (_, None) => std::mem::take(&mut state.arrived),
            (Some(time), Some((due_ns, _))) => {
                let most = if has_other {
                    Some(Duration::ZERO)
                } else {
                    timeout
                };
                let now_ns = time.wait_for(*due_ns, most);
                let count = state.arrived.partition_point(|(due, _)| *due <= now_ns);
                state.arrived.drain(..count).collect()
            }
        };
        drop(state);
        for (_, arrival) in arrived {
            self.take_in(arrival, into);
        }
        Ok(())
    }

    fn message(&self, buffer: &Buffer) -> &[u8] {
        let held = self.read.get(buffer.0 as usize).and_then(Option::as_ref);
        held.map_or(&[], |(_, bytes)| bytes)
    }

    fn give_back(&mut self, buffer: Buffer, again: bool) -> Result<(), LinkError> {
        let held = self.read.get_mut(buffer.0 as usize).and_then(Option::take);
        if let Some((conn, _)) = held
            && let Some(near) = self.connections.get_mut(&conn)
        {
            near.buffers += usize::from(again);
        }
        Ok(())
    }

    fn close(&mut self, conn: Conn) {
        let Some(near) = self.connections.remove(&conn) else {
            return;
        };
        self.mailbox.state.lock().open.remove(&conn);
        let far = near.far.or_else(|| {
            let mut state = self.mailbox.state.lock();
            let accepted = state.arrived.iter().find_map(|(_, arrival)| match arrival {
                Arrival::Opened(of, far) if *of == conn => Some(far.clone()),
                _ => None,
            });
            if accepted.is_none() {
                state.cancelled.insert(conn);
            }
            accepted
        });
        if let Some(far) = far {
            far.deliver(self.sent(0), Arrival::Closed(far.conn));
        }
    }

    fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    #[cfg(feature = "modelled")]
    fn clock(&self) -> Option<EndClock> {
        let is_modelled = self.mailbox.time.is_some();
        is_modelled.then(|| EndClock(Arc::clone(&self.mailbox)))
    }

    fn waker(&self) -> Waker {
        let mailbox = Arc::clone(&self.mailbox);
        Arc::new(move || {
            mailbox.state.lock().is_woken = true;
            mailbox.bell.notify_all();
        })
    }

    fn expose(&mut self, _: Conn, bytes: usize) -> Result<Area, LinkError> {
        let key = self.mailbox.state.lock().adapter.expose(bytes);
        let address = 0;
        Ok(Area {
            address,
            key,
            bytes,
        })
    }

    fn expose_part(
        &mut self,
        _: Conn,
        window: &Arc<Window>,
        part: Range<usize>,
        access: Access,
    ) -> Result<Area, LinkError> {
        let adapter = &mut self.mailbox.state.lock().adapter;
        Ok(Area {
            address: 0,
            bytes: part.len(),
            key: adapter.expose_part(window, part, access),
        })
    }

    fn unexpose(&mut self, area: Area) {
        self.mailbox.state.lock().adapter.unexpose(area.key);
    }

    /// Here the peer's mailbox has them.
    fn unsent(&self, _: Conn) -> usize {
        0
    }

    fn read_area(&self, area: &Area, at: usize, into: &mut [u8]) -> Result<(), LinkError> {
        let state = self.mailbox.state.lock();
        let is_there = state.adapter.look(area.key, at as u64, into);
        is_there.then_some(()).ok_or(LinkError::Foreign)
    }

    fn write(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        (address, key): (u64, u64),
    ) -> Result<(), LinkError> {
        let done = self.reach(conn, |adapter| {
            adapter.write(key, address, bytes, false).then_some(())
        })?;
        let due_ns = self.written(bytes.len(), 0);
        self.ended(conn, due_ns, Event::Written(done.is_some()), done.is_some());
        Ok(())
    }

    /// The adapter of the other side flushes and fences what it wrote.
    fn can_commit(&self) -> bool {
        !self.guesses
    }

    fn write_durably(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        (address, key): (u64, u64),
        token: u64,
    ) -> Result<(), LinkError> {
        let done = self.reach(conn, |adapter| {
            let is_done = adapter.write(key, address, bytes, true);
            is_done.then(|| adapter.last_commit_ns())
        })?;
        let due_ns = self.written(bytes.len(), done.unwrap_or(0));
        let event = Event::Committed(token, done.is_some());
        self.ended(conn, due_ns, event, done.is_some());
        Ok(())
    }

    fn can_tell(&self) -> bool {
        !self.guesses
    }

    /// As the adapters of the network that is modelled do.
    fn checks_writes(&self) -> bool {
        self.mailbox.time.is_some()
    }

    fn write_and_tell(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        target: (u64, u64),
        token: u64,
        told: u32,
    ) -> Result<(), LinkError> {
        self.write_durably(conn, bytes, target, token)?;
        let due_ns = self.sent(bytes.len());
        // If the adapter has refused the write, the connection is closed.
        if let Ok(far) = self.far(conn) {
            far.deliver(due_ns, Arrival::Told(far.conn, told));
        }
        Ok(())
    }

    fn read(
        &mut self,
        conn: Conn,
        bytes: usize,
        (address, key): (u64, u64),
        token: u64,
    ) -> Result<(), LinkError> {
        let read = self.reach(conn, |adapter| adapter.read(key, address, bytes))?;
        let is_done = read.is_some();
        let due_ns = self.mailbox.time.as_ref().map(|time| time.read(bytes));
        self.ended(conn, due_ns, Event::Read(token, read), is_done);
        Ok(())
    }
}

impl Port {
    /// Does something with the adapter of the other side. `None`: it refuses, or has closed the connection.
    fn reach<T>(
        &self,
        conn: Conn,
        with: impl FnOnce(&mut Adapter) -> Option<T>,
    ) -> Result<Option<T>, LinkError> {
        let far = self.far(conn)?;
        // The work of an adapter is none of a processor.
        let _idle = self.mailbox.time.as_ref().map(Time::idle);
        let mut state = far.mailbox.state.lock();
        let is_open = state.open.contains(&far.conn);
        Ok(is_open.then(|| with(&mut state.adapter)).flatten())
    }

    /// When a message of so many bytes is there that leaves now.
    fn sent(&self, bytes: usize) -> u64 {
        let time = self.mailbox.time.as_ref();
        time.map_or(0, |time| time.message(bytes))
    }

    /// When a write of so many bytes has ended that leaves now, on a modelled network.
    fn written(&self, bytes: usize, commit_ns: u64) -> Option<u64> {
        let time = self.mailbox.time.as_ref();
        time.map(|time| time.write(bytes, commit_ns))
    }

    /// One-sided access has ended. An adapter breaks the connection of whoever goes where it may not.
    fn ended(&mut self, conn: Conn, due_ns: Option<u64>, event: Event, is_done: bool) {
        match due_ns.filter(|_| is_done) {
            Some(due_ns) => self.mailbox.deliver(due_ns, Arrival::Ended(event)),
            None => self.written.push(event),
        }
        if !is_done {
            self.close(conn);
            self.written.push(Event::Closed(conn));
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let open: Vec<Conn> = self.connections.keys().copied().collect();
        open.into_iter().for_each(|conn| self.close(conn));
        // Peers may know this mailbox longer.
        self.mailbox.state.lock().adapter.unexpose_all();
    }
}
