//! A port: one end with all its connections, for one thread.

use crate::area::{Access, Area, Areas};
use crate::constants::FI_MR_LOCAL;
use crate::domain::{Completed, Domain, Queue, Waker};
use crate::endpoint::Endpoint;
use crate::fabric::{EventQueue, Fabric};
use crate::info::{End, Info, ask_for};
use crate::listener::{Incoming, Listener};
use crate::slab::{Job, Slab};
use crate::{Error, Event, Library};
use everdram_pm::Window;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A connection of a port. Never used again for another one of the same port; later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Conn(pub u64);

impl Conn {
    /// No connection.
    pub(crate) const NONE: Conn = Conn(0);
}

impl fmt::Display for Conn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// A received message that its holder has not given back; [`Port::message`] shows it.
#[derive(Debug)]
pub struct Buffer(pub u32);

/// A port's buffers are of one size, so more than this is a mistake; large data goes by writes and reads.
const MOST_MESSAGE_BYTES: usize = 1 << 30;

/// Sizes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The largest message, in bytes, at most 1 GiB. Each receive buffer has as many.
    pub message_bytes: usize,
}

/// One connection's state.
pub(crate) struct Connection {
    pub(crate) endpoint: Endpoint,
    /// Whether the user knows that it is open, or is about to.
    pub(crate) is_open: bool,
    /// Operations that the provider had no room for, or that came before it was open; in their order.
    pub(crate) waiting: VecDeque<u32>,
}

/// One end with all its connections: a domain, a completion queue, a queue of events.
///
/// It is owned and used by one thread, and may move between threads. Data moves only while that thread is in
/// a call of the port, so a user comes back to [`Port::wait`] soon, and waits nowhere else.
pub struct Port {
    pub(crate) connections: HashMap<Conn, Connection>,
    /// Endpoints that the provider was not ready to close.
    pub(crate) closing: Vec<Endpoint>,
    /// From what events name an endpoint by to its connection.
    pub(crate) names: HashMap<usize, Conn>,
    /// Events found outside of a wait.
    pub(crate) ready: Vec<Event>,
    /// Connections that are over, as soon as the completions before that are read.
    pub(crate) over: Vec<Conn>,
    /// Connections with operations that wait.
    pub(crate) stalled: Vec<Conn>,
    /// Slots of closed endpoints, to be freed once the completion queue was empty.
    pub(crate) dead: Vec<u32>,
    /// Connections that are neither open nor over.
    pub(crate) opening: usize,
    /// When the last of them began.
    pub(crate) opening_since: Instant,
    pub(crate) events_read: Instant,
    pub(crate) completions: Vec<Completed>,
    conns: u64,
    pub(crate) slab: Slab,
    areas: Areas,
    /// Whether writes may be durable when they complete.
    pub(crate) can_commit: bool,
    /// Whether those may tell the peer something.
    pub(crate) can_tell: bool,
    /// Where connections made by this port go; for another address the provider is asked again.
    destination: Option<(SocketAddr, Info)>,
    pub(crate) provider: String,
    pub(crate) queue: Arc<Queue>,
    pub(crate) events: Arc<EventQueue>,
    pub(crate) domain: Arc<Domain>,
    /// Not for two threads at once.
    _unshared: PhantomData<Cell<()>>,
}

impl fmt::Debug for Port {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Port")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl Port {
    /// A port that accepts what a listener hears. Many ports may share a listener.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the library refuses; [`Error::Unsupported`] for messages longer than the
    /// provider's.
    pub fn of(listener: &Listener, sizes: Sizes) -> Result<Port, Error> {
        let fabric = &listener.endpoint.fabric;
        Port::open(fabric, &listener.info, sizes, listener.info.provider())
    }

    /// A port that connects, first of all to an address.
    ///
    /// # Errors
    ///
    /// As for [`Port::of`]. Nothing is sent yet, so an address where nobody listens is no error here.
    pub fn connecting(
        library: &'static Library,
        provider: &str,
        to: SocketAddr,
        sizes: Sizes,
    ) -> Result<Port, Error> {
        let info = ask_for(library, provider, End::There(to))?;
        let fabric = Fabric::open(library, &info)?;
        let mut port = Port::open(&fabric, &info, sizes, provider.to_owned())?;
        port.destination = Some((to, info));
        Ok(port)
    }

    fn open(
        fabric: &Arc<Fabric>,
        info: &Info,
        sizes: Sizes,
        provider: String,
    ) -> Result<Port, Error> {
        let offer = info.first();
        let limit = offer.max_message_bytes().min(MOST_MESSAGE_BYTES);
        if sizes.message_bytes > limit {
            let wanted = sizes.message_bytes;
            let text = format!(
                "{provider} carries messages of {limit} bytes, not {wanted}; make the port for less"
            );
            return Err(Error::Unsupported(text));
        }
        let (mode, key_bytes) = (offer.mr_mode(), offer.key_bytes());
        let (can_commit, can_tell) = (offer.can_commit(), offer.can_tell());
        let domain = Domain::open(fabric, info)?;
        let events = Arc::new(EventQueue::open(fabric)?);
        let queue = Queue::open(&domain)?;
        Ok(Port {
            connections: HashMap::new(),
            closing: Vec::new(),
            names: HashMap::new(),
            ready: Vec::new(),
            over: Vec::new(),
            stalled: Vec::new(),
            dead: Vec::new(),
            opening: 0,
            opening_since: Instant::now(),
            events_read: Instant::now(),
            completions: Vec::new(),
            conns: 0,
            slab: Slab::new(domain.clone(), sizes.message_bytes, mode & FI_MR_LOCAL != 0),
            areas: Areas::new(domain.clone(), mode, key_bytes, can_commit),
            can_commit,
            can_tell,
            destination: None,
            provider,
            queue,
            events,
            domain,
            _unshared: PhantomData,
        })
    }

    /// Accepts a request, and posts so many receive buffers first. [`Event::Opened`] or [`Event::Closed`]
    /// follows.
    ///
    /// Post at least one buffer more than the peer may use at once, and close a peer that uses it. Otherwise
    /// a message that finds no buffer makes a waiting port spin, with `tcp` of version 1.17.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the library refuses, [`Error::Unsupported`] for more buffers than the provider
    /// takes; the peer is refused.
    pub fn accept(&mut self, incoming: Incoming, buffers: usize) -> Result<Conn, Error> {
        let mut is_used = false;
        let opened = Endpoint::open(
            &incoming.info,
            &self.domain,
            &self.queue,
            &self.events,
            &mut is_used,
        );
        if is_used {
            incoming.answered();
        }
        self.enter(opened?, buffers, Endpoint::accept)
    }

    /// Connects to an address, and posts so many receive buffers first. [`Event::Opened`] or
    /// [`Event::Closed`] follows. The parameter goes with the request: 55 bytes at most with verbs, 256 with
    /// tcp.
    ///
    /// # Errors
    ///
    /// As for [`Port::accept`].
    pub fn connect(
        &mut self,
        to: SocketAddr,
        parameter: &[u8],
        buffers: usize,
    ) -> Result<Conn, Error> {
        let library = self.domain.library();
        let info = match self.destination.take() {
            Some((known, info)) if known == to => info,
            _ => ask_for(library, &self.provider, End::There(to))?,
        };
        let opened = Endpoint::open(&info, &self.domain, &self.queue, &self.events, &mut false);
        self.destination = Some((to, info));
        self.enter(opened?, buffers, |endpoint| endpoint.connect(to, parameter))
    }

    /// Enters a new endpoint, posts its buffers and begins the connection.
    fn enter(
        &mut self,
        endpoint: Endpoint,
        buffers: usize,
        begin: impl FnOnce(&Endpoint) -> Result<(), Error>,
    ) -> Result<Conn, Error> {
        self.conns += 1;
        let conn = Conn(self.conns);
        self.names.insert(endpoint.id().addr(), conn);
        self.connections.insert(
            conn,
            Connection {
                endpoint,
                is_open: false,
                waiting: VecDeque::new(),
            },
        );
        self.opening += 1;
        self.opening_since = Instant::now();
        let posted = (0..buffers).try_for_each(|_| self.post(conn));
        let begun = posted.and_then(|()| match self.connections.get(&conn) {
            Some(connection) => begin(&connection.endpoint),
            None => Err(Error::Closed(conn)),
        });
        match begun {
            Ok(()) => Ok(conn),
            Err(error) => {
                self.close(conn);
                Err(error)
            }
        }
    }

    /// Closes a connection. No event of it arrives afterwards, and no peer of it reaches this port's memory.
    /// Messages that were received stay readable until they are given back; what was just sent may be lost.
    pub fn close(&mut self, conn: Conn) {
        self.end(conn, None);
        // Also what the end of it, or a wait before, has put there.
        let (gone, ready) = std::mem::take(&mut self.ready)
            .into_iter()
            .partition(|event| event.conn() == conn);
        self.ready = ready;
        let gone: Vec<Event> = gone;
        for event in gone {
            if let Event::Message(_, buffer) = event {
                self.slab.release(buffer.0);
            }
        }
    }

    /// A connection failed or was ended by its peer: closes it and tells the user, once.
    pub(crate) fn fail(&mut self, conn: Conn) {
        if self.connections.contains_key(&conn) {
            let mut told = Vec::new();
            self.end(conn, Some(&mut told));
            self.ready.append(&mut told);
            self.ready.push(Event::Closed(conn));
        }
    }

    /// Closes the endpoint and gives up its operations, of which `told` gets the ends.
    fn end(&mut self, conn: Conn, told: Option<&mut Vec<Event>>) {
        let Some(connection) = self.connections.remove(&conn) else {
            return;
        };
        self.names.remove(&connection.endpoint.id().addr());
        self.over.retain(|&over| over != conn);
        self.stalled.retain(|&stalled| stalled != conn);
        if connection.is_open {
            connection.endpoint.shutdown();
        } else {
            self.opening -= 1;
        }
        if let Err(endpoint) = connection.endpoint.close() {
            self.closing.push(endpoint);
        }
        let mut ends = Vec::new();
        for index in self.slab.of(conn) {
            let slot = self.slab.slot_mut(index);
            match slot.job {
                Job::Held => continue,
                Job::Write(_) => {
                    ends.push(Event::Written(conn, slot.token, Err(Error::Closed(conn))))
                }
                Job::Read => ends.push(Event::Read(conn, slot.token, Err(Error::Closed(conn)))),
                Job::Free | Job::Receive | Job::Send => {}
            }
            if slot.is_dead {
                continue;
            }
            slot.is_dead = true;
            self.dead.push(index);
        }
        if let Some(told) = told {
            told.append(&mut ends);
        }
        self.free_areas();
    }

    /// Makes wakers for other threads.
    pub fn waker(&self) -> Waker {
        self.queue.waker()
    }

    /// Memory of the port that the peer of a connection may write and read, zeroed, if it is told the key.
    /// Any other peer of the port that knows the key may, too.
    ///
    /// The wall around it is the provider's. With `tcp` it is one against mistakes and not against malice:
    /// some releases write outside of it for a peer that forges a length.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], or [`Error::Call`] if the provider does not register it.
    pub fn expose(&mut self, conn: Conn, bytes: usize) -> Result<Area, Error> {
        self.areas.expose(conn, bytes, 0)
    }

    /// As [`Port::expose`], with `behind` bytes behind the area that a peer must not reach: a probe looks at
    /// them.
    pub(crate) fn expose_before(
        &mut self,
        conn: Conn,
        bytes: usize,
        behind: usize,
    ) -> Result<Area, Error> {
        self.areas.expose(conn, bytes, behind)
    }

    /// Copies what lies behind an area that [`Port::expose_before`] made.
    pub(crate) fn read_behind(&self, area: &Area, into: &mut [u8]) {
        self.areas.read_behind(area, into);
    }

    /// Memory of a pool that the peer of a connection may write or read, if it is told the key; as
    /// [`Port::expose`] otherwise. What lies there stays as it is.
    ///
    /// The port keeps the window, and with it the pool, until the connection is closed: also after
    /// [`Port::unexpose`], and where the provider chooses keys until all connections of its time are closed. If
    /// the provider never closes an endpoint, the window is leaked.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the provider does not register it. `verbs` cannot pin memory of a file system (fsdax);
    /// it needs a device (devdax).
    pub fn expose_window(
        &mut self,
        conn: Conn,
        window: &Arc<Window>,
        access: Access,
    ) -> Result<Area, Error> {
        self.expose_part(conn, window, 0..window.len(), access)
    }

    /// As [`Port::expose_window`], of these bytes of the window. However many parts of one window a
    /// connection is given and loses, the window is kept once.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Panics
    ///
    /// If the window does not have all of these bytes.
    pub fn expose_part(
        &mut self,
        conn: Conn,
        window: &Arc<Window>,
        part: Range<usize>,
        access: Access,
    ) -> Result<Area, Error> {
        self.areas.expose_part(conn, window, part, access)
    }

    /// Messages and writes of a connection that the provider has not finished. Whoever does not take in what
    /// it asked for makes them many.
    #[must_use]
    pub fn unsent(&self, conn: Conn) -> usize {
        self.slab.unsent(conn)
    }

    /// Takes an area back: new writes and reads of it fail. Its memory is kept until its connection is
    /// closed, since a write that has begun may go on; where the provider chooses keys, which can be guessed,
    /// until all connections of its time are.
    pub fn unexpose(&mut self, area: Area) {
        self.areas.unexpose(area, Conn(self.conns));
        self.free_areas();
    }

    pub(crate) fn free_areas(&mut self) {
        if self.areas.is_waiting() && self.closing.is_empty() {
            self.areas.free(&self.connections);
        }
    }

    /// Copies bytes of an area. A peer may write meanwhile; then each byte is old or new.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfArea`] if they are not all in it, or the area is not one of this port.
    pub fn read_area(&self, area: &Area, at: usize, into: &mut [u8]) -> Result<(), Error> {
        self.areas.read(area, at, into)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let conns: Vec<Conn> = self.connections.keys().copied().collect();
        for conn in conns {
            self.end(conn, None);
        }
        // Memory may go only when no endpoint is left.
        for _ in 0..1000 {
            if self.closing.is_empty() {
                return;
            }
            let _ = self.queue.take(1, &mut self.completions);
            self.close_again();
        }
        // The provider keeps an endpoint, so it may write: what it may reach is leaked rather than freed.
        std::mem::forget(std::mem::replace(
            &mut self.slab,
            Slab::new(self.domain.clone(), 0, false),
        ));
        std::mem::forget(std::mem::replace(
            &mut self.areas,
            Areas::new(self.domain.clone(), 0, 0, false),
        ));
    }
}

impl Port {
    /// Tries again to close what the provider was not ready to close.
    pub(crate) fn close_again(&mut self) {
        if !self.closing.is_empty() {
            self.closing = std::mem::take(&mut self.closing)
                .into_iter()
                .filter_map(|e| e.close().err())
                .collect();
            self.free_areas();
        }
    }
}
