//! everdram: a key-value store that answers a write only when it is durable.
//!
//! ```
//! # fn main() -> Result<(), everdram::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("pool");
//! let store = everdram::Store::open(path, &everdram::Options::default())?;
//! let mut session = store.session()?; // one for each thread
//! session.put(b"key", b"value")?; // durable when it returns
//! assert_eq!(session.get(b"key")?.as_deref(), Some(&b"value"[..]));
//! session.delete(b"key")?;
//! # drop(session);
//! store.close()
//! # }
//! ```
//!
//! Most programs need only [`Store`], [`Session`], [`Batch`] and [`Options`]. Doors such as a server build on
//! [`engine`]: it separates submit, commit and wait, and has transactions.
#![forbid(unsafe_code)]

mod aof;
mod batch;
mod bullet;
mod concurrency;
pub mod crl;
mod dipper;
mod dstore;
pub mod engine;
mod error;
mod heap;
mod index;
pub mod inspect;
pub mod iter;
#[cfg(feature = "lab")]
pub mod lab;
pub mod landing;
pub mod object;
pub mod options;
pub mod password;
pub mod stats;
#[cfg(not(feature = "steps"))]
mod steps;
#[cfg(feature = "steps")]
pub mod steps;
mod store;
mod viper;

// What tests of several crates include knows this crate by its name.
#[cfg(test)]
extern crate self as everdram;

pub use batch::Batch;
pub use engine::kind::EngineKind;
pub use engine::{Found, Ticket};
pub use error::Error;
pub use everdram_pm::{Durability, Medium, MediumChoice};
pub use options::Options;
pub use stats::Stats;
pub use store::{Session, Store};
#[cfg(feature = "fuzzing")]
pub use viper::fuzzing;
