//! Key locks that are also the version clocks.
//!
//! Every key belongs to one of [`STRIPES`] stripes by its hash. A writer holds its key's stripe from the
//! moment it looks at the key's current record until its own is published, so two writers of one key never
//! interleave (holes V2, V3, V12). The word of a stripe is both the lock and the clock that versions come
//! from: versions of one key only grow, without any counter that all cores share. Nothing here is
//! persistent (V5): after a restart every clock starts above the highest version recovery saw.
//!
//! ```text
//!  63                          17 16            2  1            0
//! +------------------------------+---------------+----+--------+
//! | version (47)                 | owner (15)    | pub| locked |
//! +------------------------------+---------------+----+--------+
//! ```
//! `pub` is set while a batch publishes its keys one after another: a reader that meets it waits until the
//! whole batch is visible. Readers otherwise ignore the lock.
//!
//! `stamp` is the ticket that reads of the stripe's keys depend on (`file` medium): the log position of
//! the last write to any of them.

use super::seam::publishes;
use everdram_pm::Ordered;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stripes in all, unless somebody asks for less. Few under Miri, which takes its time for each.
pub(crate) const STRIPES: usize = if cfg!(miri) { 64 } else { 8192 };
/// Versions have 47 bits.
pub(crate) const VERSION_MAX: u64 = (1 << 47) - 1;
/// No LSN that was ever given out is greater: a clock has so many left, which is more than anybody writes.
pub(crate) const LSN_MAX: u64 = VERSION_MAX - (1 << 40);
/// Owners have 15 bits.
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
    assert!(VERSION_MAX << VERSION_SHIFT >> VERSION_SHIFT == VERSION_MAX && LSN_MAX < VERSION_MAX);
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
    /// Less than there are stripes.
    pub(crate) fn number(self) -> usize {
        usize::from(self.0)
    }
}

impl Stripes {
    /// So many, rounded to a power of two.
    pub(crate) fn new(count: usize) -> Stripes {
        let count = count.clamp(1, STRIPES).next_power_of_two();
        Stripes((0..count).map(|_| Stripe::default()).collect())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The stripe of a key hash. Low bits: the index's directory uses the high ones.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> StripeId {
        self.numbered(hash as usize)
    }

    /// A stripe by its number, modulo how many there are.
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
            "an owner's number runs into the version"
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

    /// Takes the lock, waiting. The caller holds no other stripe, or takes stripes in ascending order.
    pub(crate) fn lock(&self, id: StripeId, owner: u16) {
        let mut backoff = Backoff::new();
        while !self.try_lock(id, owner) {
            backoff.wait();
        }
    }

    /// Whether `owner` holds the lock. Meaningful to the owner itself.
    #[inline]
    pub(crate) fn held_by(&self, id: StripeId, owner: u16) -> bool {
        let word = self.get(id).word.load(Ordering::Relaxed);
        word & LOCKED != 0 && (word >> OWNER_SHIFT) & (OWNERS_MAX as u64 - 1) == u64::from(owner)
    }

    /// The next version for a key of a stripe the caller holds.
    #[inline]
    pub(crate) fn next_version(&self, id: StripeId) -> u64 {
        let word = &self.get(id).word;
        assert!(
            Stripes::is_word_locked(word.load(Ordering::Relaxed)),
            "a version is given out in a stripe that nobody holds"
        );
        // Only the holder writes the word, so load and store need not be one step.
        let next = word.load(Ordering::Relaxed) + (1 << VERSION_SHIFT);
        word.store(next, Ordering::Relaxed);
        let version = next >> VERSION_SHIFT;
        assert!(version < VERSION_MAX, "versions used up");
        version
    }

    /// The clock: versions up to this one have been given out in the stripe.
    #[inline]
    pub(crate) fn version(&self, id: StripeId) -> u64 {
        Stripes::version_of(self.word(id))
    }

    /// The clock in what [`Stripes::word`] showed.
    #[inline]
    pub(crate) fn version_of(word: u64) -> u64 {
        word >> VERSION_SHIFT
    }

    /// Lifts the clock of a held stripe (or of all, before anything runs) to at least `version`.
    pub(crate) fn raise(&self, id: StripeId, version: u64) {
        assert!(
            version <= VERSION_MAX,
            "a version that a stripe's word has no room for"
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
            "a batch is published in a stripe that nobody holds"
        );
        word.store(word.load(Ordering::Relaxed) | PUBLISHING, Ordering::Release);
    }

    /// Gives a held lock back under which something was written: after the fence that covers it. Ends
    /// publishing.
    #[inline]
    pub(crate) fn release(&self, id: StripeId, _after: &Ordered) {
        self.unlock(id);
    }

    /// Gives a held lock back; ends publishing.
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
            "a stripe is given back that nobody holds"
        );
        let version = seen >> VERSION_SHIFT << VERSION_SHIFT;
        word.store(version, Ordering::Release);
    }

    /// Waits for whoever has the lock; what it has done is seen from here on. Returns the clock.
    ///
    /// # Errors
    /// What `goes_on` says, which is asked as long as the lock is held.
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

    /// Gives back whatever `owner` holds, whose thread has panicked, so that nobody waits for it. Returns how
    /// many locks that were: if there were any it was in the middle of something.
    #[cold]
    pub(crate) fn unlock_all_of(&self, owner: u16) -> usize {
        let held = self.all().filter(|&id| self.held_by(id, owner));
        held.inspect(|&id| self.unlock_now(id)).count()
    }

    /// Gives several held locks back.
    pub(crate) fn unlock_all(&self, held: &[StripeId]) {
        publishes!();
        held.iter().for_each(|&id| self.unlock_now(id));
    }

    /// Lock, clock and owner as they are now.
    pub(crate) fn word(&self, id: StripeId) -> u64 {
        self.get(id).word.load(Ordering::Acquire)
    }

    /// What every write of a key changes: its version, or of a key that is not there, the clock of its
    /// stripe. `before` is what [`Stripes::word`] said before `owner` looked for the key.
    ///
    /// Whoever held the stripe then may have taken a version for this key from the clock and not published it
    /// yet. Were the key to appear and go again without a write (expire, or be removed with all others), the
    /// clock would be what it was; so such a look gets a number that no later one will get.
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

    /// Whether [`Stripes::word`] showed a held lock.
    pub(crate) fn is_word_locked(word: u64) -> bool {
        word & LOCKED != 0
    }

    /// Whether [`Stripes::word`] showed a batch being published.
    pub(crate) fn is_word_publishing(word: u64) -> bool {
        word & PUBLISHING != 0
    }

    /// Whether anybody writes keys of the stripe.
    #[inline]
    pub(crate) fn is_locked(&self, id: StripeId) -> bool {
        self.get(id).word.load(Ordering::Acquire) & LOCKED != 0
    }

    /// Sets what reads depend on, the fence of what is about to be published; the caller holds the lock and
    /// has not published yet.
    #[inline]
    pub(crate) fn set_stamp(&self, id: StripeId, after: &Ordered) {
        publishes!();
        debug_assert!(
            self.is_locked(id),
            "what reads depend on changes in a stripe that nobody holds"
        );
        debug_assert!(
            self.stamp(id) <= after.lsn().0,
            "what reads of a stripe depend on goes back"
        );
        self.get(id).stamp.store(after.lsn().0, Ordering::Release);
    }

    /// What a read of a key of the stripe depends on; load it after the index was read.
    #[inline]
    pub(crate) fn stamp(&self, id: StripeId) -> u64 {
        self.get(id).stamp.load(Ordering::Acquire)
    }
}

/// Gives stripes back when it is dropped, also by a panic. Who keeps them forgets it.
pub(crate) struct GiveBack<'a> {
    pub(crate) stripes: &'a Stripes,
    pub(crate) held: &'a [StripeId],
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.stripes.unlock_all(self.held);
    }
}

/// Whether a session is publishing several keys at once, for those who look at all keys and not at some
/// stripes. Only the session changes it.
#[derive(Default)]
pub(crate) struct Publishing(AtomicU64);

impl Publishing {
    /// Before the first key.
    pub(crate) fn begin(&self) {
        debug_assert!(
            self.0.load(Ordering::Relaxed) & 1 == 0,
            "a session begins to publish a batch while it publishes another one"
        );
        self.0
            .store(self.0.load(Ordering::Relaxed) | 1, Ordering::Release);
    }

    /// After the last one.
    pub(crate) fn end(&self) {
        publishes!();
        debug_assert!(
            self.0.load(Ordering::Relaxed) & 1 == 1,
            "the end of a batch whose publication never began"
        );
        self.0
            .store((self.0.load(Ordering::Relaxed) | 1) + 1, Ordering::Release);
    }

    /// Waits for what is being published now; whoever has seen a part of it may tell then, for all can be
    /// seen.
    ///
    /// # Errors
    /// What `goes_on` says, which is asked as long as it is not over.
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

/// Waits politely: spins, then yields, then naps. Holders hold for a microsecond, unless the value they
/// write is large or they were descheduled.
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
        // This look had begun before and was over afterwards.
        let across = stripes.watch_number(id, 1, before, None);
        let after = looked(1);
        assert!(after != quiet && after != during && after != across);
        assert_eq!(after, taken << 1 | 1);
        // Whoever compares holds the stripe.
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
