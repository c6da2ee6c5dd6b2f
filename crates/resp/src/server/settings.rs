//! Settings of a server, and the reasons why it may refuse to start.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a [`Server`](crate::Server). The defaults suit clients on the same machine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses to listen on. Non-loopback ones require a password. Empty: no TCP.
    pub bind: Vec<IpAddr>,
    /// TCP port; 0 = a free one, see [`Server::local_addrs`](crate::Server::local_addrs).
    pub port: u16,
    /// Unix socket to listen on, in addition.
    pub unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket.
    pub unix_socket_mode: u32,
    /// Event loops; 0 = one per core.
    pub threads: usize,
    /// Password for AUTH; `None` = no authentication.
    pub password: Option<String>,
    /// Serve non-loopback addresses without a password. Any client that reaches them can read and change
    /// everything.
    pub allow_open_network: bool,
    /// Most connections at once.
    pub maxclients: usize,
    /// A connection that sends nothing for this long is closed; zero = never.
    pub timeout: Duration,
    /// A connection that has not authenticated after this time is closed (with a password only).
    pub preauth_timeout: Duration,
    /// How long a shutdown waits for clients to take their replies.
    pub drain_timeout: Duration,
    /// Connections that may wait to be accepted.
    pub tcp_backlog: u32,
    /// Idle time after which TCP probes the peer; zero = never.
    pub tcp_keepalive: Duration,
    /// Commands of at least this many microseconds enter the slow log; negative = none.
    pub slowlog_slower_than_us: i64,
    /// Most entries of the slow log.
    pub slowlog_max_len: usize,
    /// Bounds on what a client can make the server hold.
    pub limits: Limits,
}

/// Bounds on everything that a client controls. With a password, the `unauthenticated` ones apply until AUTH
/// succeeds.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one request without its largest argument; also of all requests queued since MULTI.
    pub query_buffer_bytes: usize,
    /// Bytes of one argument.
    pub proto_max_bulk_len: u64,
    /// Bytes of one argument before authentication.
    pub unauthenticated_bulk_bytes: u64,
    /// Arguments of one request.
    pub arguments: usize,
    /// Arguments of one request before authentication.
    pub unauthenticated_arguments: usize,
    /// Bytes of an inline request.
    pub inline_bytes: usize,
    /// Unsent reply bytes at which a connection is closed, and the largest reply of several values: MGET,
    /// KEYS, SCAN and EXEC answer an error rather than more. A single value may be larger.
    pub output_hard_bytes: usize,
    /// Unsent reply bytes that close a connection after `output_soft_time`.
    pub output_soft_bytes: usize,
    /// See `output_soft_bytes`.
    pub output_soft_time: Duration,
    /// As `output_hard_bytes`, before authentication.
    pub unauthenticated_output_bytes: usize,
    /// Capacity of the buffers of all connections; above it, connections that exceed their share are closed.
    pub buffers_bytes: usize,
    /// Commands that a connection may execute before others get their turn.
    pub commands_per_turn: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            bind: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            port: 6379,
            unix_socket: None,
            unix_socket_mode: 0o700,
            threads: 0,
            password: None,
            allow_open_network: false,
            maxclients: 10_000,
            timeout: Duration::ZERO,
            preauth_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            tcp_backlog: 511,
            tcp_keepalive: Duration::from_secs(300),
            slowlog_slower_than_us: 10_000,
            slowlog_max_len: 128,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            query_buffer_bytes: 64 << 20,
            proto_max_bulk_len: 512 << 20,
            unauthenticated_bulk_bytes: 16 << 10,
            arguments: 1 << 20,
            unauthenticated_arguments: 10,
            inline_bytes: 64 << 10,
            output_hard_bytes: 256 << 20,
            output_soft_bytes: 64 << 20,
            output_soft_time: Duration::from_secs(60),
            unauthenticated_output_bytes: 1 << 10,
            buffers_bytes: 4 << 30,
            commands_per_turn: 1000,
        }
    }
}

impl Settings {
    /// Refuses settings that cannot work or are unsafe, before anything is opened.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn validate(&self) -> Result<(), StartError> {
        if self.bind.is_empty() && self.unix_socket.is_none() {
            return Err(StartError::NowhereToListen);
        }
        if self.password.as_deref() == Some("") {
            return Err(StartError::EmptyPassword);
        }
        match self.bind.iter().find(|address| !address.is_loopback()) {
            Some(&address) if self.password.is_none() && !self.allow_open_network => {
                Err(StartError::OpenToTheNetwork(address))
            }
            _ => Ok(()),
        }
    }

    /// Whether only this machine can reach the server.
    pub(crate) fn is_local_only(&self) -> bool {
        self.bind.iter().all(IpAddr::is_loopback)
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No address and no Unix socket.
    #[error("nowhere to listen: give an address to bind or a Unix socket")]
    NowhereToListen,
    /// A password of no characters.
    #[error("the password is empty; leave it out to ask for none")]
    EmptyPassword,
    /// Anyone could read and change everything.
    #[error(
        "refusing to listen on {0} without a password: anyone who reaches it could read and change \
         everything. Set a password, or bind to 127.0.0.1"
    )]
    OpenToTheNetwork(IpAddr),
    /// The address cannot be used.
    #[error(
        "cannot listen on {address}: {source}. Stop what uses it, or choose another port or address"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The Unix socket cannot be created.
    #[error("cannot listen on the Unix socket {path}: {source}", path = .path.display())]
    UnixSocket {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A running server answers on the Unix socket.
    #[error("the Unix socket {path} is in use by a running server; stop it, or choose another path", path = .path.display())]
    UnixSocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// The path of the Unix socket is not a socket.
    #[error("{path} is there and is no socket; it was left alone. Choose another path", path = .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused an event loop or a thread.
    #[error("cannot start an event loop: {0}")]
    EventLoop(#[source] std::io::Error),
    /// The store refused a session for an event loop.
    #[error("cannot open a session of the store: {0}")]
    Store(#[from] everdram::Error),
}

/// Why a server stopped without being asked, or could not make its last writes durable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// The system failed an event loop.
    #[error("an event loop failed: {0}")]
    EventLoop(#[source] std::io::Error),
    /// A bug in everdram: please report it.
    #[error("a thread of the server panicked; the message it printed says where")]
    Panicked,
    /// The store could not make its last writes durable.
    #[error("the store could not be synced at shutdown: {0}")]
    Store(#[from] everdram::Error),
}
