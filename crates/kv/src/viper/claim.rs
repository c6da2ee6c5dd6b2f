//! A claim: the block into which one session writes records of one kind (the paper's client and its VBlock).
//!
//! Records are packed one after another in DRAM and streamed out together before the fence
//! ([`Claim::settle`]). Without this, each submitted write would wait: it takes a lock, and a locked
//! instruction waits for everything streamed before it. The last, partly filled line stays here; the next
//! record rewrites it with the same first bytes. Only the claim's owner writes record lines, so the rewrite
//! loses nothing. Marks go to the page header, which is never streamed.
//!
//! Opening a block takes a fence of its own: headers first, fence, then the page word of page 0. The fence of
//! the first record covers that word. Without the fence between, recovery could see a page word of the new
//! life above a header of the old one.
//!
//! Clients spread over DIMMs (section 3.1): a block's number and epoch pick the page at which it starts.
//! Recovery walks the pages in the same order.

use super::block_table::{Blocks, Info, State};
use super::layout::{Geometry, Kind, Pages, mark_word, page_word, tail_word};
use everdram_pm::Unfenced;
use everdram_pm::{LINE, Lane};

/// Scratch memory above this size is freed after use.
pub(super) const SCRATCH_KEEP: usize = 1 << 20;
/// Bytes of records that wait for the fence at most; more are streamed before it.
const STAGED_MAX: usize = 4096;

/// The order in which a block's pages are filled.
pub(crate) fn page_order(pages: &Pages, block: u32, epoch: u32, turn: u64) -> u64 {
    (u64::from(block) + u64::from(epoch) + turn) % pages.count
}

/// An open block and where the next record goes.
pub(crate) struct Claim {
    kind: Kind,
    pages: Pages,
    block: u32,
    epoch: u32,
    /// First byte of the block.
    at: u64,
    /// Pages begun before the current one.
    turn: u64,
    /// First byte of the current page.
    page: u64,
    /// Where the next record goes, in the current page.
    fill: u64,
    /// Record bytes in the block so far.
    filled: u32,
    /// Records in the block so far.
    records: u32,
    /// Bytes of the page up to `fill`, from the first line that was not streamed whole.
    staged: Vec<u8>,
    /// `staged` has bytes that were not streamed yet.
    unsettled: bool,
    /// Some records are not covered by a fence yet.
    unfenced_records: bool,
    /// Unused room, because the block was sealed early; see [`Pages::slack`].
    slack: u32,
}

impl Claim {
    /// Opens a block that the caller took from the free list. Writes its headers and fences them with all of
    /// `unfenced`; leaves the page word of page 0 in `unfenced`.
    pub(crate) fn open(
        blocks: &Blocks,
        geometry: &Geometry,
        kind: Kind,
        block: u32,
        lane: &mut Lane,
        unfenced: &mut Unfenced,
    ) -> Claim {
        let epoch = blocks.next_epoch(block);
        let pages = *geometry.pages_of(kind);
        let at = blocks.at(block);
        let secret = lane.pool().secret().clone();
        let mut header = Vec::with_capacity(pages.header as usize);
        for page in 0..pages.count {
            let page_at = at + page * pages.bytes;
            header.clear();
            header.extend_from_slice(&page_word(&secret, page_at, kind, epoch).to_le_bytes());
            header.extend_from_slice(&tail_word(&secret, page_at, epoch, 0).to_le_bytes());
            for word in 0..pages.mark_words {
                let mark_at = page_at + 16 + 8 * word;
                header.extend_from_slice(&mark_word(&secret, mark_at, epoch, 0).to_le_bytes());
            }
            assert!(
                header.len() <= pages.header as usize,
                "the words of a page's header reach into its records"
            );
            header.resize(pages.header as usize, 0);
            let skip = if page == 0 { 8 } else { 0 };
            let dirty = lane.store(page_at + skip as u64, header.get(skip..).unwrap_or(&[]));
            unfenced.add(lane.flush(dirty));
        }
        let ordered = unfenced.fence(lane);
        let word = page_word(&secret, at, kind, epoch);
        let dirty = lane.publish(at, word, &ordered);
        unfenced.add(lane.flush(dirty));
        if let Some(entry) = blocks.get(block) {
            entry.set_filled(0);
            entry.set_written(0);
            entry.set_records(0);
            entry.set_garbage(0);
            entry.set(Info {
                state: State::Open,
                kind,
                epoch,
            });
        }
        Claim {
            kind,
            pages,
            block,
            epoch,
            at,
            turn: 0,
            page: at + page_order(&pages, block, epoch, 0) * pages.bytes,
            fill: pages.header,
            filled: 0,
            records: 0,
            staged: Vec::new(),
            unsettled: false,
            unfenced_records: false,
            slack: 0,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// First byte of the page that records go to.
    #[inline]
    pub(crate) fn page_at(&self) -> u64 {
        self.page
    }

    /// Goes on to the next page of the block.
    fn turn_page(&mut self) {
        self.turn += 1;
        assert!(self.turn < self.pages.count, "a block has no more pages");
        let number = page_order(&self.pages, self.block, self.epoch, self.turn);
        self.page = self.at + number * self.pages.bytes;
        self.fill = self.pages.header;
    }

    /// The place of the next record of `bytes`, on the next page if need be; `None`: the block is full.
    #[inline]
    pub(crate) fn place(
        &mut self,
        bytes: u64,
        lane: &mut Lane,
        unfenced: &mut Unfenced,
    ) -> Option<u64> {
        while self.fill + bytes > self.pages.bytes {
            if self.turn + 1 >= self.pages.count {
                return None;
            }
            self.finish_page(lane, unfenced);
            self.turn_page();
        }
        Some(self.page_at() + self.fill)
    }

    /// Writes the record, of whole words, that `build` appends, to the place that [`Claim::place`] returned.
    #[inline]
    pub(crate) fn append(
        &mut self,
        lane: &mut Lane,
        unfenced: &mut Unfenced,
        build: impl FnOnce(&mut Vec<u8>),
    ) {
        let before = self.staged.len();
        build(&mut self.staged);
        self.count(self.staged.len() - before);
        self.unsettled = true;
        if self.staged.len() >= STAGED_MAX {
            self.settle(lane, unfenced);
        }
    }

    /// Counts a record of `bytes` bytes.
    fn count(&mut self, bytes: usize) {
        self.fill += bytes as u64;
        self.filled += bytes as u32;
        self.records += 1;
        debug_assert!(
            bytes != 0 && bytes.is_multiple_of(8),
            "a record is not whole words"
        );
        debug_assert!(
            self.fill <= self.pages.bytes,
            "a record reaches over the end of its page"
        );
        self.unfenced_records = true;
    }

    /// Streams the staged bytes, with the partly filled line, so that a fence covers every record.
    #[inline]
    pub(crate) fn settle(&mut self, lane: &mut Lane, unfenced: &mut Unfenced) {
        if self.unsettled {
            self.stream(lane, unfenced);
        }
    }

    fn stream(&mut self, lane: &mut Lane, unfenced: &mut Unfenced) {
        let at = self.page_at() + self.fill - self.staged.len() as u64;
        let whole = self.staged.len() / LINE as usize * LINE as usize;
        let partial = self.staged.len() - whole;
        debug_assert!(
            at.is_multiple_of(LINE),
            "a stream begins in the middle of a line"
        );
        if partial != 0 {
            self.staged.resize(whole + LINE as usize, 0);
        }
        unfenced.add(lane.stream(at, &self.staged));
        self.staged.copy_within(whole..whole + partial, 0);
        self.staged.truncate(partial);
        if self.staged.capacity() > SCRATCH_KEEP {
            self.staged.shrink_to(STAGED_MAX);
        }
        self.unsettled = false;
    }

    /// Ends the current page. A tail word says that everything before it verifies, so unfenced records are
    /// fenced first. Tail words of earlier pages are fenced by then, too.
    fn finish_page(&mut self, lane: &mut Lane, unfenced: &mut Unfenced) {
        self.settle(lane, unfenced);
        self.staged.clear();
        if self.unfenced_records {
            let _kept = unfenced.fence(lane);
            self.unfenced_records = false;
        }
        let page_at = self.page_at();
        let word = tail_word(lane.pool().secret(), page_at, self.epoch, self.fill as u32);
        let dirty = lane.store_word(page_at + 8, word);
        unfenced.add(lane.flush(dirty));
    }

    /// Notes that a fence covers everything settled so far.
    #[inline]
    pub(crate) fn fenced(&mut self, blocks: &Blocks) {
        debug_assert!(
            !self.unsettled,
            "a fence came before the staged records were streamed"
        );
        if std::mem::take(&mut self.unfenced_records)
            && let Some(entry) = blocks.get(self.block)
        {
            // A checkpoint of the index that lists the block waits until the writers of these records publish
            // them.
            let bytes = self.turn * self.pages.bytes + self.fill;
            entry.set_written(bytes as u32);
        }
    }

    /// Writes the tail words of the current and all later pages. The caller fences, then calls
    /// [`Claim::sealed`].
    pub(crate) fn seal(&mut self, lane: &mut Lane, unfenced: &mut Unfenced) {
        self.slack = self.pages.slack(self.turn, self.fill) as u32;
        self.finish_page(lane, unfenced);
        while self.turn + 1 < self.pages.count {
            self.turn_page();
            self.finish_page(lane, unfenced);
        }
        assert_eq!(
            self.turn + 1,
            self.pages.count,
            "a page of a sealed block has no tail word"
        );
    }

    /// Enters the block as sealed into the block table.
    pub(crate) fn sealed(&self, blocks: &Blocks) {
        assert!(
            !self.unsettled && !self.unfenced_records,
            "a block is sealed before its records are fenced"
        );
        assert!(
            u64::from(self.filled) <= self.pages.room() * self.pages.count,
            "a block has more records than room"
        );
        let Some(entry) = blocks.get(self.block) else {
            return;
        };
        entry.set_filled(self.filled);
        entry.set_records(self.records);
        entry.set_slack(self.slack);
        entry.set(Info {
            state: State::Sealed,
            kind: self.kind,
            epoch: self.epoch,
        });
    }
}
