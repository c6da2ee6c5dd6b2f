//! Faults on demand, for tests: a sync that fails, a disk that is full, and a power loss.
//!
//! Faults are registered for a directory and apply to every file opened below it afterwards. Writes reach
//! the real files at once (so reads see them, as through a page cache), and the sectors they replaced are
//! remembered until a sync of that file succeeds. [`Faults::crash`] then plays the power loss: each sector
//! of 512 bytes written since takes one of the contents it has had, chosen by a seed.
//!
//! A failed sync does what Linux does: the data it covered is no longer dirty, so no later sync writes it.
//! The next crash may still lose those sectors, until they are written again and synced.

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};

/// Bytes that a device writes atomically.
const SECTOR: u64 = 512;

static REGISTRY: LazyLock<Mutex<HashMap<PathBuf, Weak<Faults>>>> = LazyLock::new(Mutex::default);

/// The faults of one directory, and what a crash there would lose.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Writes and syncs so far.
    calls: u64,
    /// Writes and syncs from this one on fail: the machine is off.
    off_at: Option<u64>,
    /// Syncs that still succeed before one fails.
    syncs_left: Option<u64>,
    /// Syncs of the directory so far.
    directory_syncs: u64,
    directory_fails: bool,
    /// Bytes of growth before the disk is full.
    room_left: Option<u64>,
    /// Writes to files whose names start with this panic.
    panics: Option<&'static str>,
    /// Whether overwritten sectors are remembered.
    lossy: bool,
    /// What each sector written since the last sync was before, oldest first.
    unsynced: HashMap<PathBuf, BTreeMap<u64, Sector>>,
}

#[derive(Debug, Default)]
struct Sector {
    before: Vec<[u8; SECTOR as usize]>,
    /// A sync failed while this sector was dirty: no later sync makes its contents of that time durable.
    lost: bool,
}

type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<usize, Errno>;
type Write<'a> = &'a dyn Fn(u64, &[u8]) -> Result<(), Errno>;

impl Faults {
    /// Registers faults for files opened below `directory` from now on. They last as long as the handle.
    #[must_use]
    pub fn install(directory: &Path) -> Arc<Faults> {
        let faults = Arc::new(Faults::default());
        REGISTRY
            .lock()
            .insert(directory.into(), Arc::downgrade(&faults));
        faults
    }

    pub(super) fn of_directory(path: &Path) -> Option<Arc<Faults>> {
        REGISTRY.lock().get(path)?.upgrade()
    }

    pub(super) fn of(path: &Path) -> Option<Arc<Faults>> {
        REGISTRY.lock().get(path.parent()?)?.upgrade()
    }

    /// Remembers what un-synced writes replaced, so that [`Faults::crash`] can take them back.
    pub fn lossy(&self) {
        self.state.lock().lossy = true;
    }

    /// After `calls` more writes and syncs every further one fails, as if the machine had lost power. The
    /// first write to fail has reached the file: a crash keeps any of its sectors.
    pub fn off_after(&self, calls: u64) {
        let mut state = self.state.lock();
        state.off_at = Some(state.calls + calls);
    }

    /// After `syncs` more syncs one fails.
    pub fn fail_sync_after(&self, syncs: u64) {
        self.state.lock().syncs_left = Some(syncs);
    }

    /// Whether syncs of the directory itself fail.
    pub fn fail_directory_syncs(&self, fail: bool) {
        self.state.lock().directory_fails = fail;
    }

    /// Syncs of the directory itself so far; they are not among [`Faults::calls`].
    #[must_use]
    pub fn directory_syncs(&self) -> u64 {
        self.state.lock().directory_syncs
    }

    /// The next write to a file whose name starts with `name` panics, and so does each later one.
    pub fn panic_at_writes_of(&self, name: &'static str) {
        self.state.lock().panics = Some(name);
    }

    /// Files may grow by `bytes` more, then the disk is full. `None`: no limit.
    pub fn room(&self, bytes: Option<u64>) {
        self.state.lock().room_left = bytes;
    }

    /// Writes and syncs so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// The machine is on again and lost nothing, as after a killed process. All writes can be read; those not
    /// synced can still be lost in the next crash.
    pub fn on(&self) {
        self.state.lock().off_at = None;
    }

    /// Plays a power loss: every sector written since the last sync of its file takes one of the contents
    /// it has had. Then the machine is on again, with no faults. No file of the directory may be open.
    ///
    /// # Errors
    /// The files could not be changed.
    pub fn crash(&self, seed: u64) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        // Some crashes lose all un-synced writes, some keep all: extremes matter more than mixtures.
        let mood = random.random_range(0..4);
        let mut paths: Vec<_> = std::mem::take(&mut state.unsynced).into_iter().collect();
        paths.sort_by(|a, b| a.0.cmp(&b.0));
        for (path, sectors) in paths {
            let file = match rustix::fs::open(
                &path,
                rustix::fs::OFlags::RDWR,
                rustix::fs::Mode::empty(),
            ) {
                // Deleted since it was written.
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            for (number, sector) in sectors {
                let pick = match mood {
                    0 => 0,
                    1 => sector.before.len(),
                    _ => random.random_range(0..=sector.before.len()),
                };
                if let Some(bytes) = sector.before.get(pick) {
                    super::system::write_all(&file, number * SECTOR, bytes)?;
                }
            }
        }
        *state = State {
            lossy: state.lossy,
            calls: state.calls,
            ..State::default()
        };
        Ok(())
    }

    pub(super) fn sync_directory(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.directory_syncs += 1;
        if state.directory_fails {
            return Err(Errno::IO);
        }
        Ok(())
    }

    pub(super) fn claim(&self, bytes: u64) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if let Some(left) = &mut state.room_left {
            *left = left.checked_sub(bytes).ok_or(Errno::NOSPC)?;
        }
        Ok(())
    }

    pub(super) fn write(
        &self,
        path: &Path,
        at: u64,
        bytes: &[u8],
        length: u64,
        read: Read<'_>,
        write: Write<'_>,
    ) -> Result<(), Errno> {
        self.claim((at + bytes.len() as u64).saturating_sub(length.max(at)))?;
        let mut state = self.state.lock();
        let name = path.file_name().and_then(|name| name.to_str());
        if let (Some(name), Some(panics)) = (name, state.panics) {
            assert!(!name.starts_with(panics), "a write to {name}, as asked for");
        }
        let off = state.off();
        if off && state.off_at != Some(state.calls - 1) {
            return Err(Errno::IO);
        }
        if state.lossy {
            let sectors = state.unsynced.entry(path.into()).or_default();
            for number in at / SECTOR..(at + bytes.len() as u64).div_ceil(SECTOR) {
                let mut before = [0; SECTOR as usize];
                read(number * SECTOR, &mut before)?;
                let sector = sectors.entry(number).or_default();
                sector.before.push(before);
                sector.lost = false;
            }
        }
        write(at, bytes)?;
        if off { Err(Errno::IO) } else { Ok(()) }
    }

    pub(super) fn sync(
        &self,
        path: &Path,
        call: &dyn Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.off() {
            return Err(Errno::IO);
        }
        let fails = match &mut state.syncs_left {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        // A lossy disk is simulated in memory: waiting for the real one would prove nothing.
        if !fails && !state.lossy {
            call()?;
        }
        if let Some(sectors) = state.unsynced.get_mut(path) {
            sectors.retain(|_, sector| {
                sector.lost |= fails;
                sector.lost
            });
        }
        if fails { Err(Errno::IO) } else { Ok(()) }
    }
}

impl State {
    /// Counts a call; returns whether the machine is off for it.
    fn off(&mut self) -> bool {
        self.calls += 1;
        self.off_at.is_some_and(|at| self.calls > at)
    }
}
