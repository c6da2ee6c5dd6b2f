//! Room: what stores need in memory and on disks, and whether it is there.

use super::Settings;
use super::curve::Curve;
use crate::figure::fabric::POOL_BYTES;
use crate::figure::{Ground, Measure};
use crate::process;
use crate::subject::Error;
use anyhow::{Context, bail};
use std::path::Path;

/// Bytes that a record takes in the pool and beside it, generously.
pub(super) const POOL_BYTES_A_RECORD: u64 = 320;
pub(super) const DRAM_BYTES_A_RECORD: u64 = 320;
/// Bytes that a record takes beside its key and value, in the pool of a store that is half as large at first.
const BESIDE_RECORD_BYTES: u64 = 96;
/// Bytes of a pool beside records and logs, and of a process beside its store.
const BESIDE_BYTES: u64 = 128 << 20;
/// The least limit of a pool that has a log below it.
const LIMIT_BYTES: u64 = 2 << 20;
/// Bytes of values that a server is given at most before it is measured, and as many while it is.
pub(in crate::figure) const SERVED_BYTES: u64 = 1 << 30;
/// Disks write whole blocks.
const BLOCK_BYTES: u64 = 4096;
/// What a rival takes on a disk for each byte of data, before it has compacted; and of memory as its cache.
const RIVAL_DISK: u64 = 3;
const RIVAL_DRAM: u64 = 2;
/// Logs that a rival keeps to use them again, where they are in memory.
const RIVAL_LOG_BYTES: u64 = 512 << 20;

/// Bytes that a store needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// In the directory that plays persistent memory.
    pub(super) emulated: u64,
    pub(super) disk: u64,
    pub(super) dram: u64,
}

impl Settings {
    pub(super) fn needs(&self, curve: &Curve<'_>) -> Needs {
        let is_served = self.figure.measure == Measure::Servers;
        let has_data = self.paper().systems.have_data_files();
        let records = curve.records();
        let (data, pool) = match is_served {
            true => (
                2 * SERVED_BYTES + BESIDE_BYTES,
                3 * SERVED_BYTES + BESIDE_BYTES,
            ),
            false if has_data => (
                data_bytes(records, curve.value_bytes()) + BESIDE_BYTES,
                self.pool_bytes(curve),
            ),
            false => (
                records * (curve.record_bytes() + BESIDE_RECORD_BYTES) + BESIDE_BYTES,
                self.pool_bytes(curve),
            ),
        };
        let mut needs = Needs {
            dram: records * DRAM_BYTES_A_RECORD + BESIDE_BYTES,
            ..Needs::default()
        };
        match curve.ground {
            _ if curve.system.is_rival() => {
                let memtable = curve.memtable_bytes.unwrap_or(0);
                needs.disk = RIVAL_DISK * data + memtable;
                needs.dram = RIVAL_DRAM * data + memtable;
                if curve.system.stands_in_for().is_some() {
                    needs.emulated = memtable + RIVAL_LOG_BYTES;
                }
            }
            None => needs.emulated = pool,
            Some(Ground::Modelled) if has_data => needs.emulated = pool + data,
            Some(Ground::Modelled) => needs.emulated = pool,
            Some(Ground::Disk) => (needs.emulated, needs.disk) = (pool, data),
            // The redo log of the files is at most as large as what it is about.
            Some(Ground::Files) => needs.disk = 2 * pool + data,
        }
        needs
    }

    /// Limit of a pool that has a log below it.
    pub(in crate::figure) fn limit_bytes(&self) -> Option<u64> {
        let records = self.figure.records.unwrap_or(self.paper().records);
        let bytes = self.figure.pool_bytes? * self.records / records;
        Some(bytes.max(LIMIT_BYTES))
    }

    /// Bytes of the pool of a system.
    pub(in crate::figure) fn pool_bytes(&self, curve: &Curve<'_>) -> u64 {
        if self.figure.measure == Measure::Fabric {
            return POOL_BYTES * self.figure.topology.stores() as u64;
        }
        if curve.system.has_empty_pool() {
            return BESIDE_BYTES;
        }
        let each = match self.figure.measure {
            // Half as many records more are inserted.
            Measure::Operations | Measure::Reclaiming => {
                curve.record_bytes() * 3 / 2 + BESIDE_RECORD_BYTES
            }
            _ => POOL_BYTES_A_RECORD,
        };
        let bytes = curve.records() * each + curve.all_log_bytes() + BESIDE_BYTES;
        bytes.next_multiple_of(1 << 20)
    }

    /// Whether this build can measure it, and whether there is room for the largest store.
    ///
    /// # Errors
    /// Says what is needed, what there is, and what would help.
    pub fn ensure_possible(&self) -> Result<(), Error> {
        #[cfg(not(feature = "steps"))]
        if self.figure.measure == Measure::Steps {
            bail!(crate::figure::measure::steps::BUILD);
        }
        let disk_bytes = match &self.data_dir {
            Some(dir) => room_in(dir)?,
            None => 0,
        };
        let memory_bytes = process::available_bytes();
        self.ensure_room_of(room_in(&self.dir)?, disk_bytes, memory_bytes)
    }

    pub(super) fn ensure_room_of(
        &self,
        dir_bytes: u64,
        disk_bytes: u64,
        memory_bytes: u64,
    ) -> Result<(), Error> {
        let curves = self.curves();
        let most = |of: fn(Needs) -> u64| {
            let all = curves.iter().map(|curve| of(self.needs(curve)));
            all.max().unwrap_or(0)
        };
        let (pool, disk) = (most(|needs| needs.emulated), most(|needs| needs.disk));
        // Memory that plays persistent memory is memory.
        let memory = most(|needs| needs.emulated + needs.dram);
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let logs = curves.iter().map(Curve::logs).max().unwrap_or(0);
        let what = format!("a store of {} records with {logs} logs", self.records);
        let remedy = match self.figure.measure {
            Measure::Servers => "name other directories with --dir and --data-dir",
            _ => "ask for fewer --records, or smaller logs with --log-bytes",
        };
        let needs = |dir: &Path, needed, free| {
            format!(
                "{}: {what} needs {} MiB there, and {} MiB are free: {remedy}",
                dir.display(),
                mib(needed),
                mib(free),
            )
        };
        if pool > dir_bytes {
            bail!(needs(&self.dir, pool, dir_bytes));
        }
        if let Some(dir) = self.data_dir.as_ref().filter(|_| disk > disk_bytes) {
            bail!(needs(dir, disk, disk_bytes));
        }
        if memory > memory_bytes {
            bail!(
                "{what} needs {} MiB of memory, {} MiB of it as persistent memory, and {} MiB are free: {remedy}",
                mib(memory),
                mib(pool),
                mib(memory_bytes),
            );
        }
        Ok(())
    }
}

fn room_in(dir: &Path) -> Result<u64, Error> {
    let room = rustix::fs::statvfs(dir)
        .with_context(|| format!("asking for the room in {}", dir.display()))?;
    Ok(room.f_bavail * room.f_frsize)
}

/// Bytes of so many values in blocks; a twentieth more for blocks that are free and not yet used again.
pub(super) fn data_bytes(records: u64, value_bytes: usize) -> u64 {
    records * (value_bytes as u64).next_multiple_of(BLOCK_BYTES) * 21 / 20
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Figure, System};
    use everdram::options::BulletSystem;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_disk_without_room_is_refused_before_anything_is_measured() {
        let figure = Figure::find("dstore-8").unwrap();
        let mut here = Settings::of(figure, false, Path::new("/there"), 2, 22 * GIB);
        assert_eq!(here.records, 2_000_000);
        here.ensure_room_of(12 * GIB, 0, 22 * GIB).unwrap();
        here.data_dir = Some("/disk".into());
        here.grounds = figure.grounds.clone();
        let text = here.ensure_room_of(12 * GIB, 5 * GIB, 22 * GIB);
        let text = text.unwrap_err().to_string();
        assert!(
            text.contains("/disk") && text.contains("5120 MiB are free"),
            "{text}"
        );
        here.ensure_room_of(12 * GIB, 20 * GIB, 22 * GIB).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_is_needed() {
        let figure = Figure::find("bullet-6").unwrap();
        let mut here = Settings::of(figure, false, Path::new("/there"), 2, 20 * GIB);
        here.records = 10_000_000;
        let text = here
            .ensure_room_of(GIB, 0, 20 * GIB)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("/there") && text.contains("1024 MiB are free"),
            "{text}"
        );
        let text = here
            .ensure_room_of(20 * GIB, 0, 4 * GIB)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("--records") && text.contains("of memory"),
            "{text}"
        );
        here.systems = vec![System::Bullet(BulletSystem::Volatile)];
        here.ensure_room_of(GIB, 0, 4 * GIB).unwrap();
    }
}
