//! Accepting: the listening sockets, and the thread that gives new connections to the event loops in turn.

use super::Shared;
use super::settings::{Settings, StartError};
use super::worker::Message;
use crate::connection::peer::{Origin, Peer};
use crate::connection::stream::Stream;
use mio::net::{TcpListener, UnixListener};
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::fs::{self, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const STOP: Token = Token(usize::MAX);
/// Delay before the next accept when the system is out of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Connections accepted from one socket before the others get their turn.
const ACCEPTS_PER_TURN: usize = 1000;

/// One listening socket.
enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// All listening sockets of a server. Dropping them removes the Unix socket's file.
pub(crate) struct Sockets {
    all: Vec<ListeningSocket>,
    unix_path: Option<PathBuf>,
}

impl Sockets {
    /// Listens on every address of the settings.
    pub(crate) fn open(settings: &Settings) -> std::result::Result<Self, StartError> {
        let mut sockets = Sockets {
            all: Vec::new(),
            unix_path: None,
        };
        let mut port = settings.port;
        for &ip in &settings.bind {
            let address = SocketAddr::new(ip, port);
            let refuse = |source| StartError::Bind { address, source };
            let listener = listen(address, settings.tcp_backlog).map_err(refuse)?;
            // The free port chosen for the first address serves all addresses.
            port = listener.local_addr().map_err(refuse)?.port();
            sockets.all.push(ListeningSocket::Tcp(listener));
        }
        if let Some(path) = &settings.unix_socket {
            sockets.all.push(ListeningSocket::Unix(listen_unix(
                path,
                settings.unix_socket_mode,
            )?));
            sockets.unix_path = Some(path.clone());
        }
        Ok(sockets)
    }

    /// The TCP addresses in effect.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let tcp = self.all.iter().filter_map(|socket| match socket {
            ListeningSocket::Tcp(listener) => listener.local_addr().ok(),
            ListeningSocket::Unix(_) => None,
        });
        tcp.collect()
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        if let Some(path) = &self.unix_path
            && let Err(error) = fs::remove_file(path)
        {
            tracing::debug!(%error, path = %path.display(), "cannot remove the Unix socket");
        }
    }
}

fn listen(address: SocketAddr, backlog: u32) -> Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Creates the socket under a temporary name, sets its permissions and renames it, so that no client can
/// connect before the permissions hold.
fn listen_unix(path: &Path, mode: u32) -> std::result::Result<UnixListener, StartError> {
    let refuse = |source| StartError::UnixSocket {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(StartError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(StartError::UnixSocketInUse {
                path: path.to_owned(),
            });
        }
        _ => {}
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    let listener = UnixListener::bind(&fresh).map_err(refuse)?;
    let placed = fs::set_permissions(&fresh, Permissions::from_mode(mode))
        .and_then(|()| fs::rename(&fresh, path));
    placed.map(|()| listener).map_err(|source| {
        // It was only created to become `path`; the first error matters.
        let _ = fs::remove_file(&fresh);
        refuse(source)
    })
}

/// The accepting thread.
pub(crate) struct Listener {
    poll: Poll,
    sockets: Sockets,
    shared: Arc<Shared>,
    next_id: u64,
}

impl Listener {
    /// Wakes a listener on this poll, to stop it.
    pub(crate) fn waker(poll: &Poll) -> Result<Waker> {
        Waker::new(poll.registry(), STOP)
    }

    pub(crate) fn new(poll: Poll, mut sockets: Sockets, shared: Arc<Shared>) -> Result<Self> {
        for (index, socket) in sockets.all.iter_mut().enumerate() {
            let token = Token(index);
            match socket {
                ListeningSocket::Tcp(listener) => {
                    poll.registry()
                        .register(listener, token, Interest::READABLE)?
                }
                ListeningSocket::Unix(listener) => {
                    poll.registry()
                        .register(listener, token, Interest::READABLE)?
                }
            }
        }
        Ok(Listener {
            poll,
            sockets,
            shared,
            next_id: 1,
        })
    }

    /// Accepts until the server stops.
    pub(crate) fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(16);
        let mut timeout = None;
        while !self.shared.is_stopping() {
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            // Try every socket: after a back-off waiting connections may cause no event.
            let mut again = None;
            for index in 0..self.sockets.all.len() {
                again = again.max(self.accept_all(index));
            }
            timeout = again;
        }
        Ok(())
    }

    /// Accepts the waiting connections of one socket. `Some`: try again after this time.
    fn accept_all(&mut self, index: usize) -> Option<Duration> {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.shared.is_stopping() {
                return None;
            }
            match self.accept(index) {
                Ok((stream, origin)) => self.hand_over(stream, origin),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // The peer left before it was accepted; others may still be waiting.
                Err(error) if is_peers_fault(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for the moment");
                    return Some(BACK_OFF);
                }
            }
        }
        Some(Duration::ZERO)
    }

    fn accept(&self, index: usize) -> Result<(Stream, Origin)> {
        match self.sockets.all.get(index) {
            Some(ListeningSocket::Tcp(listener)) => {
                let (stream, address) = listener.accept()?;
                let local_address = stream
                    .local_addr()
                    .map_or_else(|_| "?:0".into(), |local| local.to_string());
                stream.set_nodelay(true)?;
                let idle = self.shared.settings.tcp_keepalive;
                if !idle.is_zero() {
                    let keepalive = TcpKeepalive::new().with_time(idle);
                    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                }
                let stream = Stream::Tcp(stream);
                let descriptor = stream.descriptor();
                Ok((
                    stream,
                    Origin {
                        address: address.to_string(),
                        local_address,
                        is_unix: false,
                        descriptor,
                    },
                ))
            }
            Some(ListeningSocket::Unix(listener)) => {
                let (stream, _) = listener.accept()?;
                let path = self
                    .shared
                    .settings
                    .unix_socket
                    .as_deref()
                    .unwrap_or(Path::new(""));
                let address = format!("{}:0", path.display());
                let stream = Stream::Unix(stream);
                let descriptor = stream.descriptor();
                Ok((
                    stream,
                    Origin {
                        local_address: address.clone(),
                        address,
                        is_unix: true,
                        descriptor,
                    },
                ))
            }
            None => Err(Error::from(ErrorKind::WouldBlock)),
        }
    }

    fn hand_over(&mut self, mut stream: Stream, origin: Origin) {
        let shared = &self.shared;
        if shared.connected.load(Relaxed) >= shared.config.maxclients.load(Relaxed) {
            shared.rejected.fetch_add(1, Relaxed);
            // The peer may have left, or may not read this; it is not served either way.
            let _ = stream.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let worker = (id % shared.mailboxes().len() as u64) as usize;
        let peer = Arc::new(Peer::new(id, worker, origin));
        shared.accepted.fetch_add(1, Relaxed);
        shared.connected.fetch_add(1, Relaxed);
        shared.remember(&peer);
        let authenticated = !shared.config.password.is_set();
        shared.send(worker, Message::Accept(stream, peer, authenticated));
    }
}

fn is_peers_fault(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    ) || matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::NotConnected
    )
}
