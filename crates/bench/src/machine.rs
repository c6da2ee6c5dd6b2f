//! Where a figure comes from: the machine, its kernel and file system, and the source it was built from.

use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

/// A machine, as far as figures depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Kernel and its release.
    pub kernel: String,
    /// Type of the file system that the stores lie on.
    pub filesystem: String,
    /// How cache lines are written back here.
    pub flush: String,
}

/// What cannot be found out.
const UNKNOWN: &str = "unknown";

impl Machine {
    /// This one, with stores in `dir`.
    #[must_use]
    pub fn here(dir: &Path) -> Machine {
        let uname = rustix::system::uname();
        let words = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Machine {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| UNKNOWN.into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(),
            kernel: format!("{} {}", words(uname.sysname()), words(uname.release())),
            filesystem: filesystem(dir).unwrap_or_else(|| UNKNOWN.into()),
            flush: everdram_pm::FlushKind::detect().to_string(),
        }
    }
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes() -> u64 {
    field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// The type of the file system at the longest mount point above `dir`.
fn filesystem(dir: &Path) -> Option<String> {
    let dir = fs::canonicalize(dir).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = Path::new(before.split(' ').nth(4)?);
        let kind = after.split(' ').next()?;
        dir.starts_with(point)
            .then(|| (point.as_os_str().len(), kind.to_owned()))
    });
    // Of several mounts at one point, the last one covers the others.
    mounts
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind)
}

/// Bytes that the disk of a directory was given to write so far, by anybody; `None` if it has no device of
/// its own. What the kernel counts for a process says nothing: of a large page of its cache it counts all,
/// whatever part was changed.
pub(crate) fn written_bytes(dir: &Path) -> Option<u64> {
    const SECTOR_BYTES: u64 = 512;
    let device = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let counts = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    let sectors: u64 = counts.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * SECTOR_BYTES)
}

static COMMIT: OnceLock<&str> = OnceLock::new();

/// Says which commit this program is built from, once, before the first row is made. A library cannot know:
/// it is not built again for each commit.
pub fn built_from(commit: &'static str) {
    let _said_before = COMMIT.set(commit);
}

/// The commit this program is built from, if it has said so.
#[must_use]
pub fn commit() -> &'static str {
    COMMIT.get().unwrap_or(&UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_described() {
        let machine = Machine::here(Path::new("/proc"));
        assert_eq!(machine.filesystem, "proc");
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20);
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
        assert_eq!(Machine::here(Path::new("/not/there")).filesystem, UNKNOWN);
    }

    /// Not that of a source tree which happens to be there when the program runs.
    #[test]
    fn a_program_that_does_not_say_its_commit_has_an_unknown_one() {
        assert_eq!(commit(), UNKNOWN);
    }
}
