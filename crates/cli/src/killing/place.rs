//! Where a run puts its pool: a temporary directory on a suitable file system.

use anyhow::Context;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const SHARED_MEMORY: &str = "/dev/shm";

/// A new temporary directory for ordinary files. It is in the system's temporary directory, unless this is in
/// memory, where a sync proves nothing.
///
/// # Errors
/// If the directory cannot be made.
pub fn for_files() -> anyhow::Result<TempDir> {
    let usual = std::env::temp_dir();
    let here = std::env::current_dir().unwrap_or_else(|_| usual.clone());
    let parent = if is_tmpfs(&usual) && !is_tmpfs(&here) {
        here
    } else {
        usual
    };
    make(&parent)
}

/// A new temporary directory in memory. It outlives a process.
///
/// # Errors
/// If `/dev/shm` is no tmpfs.
pub fn for_emulation() -> anyhow::Result<TempDir> {
    anyhow::ensure!(
        is_tmpfs(Path::new(SHARED_MEMORY)),
        "{SHARED_MEMORY} is no tmpfs here, and emulated persistent memory needs one; mount one, or use `--medium file`"
    );
    make(Path::new(SHARED_MEMORY))
}

fn make(parent: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new()
        .prefix("everdram-")
        .tempdir_in(parent);
    made.with_context(|| format!("a temporary directory in {}", parent.display()))
}

/// Whether `path` is on a tmpfs, by the kernel's list of mounts.
fn is_tmpfs(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    type_of_mount(&mounts, &path) == Some("tmpfs")
}

/// The type of the mount that holds `path`: the longest mount point above it, and of equal ones the last.
fn type_of_mount<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((PathBuf::from(fields.next()?), fields.next()?))
    });
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    above
        .max_by_key(|(point, _)| point.components().count())
        .map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_counts() {
        let mounts =
            "/dev/a / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n/dev/b /dev/shm/disk xfs rw 0 0\n";
        let kind = |path| type_of_mount(mounts, Path::new(path));
        assert_eq!(kind("/home"), Some("ext4"));
        assert_eq!(kind("/dev/shm/x"), Some("tmpfs"));
        assert_eq!(kind("/dev/shmx"), Some("ext4"));
        assert_eq!(kind("/dev/shm/disk/y"), Some("xfs"));
    }
}
