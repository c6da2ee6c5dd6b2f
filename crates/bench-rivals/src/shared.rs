//! What several stores need: the version they were built from, the room they take, the size of a cache that
//! fits the data, and the step of a counter.

use anyhow::Context;
use everdram_bench::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The version of a crate in this build, as the lock file says.
pub(crate) fn locked_version(package: &str) -> String {
    const LOCK: &str = include_str!("../../../Cargo.lock");
    let name = format!("name = \"{package}\"");
    LOCK.lines()
        .skip_while(|line| *line != name)
        .find_map(|line| line.strip_prefix("version = "))
        .map_or_else(
            || "unknown".to_owned(),
            |version| version.trim_matches('"').to_owned(),
        )
}

/// Room that the files under `dir` take. Blocks are counted, since some stores make their files longer than
/// what is in them; what vanishes meanwhile, as compaction makes it, counts nothing.
pub(crate) fn folder_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, metadata)| {
            if metadata.is_dir() {
                folder_bytes(&path)
            } else {
                metadata.blocks() * 512
            }
        })
        .sum()
}

/// A cache in which all records fit, with a half more for what a store keeps beside them, and not less than
/// 64 MiB.
pub(crate) fn cache_bytes(records: u64, record_bytes: usize) -> u64 {
    let data_bytes = records.saturating_mul(record_bytes as u64);
    data_bytes.saturating_add(data_bytes / 2).max(64 << 20)
}

/// Adds 1 to the little-endian word at the start of `value`.
pub(crate) fn increment(value: &mut [u8]) -> Result<(), Error> {
    let word = value
        .first_chunk_mut::<8>()
        .context("the value is shorter than the 8 bytes that are to be updated")?;
    *word = u64::from_le_bytes(*word).wrapping_add(1).to_le_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        assert_eq!(locked_version("everdram-bench"), env!("CARGO_PKG_VERSION"));
        assert_eq!(locked_version("no-such-package"), "unknown");
    }

    #[test]
    fn only_the_first_word_steps() {
        let mut value = vec![255, 0, 0, 0, 0, 0, 0, 0, 7];
        increment(&mut value).unwrap();
        assert_eq!(value, [0, 1, 0, 0, 0, 0, 0, 0, 7]);
        assert!(increment(&mut [0; 7]).is_err());
    }

    #[test]
    fn folders_are_counted_with_what_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("inner")).unwrap();
        fs::write(dir.path().join("inner/file"), vec![1; 100_000]).unwrap();
        assert!(folder_bytes(dir.path()) >= 100_000);
        assert_eq!(folder_bytes(&dir.path().join("missing")), 0);
    }
}
