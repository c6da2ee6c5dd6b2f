//! `check`: walks the whole pool and verifies every checksum and invariant; changes nothing. And viper's part
//! of an inspection: geometry, blocks and how full they are.

use super::Viper;
use super::block_table::{Info, State};
use super::layout::Kind;
use super::lookup::{location, look_up};
use super::read::{Pieces, chain_of};
use super::recovery::block_walk::{BlockWalk, Visited, copy_block};
use super::recovery::salvage::walk_damaged;
use super::space::Space;
use crate::concurrency::epoch::Slot;
use crate::error::{Error, corrupt};
use crate::stats::{CheckReport, Finding, Inspection, KindCount};
use std::sync::atomic::Ordering;

/// A block may look torn while a session writes it, but not in every one of these tries.
const TRIES: usize = 3;

pub(super) fn check(viper: &Viper) -> Result<CheckReport, Error> {
    let slot = viper
        .epochs
        .register()
        .ok_or_else(|| viper.sessions.reached())?;
    let mut report = CheckReport::default();
    let mut image = Vec::new();
    for block in viper.space.blocks.all() {
        let Some(entry) = viper.space.blocks.get(block) else {
            continue;
        };
        report.blocks += 1;
        report.bytes += viper.space.geometry.block_bytes;
        let mut tries = 0;
        loop {
            let info = entry.info();
            if !matches!(info.state, State::Open | State::Sealed | State::Unverified) {
                break;
            }
            let mut counted = CheckReport::default();
            let result = check_block(viper, &slot, block, info, &mut image, &mut counted);
            tries += 1;
            let moved_on = entry.info() != info;
            match result {
                Ok(()) => {
                    report.records += counted.records;
                    report.live += counted.live;
                    break;
                }
                Err(_) if tries < TRIES || moved_on => {}
                Err(error @ Error::Corrupt { .. }) => {
                    check_damaged(viper, &slot, block, info, &mut image, &mut report, error)?;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    if let Some(below) = &viper.below {
        below.check(viper, &slot, &mut report)?;
    }
    Ok(report)
}

fn check_block(
    viper: &Viper,
    slot: &Slot,
    block: u32,
    info: Info,
    image: &mut Vec<u8>,
    report: &mut CheckReport,
) -> Result<(), Error> {
    let at = viper.space.blocks.at(block);
    copy_block(
        viper.pool.region(),
        at,
        viper.space.geometry.block_bytes,
        image,
    );
    let walk = BlockWalk {
        secret: viper.pool.secret(),
        geometry: &viper.space.geometry,
        block,
        at,
        kind: info.kind,
        epoch: info.epoch,
    };
    walk.run(image, &mut |visited| {
        report.records += 1;
        if !visited.dead && !visited.record.kind.is_journal() {
            check_live(viper, slot, &visited, report)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// As [`check_block`], for a damaged block: lists everything wrong with it. `error` is the first finding.
fn check_damaged(
    viper: &Viper,
    slot: &Slot,
    block: u32,
    info: Info,
    image: &mut Vec<u8>,
    report: &mut CheckReport,
    error: Error,
) -> Result<(), Error> {
    let at = viper.space.blocks.at(block);
    copy_block(
        viper.pool.region(),
        at,
        viper.space.geometry.block_bytes,
        image,
    );
    let walk = BlockWalk {
        secret: viper.pool.secret(),
        geometry: &viper.space.geometry,
        block,
        at,
        kind: info.kind,
        epoch: info.epoch,
    };
    let mut findings = Vec::new();
    let mut of_records = Vec::new();
    let visit = &mut |visited: Visited<'_>| {
        report.records += 1;
        if visited.dead || visited.record.kind.is_journal() {
            return Ok(());
        }
        let Err(error) = check_live(viper, slot, &visited, report) else {
            return Ok(());
        };
        let Error::Corrupt { offset, what, .. } = error else {
            return Err(error);
        };
        let mut buffer = Vec::new();
        let key = viper
            .reader()
            .key(&visited.record, visited.bytes, &mut buffer);
        of_records.push(Finding {
            key: key.ok().map(<[u8]>::to_vec),
            ..Finding::new(offset, format!("block {block}: {what}"))
        });
        Ok(())
    };
    walk_damaged(&walk, image, visit, &mut |flaw| findings.push(flaw.finding))?;
    findings.append(&mut of_records);
    if let (true, Error::Corrupt { offset, what, .. }) = (findings.is_empty(), error) {
        findings.push(Finding::new(offset, format!("block {block}: {what}")));
    }
    report.findings.append(&mut findings);
    Ok(())
}

/// An unmarked record is the one the index points to, or a writer is replacing it.
fn check_live(
    viper: &Viper,
    slot: &Slot,
    visited: &Visited<'_>,
    report: &mut CheckReport,
) -> Result<(), Error> {
    if visited.record.stamp.version <= viper.floor.load(Ordering::Acquire) {
        return Ok(());
    }
    let reader = viper.reader();
    // The pin covers the pieces of the value, which are retired with their record.
    let _pin = slot.pin();
    let mut buffer = Vec::new();
    let key = reader.key(&visited.record, visited.bytes, &mut buffer)?;
    let hash = viper.hash(key);
    let place = location(visited.at)?;
    let mut scratch = Vec::new();
    let found = look_up(viper, slot, hash, key, &mut scratch)?;
    match found {
        Some((current, _, record)) if current == place => {
            report.live += 1;
            if record.kind.is_chained() {
                let chain = chain_of(&record, &scratch)?;
                let mut pieces = Pieces::new(&reader, &chain);
                scratch.clear();
                while pieces.append(&mut scratch)? {
                    scratch.clear();
                }
            }
            Ok(())
        }
        _ if viper.stripes.is_locked(viper.stripe(hash)) => Ok(()),
        Some((_, _, newer)) if newer.stamp.order() > visited.record.stamp.order() => {
            // A session may have marked it since the block was copied.
            let spot = reader.spot(visited.at)?;
            let mark = reader.mark_of(&spot);
            match reader.marks(mark.at, mark.epoch)? & mark.bit {
                0 => Err(corrupt(
                    visited.at,
                    "an older record of a key is not marked dead",
                )),
                _ => Ok(()),
            }
        }
        _ => {
            let spot = reader.spot(visited.at)?;
            let mark = reader.mark_of(&spot);
            match reader.marks(mark.at, mark.epoch)? & mark.bit {
                0 => Err(corrupt(visited.at, "the index does not know a live record")),
                _ => Ok(()),
            }
        }
    }
}

/// Adds the fields that only viper has.
pub(super) fn describe(space: &Space, inspection: &mut Inspection) {
    let geometry = &space.geometry;
    let mut field = |name: &str, value: String| inspection.fields.push((name.into(), value));
    field("page bytes", geometry.page_bytes.to_string());
    field("pages of a block (DIMMs)", geometry.pages.to_string());
    field("block bytes", geometry.block_bytes.to_string());
    if let Some(shape) = geometry.fixed {
        let text = format!("key {} bytes, value {} bytes", shape.key, shape.value);
        field("fixed-size records", text);
    }
    (inspection.kinds, inspection.space_map) = count(space);
}

fn count(space: &Space) -> (Vec<KindCount>, Vec<u8>) {
    let mut kinds: Vec<KindCount> = ["variable", "fixed", "large", "overflow", "free"]
        .map(|kind| KindCount {
            kind,
            ..KindCount::default()
        })
        .into();
    let mut map = Vec::new();
    for block in space.blocks.all() {
        let Some(entry) = space.blocks.get(block) else {
            continue;
        };
        let info = entry.info();
        let pages = space.geometry.pages_of(info.kind);
        let room = pages.room() * pages.count;
        let live = u64::from(entry.live());
        let (index, live) = match (info.state, info.kind) {
            (State::Free | State::Outside, _) | (_, Kind::Free) => (4, None),
            (_, Kind::Variable) => (0, Some(live)),
            (_, Kind::Fixed | Kind::FixedEdited) => (1, Some(live)),
            (_, Kind::Large) => (2, Some(live)),
            (_, Kind::Overflow) => (3, Some(u64::from(entry.filled()))),
        };
        map.push(live.map_or(255, |live| (live * 100 / room.max(1)).min(100) as u8));
        if let Some(kind) = kinds.get_mut(index) {
            kind.blocks += 1;
            kind.filled_bytes += u64::from(entry.filled());
            kind.garbage_bytes += u64::from(entry.garbage());
        }
    }
    (kinds, map)
}
