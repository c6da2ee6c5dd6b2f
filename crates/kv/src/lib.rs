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

mod background;
mod broken;
mod bullet;
mod chance;
pub mod crl;
mod damage;
mod engine;
mod epoch;
mod error;
mod found;
mod halt;
mod heap;
mod index;
mod inspect;
mod kind;
#[cfg(feature = "lab")]
pub mod lab;
mod limits;
mod model;
mod opening;
mod options;
mod salvaged;
mod seam;
mod seen;
mod stats;
mod store;
mod stripe;
mod transaction;
mod viper;

#[cfg(feature = "broken")]
#[doc(hidden)]
pub use broken::Hole;
pub use bullet::BulletSystem;
pub use engine::{
    BatchOp, Change, Current, Engine, EngineSession, Found, Modify, Scope, Ticket, Transaction,
    TransactionBody, Visit,
};
pub use error::Error;
pub use everdram_pm::{Durability, Medium, MediumChoice, Report};
pub use inspect::{Inspection, KindCount, check, inspect};
pub use kind::EngineKind;
pub use limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use options::{BulletOptions, Clock, Create, Options, Progress};
pub use stats::{CheckReport, Finding, FrontStats, SalvageStats, Stats};
pub use store::{Session, Store};
#[cfg(feature = "fuzzing")]
pub use viper::fuzzing;
