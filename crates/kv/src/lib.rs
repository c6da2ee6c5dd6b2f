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
#![forbid(unsafe_code)]

mod batch;
mod broken;
mod bullet;
mod concurrency;
pub mod crl;
pub mod engine;
mod error;
mod heap;
mod index;
mod inspect;
pub mod iter;
#[cfg(feature = "lab")]
pub mod lab;
mod options;
mod stats;
mod store;
mod viper;

pub use self::inspect::{check, inspect};
pub use self::stats::{Inspection, KindCount};
pub use batch::Batch;
#[cfg(feature = "broken")]
#[doc(hidden)]
pub use broken::Hole;
pub use engine::kind::EngineKind;
pub use engine::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use engine::{
    BatchOp, Change, Current, Engine, EngineSession, Found, Modify, Scope, Ticket, Transaction,
    TransactionBody, Visit,
};
pub use error::Error;
pub use everdram_pm::{Durability, Medium, MediumChoice, Report};
pub use options::BulletSystem;
pub use options::{BulletOptions, Clock, Create, Options, Progress};
pub use stats::{CheckReport, Finding, FrontStats, SalvageStats, Stats};
pub use store::{Session, Store};
#[cfg(feature = "fuzzing")]
pub use viper::fuzzing;
