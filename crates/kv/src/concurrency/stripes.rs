//! Key locks that are also the version clocks.
//!
//! Every key belongs to one of [`STRIPES`] stripes by its hash. A writer holds its key's stripe from its look
//! at the key's current record until its own record is published. So two writers of one key never interleave
//! (holes V2, V3, V12). The word of a stripe is both the lock and the clock of versions. So the versions of a
//! key only grow, without a counter that all cores share. Nothing here is persistent (V5): after a restart
//! every clock starts above the highest version that recovery saw.
//!
//! ```text
//!  63                          17 16            2  1            0
//! +------------------------------+---------------+----+--------+
//! | version (47)                 | owner (15)    | pub| locked |
//! +------------------------------+---------------+----+--------+
//! ```
//! `pub` is set while a batch publishes its keys one after another: a reader that sees it waits until the
//! whole batch is visible. Otherwise readers ignore the lock.
//!
//! `stamp` is the ticket that reads of the stripe's keys depend on (`file` medium): the log position of the
//! last write to any of them.

use super::seam::publishes;
use everdram_pm::Ordered;
use std::sync::atomic::{AtomicU64, Ordering};

/// Default number of stripes. Fewer under Miri, which is slow for each.
pub(crate) const STRIPES: usize = if cfg!(miri) { 64 } else { 8192 };
/// Versions have 47 bits.
pub(crate) const VERSION_MAX: u64 = (1 << 47) - 1;
/// Greatest version that a pool may hold. The clock has 2^40 more, which no store will use up.
pub(crate) const STORED_VERSION_MAX: u64 = VERSION_MAX - (1 << 40);
/// Owner numbers have 15 bits.
pub(crate) const OWNERS_MAX: usize = 1 << 15;

const LOCKED: u64 = 1;
const PUBLISHING: u64 = 2;
const OWNER_SHIFT: u32 = 2;
const VERSION_SHIFT: u32 = 17;

const _: () = {
    // A stripe's word: locked, publishing, 15 bits of an owner, 47 of a version.
    assert!(LOCKED & PUBLISHING == 0);
    assert!(LOCKED < 1 << OWNER_SHIFT && PUBLISHING < 1 << OWNER_SHIFT);
    assert!((OWNERS_MAX as u64) << OWNER_SHIFT == 1 << VERSION_SHIFT);
    assert!(
        VERSION_MAX << VERSION_SHIFT >> VERSION_SHIFT == VERSION_MAX
            && STORED_VERSION_MAX < VERSION_MAX
    );
    assert!(STRIPES.is_power_of_two());
};

#[derive(Default)]
struct Stripe {
    word: AtomicU64,
    stamp: AtomicU64,
}

/// The table of key locks.
pub(crate) struct Stripes(Box<[Stripe]>);

/// Which stripe a key belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StripeId(u16);

impl StripeId {
    /// Below [`Stripes::count`].
    pub(crate) fn number(self) -> usize {
        usize::from(self.0)
    }
}

impl Stripes {
    /// `count` stripes, rounded up to a power of two.
    pub(crate) fn new(count: usize) -> Stripes {
        let count = count.clamp(1, STRIPES).next_power_of_two();
        Stripes((0..count).map(|_| Stripe::default()).collect())
    }

    /// Number of stripes.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The stripe of a key hash. Low bits: the index's directory uses the high ones.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> StripeId {
        self.numbered(hash as usize)
    }

    /// A stripe by its number, modulo [`Stripes::count`].
    #[inline]
    pub(crate) fn numbered(&self, number: usize) -> StripeId {
        StripeId((number & (self.count() - 1)) as u16)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = StripeId> + use<> {
        (0..self.count()).map(|i| StripeId(i as u16))
    }

    #[inline]
    fn get(&self, id: StripeId) -> &Stripe {
        &self.0[usize::from(id.0)]
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self, id: StripeId, owner: u16) -> bool {
        debug_assert!(
            usize::from(owner) < OWNERS_MAX,
            "an owner's number does not fit a stripe's word"
        );
        let word = &self.get(id).word;
        let seen = word.load(Ordering::Relaxed);
        seen & LOCKED == 0
            && word
                .compare_exchange(
                    seen,
                    seen | LOCKED | u64::from(owner) << OWNER_SHIFT,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Takes the lock; waits if necessary. The caller holds no other stripe, or takes stripes in ascending
    /// order.
    pub(crate) fn lock(&self, id: StripeId, owner: u16) {
        let mut backoff = Backoff::new();
        while !self.try_lock(id, owner) {
            backoff.wait();
        }
    }

    /// Whether `owner` holds the lock. Stable only for the owner itself.
    #[inline]
    pub(crate) fn held_by(&self, id: StripeId, owner: u16) -> bool {
        let word = self.get(id).word.load(Ordering::Relaxed);
        word & LOCKED != 0 && (word >> OWNER_SHIFT) & (OWNERS_MAX as u64 - 1) == u64::from(owner)
    }

    /// The next version for a key of a stripe that the caller holds.
    #[inline]
    pub(crate) fn next_version(&self, id: StripeId) -> u64 {
        let word = &self.get(id).word;
        assert!(
            Stripes::is_word_locked(word.load(Ordering::Relaxed)),
            "a version is assigned in an unlocked stripe"
        );
        // Only the holder writes the word, so load and store need not be atomic together.
        let next = word.load(Ordering::Relaxed) + (1 << VERSION_SHIFT);
        word.store(next, Ordering::Relaxed);
        let version = next >> VERSION_SHIFT;
        assert!(version < VERSION_MAX, "versions used up");
        version
    }

    /// The clock: the last version assigned in the stripe.
    #[inline]
    pub(crate) fn version(&self, id: StripeId) -> u64 {
        Stripes::version_of(self.word(id))
    }

    /// The clock in a value of [`Stripes::word`].
    #[inline]
    pub(crate) fn version_of(word: u64) -> u64 {
        word >> VERSION_SHIFT
    }

    /// Raises the clock of a held stripe (or of all, before anything runs) to at least `version`.
    pub(crate) fn raise(&self, id: StripeId, version: u64) {
        assert!(
            version <= VERSION_MAX,
            "a version does not fit a stripe's word"
        );
        let word = &self.get(id).word;
        let seen = word.load(Ordering::Relaxed);
        let low = seen & ((1 << VERSION_SHIFT) - 1);
        word.store(
            (seen >> VERSION_SHIFT).max(version) << VERSION_SHIFT | low,
            Ordering::Relaxed,
        );
    }

    /// Marks a held stripe as publishing a batch.
    pub(crate) fn publish(&self, id: StripeId) {
        publishes!();
        let word = &self.get(id).word;
        assert!(
            Stripes::is_word_locked(word.load(Ordering::Relaxed)),
            "a batch is published in an unlocked stripe"
        );
        word.store(word.load(Ordering::Relaxed) | PUBLISHING, Ordering::Release);
    }

    /// Unlocks a held stripe after a write, after the fence that covers the write. Ends publishing.
    #[inline]
    pub(crate) fn release(&self, id: StripeId, _after: &Ordered) {
        self.unlock(id);
    }

    /// Unlocks a held stripe; ends publishing.
    #[inline]
    pub(crate) fn unlock(&self, id: StripeId) {
        publishes!();
        self.unlock_now(id);
    }

    #[inline]
    fn unlock_now(&self, id: StripeId) {
        let word = &self.get(id).word;
        let seen = word.load(Ordering::Relaxed);
        assert!(
            Stripes::is_word_locked(seen) || std::thread::panicking(),
            "unlock of an unlocked stripe"
        );
        let version = seen >> VERSION_SHIFT << VERSION_SHIFT;
        word.store(version, Ordering::Release);
    }

    /// Waits for the lock's holder; its effects are visible from here on. Returns the clock.
    ///
    /// # Errors
    /// The error of `goes_on`, which is called while the lock is held.
    pub(crate) fn pass<E>(
        &self,
        id: StripeId,
        owner: u16,
        goes_on: impl Fn() -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut backoff = Backoff::new();
        while !self.try_lock(id, owner) {
            goes_on()?;
            backoff.wait();
        }
        let version = self.version(id);
        self.unlock_now(id);
        Ok(version)
    }

    /// Unlocks every stripe of `owner`, whose thread has panicked, so that no other thread waits for it.
    /// Returns the number of locks: if there were any, the owner was in the middle of a write.
    #[cold]
    pub(crate) fn unlock_all_of(&self, owner: u16) -> usize {
        let held = self.all().filter(|&id| self.held_by(id, owner));
        held.inspect(|&id| self.unlock_now(id)).count()
    }

    /// Unlocks several held stripes.
    pub(crate) fn unlock_all(&self, held: &[StripeId]) {
        publishes!();
        held.iter().for_each(|&id| self.unlock_now(id));
    }

    /// The current lock, clock and owner.
    pub(crate) fn word(&self, id: StripeId) -> u64 {
        self.get(id).word.load(Ordering::Acquire)
    }

    /// A number that every write of a key changes: its version or, for an absent key, the clock of its
    /// stripe. `before` is the value of [`Stripes::word`] before `owner` looked for the key.
    ///
    /// Another holder of the stripe at that time may have taken a version for this key without publishing it
    /// yet. Without a special case, the key could then appear and vanish without a write (it expires, or all
    /// keys are removed), and the clock would be the same. So such a look gets a number that no later one
    /// gets.
    pub(crate) fn watch_number(
        &self,
        id: StripeId,
        owner: u16,
        before: u64,
        version: Option<u64>,
    ) -> u64 {
        if let Some(version) = version {
            return version << 1;
        }
        let is_own = Stripes::is_word_locked(before) && self.held_by(id, owner);
        let is_quiet = is_own || !Stripes::is_word_locked(before) && self.word(id) == before;
        Stripes::version_of(before).wrapping_sub(u64::from(!is_quiet)) << 1 | 1
    }

    /// Whether a value of [`Stripes::word`] shows a held lock.
    pub(crate) fn is_word_locked(word: u64) -> bool {
        word & LOCKED != 0
    }

    /// Whether a value of [`Stripes::word`] shows a batch being published.
    pub(crate) fn is_word_publishing(word: u64) -> bool {
        word & PUBLISHING != 0
    }

    /// Whether a writer holds the stripe.
    #[inline]
    pub(crate) fn is_locked(&self, id: StripeId) -> bool {
        self.get(id).word.load(Ordering::Acquire) & LOCKED != 0
    }

    /// Sets the stamp to the fence of a write. The caller holds the lock and has not published the write yet.
    #[inline]
    pub(crate) fn set_stamp(&self, id: StripeId, after: &Ordered) {
        publishes!();
        debug_assert!(self.is_locked(id), "a stamp is set in an unlocked stripe");
        debug_assert!(
            self.stamp(id) <= after.lsn().0,
            "the stamp of a stripe decreases"
        );
        self.get(id).stamp.store(after.lsn().0, Ordering::Release);
    }

    /// The stamp that a read of a key of the stripe depends on; load it after the index was read.
    #[inline]
    pub(crate) fn stamp(&self, id: StripeId) -> u64 {
        self.get(id).stamp.load(Ordering::Acquire)
    }
}

/// Unlocks stripes on drop, even after a panic. `mem::forget` keeps them locked.
pub(crate) struct GiveBack<'a> {
    pub(crate) stripes: &'a Stripes,
    pub(crate) held: &'a [StripeId],
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.stripes.unlock_all(self.held);
    }
}

/// Whether a session is publishing several keys at once, for readers of all keys, which do not check single
/// stripes. Only the session changes it.
#[derive(Default)]
pub(crate) struct Publishing(AtomicU64);

impl Publishing {
    /// Call before the first key is published.
    pub(crate) fn begin(&self) {
        debug_assert!(
            self.0.load(Ordering::Relaxed) & 1 == 0,
            "a session publishes two batches at once"
        );
        self.0
            .store(self.0.load(Ordering::Relaxed) | 1, Ordering::Release);
    }

    /// Call after the last one.
    pub(crate) fn end(&self) {
        publishes!();
        debug_assert!(
            self.0.load(Ordering::Relaxed) & 1 == 1,
            "a publication ends that never began"
        );
        self.0
            .store((self.0.load(Ordering::Relaxed) | 1) + 1, Ordering::Release);
    }

    /// Waits for the publication in progress. A reader that saw a part of it may answer then, since all of it
    /// is visible.
    ///
    /// # Errors
    /// The error of `goes_on`, which is called while the publication lasts.
    pub(crate) fn pass<E>(&self, goes_on: impl Fn() -> Result<(), E>) -> Result<(), E> {
        let seen = self.0.load(Ordering::Acquire);
        let mut backoff = Backoff::new();
        while seen & 1 == 1 && self.0.load(Ordering::Acquire) == seen {
            goes_on()?;
            backoff.wait();
        }
        Ok(())
    }
}

/// Spins, then yields, then sleeps. A stripe is held for about a microsecond, unless its value is large or
/// its holder was descheduled.
pub(crate) struct Backoff(u32);

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff(0)
    }

    pub(crate) fn wait(&mut self) {
        #[cfg(feature = "lab")]
        if everdram_pm::lab::waiting() {
            return;
        }
        self.0 += 1;
        match self.0 {
            0..=64 => std::hint::spin_loop(),
            65..=192 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
    }

    /// Waits for a thread that may have no core just now.
    pub(crate) fn rest() {
        #[cfg(feature = "lab")]
        if everdram_pm::lab::waiting() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_micros(500));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_exclusive_and_its_clock_grows() {
        let stripes = Stripes::new(STRIPES);
        let id = stripes.of(77);
        assert!(stripes.try_lock(id, 3));
        assert!(!stripes.try_lock(id, 4));
        assert!(stripes.held_by(id, 3) && !stripes.held_by(id, 4));
        assert_eq!((stripes.next_version(id), stripes.next_version(id)), (1, 2));
        stripes.publish(id);
        assert!(Stripes::is_word_publishing(stripes.word(id)));
        stripes.unlock(id);
        assert!(!stripes.is_locked(id) && !Stripes::is_word_publishing(stripes.word(id)));
        assert_eq!(stripes.version(id), 2);
        stripes.raise(id, 9);
        assert!(stripes.try_lock(id, 4));
        assert_eq!(stripes.next_version(id), 10);
    }

    #[test]
    fn absence_is_not_the_same_after_a_write_that_was_under_way() {
        let stripes = Stripes::new(STRIPES);
        let id = stripes.of(5);
        let looked = |owner| stripes.watch_number(id, owner, stripes.word(id), None);
        assert_eq!(looked(1), looked(1));
        let quiet = looked(1);
        // Owner 2 takes a version, publishes the key, and the key expires.
        stripes.lock(id, 2);
        let taken = stripes.next_version(id);
        let (during, before) = (looked(1), stripes.word(id));
        stripes.unlock(id);
        // This look began before the lock and ended after the unlock.
        let across = stripes.watch_number(id, 1, before, None);
        let after = looked(1);
        assert!(after != quiet && after != during && after != across);
        assert_eq!(after, taken << 1 | 1);
        // The comparing thread holds the stripe.
        stripes.lock(id, 1);
        assert_eq!(looked(1), after);
        stripes.unlock(id);
    }

    const ROUNDS: u64 = if cfg!(miri) { 50 } else { 2000 };

    #[test]
    fn two_threads_never_hold_one_stripe() {
        let stripes = Stripes::new(STRIPES);
        let inside = AtomicU64::new(0);
        let id = stripes.of(1);
        std::thread::scope(|scope| {
            for owner in 0..2 {
                let (stripes, inside) = (&stripes, &inside);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        stripes.lock(id, owner);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        stripes.next_version(id);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        stripes.unlock(id);
                    }
                });
            }
        });
        assert_eq!(stripes.version(id), 2 * ROUNDS);
    }
}
