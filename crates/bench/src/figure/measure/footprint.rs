//! Bytes that a filled store has of DRAM, of persistent memory and of a disk.

use crate::figure::progress::Progress;
use crate::figure::settings::curve::Curve;
use crate::figure::store::{Data, Filled};
use crate::figure::system::Ground;
use crate::process;
use crate::row::{Metric, Row};
use crate::subject::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes in which the kernel counts what a file takes.
const SECTOR: u64 = 512;

/// A row of one store. The process had no other before.
pub(super) fn measure(
    data: &Data<'_>,
    filled: &Filled,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>, Error> {
    let mut row = progress.row("filled", 100.0, progress.curve.workers());
    add(data, &progress.curve, filled, &mut row)?;
    Ok(vec![row])
}

/// Adds the three parts to a row, and what they are for each byte of keys and values.
pub(super) fn add(
    data: &Data<'_>,
    curve: &Curve<'_>,
    filled: &Filled,
    row: &mut Row,
) -> Result<(), Error> {
    let dram = process::private_bytes().saturating_sub(filled.private_before);
    let pool = bytes_in(filled.site.dir())?;
    let beside = filled.site.beside().map_or(Ok(0), bytes_in)?;
    let is_on_files = curve.ground == Some(Ground::Files);
    let (pm, disk) = match (curve.system.is_rival(), is_on_files) {
        // What a rival has elsewhere is the log of a stand-in, in persistent memory.
        (true, _) => (beside, pool),
        (false, true) => (0, pool + beside),
        (false, false) => (pool, beside),
    };
    for (metric, bytes) in [
        (Metric::DramTotalBytes, dram),
        (Metric::PmTotalBytes, pm),
        (Metric::DiskTotalBytes, disk),
    ] {
        row.push(metric, bytes as f64);
    }
    let wanted = data.settings.records * data.corpus.record_bytes() as u64;
    row.push(
        Metric::Amplification,
        (dram + pm + disk) as f64 / wanted.max(1) as f64,
    );
    Ok(())
}

/// Bytes that the files in a directory take of their file system.
fn bytes_in(dir: &Path) -> Result<u64, Error> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += match about.is_dir() {
            true => bytes_in(&entry.path())?,
            false => about.blocks() * SECTOR,
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_with_what_they_take() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("within")).unwrap();
        std::fs::write(dir.path().join("within/file"), vec![1; 100_000]).unwrap();
        // A hole takes nothing.
        let sparse = std::fs::File::create(dir.path().join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        let bytes = bytes_in(dir.path()).unwrap();
        assert!((100_000..1 << 20).contains(&bytes), "{bytes}");
    }
}
