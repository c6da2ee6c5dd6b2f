//! What happened in a run, in the order in which memory, or the disk, saw it.

use everdram_pm::lab::{Actor, Site, StoreKind};

/// A place in a trace.
pub type StepId = u32;

/// Places that an outage decided, and what they hold.
pub type Held = Vec<(u64, Box<[u8]>)>;

/// One event.
#[derive(Clone, Debug)]
pub enum Step {
    /// Bytes were stored.
    Store {
        /// Who.
        actor: Actor,
        /// Offset.
        at: u64,
        /// What; whole words.
        bytes: Box<[u8]>,
        /// How.
        kind: StoreKind,
        /// Where in the source.
        site: Site,
    },
    /// Lines were flushed.
    Flush {
        /// Who.
        actor: Actor,
        /// Offset.
        at: u64,
        /// Bytes.
        bytes: u64,
        /// Where in the source.
        site: Site,
    },
    /// What the actor flushed was ordered.
    Fence {
        /// Who.
        actor: Actor,
        /// Where in the source.
        site: Site,
    },
    /// Words were read.
    Load {
        /// The call on whose behalf, if any.
        call: Option<u32>,
        /// Offset.
        at: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A call on the disk.
    Disk {
        /// What was called.
        step: DiskStep,
        /// Where in the source.
        site: Site,
    },
    /// Call number so-and-so of the history began.
    Invoke(u32),
    /// It returned: its caller was told.
    Return(u32),
    /// The process died. What it had streamed past the caches left the processor's buffers when the kernel
    /// took over.
    Death,
    /// Power failed, and left this of what was open then; places that are not named held everything that was
    /// stored. The next process finds it.
    Outage(Held),
    /// The clock shows so many milliseconds.
    Clock(u64),
}

/// One call on a disk.
#[derive(Clone, Debug)]
pub enum DiskStep {
    /// A file appeared.
    Create {
        /// Its number.
        file: u32,
        /// Its name.
        name: String,
    },
    /// A file disappeared.
    Unlink {
        /// Its number.
        file: u32,
    },
    /// A file got another name; the file that had it has none any more.
    Rename {
        /// The file's number.
        file: u32,
        /// Its name from here on, in the same folder.
        name: String,
    },
    /// Bytes were written.
    Write {
        /// The file's number.
        file: u32,
        /// Offset.
        at: u64,
        /// What.
        bytes: Box<[u8]>,
    },
    /// A file was cut or extended.
    SetLen {
        /// Its number.
        file: u32,
        /// Its length.
        bytes: u64,
    },
    /// Room was taken.
    Allocate {
        /// The file's number.
        file: u32,
        /// Offset.
        at: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A file was synced.
    Sync {
        /// Its number.
        file: u32,
        /// Whether it succeeded.
        ok: bool,
    },
    /// A folder was synced.
    SyncDirectory {
        /// What its names begin with; see [`Disk`](everdram_pm::lab::Disk).
        folder: String,
        /// Whether it succeeded.
        ok: bool,
    },
}

/// Steps, in order.
pub type Trace = Vec<Step>;

/// `file:line` of a place in the source, without the folders above the crate.
#[must_use]
pub fn name(site: &std::panic::Location<'_>) -> String {
    let file = site.file();
    let short = file.rsplit_once("crates/").map_or(file, |(_, rest)| rest);
    format!("{short}:{}", site.line())
}
