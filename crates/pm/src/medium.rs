//! The media a pool can live on, and what an acknowledgement means on each.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where a pool's bytes live. `docs/persistence.md` says what each survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// Persistent memory mapped directly (fsdax with MAP_SYNC, or devdax): durable at the fence.
    Pmem,
    /// Ordinary files: durable when `fdatasync` of the redo log covers the write.
    File,
    /// The same instructions on tmpfs or anonymous memory: survives a killed process, nothing more.
    Emulated,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::Pmem => "pmem",
            Medium::File => "file",
            Medium::Emulated => "emulated",
        })
    }
}

/// Which medium to use for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MediumChoice {
    /// `pmem` where the path has it, `file` otherwise. Never `emulated`.
    #[default]
    Auto,
    /// This one, or an error.
    Only(Medium),
}

impl FromStr for MediumChoice {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "auto" => MediumChoice::Auto,
            "pmem" => MediumChoice::Only(Medium::Pmem),
            "file" => MediumChoice::Only(Medium::File),
            "emulated" => MediumChoice::Only(Medium::Emulated),
            _ => return Err(format!("medium `{s}`: use auto, pmem, file or emulated")),
        })
    }
}

/// When a write may be acknowledged on the `file` medium. On the others every fence is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// After its `fdatasync`.
    #[default]
    Always,
    /// At once; an `fdatasync` follows within a second. A crash, even of the process alone, loses up to that
    /// second.
    EverySec,
    /// At once; the log writer writes it when it can. A crash, even of the process alone, loses what it had
    /// not written.
    None,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Always => "always",
            Durability::EverySec => "everysec",
            Durability::None => "none",
        })
    }
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "always" => Durability::Always,
            "everysec" => Durability::EverySec,
            "none" => Durability::None,
            _ => return Err(format!("durability `{s}`: use always, everysec or none")),
        })
    }
}

/// A pool's medium, why it was chosen, what it costs, and what an acknowledgement means.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which pool this is: drawn at random when it was made. A copy of a pool has the same.
    pub uuid: [u8; 16],
    /// The medium in effect.
    pub medium: Medium,
    /// Why this one, in a sentence: file system, DAX, MAP_SYNC.
    pub why: String,
    /// What flush and fence are: `clwb + sfence`, `fdatasync of the redo log`, ...
    pub persist: String,
    /// The durability class in effect.
    pub durability: Durability,
    /// Median time to make one small write durable, measured when the pool was opened.
    pub latency: Duration,
    /// What a caller may rely on after an acknowledgement, in a sentence.
    pub acknowledgement: String,
    /// Delay model in effect, if any (`emulated` only).
    pub delay: Option<String>,
    /// The data file, if it is open (engine with a data file).
    pub data: Option<PathBuf>,
    /// Delay model of the data file in effect, if any (engine with a data file, `emulated` only).
    pub data_delay: Option<String>,
}
