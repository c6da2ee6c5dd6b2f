//! The two copies of the superblock on their medium: which one counts, and how to change them.
//!
//! Invariants:
//! - At every moment at least one copy is valid and durable. The copies are written one after the other, each
//!   durable before the next is touched; an invalid or older copy is written first.
//! - After [`Header::update`] both copies carry the new state, so one damaged copy never loses an update.
//! - After a failed write the contents of the medium are unknown. The header refuses every later update, and
//!   so does everything else that shares its [`Poison`]: the redo log, whose files the failure may concern as
//!   well.

use super::superblock::{Block, COPIES_AT, Flaw, PAGE, Superblock, VERSION_MAX};
use crate::error::Error;
use crate::lock::lock;
use crate::poison::Poison;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads and writes superblock copies on a medium.
pub(crate) trait Carrier: Send + Sync {
    /// Reads the copy at image offset `at`.
    fn read(&self, at: u64) -> Result<Block, Errno>;
    /// Writes the copy at image offset `at`; it is durable on return.
    fn write(&self, at: u64, block: &Block) -> Result<(), Errno>;
}

/// The state of both copies.
pub(crate) struct Found {
    /// The newest valid state.
    pub(crate) superblock: Superblock,
    /// The copies that do not carry it.
    pub(crate) stale: Vec<Stale>,
}

/// A copy of the superblock that does not count.
pub(crate) struct Stale {
    /// Where it is.
    pub(crate) at: u64,
    /// Why it does not count.
    pub(crate) why: String,
    /// It does not verify; otherwise it is merely older.
    pub(crate) is_damaged: bool,
}

/// Reads both copies and picks the newest valid one. `path` is for messages.
pub(crate) fn read(carrier: &dyn Carrier, path: &Path) -> Result<Found, Error> {
    let mut valid = Vec::new();
    let mut flaws = Vec::new();
    for at in COPIES_AT {
        let block = carrier.read(at).map_err(|source| Error::Io {
            path: path.into(),
            what: "reading the superblock",
            source,
        })?;
        match Superblock::decode(&block, at) {
            Ok(superblock) => valid.push((at, superblock)),
            Err(flaw) => flaws.push((at, flaw)),
        }
    }
    if let Some(found) = flaws.iter().find_map(|(_, flaw)| match flaw {
        Flaw::Newer(version) => Some(*version),
        _ => None,
    }) {
        return Err(Error::Version {
            path: path.into(),
            found,
            known: VERSION_MAX,
        });
    }
    let Some(newest) = valid
        .iter()
        .map(|(_, s)| s)
        .max_by_key(|s| s.generation)
        .cloned()
    else {
        return Err(unreadable(path, &flaws));
    };
    let mut stale: Vec<_> = flaws
        .into_iter()
        .map(|(at, flaw)| Stale {
            at,
            why: describe(&flaw),
            is_damaged: true,
        })
        .collect();
    for (at, superblock) in valid {
        if superblock.generation == newest.generation && superblock != newest {
            return Err(corrupt(
                path,
                at,
                "both copies verify with one generation and differ".into(),
            ));
        }
        if superblock != newest {
            stale.push(Stale {
                at,
                why: format!(
                    "generation {} of {}",
                    superblock.generation, newest.generation
                ),
                is_damaged: false,
            });
        }
    }
    Ok(Found {
        superblock: newest,
        stale,
    })
}

fn describe(flaw: &Flaw) -> String {
    match flaw {
        Flaw::Foreign => "no magic".into(),
        Flaw::Newer(version) => format!("format version {version}"),
        Flaw::Damaged { what, .. } => what.clone(),
    }
}

/// Without a superblock the rest of the bytes have no meaning.
const REMEDY: &str = "Nothing was changed; restore the pool from a backup: without a superblock there is nothing to salvage either";

fn corrupt(path: &Path, offset: u64, what: String) -> Error {
    Error::Corrupt {
        path: path.into(),
        offset,
        what,
        remedy: REMEDY,
    }
}

fn unreadable(path: &Path, flaws: &[(u64, Flaw)]) -> Error {
    let damage = flaws.iter().find_map(|(copy, flaw)| match flaw {
        Flaw::Damaged { at, what } => Some((copy + *at as u64, what)),
        _ => None,
    });
    match damage {
        Some((offset, what)) => corrupt(
            path,
            offset,
            format!("{what}, and the other copy is unusable, too"),
        ),
        None => Error::NotAPool {
            path: path.into(),
            what: "it does not start with a superblock".into(),
        },
    }
}

/// The superblock of an open pool.
pub(crate) struct Header {
    path: PathBuf,
    carrier: Box<dyn Carrier>,
    /// The contents of both copies. Locked while they are written, so updates are one after another.
    current: Mutex<Superblock>,
    /// The pool's.
    poison: Arc<Poison>,
}

impl Header {
    /// Adopts the state that [`read`] found, and first makes both copies carry it, durably. What was read may
    /// exist only in caches: a process that died before its sync, or whose sync failed, leaves there what a
    /// power loss takes. So this writes the good copies again, the same bytes to the same place, before it
    /// touches the others.
    pub(crate) fn adopt(
        carrier: Box<dyn Carrier>,
        path: &Path,
        found: Found,
    ) -> Result<Header, Error> {
        let header = Self::new(carrier, path, found.superblock);
        let is_stale = |at: u64| found.stale.iter().any(|stale| stale.at == at);
        let good = COPIES_AT.into_iter().filter(|&at| !is_stale(at));
        let stale = COPIES_AT.into_iter().filter(|&at| is_stale(at));
        for at in good.chain(stale) {
            let block = header.current.lock().encode(at);
            header.write(at, &block)?;
        }
        Ok(header)
    }

    /// Adopts the state that [`read`] found as it is; only [`Header::update`] writes.
    pub(crate) fn view(carrier: Box<dyn Carrier>, path: &Path, found: Found) -> Header {
        Self::new(carrier, path, found.superblock)
    }

    /// Writes the first superblock of a new pool.
    pub(crate) fn create(
        carrier: Box<dyn Carrier>,
        path: &Path,
        superblock: Superblock,
    ) -> Result<Header, Error> {
        let header = Self::new(carrier, path, superblock);
        for at in COPIES_AT {
            let block = header.current.lock().encode(at);
            header.write(at, &block)?;
        }
        Ok(header)
    }

    fn new(carrier: Box<dyn Carrier>, path: &Path, superblock: Superblock) -> Header {
        Header {
            path: path.into(),
            carrier,
            current: Mutex::new(superblock),
            poison: Arc::default(),
        }
    }

    /// The superblock as it is now.
    pub(crate) fn get(&self) -> Superblock {
        lock(&self.current).clone()
    }

    /// Changes the superblock. Durable on return, in both copies; on error nothing changed in memory.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if this write or an earlier one failed.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Superblock)) -> Result<(), Error> {
        let mut current = lock(&self.current);
        self.healthy()?;
        let mut next = current.clone();
        change(&mut next);
        next.generation += 1;
        for at in COPIES_AT {
            self.write(at, &next.encode(at))?;
        }
        *current = next;
        Ok(())
    }

    /// Runs a sync of the image file in turn with the superblock's own, and treats its failure alike. The
    /// kernel reports a failed write-back once, so the thread that sees it must stop all others.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if it fails, or something failed earlier.
    pub(crate) fn guard(&self, sync: impl FnOnce() -> Result<(), Errno>) -> Result<(), Error> {
        let _in_turn = lock(&self.current);
        self.healthy()?;
        sync().map_err(|source| self.poison.fail(&self.path, source))
    }

    /// Whether every write and sync of the pool has succeeded so far; shared by all parts that write or sync.
    #[inline]
    pub(crate) fn poison(&self) -> &Arc<Poison> {
        &self.poison
    }

    /// Whether every write and sync of the pool has succeeded so far.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    #[inline]
    pub(crate) fn healthy(&self) -> Result<(), Error> {
        self.poison.healthy()
    }

    fn write(&self, at: u64, block: &Block) -> Result<(), Error> {
        debug_assert!(at.is_multiple_of(PAGE));
        self.carrier
            .write(at, block)
            .map_err(|source| self.poison.fail(&self.path, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Medium;
    use crate::pool::superblock::DATA_AT;

    /// Two copies in memory, on a device that tears one write and fails every later one.
    struct Fragile {
        copies: Mutex<[Block; 2]>,
        /// Writes that still succeed.
        left: Mutex<usize>,
        /// Bytes of the torn write that arrive.
        torn: usize,
    }

    impl Carrier for Arc<Fragile> {
        fn read(&self, at: u64) -> Result<Block, Errno> {
            Ok(self.copies.lock()[(at / PAGE) as usize])
        }

        fn write(&self, at: u64, block: &Block) -> Result<(), Errno> {
            let mut left = self.left.lock();
            let arrive = match left.checked_sub(1) {
                Some(rest) => {
                    *left = rest;
                    block.len()
                }
                None => self.torn,
            };
            let whole = arrive == block.len();
            self.copies.lock()[(at / PAGE) as usize][..arrive].copy_from_slice(&block[..arrive]);
            if whole { Ok(()) } else { Err(Errno::IO) }
        }
    }

    fn device(copies: [Block; 2], left: usize, torn: usize) -> Arc<Fragile> {
        Arc::new(Fragile {
            copies: Mutex::new(copies),
            left: Mutex::new(left),
            torn,
        })
    }

    fn found(device: &Arc<Fragile>) -> Result<Found, Error> {
        read(device, Path::new("pool"))
    }

    fn start() -> Superblock {
        Superblock::new(Medium::File, 1, [0; 8], DATA_AT)
    }

    /// Opens what is there and updates it twice, with the device failing at write `left`. Returns how many
    /// updates were confirmed.
    fn run(device: &Arc<Fragile>) -> u64 {
        let Ok(found) = found(device) else { return 0 };
        let Ok(header) = Header::adopt(Box::new(Arc::clone(device)), Path::new("pool"), found)
        else {
            return 0;
        };
        (1..=2)
            .take_while(|count| {
                header
                    .update(|superblock| superblock.checkpoint_lsn = *count)
                    .is_ok()
            })
            .count() as u64
    }

    /// Whichever copy is bad at first, and wherever the device fails: the next open finds the last confirmed
    /// state or the one after it.
    #[test]
    fn no_confirmed_update_is_lost_wherever_the_device_fails() {
        let superblock = start();
        let good = [superblock.encode(0), superblock.encode(PAGE)];
        let mut bad_first = good;
        bad_first[0][100] ^= 1;
        let mut bad_second = good;
        bad_second[1][100] ^= 1;
        for (name, copies) in [("none", good), ("first", bad_first), ("second", bad_second)] {
            for left in 0..6 {
                for torn in [0, 64, 1000, 4095] {
                    let device = device(copies, left, torn);
                    let confirmed = run(&device);
                    let what = format!("bad: {name}, {left} writes, then {torn} bytes of one");
                    let found = found(&device).unwrap_or_else(|error| panic!("{what}: {error}"));
                    let lsn = found.superblock.checkpoint_lsn;
                    assert!(
                        lsn == confirmed || lsn == confirmed + 1,
                        "{what}: {confirmed} confirmed, {lsn} found"
                    );
                }
            }
        }
    }

    #[test]
    fn a_failed_update_changes_nothing_and_is_the_last() {
        let superblock = start();
        // Adopting writes both copies again; the update then gets through one of its own.
        let device = device([superblock.encode(0), superblock.encode(PAGE)], 3, 0);
        let opened = found(&device);
        let opened = opened.and_then(|found| {
            Header::adopt(Box::new(Arc::clone(&device)), Path::new("pool"), found)
        });
        let header = opened.unwrap_or_else(|error| panic!("{error}"));
        let refused = header.update(|superblock| superblock.clean = false);
        assert!(matches!(refused, Err(Error::Poisoned { .. })));
        assert_eq!(header.get(), superblock);
        *device.left.lock() = 100;
        assert!(
            matches!(header.update(|_| {}), Err(Error::Poisoned { .. })),
            "no retry"
        );
        assert!(header.healthy().is_err());
    }

    #[test]
    fn copies_that_contradict_each_other_are_damage() {
        let (one, mut two) = (start(), start());
        two.uuid = one.uuid;
        let device = device([one.encode(0), two.encode(PAGE)], 0, 0);
        assert!(matches!(found(&device), Err(Error::Corrupt { .. })));
    }
}
