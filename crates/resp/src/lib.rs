//! everdram's Redis door: any Redis client can talk to a [`Store`](everdram::Store) through it.
//!
//! One event loop runs on each core, each with its own session of the store. Whatever has arrived when a
//! loop wakes up is parsed, executed and submitted together and committed once; a reply leaves only
//! when everything it shows or acknowledges is durable.
//!
//! ```
//! use everdram_resp::{Server, Settings};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let store = everdram::Store::open(directory.path().join("pool"), &everdram::Options::default())?;
//! let server = Server::start(store.clone(), Settings { port: 0, ..Settings::default() })?;
//! println!("listening on {:?}", server.local_addrs());
//! server.shutdown_handle().shutdown(); // also from another thread, or by the SHUTDOWN command
//! server.wait()?; // drained: what was received is answered, what was answered is durable
//! # Ok(())
//! # }
//! ```
//!
//! The way of a request: `listener` accepts and picks a loop; `worker` is the loop; `connection` reads;
//! `frame` finds a request in the bytes; `dispatch` checks it against the table in `command` and calls a
//! handler in `commands`; the handler writes its `reply` into `output`, which holds it until durable.
#![forbid(unsafe_code)]

mod args;
mod client;
mod command;
mod commands;
mod config;
mod connection;
mod context;
mod descriptors;
mod desk;
mod dispatch;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod glob;
mod keyspace;
mod listener;
mod number;
mod output;
mod peer;
mod reply;
mod server;
mod settings;
mod slowlog;
mod statistics;
mod stream;
mod syncer;
mod words;
mod worker;

pub use server::{Server, ShutdownHandle};
pub use settings::{Limits, Settings, StartError, StopError};
