//! Moving live records out of a block.
//!
//! A record is copied under its key's lock, from the private copy of the block that was just verified:
//! published records do not change. A block with edits in place is the exception: its records are read again
//! under the lock.
//!
//! Dead records stay behind without a look at the index. The session that set such a mark is pinned until the
//! index has followed. The block is freed after that pin ends, and after the pins of readers that came before
//! its end. Dead records are tombstones of older ones. Dropping them is safe: at most one copy of a key is
//! unmarked, and [`Viper::fence_marks`] first makes the marks of all others durable.

use crate::concurrency::seam::few;
use crate::concurrency::stripes::StripeId;
use crate::engine::backend::Backend;
use crate::error::Error;
use crate::index::{KeyHash, Location};
use crate::viper::below::{Batch, Victim};
use crate::viper::block_table::{Block, Info, State};
use crate::viper::layout::Kind;
use crate::viper::lookup::location;
use crate::viper::record::{Order, Record, RecordKind};
use crate::viper::recovery::block_walk::{BlockWalk, copy_block};
use crate::viper::session::{Old, Pending, Replaced, ViperSession};
use crate::viper::space::Space;
use crate::viper::{Viper, bump_shared};
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

/// Records that are moved under one fence. Their keys are locked meanwhile, so their writers wait.
const GROUP: usize = 16;

/// A record to be moved.
struct Live {
    /// Byte offset in the pool.
    at: u64,
    record: Record,
    hash: KeyHash,
    /// Its key, if the record holds only part of it.
    long_key: Vec<u8>,
}

/// The records of a block that matter to its compaction.
struct Content {
    live: Vec<Live>,
    /// Dead ones that say something of the log, as ranges of the block's copy; see `viper/below/mod.rs`.
    covering: Vec<(Range<usize>, (u64, u16))>,
}

/// The parameters of one move.
struct Move<'a> {
    block: Info,
    live: &'a Live,
    stripe: StripeId,
    key: &'a [u8],
    /// The record's bytes as they were verified.
    bytes: &'a [u8],
}

/// Moves the live records out of a block. `None`: the block cannot be compacted now.
pub(in crate::viper) fn empty_block(
    viper: &Viper,
    session: &mut ViperSession,
    block: u32,
    batch: Option<&mut Batch<'_>>,
) -> Result<Option<Info>, Error> {
    let Some(entry) = viper.space.blocks.get(block) else {
        return Ok(None);
    };
    let info = entry.info();
    if info.state != State::Sealed || !entry.advance(info, State::Compacting) {
        return Ok(None);
    }
    assert!(
        session.compaction && session.pending.is_empty(),
        "a block is compacted amid writes of a user"
    );
    let taken = Info {
        state: State::Compacting,
        ..info
    };
    // Dead records may have something to say of the log.
    if batch.is_none() && is_wholly_dead(&viper.space, block, entry, info) {
        return Ok(Some(taken));
    }
    match move_records(viper, session, block, taken, batch) {
        Ok(true) => Ok(Some(taken)),
        Ok(false) => {
            entry.set(info);
            Ok(None)
        }
        Err(error) => {
            entry.set(info);
            Err(error)
        }
    }
}

/// Whether the block has as many marks as records, so that no record needs a look.
fn is_wholly_dead(space: &Space, block: u32, entry: &Block, info: Info) -> bool {
    if entry.live() > 0 || entry.records() == 0 {
        return false;
    }
    let reader = space.reader();
    let pages = space.geometry.pages_of(info.kind);
    let mut marked = 0;
    for page in 0..pages.count {
        let page_at = space.blocks.at(block) + page * pages.bytes;
        for word in 0..pages.mark_words {
            match reader.marks(page_at + 16 + 8 * word, info.epoch) {
                Ok(marks) => marked += marks.count_ones(),
                Err(_) => return false,
            }
        }
    }
    marked == entry.records()
}

/// Copies the live records. On failure it marks the originals of the copied ones dead: the block stays, and a
/// key has at most one unmarked record. `false`: a batch with its journal in this block is being applied.
fn move_records(
    viper: &Viper,
    session: &mut ViperSession,
    block: u32,
    info: Info,
    mut batch: Option<&mut Batch<'_>>,
) -> Result<bool, Error> {
    let at = viper.space.blocks.at(block);
    let mut image = Vec::new();
    copy_block(
        viper.pool.region(),
        at,
        viper.space.geometry.block_bytes,
        &mut image,
    );
    // From here on, this thread sees everything that the writers of the copied marks did before them.
    fence(Ordering::Acquire);
    let Some(Content { mut live, covering }) = live_records(viper, block, info, &mut image)? else {
        return Ok(false);
    };
    let mut leaving = Vec::new();
    let mut moved = Vec::with_capacity(live.len());
    let mut result = Ok(());
    if let Some(batch) = &batch {
        // Keys that are too long for a page never leave the pool.
        let leaves = |one: &mut Live| {
            let key = (one.at - at) as usize + one.record.key().start;
            let key = &image[key..key + one.record.key().len()];
            let may_leave = one.record.kind != RecordKind::BigKey && !viper.space.is_big(key);
            let has_expired = viper.is_expired(one.record.expires_at_ms);
            may_leave && (has_expired || batch.is_to_leave(&viper.space, block, one.at - at))
        };
        leaving = live.extract_if(.., leaves).collect();
    }
    for group in live.chunks(few!(GROUP)) {
        let of_block = (info, at, image.as_slice());
        result = move_group(
            viper,
            session,
            of_block,
            group,
            &mut moved,
            batch.as_deref_mut(),
        );
        // A failure must not leave earlier moves of the group uncommitted.
        let committed = session.commit_pending();
        result = result.and(committed);
        if result.is_err() {
            break;
        }
    }
    let bytes = moved.iter().map(|old| u64::from(old.bytes)).sum();
    bump_shared(&viper.compaction.bytes_moved, bytes);
    if let Some(batch) = batch
        && result.is_ok()
    {
        let of_block = (info, at, image.as_slice());
        result = leave(viper, session, of_block, &leaving, &covering, batch);
        if result.is_ok() {
            batch.emptied(block, info, std::mem::take(&mut moved));
        }
    }
    if result.is_err() {
        viper.healthy()?;
        for old in &moved {
            session.mark(old)?;
        }
        let _ordered = session.settle_and_fence();
    }
    result.map(|()| true)
}

/// The unmarked records of a block's copy that count; `None` if a live journal is among them.
fn live_records(
    viper: &Viper,
    block: u32,
    info: Info,
    image: &mut [u8],
) -> Result<Option<Content>, Error> {
    let walk = BlockWalk {
        secret: viper.pool.secret(),
        geometry: &viper.space.geometry,
        block,
        at: viper.space.blocks.at(block),
        kind: info.kind,
        epoch: info.epoch,
    };
    let floor = viper.floor.load(Ordering::Acquire);
    let (mut live, mut covering) = (Vec::new(), Vec::new());
    let mut pinned = false;
    let reader = viper.reader();
    walk.run(image, &mut |visited| {
        if visited.dead {
            if visited.record.covers && visited.record.stamp.version > floor {
                let key = visited.record.key();
                let from = (visited.at - walk.at) as usize;
                let key = from + key.start..from + key.end;
                covering.push((key, visited.record.stamp.order()));
            }
            return Ok(());
        }
        if visited.record.kind.is_journal() {
            pinned = true;
        } else if visited.record.stamp.version > floor {
            let mut long_key = Vec::new();
            let hash = viper.hash(reader.key(&visited.record, visited.bytes, &mut long_key)?);
            // The fetch of the index's line overlaps with the verification of the rest of the block.
            viper.index.prefetch(hash);
            live.push(Live {
                at: visited.at,
                record: visited.record,
                hash,
                long_key,
            });
        }
        Ok(())
    })?;
    Ok((!pinned).then_some(Content { live, covering }))
}

/// Appends to the log what leaves the pool, and what dead records say of the log.
fn leave(
    viper: &Viper,
    session: &mut ViperSession,
    (block, block_at, image): (Info, u64, &[u8]),
    leaving: &[Live],
    covering: &[(Range<usize>, (u64, u16))],
    batch: &mut Batch<'_>,
) -> Result<(), Error> {
    for live in leaving {
        // This may sync, and needs all stripes free.
        session.commit_pending()?;
        batch.make_room(session)?;
        let this = Move::of(viper, block, live, (block_at, image));
        leave_one(viper, session, &this, batch)?;
    }
    session.commit_pending()?;
    for (key, order) in covering {
        let key = &image[key.clone()];
        let hash = viper.hash(key);
        let stripe = viper.stripe(hash);
        session.acquire(stripe)?;
        let buried = batch.bury(viper, session, hash, key, *order);
        session.give_back(stripe);
        buried?;
    }
    Ok(())
}

/// Appends a record to the log, under its key's lock, if the index points to it. A record that has expired is
/// removed.
fn leave_one(
    viper: &Viper,
    session: &mut ViperSession,
    this: &Move<'_>,
    batch: &mut Batch<'_>,
) -> Result<(), Error> {
    let from = location(this.live.at)?;
    session.acquire(this.stripe)?;
    let outcome = match viper.points_to(&session.slot, this.live.hash, from) {
        false => bury(viper, session, this, Some(batch)).map(|()| None),
        true => leave_locked(viper, session, this, batch),
    };
    match outcome {
        Ok(Some(removal)) => session.submit_pending(removal),
        other => {
            session.give_back(this.stripe);
            other.map(drop)
        }
    }
}

/// Appends the state of a held key; or returns its removal, if it has expired.
fn leave_locked(
    viper: &Viper,
    session: &mut ViperSession,
    this: &Move<'_>,
    batch: &mut Batch<'_>,
) -> Result<Option<Pending>, Error> {
    let record = &this.live.record;
    let is_as_copied = this.block.kind != Kind::FixedEdited && !record.kind.is_chained();
    if is_as_copied && !viper.is_expired(record.expires_at_ms) {
        let old = unchanged(&viper.space, this)?;
        let value = this.bytes.get(record.value()).unwrap_or(&[]);
        batch.append(&this.victim(viper, &old, value, record.expires_at_ms))?;
        return Ok(None);
    }
    // Read under the lock: an in-place update may have changed the value since the block was copied.
    let Some((old, record)) = session.find(this.live.hash, this.key)? else {
        return Ok(None);
    };
    if old.expired {
        bury(viper, session, this, Some(batch))?;
        viper.stripes.next_version(this.stripe);
        return Ok(Some(this.pending(session, None, old)));
    }
    let mut value = Vec::new();
    session.value_of(&record, &mut value)?;
    batch.append(&this.victim(viper, &old, &value, record.expires_at_ms))?;
    Ok(None)
}

/// Says in the log what a record says that goes with its block: it was alive when the block was copied,
/// and is not its key's state any more.
fn bury(
    viper: &Viper,
    session: &mut ViperSession,
    this: &Move<'_>,
    batch: Option<&mut Batch<'_>>,
) -> Result<(), Error> {
    let record = &this.live.record;
    match batch {
        Some(batch) if record.covers => batch.bury(
            viper,
            session,
            this.live.hash,
            this.key,
            record.stamp.order(),
        ),
        _ => Ok(()),
    }
}

/// Submits the moves of a few records; `image` is the copy of the block that begins at `block_at`.
fn move_group(
    viper: &Viper,
    session: &mut ViperSession,
    (block, block_at, image): (Info, u64, &[u8]),
    group: &[Live],
    moved: &mut Vec<Old>,
    mut batch: Option<&mut Batch<'_>>,
) -> Result<(), Error> {
    for live in group {
        let this = Move::of(viper, block, live, (block_at, image));
        moved.extend(move_record(viper, session, &this, batch.as_deref_mut())?);
    }
    Ok(())
}

/// Moves a record, under its key's lock, if the index points to it (V2).
fn move_record(
    viper: &Viper,
    session: &mut ViperSession,
    this: &Move<'_>,
    batch: Option<&mut Batch<'_>>,
) -> Result<Option<Old>, Error> {
    let place = location(this.live.at)?;
    session.acquire(this.stripe)?;
    let submitted = match viper.points_to(&session.slot, this.live.hash, place) {
        false => bury(viper, session, this, batch).map(|()| None),
        true => move_locked(viper, session, this),
    };
    match submitted {
        Ok(Some((write, old))) => {
            let is_move = write.moved;
            session.submit_pending(write)?;
            Ok(is_move.then_some(old))
        }
        other => {
            session.give_back(this.stripe);
            other.map(|_| None)
        }
    }
}

/// The write that replaces a record to which the index points: a copy, or a removal if the record has
/// expired.
fn move_locked(
    viper: &Viper,
    session: &mut ViperSession,
    this: &Move<'_>,
) -> Result<Option<(Pending, Old)>, Error> {
    let is_edited = this.block.kind == Kind::FixedEdited;
    // With a tier below, an expired record leaves as others do: the log may have to be told of it.
    let is_expired = viper.below.is_none() && viper.is_expired(this.live.record.expires_at_ms);
    if !is_edited && !is_expired {
        let old = unchanged(&viper.space, this)?;
        let new = copy(session, this, this.bytes, next_stamp(viper, this, &old))?;
        return Ok(Some((this.pending(session, Some(new), old), old)));
    }
    // Read again under the lock: an in-place update may have changed the value since the block was copied.
    let Some((old, _)) = session.find(this.live.hash, this.key)? else {
        return Ok(None);
    };
    if old.expired {
        viper.stripes.next_version(this.stripe);
        return Ok(Some((this.pending(session, None, old), old)));
    }
    let scratch = std::mem::take(&mut session.scratch);
    let new = copy(session, this, &scratch, next_stamp(viper, this, &old));
    session.scratch = scratch;
    Ok(Some((this.pending(session, Some(new?), old), old)))
}

/// The [`Old`] of a record that has not changed since its block was copied. The copy keeps the pieces of the
/// value.
fn unchanged(space: &Space, this: &Move<'_>) -> Result<Old, Error> {
    let Live { at, record, .. } = this.live;
    Ok(Old {
        location: location(*at)?,
        bytes: record.bytes,
        chain: None,
        expired: false,
        stamp: record.stamp,
        version: record.stamp.version,
        mark: Some(space.reader().mark_place(*at)?),
        unmarkable: false,
    })
}

/// Version and moves of the copy: the same version, one move more.
fn next_stamp(viper: &Viper, this: &Move<'_>, old: &Old) -> (u64, u16) {
    match old.stamp.moves.checked_add(1) {
        // After edits in place, the clock was shown as the version; the copy gets it as its own.
        Some(moves) if this.block.kind != Kind::FixedEdited => (old.stamp.version, moves),
        _ => (viper.stripes.next_version(this.stripe), 0),
    }
}

/// Writes a record again from its bytes; a chained value keeps its pieces.
fn copy(
    session: &mut ViperSession,
    this: &Move<'_>,
    bytes: &[u8],
    (version, moves): (u64, u16),
) -> Result<Location, Error> {
    let record = &this.live.record;
    let held = bytes.get(record.key()).unwrap_or(&[]);
    let payload = bytes.get(record.value()).unwrap_or(&[]);
    let expires_at_ms = record.expires_at_ms;
    let order = Order {
        version,
        moves,
        covers: record.covers,
    };
    session.write(record.kind, held, payload, expires_at_ms, order)
}

impl<'a> Move<'a> {
    fn of(
        viper: &Viper,
        block: Info,
        live: &'a Live,
        (block_at, image): (u64, &'a [u8]),
    ) -> Move<'a> {
        let from = (live.at - block_at) as usize;
        let end = from + live.record.bytes as usize;
        assert!(
            live.at >= block_at && end <= image.len(),
            "a live record lies outside of its block"
        );
        let bytes = &image[from..end];
        let key = match live.record.kind {
            RecordKind::BigKey => live.long_key.as_slice(),
            _ => bytes.get(live.record.key()).unwrap_or(&[]),
        };
        Move {
            block,
            live,
            stripe: viper.stripe(live.hash),
            key,
            bytes,
        }
    }

    /// The state of its key, of which `old` is the record.
    fn victim<'b>(
        &'b self,
        viper: &Viper,
        old: &Old,
        value: &'b [u8],
        expires_at_ms: u64,
    ) -> Victim<'b> {
        Victim {
            hash: self.live.hash,
            key: self.key,
            value,
            expires_at_ms,
            order: next_stamp(viper, self, old),
            from: old.location,
            chain: old.chain,
        }
    }

    fn pending(&self, session: &ViperSession, new: Option<Location>, old: Old) -> Pending {
        Pending {
            hash: self.live.hash,
            stripe: self.stripe,
            moved: new.is_some(),
            new,
            old: Replaced::Known(Some(old)),
            written: session.lane.written(),
        }
    }
}
