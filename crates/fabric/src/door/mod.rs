//! The fabric door: serves a store to clients of a fabric (RDMP-KV section III).
//!
//! One thread hears who wants to connect; loops serve the connections ([`event_loop`]). The Redis door and
//! embedded sessions may use the same store meanwhile: behind each loop is one session of it, as behind
//! theirs.

mod connection;
mod counters;
mod event_loop;
mod extents;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grants;
mod in_place;
mod lends;
mod memory;
mod request;
mod slots;
#[cfg(any(feature = "fuzzing", feature = "modelled"))]
pub(crate) mod turned;

use crate::identity::PoolId;
use crate::inside::Network;
use crate::libfabric;
use crate::link::{Link, LinkError, Listen};
use crate::wire;
use event_loop::{EventLoop, Mailbox};
use everdram::Store;
use everdram::engine::Engine;
use everdram::landing::Landing;
use everdram::password::Password;
use everdram_fabric_sys::Bounds;
use memory::Memory;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the listening thread sleeps between two looks at whether it shall end.
const LISTEN_TICK: Duration = Duration::from_millis(100);

/// The longest time for which clients may read in place: what others free waits as long.
const LEASE_MAX: Duration = Duration::from_secs(10);

/// How long the end of a door waits for that thread.
const LISTENER_MAX: Duration = Duration::from_secs(2);

/// How a door serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Event loops; each takes one session of the store. 1 by default.
    pub loops: usize,
    /// What clients must know. The other doors of the store may share it.
    pub password: Password,
    /// Whether an address that others can reach is served although the fabric does not keep peers inside of
    /// the memory that they are given: whoever knows the password can change this process then. `false` by
    /// default.
    pub trusts_peers: bool,
    /// How long a client may read a long value where it lies, without a thread of the door, after it has
    /// asked for it; at most 10 s. `None`, the default: not at all. The store must keep its room
    /// ([`Options::keep_room`](everdram::Options)), and peers be trusted: each can read whatever any may.
    /// What is freed meanwhile can be used again up to some four times as much later.
    pub read_lease: Option<Duration>,
    /// Whether clients may write long values into free blocks of the store, of which they then are a part
    /// without a copy. `false` by default. The store must lend ([`Options::lend_bytes`](everdram::Options)),
    /// and peers be trusted: one that uses two connections could change its value after it was acknowledged.
    pub lends: bool,
    /// Connections at once; more are refused. 10,000 by default.
    pub connections_max: usize,
    /// Bytes that all connections together may have: to write values to (1 MiB each, and up to 4 MiB as long
    /// as half of all is left), for a long value that is read part by part (1 MiB each at most), and for more
    /// than one request under way (240 KiB each, as long as half is left). Whoever wants more is told to ask
    /// again. 1 GiB by default, 1 MiB at least. What every connection has comes on top: two buffers of 17
    /// KiB, and replies that its client does not take in, 1 MiB at most.
    pub memory_bytes: u64,
    /// How long a connection may keep such memory, or slots of the landing area, without asking for anything
    /// while others want some; then it is closed. 10 s by default.
    pub lease: Duration,
    /// How long replies that wait for durability are given to leave when the door stops. 1 s by default.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            loops: 1,
            password: Password::default(),
            trusts_peers: false,
            read_lease: None,
            lends: false,
            connections_max: 10_000,
            memory_bytes: 1 << 30,
            lease: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(1),
        }
    }
}

/// Why a door does not open.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no libfabric on this machine.
    #[error(transparent)]
    Library(#[from] everdram_fabric_sys::LoadError),
    /// The address does not parse.
    #[error("`{0}` is no fabric address; write tcp://127.0.0.1:7700")]
    Address(String),
    /// The fabric refuses.
    #[error("the fabric door cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// What the fabric says.
        error: LinkError,
    },
    /// The fabric fails.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Passwords must be set where others can reach the door.
    #[error("{0} can be reached by others: set a password, or listen on 127.0.0.1")]
    Open(String),
    /// The provider does not keep peers inside of their memory.
    #[error(
        "{0} can be reached by others, and libfabric {1}: trust them all (`--fabric-trust-peers`), listen on \
         127.0.0.1, or use another version of libfabric"
    )]
    Unbounded(String, &'static str),
    /// Clients are to read values in place, and cannot.
    #[error("clients cannot read values where they lie: {0}")]
    NotReadable(&'static str),
    /// Clients are to write values where they stay, and cannot.
    #[error("clients cannot write values where they stay: {0}")]
    NotLent(&'static str),
    /// The store refuses a session.
    #[error(transparent)]
    Store(#[from] everdram::Error),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
}

/// What a door has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorStats {
    /// Connections open now.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed because what they sent was no message, or more than they may; or because they kept
    /// in silence what others wanted ([`Settings::lease`]).
    pub expelled: u64,
    /// Requests answered.
    pub requests: u64,
    /// Values that clients wrote by themselves (RDMP-SA).
    pub written: u64,
    /// Long values of which clients were told where to read them.
    pub placed: u64,
    /// Of those that clients wrote, the ones that stayed where they were written.
    pub adopted: u64,
    /// Bytes of the door's memory that connections have now ([`Settings::memory_bytes`]).
    pub memory_bytes: u64,
}

/// What the threads of a door share.
struct Shared {
    engine: Arc<dyn Engine>,
    /// Where clients write durably by themselves, if the pool has such memory.
    landing: Option<Arc<Landing>>,
    /// What a Hello is answered.
    hello: Vec<u8>,
    settings: Settings,
    mailboxes: Vec<Mailbox>,
    memory: Arc<Memory>,
    connections: AtomicU64,
    is_stopping: AtomicBool,
}

impl Shared {
    fn stats(&self) -> DoorStats {
        let mut stats = DoorStats {
            connections: self.connections.load(Ordering::Relaxed),
            memory_bytes: self.memory.used(),
            ..DoorStats::default()
        };
        for mailbox in &self.mailboxes {
            mailbox.counters.add_to(&mut stats);
        }
        stats
    }
}

/// An open door. Dropping it closes the door.
pub struct Door {
    shared: Arc<Shared>,
    address: String,
    threads: Vec<JoinHandle<()>>,
    listener: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens a door to `store` on `address`, such as `tcp://127.0.0.1:7700`; port 0 takes any.
    ///
    /// # Errors
    /// See [`StartError`]; then nothing keeps running or listening.
    pub fn start(store: &Store, address: &str, settings: Settings) -> Result<Door, StartError> {
        let place = libfabric::Place::parse(address)
            .ok_or_else(|| StartError::Address(address.to_owned()))?;
        if !settings.password.is_set() && !place.address.ip().is_loopback() {
            return Err(StartError::Open(address.to_owned()));
        }
        if !settings.trusts_peers && !place.address.ip().is_loopback() {
            check_bounds(address, &place)?;
        }
        if settings.read_lease.is_some() && !settings.trusts_peers {
            let text = "each could read what any may; trust them all (`--fabric-trust-peers`)";
            return Err(StartError::NotReadable(text));
        }
        if settings.lends && !settings.trusts_peers {
            let text = "one could change its value after it was acknowledged; trust them all \
                        (`--fabric-trust-peers`)";
            return Err(StartError::NotLent(text));
        }
        let listen = |error| StartError::Listen {
            address: address.to_owned(),
            error,
        };
        let ear = libfabric::Ear::bind(&place)?.map_err(listen)?;
        let links = (0..settings.loops.max(1)).map(|_| {
            let port = ear.port()?;
            Ok(Box::new(port) as Box<dyn Link>)
        });
        let links = links
            .collect::<Result<Vec<_>, LinkError>>()
            .map_err(listen)?;
        // Slots of closed connections pass on. Whoever shows a slot's key over a second connection can have a
        // write under way there then, which spoils what another client was told is durable.
        let landing = store.landing().filter(|_| settings.trusts_peers);
        if landing.is_none() && store.landing().is_some() {
            tracing::warn!(
                "clients of the fabric do not make values durable by themselves (RDMP-CC): two who work together \
                 could spoil what others have written; trust them all (`--fabric-trust-peers`)"
            );
        }
        Door::over(store, Box::new(ear), links, settings, landing)
    }

    /// Opens a door to `store` for clients of this process.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_inside(
        store: &Store,
        network: &Network,
        settings: Settings,
    ) -> Result<Door, StartError> {
        let port = || Box::new(network.port()) as Box<dyn Link>;
        let links = (0..settings.loops.max(1)).map(|_| port()).collect();
        // Here a write ends before the call does.
        let landing = store.landing();
        Door::over(store, Box::new(network.listen()), links, settings, landing)
    }

    fn over(
        store: &Store,
        ear: Box<dyn Listen>,
        links: Vec<Box<dyn Link>>,
        settings: Settings,
        landing: Option<Arc<Landing>>,
    ) -> Result<Door, StartError> {
        let engine = Arc::clone(store.engine());
        if let Some(lease) = settings.read_lease {
            if engine.readable().is_none() {
                let text = "the store must keep its room (`keep_room`), with the engine `viper` on `pmem` or \
                            `emulated`";
                return Err(StartError::NotReadable(text));
            }
            if lease > LEASE_MAX {
                return Err(StartError::NotReadable("the lease is longer than 10 s"));
            }
        }
        if settings.lends && engine.lender().is_none() {
            let text = "the store must keep its room and lend (`keep_room`, `lend_bytes`), with the engine `viper` \
                        on `pmem` or `emulated`";
            return Err(StartError::NotLent(text));
        }
        let shared = Arc::new(Shared {
            hello: hello(store),
            landing,
            memory: Memory::of(settings.memory_bytes),
            mailboxes: links
                .iter()
                .map(|link| Mailbox::new(link.waker()))
                .collect(),
            settings,
            connections: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            engine,
        });
        // What can fail comes before the first thread.
        let mut loops = Vec::new();
        for (number, link) in links.into_iter().enumerate() {
            loops.push(EventLoop::new(link, number, Arc::clone(&shared))?);
        }
        subscribe(&shared);
        let mut door = Door {
            address: ear.address(),
            shared,
            threads: Vec::new(),
            listener: None,
        };
        for (number, event_loop) in loops.into_iter().enumerate() {
            door.spawn(format!("everdram-fabric-{number}"), move || {
                event_loop.run()
            })?;
        }
        let shared = Arc::downgrade(&door.shared);
        door.spawn("everdram-listens".into(), move || listen(&shared, ear))?;
        door.listener = door.threads.pop();
        Ok(door)
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let thread = std::thread::Builder::new().name(name).spawn(run);
        self.threads.push(thread.map_err(StartError::Thread)?);
        Ok(())
    }

    /// The address in effect, as clients give it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> DoorStats {
        self.shared.stats()
    }

    /// The door as INFO of the Redis door tells of it: names and numbers, and nothing once it is closed.
    pub fn info(&self) -> impl Fn() -> Vec<(&'static str, String)> + Send + Sync + 'static {
        let (shared, address) = (Arc::downgrade(&self.shared), self.address.clone());
        move || {
            let Some(shared) = shared.upgrade() else {
                return Vec::new();
            };
            let DoorStats {
                connections,
                accepted,
                expelled,
                requests,
                written,
                placed,
                adopted,
                memory_bytes,
            } = shared.stats();
            let mut info = vec![("fabric_address", address.clone())];
            info.extend(
                [
                    ("fabric_connections", connections),
                    ("fabric_accepted", accepted),
                    ("fabric_expelled", expelled),
                    ("fabric_requests", requests),
                    ("fabric_values_written_by_clients", written),
                    ("fabric_values_read_in_place", placed),
                    ("fabric_values_adopted", adopted),
                    ("fabric_memory_bytes", memory_bytes),
                ]
                .map(|(name, count)| (name, count.to_string())),
            );
            info
        }
    }

    /// Closes the door: replies that wait for durability leave, for a while, and all connections are closed.
    /// The store stays open.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.shared.mailboxes.iter().for_each(Mailbox::wake);
        if let Some(listener) = self.listener.take() {
            // A peer that stalls while it connects may hold this thread within the library. It has nothing of
            // the store, so it is left behind.
            let until = Instant::now() + LISTENER_MAX;
            while !listener.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            match listener.is_finished() {
                true => self.threads.push(listener),
                false => tracing::warn!("a peer holds the thread that listens on the fabric"),
            }
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the fabric door panicked");
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a Hello is answered: which pool this is, and what an acknowledgement means.
fn hello(store: &Store) -> Vec<u8> {
    let report = store.report();
    wire::hello(PoolId(report.uuid), &report.acknowledgement)
}

/// Tries out whether peers can be served that are not trusted with this process.
fn check_bounds(address: &str, place: &libfabric::Place) -> Result<(), StartError> {
    let here = match place.address.ip().is_unspecified() {
        true => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        false => SocketAddr::new(place.address.ip(), 0),
    };
    let why = match crate::probe(&place.provider, here)?.bounds {
        Bounds::Kept => return Ok(()),
        Bounds::ByDevice => "lets strangers guess the keys of memory, which the device chooses",
        Bounds::Forgeable => "lets a peer write outside of the memory that it was given",
        Bounds::Unknown(_) => "does not show whether it keeps peers inside of their memory",
    };
    Err(StartError::Unbounded(address.to_owned(), why))
}

/// Hands those who connect to the loops, in turn.
fn listen(shared: &Weak<Shared>, mut ear: Box<dyn Listen>) {
    let mut next = 0;
    loop {
        let heard = ear.wait(LISTEN_TICK);
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if shared.is_stopping.load(Ordering::SeqCst) {
            return;
        }
        match heard {
            Ok(None) => {}
            Ok(Some(request)) => {
                let open = shared.connections.load(Ordering::Relaxed);
                if open >= shared.settings.connections_max as u64 {
                    tracing::warn!(open, "a connection over the fabric is refused: too many");
                    continue;
                }
                next = (next + 1) % shared.mailboxes.len().max(1);
                // The loop takes it back if it cannot accept.
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let mailbox = shared.mailboxes.get(next);
                if !mailbox.is_some_and(|mailbox| mailbox.hand(request)) {
                    shared.connections.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Err(error) => {
                tracing::error!(%error, "the fabric door hears nobody any more");
                std::thread::sleep(LISTEN_TICK);
            }
        }
    }
}

/// Makes the engine wake the loops that wait for durability. The engine keeps its subscribers for life, so it
/// holds the door weakly.
fn subscribe(shared: &Arc<Shared>) {
    let weak = Arc::downgrade(shared);
    shared.engine.subscribe(Arc::new(move || {
        if let Some(shared) = weak.upgrade() {
            shared.mailboxes.iter().for_each(Mailbox::durable_advanced);
        }
    }));
}

#[cfg(test)]
mod tests;
