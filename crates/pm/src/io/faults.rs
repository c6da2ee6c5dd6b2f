//! Faults on demand, for tests: a sync that fails, a disk that is full, and a power loss.
//!
//! Faults are registered for a directory and apply to every file opened below it afterwards. Writes reach
//! the real files at once (so reads see them, as through a page cache), and the sectors they replaced are
//! remembered until a sync of that file succeeds. [`Faults::crash`] then plays the power loss: each sector
//! of 512 bytes written since takes one of the contents it has had, chosen by a seed, and each file one of
//! its lengths. Names of a shelf that were changed since the directory was synced stay or are taken back,
//! those that a rename connects together. Names of a pool's own files are always kept.
//!
//! A failed sync does what Linux does: the data it covered is no longer dirty, so no later sync writes it.
//! The next crash may still lose those sectors, until they are written again and synced.

use super::system::{read_available, write_all};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};

/// Bytes that a device writes atomically.
const SECTOR: u64 = 512;

/// Bytes that a disk gives to a file at a time.
const PAGE: u64 = 4096;

static REGISTRY: LazyLock<Mutex<HashMap<PathBuf, Weak<Faults>>>> = LazyLock::new(Mutex::default);

/// The faults of one directory, and what a crash there would lose.
#[derive(Debug, Default)]
pub struct Faults {
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Writes, syncs and changed names so far.
    calls: u64,
    /// Those from this one on fail: the machine is off.
    off_at: Option<u64>,
    /// Syncs that still succeed before one fails.
    syncs_left: Option<u64>,
    /// Syncs of the directory so far.
    directory_syncs: u64,
    directory_fails: bool,
    /// Bytes of growth before the disk is full.
    room_left: Option<u64>,
    /// Bytes of the disk.
    disk_bytes: Option<u64>,
    /// Writes to files whose names start with this panic.
    panics: Option<&'static str>,
    /// Whether overwritten sectors are remembered.
    lossy: bool,
    /// What was written since the last sync, by the file's number in the file system.
    unsynced: HashMap<u64, Unsynced>,
    /// Names changed since the last sync of the directory, in order.
    changes: Vec<Change>,
}

/// Parts of a file that the next crash decides.
#[derive(Debug, Default)]
struct Unsynced {
    path: PathBuf,
    length: Part<u64>,
    sectors: BTreeMap<u64, Part<[u8; SECTOR as usize]>>,
}

/// What a part of a file was before each change since the last sync, oldest first.
#[derive(Debug)]
struct Part<T> {
    before: Vec<T>,
    /// A sync failed while this part was dirty: no later sync makes its contents of that time durable.
    lost: bool,
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Part {
            before: Vec::new(),
            lost: false,
        }
    }
}

impl<T> Part<T> {
    fn change(&mut self, before: T) {
        self.before.push(before);
        self.lost = false;
    }

    /// Returns whether the next crash still decides about the part.
    fn sync(&mut self, fails: bool) -> bool {
        self.lost |= fails && !self.before.is_empty();
        if !self.lost {
            self.before.clear();
        }
        self.lost
    }

    /// What it is after a crash; `None`: as it was written last.
    fn pick(&self, mood: Mood, random: &mut StdRng) -> Option<&T> {
        self.before.get(mood.pick(self.before.len(), random))
    }
}

/// Some crashes lose all un-synced writes, some keep all: extremes matter more than mixtures.
#[derive(Clone, Copy)]
struct Mood(u8);

impl Mood {
    /// How many of `count` changes survive.
    fn pick(self, count: usize, random: &mut StdRng) -> usize {
        match self.0 {
            0 => 0,
            1 => count,
            _ => random.random_range(0..=count),
        }
    }
}

/// A change of names, and what takes it back.
#[derive(Debug)]
enum Change {
    Create(PathBuf),
    Unlink(PathBuf, Removed),
    Rename([PathBuf; 2], Option<Removed>),
}

impl Change {
    fn names(&self) -> &[PathBuf] {
        match self {
            Change::Create(path) | Change::Unlink(path, _) => std::slice::from_ref(path),
            Change::Rename(paths, _) => paths,
        }
    }
}

/// A file without a name, and its parts that are not durable.
#[derive(Debug)]
struct Removed {
    file: OwnedFd,
    unsynced: Unsynced,
}

/// A change of names that is about to happen.
#[derive(Clone, Copy)]
pub(super) enum Naming<'a> {
    Create(&'a Path),
    Unlink(&'a Path),
    Rename(&'a Path, &'a Path),
}

impl Faults {
    /// Registers faults for files opened below `directory` from now on. They last as long as the handle.
    #[must_use]
    pub fn install(directory: &Path) -> Arc<Faults> {
        let faults = Arc::new(Faults {
            directory: directory.into(),
            ..Faults::default()
        });
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

    /// After `calls` more writes, syncs and changed names every further one fails, as if the machine had lost
    /// power. If a write is the first to fail, it has reached the file: a crash keeps any of its sectors.
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

    /// Syncs of the directory itself so far; those of a pool's directory are not among [`Faults::calls`].
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

    /// The disk has so many bytes in all, and what is removed from the directory gives room back. `None`: no
    /// limit.
    pub fn disk(&self, bytes: Option<u64>) {
        self.state.lock().disk_bytes = bytes;
    }

    /// Bytes that the files of the directory take on the disk, with those that are reserved for them.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn used(&self) -> Result<u64, std::io::Error> {
        use std::os::unix::fs::MetadataExt;
        let entries = std::fs::read_dir(&self.directory)?;
        let bytes = entries.map(|entry| match entry?.metadata() {
            Ok(metadata) => Ok(metadata.blocks() * 512),
            // Removed meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        });
        bytes.sum()
    }

    /// Writes, syncs and changed names so far.
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
        let mut random = StdRng::seed_from_u64(seed);
        let mood = Mood(random.random_range(0..4));
        state.lose_names(mood, &mut random)?;
        let mut files: Vec<_> = std::mem::take(&mut state.unsynced).into_iter().collect();
        files.sort_by(|a, b| a.1.path.cmp(&b.1.path));
        for (number, unsynced) in files {
            let file = match rustix::fs::open(&unsynced.path, OFlags::RDWR, Mode::empty()) {
                // Deleted since it was written.
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            let stat = rustix::fs::fstat(&file)?;
            if stat.st_ino == number {
                unsynced.lose(&file, stat.st_size as u64, mood, &mut random)?;
            }
        }
        *state = State {
            lossy: state.lossy,
            calls: state.calls,
            ..State::default()
        };
        Ok(())
    }

    /// A sync of the directory; one of a shelf is a call.
    pub(super) fn sync_directory(&self, is_call: bool) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.directory_syncs += 1;
        if state.directory_fails || (is_call && state.off()) {
            return Err(Errno::IO);
        }
        state.changes.clear();
        Ok(())
    }

    /// Names of a shelf are changed by `call`.
    pub(super) fn name<T>(
        &self,
        naming: Naming<'_>,
        call: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.state.lock();
        if state.off() {
            return Err(Errno::IO);
        }
        if !state.lossy {
            return call();
        }
        let open = |path: &Path| match rustix::fs::open(path, OFlags::RDONLY, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            opened => opened.map(Some),
        };
        let removed = match naming {
            Naming::Create(_) => None,
            Naming::Unlink(path) | Naming::Rename(_, path) => open(path)?,
        };
        let done = call()?;
        let removed = match removed {
            None => None,
            Some(file) => {
                let unsynced = state.unsynced.remove(&number(&file)?).unwrap_or_default();
                Some(Removed { file, unsynced })
            }
        };
        match naming {
            Naming::Create(path) => {
                // The number may be that of a file which is gone.
                if let Some(file) = open(path)? {
                    state.unsynced.remove(&number(&file)?);
                }
                state.changes.push(Change::Create(path.into()));
            }
            Naming::Unlink(path) => {
                let removed = removed.map(|removed| Change::Unlink(path.into(), removed));
                state.changes.extend(removed);
            }
            Naming::Rename(from, to) => {
                state.moved(from, to);
                let paths = [from, to].map(PathBuf::from);
                state.changes.push(Change::Rename(paths, removed));
            }
        }
        Ok(done)
    }

    /// Takes the room with which a file that has `had` bytes, and `backed` on the disk, has `wanted`.
    pub(super) fn claim(&self, had: u64, wanted: u64, backed: u64) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if let Some(left) = &mut state.room_left {
            let bytes = wanted.saturating_sub(had);
            *left = left.checked_sub(bytes).ok_or(Errno::NOSPC)?;
        }
        if let Some(disk) = state.disk_bytes {
            // Another opening of the file may have reserved room.
            let [had, wanted] = [had.max(backed), wanted].map(|bytes| bytes.next_multiple_of(PAGE));
            let bytes = wanted.saturating_sub(had);
            let used = self.used().map_err(|_| Errno::IO)?;
            if bytes > 0 && used.saturating_add(bytes) > disk {
                return Err(Errno::NOSPC);
            }
        }
        Ok(())
    }

    /// Bytes that a file may have which has `backed` on a disk with a limit.
    pub(super) fn most(&self, backed: u64) -> Option<u64> {
        let disk = self.state.lock().disk_bytes?;
        let left = disk.saturating_sub(self.used().ok()?) / PAGE * PAGE;
        Some(backed + left)
    }

    pub(super) fn write(
        &self,
        file: impl AsFd,
        path: &Path,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
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
            let end = at + bytes.len() as u64;
            let unsynced = state.unsynced(&file, path)?;
            unsynced.remember(&file, at, end)?;
            let length = length(&file)?;
            if end > length {
                unsynced.length.change(length);
            }
        }
        write_all(&file, at, bytes)?;
        if off { Err(Errno::IO) } else { Ok(()) }
    }

    pub(super) fn set_len(
        &self,
        file: impl AsFd,
        path: &Path,
        bytes: u64,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.off_at.is_some_and(|at| state.calls > at) {
            return Err(Errno::IO);
        }
        let length = length(&file)?;
        if state.lossy && length != bytes {
            let unsynced = state.unsynced(&file, path)?;
            unsynced.remember(&file, bytes, length)?;
            unsynced.length.change(length);
        }
        call()
    }

    pub(super) fn sync(
        &self,
        file: impl AsFd,
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
        if let Some(unsynced) = state.unsynced.get_mut(&number(&file)?) {
            unsynced.length.sync(fails);
            unsynced.sectors.retain(|_, sector| sector.sync(fails));
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

    fn unsynced(&mut self, file: impl AsFd, path: &Path) -> Result<&mut Unsynced, Errno> {
        let unsynced = self.unsynced.entry(number(file)?);
        Ok(unsynced.or_insert_with(|| Unsynced {
            path: path.into(),
            ..Unsynced::default()
        }))
    }

    /// A file has another name.
    fn moved(&mut self, from: &Path, to: &Path) {
        let unsynced = self.unsynced.values_mut();
        for unsynced in unsynced.filter(|unsynced| unsynced.path == from) {
            unsynced.path = to.into();
        }
    }

    /// Takes changes of names back, as a crash does. Of those that share a name it takes back the last ones.
    fn lose_names(&mut self, mood: Mood, random: &mut StdRng) -> Result<(), Errno> {
        let mut groups: Vec<Vec<Change>> = Vec::new();
        for change in std::mem::take(&mut self.changes) {
            let shares = |other: &Change| {
                let mut names = change.names().iter();
                names.any(|name| other.names().contains(name))
            };
            let is_met = |group: &mut Vec<Change>| group.iter().any(shares);
            let met: Vec<_> = groups.extract_if(.., is_met).collect();
            // Groups that were apart until now have no order among them.
            let joined = met.into_iter().flatten().chain([change]);
            groups.push(joined.collect());
        }
        for mut group in groups {
            let kept = mood.pick(group.len(), random);
            for change in group.drain(kept..).rev() {
                self.take_back(change)?;
            }
        }
        Ok(())
    }

    fn take_back(&mut self, change: Change) -> Result<(), Errno> {
        match change {
            Change::Create(path) => rustix::fs::unlink(&path),
            Change::Unlink(path, removed) => self.restore(path, removed),
            Change::Rename([from, to], replaced) => {
                rustix::fs::rename(&to, &from)?;
                self.moved(&to, &from);
                replaced.map_or(Ok(()), |replaced| self.restore(to, replaced))
            }
        }
    }

    /// Makes a file again that was removed.
    fn restore(&mut self, path: PathBuf, removed: Removed) -> Result<(), Errno> {
        let mut bytes = vec![0; length(&removed.file)? as usize];
        read_available(&removed.file, 0, &mut bytes)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        write_all(&file, 0, &bytes)?;
        let unsynced = Unsynced {
            path,
            ..removed.unsynced
        };
        self.unsynced.insert(number(&file)?, unsynced);
        Ok(())
    }
}

impl Unsynced {
    /// Remembers the sectors of `at .. end` as they are.
    fn remember(&mut self, file: impl AsFd, at: u64, end: u64) -> Result<(), Errno> {
        for number in at / SECTOR..end.div_ceil(SECTOR) {
            let mut before = [0; SECTOR as usize];
            read_available(&file, number * SECTOR, &mut before)?;
            self.sectors.entry(number).or_default().change(before);
        }
        Ok(())
    }

    /// Plays the power loss for a file of `length` bytes.
    fn lose(
        self,
        file: &OwnedFd,
        length: u64,
        mood: Mood,
        random: &mut StdRng,
    ) -> Result<(), Errno> {
        let length = self.length.pick(mood, random).copied().unwrap_or(length);
        for (number, sector) in self.sectors {
            if let Some(bytes) = sector.pick(mood, random) {
                write_all(file, number * SECTOR, bytes)?;
            }
        }
        rustix::fs::ftruncate(file, length)
    }
}

/// What the file system knows a file by.
fn number(file: impl AsFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(file)?.st_ino)
}

fn length(file: impl AsFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(file)?.st_size as u64)
}
