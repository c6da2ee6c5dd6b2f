//! What a crash leaves: the bytes of a memory, or the files of a disk.

use std::collections::BTreeMap;

/// What a pool lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// Persistent memory: lines, flushes, fences.
    Pmem,
    /// Files on a disk: sectors and syncs, under the redo log.
    File,
}

impl Medium {
    /// Both.
    pub const ALL: [Medium; 2] = [Medium::Pmem, Medium::File];
}

impl std::fmt::Display for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Medium::Pmem => "pmem",
            Medium::File => "file",
        })
    }
}

impl std::str::FromStr for Medium {
    type Err = String;
    fn from_str(name: &str) -> Result<Medium, String> {
        match name {
            "pmem" => Ok(Medium::Pmem),
            "file" => Ok(Medium::File),
            _ => Err(format!("medium `{name}`: the lab has `pmem` and `file`")),
        }
    }
}

/// Files of a pool's directory, by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What a crash leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// Every byte of the memory.
    Memory(Vec<u8>),
    /// Every file.
    Files(Files),
}
