//! The server as a whole: starting, what all threads share, stopping.

pub(super) mod config;
pub(super) mod descriptors;
pub(super) mod listener;
pub(super) mod metrics;
pub(super) mod settings;
pub(super) mod slowlog;
pub(super) mod statistics;
pub(super) mod syncer;
pub(super) mod worker;

use crate::connection::peer::Peer;
use config::Config;
use everdram::Store;
use everdram::engine::Engine;
use everdram::stats::Report;
use listener::{Listener, Sockets};
use mio::Poll;
use parking_lot::Mutex;
use settings::{Settings, StartError, StopError};
use slowlog::SlowLog;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;
use syncer::SyncRequest;
use worker::{Mailbox, Message, Worker};

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    /// What an acknowledgement means.
    pub(crate) report: Report,
    pub(crate) settings: Settings,
    pub(crate) config: Config,
    pub(crate) slowlog: SlowLog,
    pub(crate) started: Instant,
    /// Random, new at each start: 40 hexadecimal digits.
    pub(crate) run_id: String,
    /// TCP port in effect; 0 = none.
    pub(crate) port: u16,
    pub(crate) accepted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) connected: AtomicUsize,
    pub(crate) wrong_passwords: AtomicU64,
    /// Bytes that the buffers of all connections occupy.
    pub(crate) buffered: AtomicUsize,
    /// Connections closed because all of them together held too much.
    pub(crate) evicted: AtomicU64,
    peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    mailboxes: Vec<Mailbox>,
    listener: mio::Waker,
    stopping: AtomicBool,
    /// `None` once the server stops.
    syncs: Mutex<Option<Sender<SyncRequest>>>,
}

impl Shared {
    pub(crate) fn mailbox(&self, worker: usize) -> &Mailbox {
        // Workers are numbered by their mailboxes; the modulus only spares a panic path.
        &self.mailboxes[worker % self.mailboxes.len()]
    }

    pub(crate) fn mailboxes(&self) -> &[Mailbox] {
        &self.mailboxes
    }

    pub(crate) fn send(&self, worker: usize, message: Message) {
        self.mailbox(worker).send(message);
    }

    /// Enters a new connection; [`Shared::forget`] ends it.
    pub(crate) fn remember(&self, peer: &Arc<Peer>) {
        self.peers.lock().insert(peer.id, Arc::clone(peer));
    }

    pub(crate) fn forget(&self, id: u64) {
        if let Some(peer) = self.peers.lock().remove(&id) {
            self.note_buffers(&peer, 0);
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes what the buffers of a connection occupy now, and says whether it must go: all of them together
    /// hold too much, and this one more than its share. There is always one such, so it ends.
    pub(crate) fn note_buffers(&self, peer: &Peer, bytes: usize) -> bool {
        let before = peer.buffered.swap(bytes, Ordering::Relaxed);
        if bytes != before {
            self.buffered.fetch_add(bytes, Ordering::Relaxed);
            self.buffered.fetch_sub(before, Ordering::Relaxed);
        }
        let all_max = self.settings.limits.buffers_bytes;
        let share = all_max / self.connected.load(Ordering::Relaxed).max(1);
        bytes > share && self.buffered.load(Ordering::Relaxed) > all_max
    }

    /// Open connections, oldest first.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().cloned().collect()
    }

    /// Asks for a sync on behalf of a client; `false` if the server stops.
    pub(crate) fn request_sync(&self, request: SyncRequest) -> bool {
        self.syncs
            .lock()
            .as_ref()
            .is_some_and(|syncs| syncs.send(request).is_ok())
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Stops accepting and has every event loop finish what has arrived.
    pub(crate) fn begin_shutdown(&self) {
        if self.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(error) = self.listener.wake() {
            tracing::error!(%error, "cannot wake the listener");
        }
        for mailbox in &self.mailboxes {
            mailbox.send(Message::Drain);
        }
    }
}

/// A running server. Dropping it without [`Server::wait`] leaves it running.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
    syncer: JoinHandle<()>,
}

/// Stops a server from any thread.
#[derive(Clone)]
pub struct ShutdownHandle(Weak<Shared>);

impl ShutdownHandle {
    /// Asks the server to stop accepting, to execute what has arrived, to send the replies (as long as
    /// [`Settings::drain_timeout`]), and to end. Returns at once; [`Server::wait`] sees the end.
    pub fn shutdown(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.begin_shutdown();
        }
    }
}

impl Server {
    /// Starts serving `store` and returns once all addresses are listened on.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running or listening then.
    pub fn start(store: Store, settings: Settings) -> Result<Server, StartError> {
        Server::start_on(Arc::clone(store.engine()), store.report().clone(), settings)
    }

    fn start_on(
        engine: Arc<dyn Engine>,
        report: Report,
        settings: Settings,
    ) -> Result<Server, StartError> {
        settings.validate()?;
        descriptors::allow(settings.maxclients);
        let sockets = Sockets::open(&settings)?;
        let addresses = sockets.addresses();
        let threads = thread_count(&settings);
        let listener_poll = Poll::new().map_err(StartError::EventLoop)?;
        let mut polls = Vec::new();
        let mut mailboxes = Vec::new();
        for _ in 0..threads {
            let poll = Poll::new().map_err(StartError::EventLoop)?;
            mailboxes.push(Mailbox::new(&poll).map_err(StartError::EventLoop)?);
            polls.push(poll);
        }
        let (syncs, sync_requests) = syncer::queue();
        let shared = Arc::new(Shared {
            config: Config::new(&settings),
            slowlog: SlowLog::default(),
            started: Instant::now(),
            run_id: run_id(),
            port: addresses.first().map_or(0, SocketAddr::port),
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            connected: AtomicUsize::new(0),
            wrong_passwords: AtomicU64::new(0),
            buffered: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            peers: Mutex::default(),
            mailboxes,
            listener: Listener::waker(&listener_poll).map_err(StartError::EventLoop)?,
            stopping: AtomicBool::new(false),
            syncs: Mutex::new(Some(syncs)),
            engine,
            report,
            settings,
        });
        // Everything that can refuse comes before the first thread.
        let mut workers = Vec::new();
        for (index, poll) in polls.into_iter().enumerate() {
            workers.push(Worker::new(poll, index, Arc::clone(&shared))?);
        }
        let listener = Listener::new(listener_poll, sockets, Arc::clone(&shared))
            .map_err(StartError::EventLoop)?;
        subscribe(&shared);
        let syncer = syncer::start(&shared, sync_requests).map_err(StartError::EventLoop)?;
        let mut server = Server {
            shared,
            addresses,
            threads: Vec::new(),
            syncer,
        };
        server.spawn("everdram-listen".into(), move || listener.run())?;
        for (index, worker) in workers.into_iter().enumerate() {
            server.spawn(format!("everdram-loop-{index}"), move || worker.run())?;
        }
        Ok(server)
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), StartError> {
        let guard = StopTheRest(Arc::clone(&self.shared));
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _guard = guard;
            run()
        });
        // The guard of a thread that could not be started has told the others to stop.
        self.threads.push(thread.map_err(StartError::EventLoop)?);
        Ok(())
    }

    /// What its threads share.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The TCP addresses listened on, with the ports in effect.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle that stops this server.
    #[must_use]
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(Arc::downgrade(&self.shared))
    }

    /// Waits until the server has been shut down (by a handle or by SHUTDOWN) and syncs the store, which
    /// the caller may then close.
    ///
    /// # Errors
    /// See [`StopError`]. All threads have ended in any case.
    pub fn wait(self) -> Result<(), StopError> {
        let Server {
            shared,
            threads,
            syncer,
            ..
        } = self;
        let mut outcome = Ok(());
        for thread in threads {
            let ended = match thread.join() {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => StopError::EventLoop(error),
                Err(_) => StopError::Panicked,
            };
            outcome = outcome.and(Err(ended));
        }
        shared.syncs.lock().take();
        if syncer.join().is_err() {
            outcome = outcome.and(Err(StopError::Panicked));
        }
        outcome.and(shared.engine.sync().map_err(StopError::Store))
    }
}

/// When one thread of a server ends, for whatever reason, the others are told to.
struct StopTheRest(Arc<Shared>);

impl Drop for StopTheRest {
    fn drop(&mut self) {
        self.0.begin_shutdown();
    }
}

/// Has the engine wake the loops that wait for durability. It holds the server weakly: the engine keeps
/// its subscribers as long as it lives.
fn subscribe(shared: &Arc<Shared>) {
    let weak = Arc::downgrade(shared);
    shared.engine.subscribe(Arc::new(move || {
        if let Some(shared) = weak.upgrade() {
            shared.mailboxes.iter().for_each(Mailbox::durable_advanced);
        }
    }));
}

fn thread_count(settings: &Settings) -> usize {
    match settings.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

fn run_id() -> String {
    let bytes: [u8; 20] = rand::random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
