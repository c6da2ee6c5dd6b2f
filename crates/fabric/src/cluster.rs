//! Many servers behind one client, each with keys of its own.
//!
//! A key has a slot, and a slot has a server ([`slots`]): the map is made of the pools that the servers have,
//! so their addresses and the order of these do not matter. Nothing is replicated and nothing fails over: a
//! server that is gone takes its keys with it until it is back with its pool, and the others go on. There is
//! no membership either: who changes the list of servers moves the keys of the slots that change hands.
//!
//! No call is repeated. What was under way at a server that goes ends as [`ClientError::Unknown`].

mod line;
mod slots;

use crate::client::{Client, ClientError, ClientOptions, Outcome, Probed, Ticket, Way};
use crate::identity::PoolId;
use crate::inside::Network;
use line::Line;
use slots::Map;
pub use slots::{SLOTS, slot_of};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most servers of a cluster.
pub const SERVERS_MAX: usize = 1024;

/// How long a client waits for one of several busy servers before it looks at the others.
const TURN: Duration = Duration::from_millis(1);

/// A failed call of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There are no servers.
    #[error("a cluster has at least one server")]
    Empty,
    /// There are too many servers.
    #[error("{0} servers: a cluster has at most {SERVERS_MAX}")]
    TooMany(usize),
    /// What stands behind `#` in an address names no pool.
    #[error("`{0}`: behind `#` stands the uuid of a pool, 32 hexadecimal digits")]
    Identity(String),
    /// Two addresses lead to one pool, or to a pool and its copy.
    #[error(
        "{one} and {other} serve the same pool, {pool}: name each server once; a copy of a pool is no server of its own"
    )]
    SamePool {
        /// An address.
        one: String,
        /// The other address.
        other: String,
        /// The pool.
        pool: PoolId,
    },
    /// The call failed at this server.
    #[error("{server}: {error}")]
    Server {
        /// Its address.
        server: String,
        /// Why.
        error: ClientError,
    },
    /// The last attempt to reach this server failed, and it is too early for the next one. Nothing was sent.
    #[error("{server} is gone, and its keys with it; the next attempt may be in {again_in:?}")]
    Gone {
        /// Its address.
        server: String,
        /// When a call may try to reach it again.
        again_in: Duration,
    },
    /// Another pool answers at this server's address. Nothing was sent.
    #[error("{server} serves the pool {found} now, and the keys are in {expected}")]
    OtherPool {
        /// The address.
        server: String,
        /// The pool that it served, or that its address names.
        expected: PoolId,
        /// The pool that it serves.
        found: PoolId,
    },
}

/// A server of a cluster.
#[derive(Clone)]
pub struct Server {
    address: String,
    pool: PoolId,
    /// Where it is, if it is within this process.
    network: Option<Network>,
}

impl Server {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its pool, which is what it is known by.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    fn connect(&self, options: &ClientOptions) -> Result<Client, ClusterError> {
        let client = match &self.network {
            None => Client::connect(&self.address, options),
            Some(network) => Client::inside(network, options),
        };
        client.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: ClientError) -> ClusterError {
        ClusterError::Server {
            server: self.address.clone(),
            error,
        }
    }
}

/// A server, as a list names it.
struct Named {
    server: Server,
    /// Whether its pool is known. Else it is to be asked for.
    is_known: bool,
}

/// Reads `ADDRESS` or `ADDRESS#POOL`.
fn named(text: &str) -> Result<Named, ClusterError> {
    let (address, pool) = match text.split_once('#') {
        None => (text, None),
        Some((address, pool)) => (address, Some(pool)),
    };
    let parsed = pool.map(str::parse).transpose();
    let pool = parsed.map_err(|_| ClusterError::Identity(text.to_owned()))?;
    Ok(Named {
        server: Server {
            address: address.to_owned(),
            pool: pool.unwrap_or_default(),
            network: None,
        },
        is_known: pool.is_some(),
    })
}

/// Servers, and which of them has which key. Clones share it; threads may, too.
#[derive(Clone)]
pub struct Cluster {
    /// In the order of their pools.
    servers: Arc<[Server]>,
    map: Arc<Map>,
    options: ClientOptions,
}

impl Cluster {
    /// The cluster of the servers at these addresses, such as `tcp://127.0.0.1:7700`. Each is asked which
    /// pool it has. One that is known may be gone meanwhile if its address names the pool:
    /// `tcp://127.0.0.1:7700#` and the 32 digits that [`Cluster::servers`] and `everdram inspect` tell.
    ///
    /// # Errors
    /// See [`ClusterError`]; a server that does not answer is one, since nobody knows its keys then.
    pub fn connect<A: AsRef<str>>(
        addresses: &[A],
        options: &ClientOptions,
    ) -> Result<Cluster, ClusterError> {
        let named: Result<_, _> = addresses.iter().map(|text| named(text.as_ref())).collect();
        Cluster::of(named?, options)
    }

    /// The cluster of the doors of this process on these networks.
    ///
    /// # Errors
    /// As [`Cluster::connect`].
    pub fn inside(networks: &[Network], options: &ClientOptions) -> Result<Cluster, ClusterError> {
        let named = networks.iter().enumerate().map(|(place, network)| Named {
            server: Server {
                address: format!("network {place} of this process"),
                pool: PoolId::default(),
                network: Some(network.clone()),
            },
            is_known: false,
        });
        Cluster::of(named.collect(), options)
    }

    fn of(named: Vec<Named>, options: &ClientOptions) -> Result<Cluster, ClusterError> {
        match named.len() {
            0 => return Err(ClusterError::Empty),
            1..=SERVERS_MAX => {}
            count => return Err(ClusterError::TooMany(count)),
        }
        let mut servers = Vec::new();
        for Named {
            mut server,
            is_known,
        } in named
        {
            if !is_known {
                server.pool = server.connect(options)?.pool();
            }
            servers.push(server);
        }
        servers.sort_by_key(|server| server.pool);
        let mut pairs = servers.iter().zip(servers.iter().skip(1));
        if let Some((one, other)) = pairs.find(|(one, other)| one.pool == other.pool) {
            return Err(ClusterError::SamePool {
                one: one.address.clone(),
                other: other.address.clone(),
                pool: one.pool,
            });
        }
        let pools: Vec<PoolId> = servers.iter().map(Server::pool).collect();
        Ok(Cluster {
            map: Arc::new(Map::over(&pools)),
            servers: servers.into(),
            options: options.clone(),
        })
    }

    /// A client of all servers, for one thread. It connects to a server when it first has a call for it.
    #[must_use]
    pub fn client(&self) -> ClusterClient {
        ClusterClient {
            lines: self.servers.iter().map(|_| Line::default()).collect(),
            cluster: self.clone(),
            done: VecDeque::new(),
            turn: 0,
        }
    }

    /// The servers, in the order of their pools.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The server that has a key, as its place in [`Cluster::servers`].
    #[must_use]
    pub fn server_of(&self, key: &[u8]) -> usize {
        self.map.owner(slot_of(key))
    }

    /// How many of the [`SLOTS`] a server has.
    #[must_use]
    pub fn slots_of(&self, server: usize) -> usize {
        self.map.count(server)
    }
}

/// A submitted call that has ended.
#[derive(Debug)]
pub struct ClusterDone {
    /// Its ticket.
    pub ticket: Ticket,
    /// What it came to.
    pub outcome: Result<Outcome, ClusterError>,
}

/// A client of all servers of a cluster, for one thread: the calls of [`Client`], over one connection to each
/// server that it has calls for.
///
/// A connection that has ended is opened again by the next call for its server; while that fails, attempts
/// become rarer (at first after 50 ms, at last after 5 s, and never after less time than an attempt took),
/// and calls in between fail at once with [`ClusterError::Gone`]. An attempt takes at most the
/// `connect_timeout` of the options, for which this thread does nothing else.
pub struct ClusterClient {
    cluster: Cluster,
    /// By server.
    lines: Vec<Line>,
    /// Ended calls of connections that were opened again since.
    done: VecDeque<ClusterDone>,
    /// The server for which the last wait was.
    turn: usize,
}

impl ClusterClient {
    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The connection to a server, to ask what it is: see [`Client::acknowledgement`] and
    /// [`Client::takes_client_centric`]. Connects if need be.
    ///
    /// # Errors
    /// See [`ClusterError`].
    ///
    /// # Panics
    /// If there is no such server.
    pub fn connection(&mut self, server: usize) -> Result<&Client, ClusterError> {
        self.open(server).map(|client| &*client)
    }

    /// Stores a value at the server that has the key. It is durable when this returns, as that server says
    /// ([`Client::acknowledgement`]). Returns how it travelled.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Way, ClusterError> {
        self.at(key, |client| client.put(key, value))
    }

    /// As [`Client::put_expiring`].
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn put_expiring(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        way: Way,
    ) -> Result<Way, ClusterError> {
        self.at(key, |client| {
            client.put_expiring(key, value, expires_at_ms, way)
        })
    }

    /// As [`Client::get`].
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClusterError> {
        self.at(key, |client| client.get(key))
    }

    /// As [`Client::probe`].
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn probe(&mut self, key: &[u8]) -> Result<Option<Probed>, ClusterError> {
        self.at(key, |client| client.probe(key))
    }

    /// As [`Client::delete`].
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClusterError> {
        self.at(key, |client| client.delete(key))
    }

    /// As [`Client::submit_put`]. Calls to different servers may end in any order.
    ///
    /// # Errors
    /// See [`ClusterError`]; then nothing was submitted.
    pub fn submit_put(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        way: Way,
    ) -> Result<Ticket, ClusterError> {
        self.submit(key, |client| {
            client.submit_put(key, value, expires_at_ms, way)
        })
    }

    /// As [`Client::submit_get`].
    ///
    /// # Errors
    /// See [`ClusterError`]; then nothing was submitted.
    pub fn submit_get(&mut self, key: &[u8]) -> Result<Ticket, ClusterError> {
        self.submit(key, |client| client.submit_get(key))
    }

    /// As [`Client::submit_delete`].
    ///
    /// # Errors
    /// See [`ClusterError`]; then nothing was submitted.
    pub fn submit_delete(&mut self, key: &[u8]) -> Result<Ticket, ClusterError> {
        self.submit(key, |client| client.submit_delete(key))
    }

    /// Calls that have ended. Waits for one, at most for `timeout`, if calls are under way. With calls under
    /// way at several servers it may come up to a millisecond late.
    pub fn poll(&mut self, timeout: Duration) -> Vec<ClusterDone> {
        let until = Instant::now().checked_add(timeout);
        let mut done: Vec<ClusterDone> = self.done.drain(..).collect();
        loop {
            let busy = self.busy();
            for server in 0..self.lines.len() {
                // Of a single one there is no need to look before waiting.
                if busy.len() != 1 || busy.first() != Some(&server) {
                    self.collect(server, Duration::ZERO, &mut done);
                }
            }
            let behind = busy.iter().find(|&&server| server > self.turn);
            let Some(&server) = behind.or(busy.first()) else {
                return done;
            };
            self.turn = server;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_over = !done.is_empty() || left.is_some_and(|left| left.is_zero());
            let wait = match busy.len() {
                _ if is_over => Duration::ZERO,
                1 => left.unwrap_or(timeout),
                _ => left.map_or(TURN, |left| left.min(TURN)),
            };
            self.collect(server, wait, &mut done);
            if is_over || !done.is_empty() {
                return done;
            }
        }
    }

    /// Calls that have not ended.
    #[must_use]
    pub fn calls_under_way(&self) -> usize {
        self.lines.iter().map(Line::calls_under_way).sum()
    }

    /// Servers with calls under way.
    fn busy(&self) -> Vec<usize> {
        let lines = self.lines.iter().enumerate();
        let busy = lines.filter(|(_, line)| line.calls_under_way() > 0);
        busy.map(|(server, _)| server).collect()
    }

    fn at<T>(
        &mut self,
        key: &[u8],
        call: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, ClusterError> {
        let server = self.cluster.server_of(key);
        let outcome = call(self.open(server)?);
        outcome.map_err(|error| self.cluster.servers[server].failed(error))
    }

    fn submit(
        &mut self,
        key: &[u8],
        call: impl FnOnce(&mut Client) -> Result<Ticket, ClientError>,
    ) -> Result<Ticket, ClusterError> {
        let ticket = self.at(key, call)?;
        Ok(self.named(ticket, self.cluster.server_of(key)))
    }

    /// The ticket of a server's connection, as callers know it.
    fn named(&self, ticket: Ticket, server: usize) -> Ticket {
        Ticket(ticket.0 * self.lines.len() as u64 + server as u64)
    }

    /// The open connection to a server.
    fn open(&mut self, server: usize) -> Result<&mut Client, ClusterError> {
        if !self.lines[server].is_open() {
            // What ended with the last connection is still to be told.
            let mut done = Vec::new();
            self.collect(server, Duration::ZERO, &mut done);
            self.done.extend(done);
        }
        let options = &self.cluster.options;
        self.lines[server].open(&self.cluster.servers[server], options)
    }

    /// Adds ended calls of a server.
    fn collect(&mut self, server: usize, timeout: Duration, into: &mut Vec<ClusterDone>) {
        for done in self.lines[server].poll(timeout) {
            let at = &self.cluster.servers[server];
            into.push(ClusterDone {
                ticket: self.named(done.ticket, server),
                outcome: done.outcome.map_err(|error| at.failed(error)),
            });
        }
    }
}

#[cfg(test)]
mod tests;
