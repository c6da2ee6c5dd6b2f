//! Persistent memory: the only code that maps, stores, flushes and fences.

mod checksum;
mod cpu;
mod delay;
mod error;
mod lane;
mod layout;
mod log;
mod medium;
mod pool;
mod region;

pub use checksum::Secret;
pub use cpu::{FlushKind, LINE};
pub use error::Error;
pub use lane::{Dirty, Durable, Flushed, Lane, Lsn, Ordered};
pub use medium::{Durability, Medium, MediumChoice, Report};
pub use pool::{DATA_AT, Extent, Pool, PoolOptions, ROOT_AT, ROOT_BYTES};
pub use region::Region;
