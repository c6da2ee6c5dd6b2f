//! Epochs: when may memory be reused that readers may still be accessing?
//!
//! This module frees nothing and has no unsafe code. A session *pins* while it reads. A writer that unlinks a
//! thing stamps it with [`Epochs::advance`], and reuses it only when [`Epochs::passed`] says that no pinned
//! session can still hold a reference from before.
//!
//! ```text
//!  reader                                writer
//!  e = epoch                             unlink thing
//!  slot = e          (relaxed)           stamp = ++epoch            (SeqCst)
//!  barrier           (light)             ...
//!  follow links, read thing              barrier                    (heavy)
//!  slot = 0          (release)           all slots 0 or >= stamp?   (acquire) -> reuse thing
//! ```
//!
//! # Why this is enough
//! Take a slot value that the writer saw and found harmless.
//!
//! * It is `e >= stamp`: the reader loaded the epoch (acquire) after the writer's increment, hence after the
//!   unlinking: it cannot find the thing.
//! * It is 0 or the value of an old pin, and the writer did not see the reader's store of its current pin.
//!   Then, by the promise of [`Barrier`], everything before the writer's barrier, the unlinking included, is
//!   visible to everything the reader does after its own. (In the other order, the writer's load would have
//!   seen the store.)
//! * It is 0, stored by an unpin: release and acquire order all the reader's reads before the reuse.
//!
//! A reader that slept between load and store may store an old epoch. That only delays reuse. For the same
//! reason an answer `true` stays true forever. The greatest stamp known to have passed is kept, so that most
//! questions cost one load.
//!
//! A slot belongs to one session, that is, to one thread at a time: it can be sent, not shared.
//!
//! # Leases
//! Who reads without a thread here ([`Epochs::lease`]) may do so for a time, which a scan of the slots
//! counts as a pin. A scan and a lease take one lock. If the scan is first, what was unlinked before it is
//! visible to the look-ups after the lease. Otherwise it finds the lease, whose epoch was read under the
//! lock: a thing that was unlinked with a stamp up to that cannot be found by them, either.

use super::seam::publishes;
use crossbeam_utils::CachePadded;
use everdram_pm::Barrier;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Slot value of a session that reads nothing.
const UNPINNED: u64 = 0;

/// The epoch, and all slots whose sessions may hold references.
#[derive(Debug)]
pub(crate) struct Epochs {
    epoch: CachePadded<AtomicU64>,
    /// Every stamp up to here has passed.
    passed: CachePadded<AtomicU64>,
    slots: Box<[Arc<CachePadded<AtomicU64>>]>,
    /// Slots that were ever registered; a scan reads only these.
    slots_used: AtomicUsize,
    /// Released slots.
    slots_free: Mutex<Vec<usize>>,
    /// Reads by others that may be going on. The newest is the last.
    leases: Mutex<Vec<Lease>>,
    /// Sessions that need room, and wait for the ends of leases.
    starving: AtomicUsize,
    /// Separates a pin from the reads under it: reads are frequent, scans rare.
    barrier: Barrier,
}

/// Counts one who needs room, until it is dropped.
struct Starving<'a>(&'a AtomicUsize);

impl Starving<'_> {
    fn begin(count: &AtomicUsize) -> Starving<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Starving(count)
    }
}

impl Drop for Starving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads by others.
#[derive(Debug)]
struct Lease {
    epoch: u64,
    since: Instant,
    until: Instant,
}

impl Epochs {
    /// Epochs with slots for `slots_max` sessions at once.
    pub(crate) fn new(slots_max: usize) -> Arc<Epochs> {
        Arc::new(Epochs {
            epoch: CachePadded::new(AtomicU64::new(1)),
            passed: CachePadded::new(AtomicU64::new(0)),
            slots: (0..slots_max)
                .map(|_| Arc::new(CachePadded::new(AtomicU64::new(UNPINNED))))
                .collect(),
            slots_used: AtomicUsize::new(0),
            slots_free: Mutex::new(Vec::new()),
            leases: Mutex::default(),
            starving: AtomicUsize::new(0),
            barrier: Barrier::new(),
        })
    }

    /// A slot for a session, or `None` if all are taken. Dropping it releases it.
    pub(crate) fn register(self: &Arc<Epochs>) -> Option<Slot> {
        let mut free = self.slots_free.lock();
        let number = match free.pop() {
            Some(number) => number,
            None => {
                let number = self.slots_used.load(Ordering::Relaxed);
                if number >= self.slots.len() {
                    return None;
                }
                // A scan that misses this store also precedes, by its barrier, every pin of the slot.
                self.slots_used.store(number + 1, Ordering::Release);
                number
            }
        };
        Some(Slot {
            state: Arc::clone(self.slots.get(number)?),
            epochs: Arc::clone(self),
            number,
            pins: Cell::new(0),
        })
    }

    /// From now on and for at least `hold`, nothing is reused that the caller finds after this call. Leases
    /// that follow each other soon count as one, so that there are at most three at any time; none lasts
    /// longer than twice its time, whatever others do. `false`: somebody needs room, and there is no lease.
    #[must_use]
    pub(crate) fn lease(&self, hold: Duration) -> bool {
        let now = Instant::now();
        let mut leases = self.leases.lock();
        if self.starving.load(Ordering::Relaxed) > 0 {
            return false;
        }
        leases.retain(|lease| lease.until > now);
        match leases.last_mut() {
            Some(last) if now < last.since + hold => last.until = last.until.max(now + hold),
            _ => leases.push(Lease {
                epoch: self.current(),
                since: now,
                until: now + hold,
            }),
        }
        true
    }

    /// Waits for the ends of all leases, and runs `work` while there are no new ones.
    pub(crate) fn without_leases<T>(&self, work: impl FnOnce() -> T) -> T {
        let starving = Starving::begin(&self.starving);
        loop {
            // Under the lock a lease sees that somebody needs room, or is seen here.
            let last = self.leases.lock().iter().map(|lease| lease.until).max();
            match last.map(|last| last.saturating_duration_since(Instant::now())) {
                None | Some(Duration::ZERO) => break,
                Some(left) => std::thread::sleep(left),
            }
        }
        let done = work();
        drop(starving);
        done
    }

    /// The current epoch.
    pub(crate) fn current(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// An upper bound of the slot numbers that were ever registered.
    pub(crate) fn slots_used(&self) -> usize {
        self.slots_used.load(Ordering::Acquire)
    }

    /// Begins a new epoch and returns it: the stamp for what the caller has just unlinked.
    pub(crate) fn advance(&self) -> u64 {
        publishes!();
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether no pinned slot can still hold a reference taken before `advance` returned `epoch`. If that is
    /// not known yet, this interrupts every core that runs a thread of the process.
    pub(crate) fn passed(&self, epoch: u64) -> bool {
        self.is_known_to_have_passed(epoch) || epoch <= self.scan()
    }

    /// Asks once about all stamps up to `newest`, for a caller that has many.
    pub(crate) fn ask(&self, newest: Option<u64>) {
        newest.map(|stamp| self.passed(stamp));
    }

    /// As [`Epochs::passed`], from earlier answers alone: one load.
    pub(crate) fn is_known_to_have_passed(&self, epoch: u64) -> bool {
        epoch <= self.passed.load(Ordering::Acquire)
    }

    /// The greatest stamp that has passed now.
    fn scan(&self) -> u64 {
        // Load before the barrier: every unlinking with a stamp up to here came before it.
        let mut oldest = self.current();
        if !self.barrier.heavy() {
            return self.passed.load(Ordering::Acquire);
        }
        for slot in self.slots.iter().take(self.slots_used()) {
            let pinned = slot.load(Ordering::Acquire);
            if pinned != UNPINNED {
                oldest = oldest.min(pinned);
            }
        }
        let mut leases = self.leases.lock();
        if !leases.is_empty() {
            let now = Instant::now();
            leases.retain(|lease| lease.until > now);
            oldest = leases
                .iter()
                .map(|lease| lease.epoch)
                .fold(oldest, u64::min);
        }
        drop(leases);
        self.passed.fetch_max(oldest, Ordering::AcqRel);
        oldest
    }
}

/// One session's place in [`Epochs`].
#[derive(Debug)]
pub(crate) struct Slot {
    epochs: Arc<Epochs>,
    /// Its value: of [`Epochs::slots`].
    state: Arc<CachePadded<AtomicU64>>,
    number: usize,
    /// Current pins; only the outermost one stores.
    pins: Cell<u32>,
}

impl Slot {
    /// The slot's number, below the maximum given to [`Epochs::new`]; no other slot has it meanwhile.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Until the pin is dropped, nothing that this thread can find is reused. Pins nest, and the outermost
    /// one counts, so hold a pin for one operation at most.
    #[inline]
    pub(crate) fn pin(&self) -> Pin<'_> {
        self.hold();
        Pin { slot: self }
    }

    /// As [`Slot::pin`], until [`Slot::unhold`]: for work that mutates the session which owns the slot. If
    /// the work panics, the slot stays pinned until it is dropped.
    #[inline]
    pub(crate) fn hold(&self) {
        let pins = self.pins.get();
        if pins == 0 {
            let epoch = self.epochs.epoch.load(Ordering::Acquire);
            publishes!();
            self.state.store(epoch, Ordering::Relaxed);
            self.epochs.barrier.light();
        }
        self.pins.set(pins + 1);
    }

    /// Ends one [`Slot::hold`].
    #[inline]
    pub(crate) fn unhold(&self) {
        let pins = self.pins.get();
        assert!(pins > 0, "a session ends a pin that it does not hold");
        let pins = pins - 1;
        self.pins.set(pins);
        if pins == 0 {
            publishes!();
            self.state.store(UNPINNED, Ordering::Release);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Without this, a leaked pin would block reuse forever.
        self.state.store(UNPINNED, Ordering::Release);
        let mut free = self.epochs.slots_free.lock();
        debug_assert!(
            !free.contains(&self.number) || std::thread::panicking(),
            "a session's slot is released twice"
        );
        free.push(self.number);
    }
}

/// Proof that its session is pinned.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    slot: &'a Slot,
}

impl Pin<'_> {
    /// Whether this pin protects things stamped by `epochs`.
    pub(crate) fn is_of(&self, epochs: &Arc<Epochs>) -> bool {
        Arc::ptr_eq(&self.slot.epochs, epochs)
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.unhold();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_stamp_passes_when_the_pins_before_it_are_gone() {
        let epochs = Epochs::new(4);
        let (early, late) = (epochs.register().unwrap(), epochs.register().unwrap());
        let pin = early.pin();
        let stamp = epochs.advance();
        assert!(!epochs.passed(stamp));
        let after = late.pin();
        assert!(!epochs.passed(stamp));
        drop(pin);
        assert!(
            epochs.passed(stamp),
            "a pin taken after the stamp does not hold it up"
        );
        let next = epochs.advance();
        assert!(!epochs.passed(next));
        drop(after);
        assert!(epochs.passed(next));
        assert!(
            !epochs.passed(next + 1),
            "a stamp of the future has not passed"
        );
    }

    #[test]
    fn the_outermost_pin_counts() {
        let epochs = Epochs::new(1);
        let slot = epochs.register().unwrap();
        let outer = slot.pin();
        let inner = slot.pin();
        let stamp = epochs.advance();
        drop(inner);
        assert!(!epochs.passed(stamp));
        // A pin inside an older one does not move it to the current epoch.
        let again = slot.pin();
        assert!(!epochs.passed(stamp));
        drop(again);
        drop(outer);
        assert!(epochs.passed(stamp));
    }

    #[test]
    fn a_lease_holds_what_was_there_for_its_time() {
        const LONG: Duration = Duration::from_secs(3600);
        let epochs = Epochs::new(1);
        assert!(epochs.lease(LONG));
        let stamp = epochs.advance();
        assert!(!epochs.passed(stamp));
        // Another one soon after it does not count by itself, nor let the first one end.
        assert!(epochs.lease(LONG));
        assert_eq!(epochs.leases.lock().len(), 1);
        assert!(!epochs.passed(stamp));
        const SHORT: Duration = Duration::from_millis(20);
        let epochs = Epochs::new(1);
        let begun = Instant::now();
        assert!(epochs.lease(SHORT));
        let stamp = epochs.advance();
        while !epochs.passed(stamp) {
            // Later ones hold up what is unlinked later.
            assert!(epochs.lease(SHORT));
            assert!(epochs.leases.lock().len() <= 3);
            assert!(begun.elapsed() < 1000 * SHORT, "it never ends");
        }
        assert!(begun.elapsed() >= SHORT);
        let begun = Instant::now();
        assert!(epochs.lease(SHORT));
        let stamp = epochs.advance();
        let has_passed = epochs.without_leases(|| {
            assert!(!epochs.lease(LONG), "there is somebody who needs room");
            epochs.passed(stamp)
        });
        assert!(has_passed && begun.elapsed() >= SHORT);
        assert!(epochs.lease(LONG));
    }

    #[test]
    fn slots_are_limited_and_come_back() {
        let epochs = Epochs::new(2);
        let first = epochs.register().unwrap();
        let second = epochs.register().unwrap();
        assert!(epochs.register().is_none());
        drop(first);
        let third = epochs.register().unwrap();
        assert!(epochs.register().is_none());
        drop((second, third));
        let stamp = epochs.advance();
        assert!(epochs.passed(stamp));
    }

    /// One writer unlinks a cell, waits for the stamp and overwrites the cell. Readers follow the link under
    /// a pin and must never see the overwritten cell.
    #[test]
    fn readers_never_see_reuse() {
        const SCRIBBLE: u64 = u64::MAX;
        let epochs = Epochs::new(3);
        let cells = [AtomicU64::new(0), AtomicU64::new(0)];
        let link = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let slot = epochs.register().unwrap();
                let (cells, link, stop) = (&cells, &link, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let _pin = slot.pin();
                        let at = link.load(Ordering::Acquire);
                        for _ in 0..4 {
                            assert_ne!(cells[at].load(Ordering::Relaxed), SCRIBBLE);
                        }
                    }
                });
            }
            for round in 0..if cfg!(miri) { 100 } else { 20_000_u64 } {
                let old = link.load(Ordering::Relaxed);
                let new = 1 - old;
                cells[new].store(round, Ordering::Relaxed);
                link.store(new, Ordering::Release);
                let stamp = epochs.advance();
                while !epochs.passed(stamp) {
                    std::thread::yield_now();
                }
                cells[old].store(SCRIBBLE, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
