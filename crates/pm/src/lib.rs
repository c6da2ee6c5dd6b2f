//! Persistent memory: the only code that maps, stores, flushes and fences.
//!
//! A [`Pool`] is an image of bytes that survive. On persistent memory they are stored to directly; on
//! ordinary files a redo log makes the same promise; `emulated` runs the same instructions on ordinary
//! memory. Threads write through a [`Lane`], whose types keep the order: stored, flushed, fenced, durable.
//!
//! ```
//! let pool = everdram_pm::Pool::heap(1 << 20, 0, [0; 8]);
//! let mut lane = pool.lane();
//! let at = pool.allocate(1, 4096, 4096)?.at;
//!
//! let record = lane.stream(at, &[7; 64]);
//! let ordered = lane.fence(record);
//! // Only something that was fenced may be pointed to.
//! let pointer = lane.publish(at + 64, at, &ordered);
//! let pointer = lane.flush(pointer);
//! let ordered = lane.fence(pointer);
//! // Only something that is durable may be acknowledged.
//! let _proof = pool.wait(ordered.lsn())?;
//! # Ok::<(), everdram_pm::Error>(())
//! ```
//!
//! A word cannot be published before the bytes it stands for were fenced:
//!
//! ```compile_fail,E0308
//! let pool = everdram_pm::Pool::heap(1 << 20, 0, [0; 8]);
//! let mut lane = pool.lane();
//! let flushed = lane.stream(65_536, &[7; 64]);
//! let _ = lane.publish(65_600, 65_536, &flushed);
//! ```
//!
//! A store that was not flushed cannot be fenced:
//!
//! ```compile_fail,E0308
//! let pool = everdram_pm::Pool::heap(1 << 20, 0, [0; 8]);
//! let mut lane = pool.lane();
//! let dirty = lane.store(65_536, &[7; 8]);
//! let _ = lane.fence(dirty);
//! ```
//!
//! Only the pool can claim durability:
//!
//! ```compile_fail,E0423
//! let proof = everdram_pm::Durable(());
//! ```

mod blocks;
mod checksum;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod io;
#[cfg(feature = "lab")]
pub mod lab;
mod layout;
#[cfg(feature = "limits")]
pub mod limits;
pub mod lock;
mod log;
mod medium;
mod memory;
mod poison;
mod pool;
mod shelf;

pub use blocks::{Blocks, BlocksOptions, HINT_BYTES, Hint, Mark};
pub use checksum::Secret;
pub use error::{Damage, Error};
#[cfg(feature = "faults")]
pub use io::faults;
pub use medium::{Durability, Medium, MediumChoice, Report};
pub use memory::barrier::Barrier;
pub use memory::cpu::{FlushKind, LINE, prefetch};
pub use memory::dram::{Dram, DramLine, DramRefused, Matches};
pub use memory::lane::{Dirty, Flushed, Lane, Ordered, Written};
pub use memory::position::{Durable, Lsn};
pub use memory::preset::{DISK_PRESETS, DiskPreset, PRESETS, Preset};
pub use memory::region::Region;
pub use memory::unfenced::Unfenced;
pub use pool::erase::erase;
pub use pool::inspect::PoolInfo;
pub use pool::probe::{Probe, probe};
pub use pool::superblock::extent::Extent;
pub use pool::superblock::{DATA_AT, OWNER_REQUIRED, ROOT_AT, ROOT_BYTES};
pub use pool::window::Window;
pub use pool::{Pool, PoolOptions};
pub use shelf::{Shelf, ShelfFile};
