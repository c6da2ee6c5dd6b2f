//! The fabric door of everdram, and its client (RDMP-KV, Li et al. 2020): puts that are durable when they are
//! acknowledged, over libfabric or within one process.
//!
//! # Two phases, and one
//! A short value travels with its request, and the server copies it: one round trip ([`INLINE_BYTES`] is the
//! threshold of the paper's hybrid protocol). For a longer one the client asks for a *grant*, writes the
//! value into memory of the server without any of its threads, and asks the server to make it durable:
//! RDMP-SA, section III-B. A grant changes nothing that anybody can see. What was written counts once it sums
//! up, and becomes an ordinary record of the engine under its key's lock, before anyone is shown it.
//!
//! # The same store
//! [`Door`] serves a [`Store`](everdram::Store) that Redis clients and embedded sessions may use meanwhile.
//! An acknowledgement means what it means there: see [`Client::acknowledgement`].
//!
//! # Example
//! ```
//! # let directory = tempfile::tempdir()?;
//! use everdram::{Options, Store};
//! use everdram_fabric::{Client, ClientOptions, Door, Network, Settings};
//!
//! let store = Store::open(directory.path().join("pool"), &Options::default())?;
//! let network = Network::new(); // or Door::start(&store, "tcp://127.0.0.1:7700", ..)
//! let door = Door::start_inside(&store, &network, Settings::default())?;
//! let mut client = Client::inside(&network, &ClientOptions::default())?;
//! client.put(b"key", b"value")?; // durable here
//! assert_eq!(client.get(b"key")?.as_deref(), Some(&b"value"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod adapter;
mod client;
mod cluster;
mod door;
mod identity;
mod inside;
mod libfabric;
mod link;
mod wire;

#[cfg(feature = "fuzzing")]
pub use door::fuzzing;
/// The version of this machine's libfabric. Clients and doors within a process need none.
///
/// # Errors
/// There is none, or it is too old.
pub fn version() -> Result<(u32, u32), LoadError> {
    Ok(everdram_fabric_sys::library()?.version())
}

/// The providers of this machine over which a door can be opened: those with connected endpoints.
///
/// # Errors
/// There is no library, or it fails.
pub fn providers() -> Result<Vec<Provider>, StartError> {
    let library = everdram_fabric_sys::library()?;
    Ok(everdram_fabric_sys::providers(library).map_err(LinkError::from)?)
}

/// Tries a provider out within this process, at an address of this machine (port 0 picks a free one): what
/// its durable writes cost, and whether it keeps peers inside of the memory they were given. Takes some
/// milliseconds, at most some seconds.
///
/// # Errors
/// There is no library.
pub fn probe(provider: &str, at: std::net::SocketAddr) -> Result<Probe, LoadError> {
    let library = everdram_fabric_sys::library()?;
    Ok(everdram_fabric_sys::probe(library, provider, at))
}

pub use client::{Client, ClientError, ClientOptions, Done, Outcome, Probed, Ticket, Way};
pub use cluster::{
    Cluster, ClusterClient, ClusterDone, ClusterError, SERVERS_MAX, SLOTS, Server, slot_of,
};
#[cfg(feature = "modelled")]
pub use door::turned::TurnedDoor;
pub use door::{Door, DoorStats, Settings, StartError};
pub use everdram_fabric_sys::{Bounds, Commit, LoadError, Probe, Provider, WriteTimes};
pub use identity::PoolId;
#[cfg(feature = "modelled")]
pub use inside::EndClock;
pub use inside::{NETWORK_PRESETS, Network, NetworkPreset};
pub use link::LinkError;
pub use wire::{INLINE_BYTES, KEY_BYTES_MAX, Status, VALUE_BYTES_MAX};
