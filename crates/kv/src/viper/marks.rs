//! Making durable what keeps elders dead: marks that sessions left in the cache.
//!
//! A session lists its last marks ([`SlotShared`](super::SlotShared)), or notes the page of each ([`super::deferred_marks`]). Whoever is
//! about to drop dead records, or to let a restart do without reading them, comes here first.

use super::Viper;
use super::block_table::State;
use super::deferred_marks::Taken;
use super::session::ViperSession;
use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Viper {
    /// Makes durable, of the marks that sessions left in the cache, those that keep elders dead of what is about to be
    /// dropped.
    ///
    /// Of each record that the caller is about to drop it has seen the mark, so whoever set that had the key's lock
    /// after the session that marked the key's older copy had listed or noted that mark.
    pub(super) fn fence_marks(&self, session: &mut ViperSession) {
        self.flush_listed_marks(session);
        let taken = self.deferred_marks.take_if_removed();
        self.fence_taken(session, taken);
    }

    /// Makes all marks durable that sessions left in the cache.
    pub(super) fn fence_all_marks(&self, session: &mut ViperSession) {
        self.flush_listed_marks(session);
        let taken = self.deferred_marks.take_all();
        self.fence_taken(session, Some(taken));
    }

    /// As [`Viper::fence_all_marks`], so that the next open finds less to do.
    pub(super) fn fence_marks_at_close(self: &Arc<Self>) -> Result<(), Error> {
        if self.healthy().is_ok() {
            self.fence_all_marks(&mut ViperSession::new(Arc::clone(self))?);
        }
        Ok(())
    }

    fn flush_listed_marks(&self, session: &mut ViperSession) {
        for slot in self.slots.iter().take(self.epochs.slots_used()) {
            let len = slot.marks_len.load(Ordering::Acquire);
            for mark in slot.marks.iter().take(len) {
                let at = mark.load(Ordering::Acquire);
                if at != 0 && self.pool.region().contains(at, 8) {
                    let flushed = session.lane.flush_range(at, 8);
                    session.unfenced.add(flushed);
                }
            }
        }
    }

    /// Flushes the marks of all pages whose notes were taken, and fences everything that the session has flushed.
    fn fence_taken(&self, session: &mut ViperSession, taken: Option<Taken<'_>>) {
        for &page_at in taken.iter().flat_map(|taken| taken.pages()) {
            let block = self.blocks.number(page_at);
            let info = self.blocks.get(block).map(|entry| entry.info());
            // A free block has no records left that a mark would keep dead.
            if let Some(info) = info.filter(|info| info.state != State::Free) {
                let marks = 8 * self.geometry.pages_of(info.kind).mark_words;
                let flushed = session.lane.flush_range(page_at + 16, marks);
                session.unfenced.add(flushed);
            }
        }
        let flushed = session.unfenced.written(&session.lane);
        #[cfg(test)]
        test_hook::run();
        let ordered = session.settle_and_fence();
        if let Some(taken) = taken {
            taken.settle(&ordered, flushed);
        }
    }
}

/// What a test does between the moment at which its thread has taken the notes of marks and their fence.
#[cfg(test)]
pub(super) mod test_hook {
    use std::cell::RefCell;

    type Work = Box<dyn FnOnce()>;

    thread_local! {
        static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
    }

    pub(in crate::viper) fn set(work: Work) {
        WORK.set(Some(work));
    }

    pub(in crate::viper) fn is_set() -> bool {
        WORK.with_borrow(Option::is_some)
    }

    pub(super) fn run() {
        let work = WORK.take();
        if let Some(work) = work {
            work();
        }
    }
}
