//! The crash lab's way into the pool (feature `lab`): pools in memory, and a tap on everything that decides
//! what a crash can leave.
//!
//! A lab pool runs the code of every pool: lanes, superblock, growth, and on the `file` medium the redo log.
//! Only the lowest layer differs: stores go to plain memory without flush instructions, and files are
//! simulated. The [`Tap`] sees each event. Without a tap a lab pool is just very fast, fast enough to recover
//! a million images.

mod disk;
mod files;
mod memory;
#[cfg(not(miri))]
mod spare;
mod tap;
mod waiting;

pub(crate) use disk::DiskFile;
pub use disk::{Answer, Disk, DiskEvent, DiskTap, FileId};
pub use files::{FileOptions, create_files, open_files};
pub use memory::{Seed, create, open, open_beside};
pub use rustix::io::Errno;
#[cfg(not(miri))]
pub(crate) use spare::{Spare, does_this_thread_simulate, this_thread_simulates};
pub(crate) use tap::TapRef;
pub use tap::{Actor, Event, Perform, Site, Source, StoreKind, Tap};
pub use waiting::{Waiter, few, step, wait_as, waiting};
