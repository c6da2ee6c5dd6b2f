//! The server as a whole: starting, what all threads share, stopping.

pub(super) mod config;
pub(super) mod descriptors;
pub(super) mod listener;
pub(super) mod settings;
pub(super) mod slowlog;
pub(super) mod statistics;
pub(super) mod syncer;
pub(super) mod worker;

use crate::connection::peer::Peer;
use config::Config;
use everdram::Store;
use everdram::engine::Engine;
use everdram::password::Password;
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
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Instant;
use syncer::SyncRequest;
use worker::{Mailbox, Message, Worker};

/// Names and numbers of another door to the same store, as INFO shows them.
type FabricInfo = Box<dyn Fn() -> Vec<(&'static str, String)> + Send + Sync>;

/// State shared by all connections.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    /// The meaning of an acknowledgement.
    pub(crate) report: Report,
    pub(crate) settings: Settings,
    pub(crate) config: Config,
    pub(crate) slowlog: SlowLog,
    pub(crate) started: Instant,
    /// Random at each start: 40 hexadecimal digits.
    pub(crate) run_id: String,
    /// TCP port in effect; 0 = none.
    pub(crate) port: u16,
    pub(crate) accepted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) connected: AtomicUsize,
    pub(crate) wrong_passwords: AtomicU64,
    /// Capacity of the buffers of all connections.
    pub(crate) buffered: AtomicUsize,
    /// Connections closed because the total was too large.
    pub(crate) evicted: AtomicU64,
    /// What INFO tells of the door for a fabric, if there is one.
    pub(crate) fabric: OnceLock<FabricInfo>,
    peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    mailboxes: Vec<Mailbox>,
    listener: mio::Waker,
    stopping: AtomicBool,
    /// `None` once the server stops.
    syncs: Mutex<Option<Sender<SyncRequest>>>,
}

impl Shared {
    /// State without a port, and without anybody who syncs.
    fn new(
        engine: Arc<dyn Engine>,
        report: Report,
        settings: Settings,
        mailboxes: Vec<Mailbox>,
        listener: mio::Waker,
    ) -> Shared {
        Shared {
            config: Config::new(&settings),
            slowlog: SlowLog::default(),
            started: Instant::now(),
            run_id: run_id(),
            port: 0,
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            connected: AtomicUsize::new(0),
            wrong_passwords: AtomicU64::new(0),
            buffered: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            fabric: OnceLock::new(),
            peers: Mutex::default(),
            mailboxes,
            listener,
            stopping: AtomicBool::new(false),
            syncs: Mutex::new(None),
            engine,
            report,
            settings,
        }
    }

    pub(crate) fn mailbox(&self, worker: usize) -> &Mailbox {
        // Workers are numbered by their mailboxes; the modulus only avoids a panic path.
        &self.mailboxes[worker % self.mailboxes.len()]
    }

    pub(crate) fn mailboxes(&self) -> &[Mailbox] {
        &self.mailboxes
    }

    pub(crate) fn send(&self, worker: usize, message: Message) {
        self.mailbox(worker).send(message);
    }

    /// Registers a new connection; [`Shared::forget`] removes it.
    pub(crate) fn remember(&self, peer: &Arc<Peer>) {
        self.peers.lock().insert(peer.id, Arc::clone(peer));
    }

    pub(crate) fn forget(&self, id: u64) {
        if let Some(peer) = self.peers.lock().remove(&id) {
            self.note_buffers(&peer, 0);
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records the buffer capacity of a connection. Returns whether it must close: the total is too large,
    /// and this one exceeds its share. As long as the total is too large, at least one connection exceeds its
    /// share, so this ends.
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

    /// Requests a sync for a client; `false` if the server stops.
    pub(crate) fn request_sync(&self, request: SyncRequest) -> bool {
        self.syncs
            .lock()
            .as_ref()
            .is_some_and(|syncs| syncs.send(request).is_ok())
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Stops accepting, and lets every event loop finish what has arrived.
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
    /// Asks the server to stop accepting, to execute what has arrived, to send the replies (for at most
    /// [`Settings::drain_timeout`]), and to end. Returns at once; [`Server::wait`] waits for the end.
    pub fn shutdown(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.begin_shutdown();
        }
    }
}

impl Server {
    /// Starts serving `store`; returns once it listens on all addresses.
    ///
    /// # Errors
    /// See [`StartError`]; then nothing keeps running or listening.
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
        let listener = Listener::waker(&listener_poll).map_err(StartError::EventLoop)?;
        let port = addresses.first().map_or(0, SocketAddr::port);
        let shared = Arc::new(Shared {
            port,
            syncs: Mutex::new(Some(syncs)),
            ..Shared::new(engine, report, settings, mailboxes, listener)
        });
        // Everything that can fail comes before the first thread.
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

    /// What commands need of a server, for requests that come from no socket.
    pub(crate) fn without_threads(
        engine: Arc<dyn Engine>,
        report: &Report,
        settings: Settings,
    ) -> Result<Shared, StartError> {
        let poll = || Poll::new().map_err(StartError::EventLoop);
        let mailbox = Mailbox::new(&poll()?).map_err(StartError::EventLoop)?;
        let listener = Listener::waker(&poll()?).map_err(StartError::EventLoop)?;
        Ok(Shared::new(
            engine,
            report.clone(),
            settings,
            vec![mailbox],
            listener,
        ))
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
        // The guard of the failed thread has told the others to stop.
        self.threads.push(thread.map_err(StartError::EventLoop)?);
        Ok(())
    }

    /// State shared by its threads.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The TCP addresses in effect, with their ports.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The password that clients must know: other doors of the store share it, so that CONFIG SET reaches
    /// them.
    #[must_use]
    pub fn password(&self) -> Password {
        self.shared.config.password.clone()
    }

    /// Says what INFO tells of the door for a fabric: names and numbers. The first call counts.
    pub fn tell_of_fabric(
        &self,
        info: impl Fn() -> Vec<(&'static str, String)> + Send + Sync + 'static,
    ) {
        let _ = self.shared.fabric.set(Box::new(info));
    }

    /// A handle that stops this server.
    #[must_use]
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(Arc::downgrade(&self.shared))
    }

    /// Waits until the server was shut down (by a handle or by SHUTDOWN) and syncs the store, which the
    /// caller may then close.
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

/// When one thread of a server ends, for any reason, this stops the others.
struct StopTheRest(Arc<Shared>);

impl Drop for StopTheRest {
    fn drop(&mut self) {
        self.0.begin_shutdown();
    }
}

/// Makes the engine wake the loops that wait for durability. It holds the server weakly, because the engine
/// keeps its subscribers for life.
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
