//! everdram's Redis door: any Redis client can talk to a [`Store`](everdram::Store) through it.
//!
//! One event loop runs on each core, with its own session of the store. At each wake-up a loop parses,
//! executes and submits everything that has arrived, and commits once. A reply leaves only when everything it
//! shows or acknowledges is durable.
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
//! The path of a request: `listener` accepts and picks a loop; `worker` is the loop; `connection` reads;
//! `frame` finds a request in the bytes; `dispatch` checks it against the table in `command` and calls a
//! handler in `commands`; the handler writes its `reply` into `output`, which holds it until durable.
#![forbid(unsafe_code)]

mod command;
mod commands;
mod connection;
mod context;
mod dispatch;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod keyspace;
#[cfg(test)]
#[path = "../../kv/tests/support/model.rs"]
mod model;
pub mod replay;
mod reply;
mod request;
mod server;

pub use self::server::settings::{Limits, Settings, StartError, StopError};
pub use server::{Server, ShutdownHandle};
