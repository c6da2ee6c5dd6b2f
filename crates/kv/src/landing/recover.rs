//! Opening the landing area: what was granted and has arrived is applied before the first answer, and
//! everything else is free again.
//!
//! A pool that is only looked at takes no writes, so what has arrived could not be shown: such an open is
//! refused while something is there that was not applied, and a salvage notes it as missing.

use super::arrive::{Keys, enter_found};
use super::layout::{AREA_BYTES_MAX, Area, Found, Line, OWNER, PAGE_BYTES};
use super::slot::{HEAD_BYTES, may_be, parse};
use super::table::Live;
use super::{Landing, LandingStats, OWN_SESSIONS, with};
use crate::engine::EngineSession;
use crate::engine::damage::{Damage, Doubt, tolerate};
use crate::error::{Error, corrupt};
use crate::options::Options;
use crate::stats::Finding;
use everdram_pm::{Lane, Lsn, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The area of a pool, if it has one.
///
/// # Errors
/// [`Error::Corrupt`], without the path.
fn area_of(pool: &Pool) -> Result<Option<Area>, Error> {
    match pool.extents(OWNER).as_slice() {
        [] => Ok(None),
        [extent] => Area::filling(extent.at, extent.bytes)
            .map(Some)
            .ok_or_else(|| {
                corrupt(
                    extent.at,
                    "the extent of the landing area has a wrong length",
                )
            }),
        [_, extent, ..] => Err(corrupt(extent.at, "there is a second landing area")),
    }
}

/// Whether the pool has a landing area, or is to get one.
pub(crate) fn is_wanted(pool: &Pool, bytes: u64) -> bool {
    bytes > 0 || !pool.extents(OWNER).is_empty()
}

/// Refuses a landing area on a medium where a fence makes nothing durable: nobody could log what a client
/// writes.
///
/// # Errors
/// [`Error::Options`].
pub(crate) fn check_medium(pool: &Pool) -> Result<(), Error> {
    if pool.durable() == Lsn(u64::MAX) {
        return Ok(());
    }
    Err(Error::Options(format!(
        "landing_bytes: a landing area needs a medium that is durable at the fence, `pmem` or `emulated`, and this \
         pool is on `{}`",
        pool.medium()
    )))
}

/// Opens the landing area, with sessions of the engine, which takes writes. Applies what has arrived.
///
/// # Errors
/// [`Error::Corrupt`], without the path; [`Error::NoSpace`]: there is no room for a new area. As
/// [`EngineSession::put_now`], but for an engine that has no room yet: then the arrival stays.
pub(crate) fn open(
    pool: Arc<Pool>,
    options: &Options,
    own: [Box<dyn EngineSession>; OWN_SESSIONS],
) -> Result<Arc<Landing>, Error> {
    let mut lane = pool.lane();
    let area = match area_of(&pool)? {
        Some(area) => area,
        None => create(&pool, options.landing_bytes)?,
    };
    if !area.has_head(&pool)? {
        area.make_head(&mut lane, pool.secret());
    }
    let landing = Arc::new(Landing::new(
        Arc::clone(&pool),
        area,
        options.fixed_seed(),
        own,
    ));
    enter_all(&landing, &mut lane)?;
    with(&landing.own, |own| match landing.complete(Keys::All, own) {
        // The next operation for the key tries again.
        Err(Error::NoSpace(_) | Error::Loading) => Ok(()),
        other => other,
    })?;
    Ok(landing)
}

fn create(pool: &Pool, bytes: u64) -> Result<Area, Error> {
    let pages = bytes.min(AREA_BYTES_MAX).div_ceil(PAGE_BYTES);
    let extent = pool.allocate(OWNER, Area::bytes_of(pages), PAGE_BYTES);
    let extent = extent.map_err(Error::of_pool)?;
    let area = Area::filling(extent.at, extent.bytes);
    area.ok_or_else(|| {
        corrupt(
            extent.at,
            "the extent of the landing area has a wrong length",
        )
    })
}

/// Enters the grants whose slots verify, and frees all others, durably.
fn enter_all(landing: &Landing, lane: &mut Lane) -> Result<(), Error> {
    let (pool, area) = (&landing.pool, landing.area);
    // A word that a killed process cleared may exist in caches only, and be back after the next power loss:
    // then what it stood for would count again.
    let lines = area.line_at(0)..area.line_at(area.pages);
    let flushed = lane.flush_found(lines.start, lines.end - lines.start);
    let _ordered = lane.fence(flushed);
    let (mut arrived, mut cleared, mut last) = (Vec::new(), None, 0);
    for_each_given(pool, area, |page, given| {
        let line = given?;
        last = last.max(line.generation);
        if has_arrived(pool, area, page, &line) {
            if !landing.table.take_at(page, line.pages) {
                return Err(corrupt(area.line_at(page), "two grants share a page"));
            }
            arrived.push(Live::new(page, line));
        } else {
            let dirty = lane.store_word(area.line_at(page), 0);
            lane.flush(dirty).join(&mut cleared);
        }
        Ok(())
    })?;
    if let Some(cleared) = cleared {
        let _ordered = lane.fence(cleared);
    }
    landing.generation.store(last, Ordering::Relaxed);
    arrived.iter().for_each(|live| enter_found(landing, live));
    Ok(())
}

/// Calls `visit` with every grant, or with the damage in its place.
fn for_each_given(
    pool: &Pool,
    area: Area,
    mut visit: impl FnMut(u32, Result<Line, Error>) -> Result<(), Error>,
) -> Result<(), Error> {
    const TRIES: usize = 4;
    for page in 0..area.pages {
        // In an open store the line may change between the load of its word and that of the rest.
        let mut tries = (0..TRIES).map(|_| Line::read(pool.region(), pool.secret(), area, page));
        let found = tries.find(|found| *found != Found::Damaged);
        match found {
            Some(Found::Free) => {}
            Some(Found::Given(line)) => visit(page, Ok(line))?,
            Some(Found::Damaged) | None => {
                let at = area.line_at(page);
                visit(
                    page,
                    Err(corrupt(at, "the line of a grant does not verify")),
                )?;
            }
        }
    }
    Ok(())
}

/// Whether a slot begins as what its grant allows.
pub(super) fn may_be_there(pool: &Pool, area: Area, page: u32, line: &Line) -> bool {
    let mut head = [0; HEAD_BYTES];
    pool.region().load(area.page_at(page), &mut head);
    may_be(&head, line)
}

/// A private copy of a slot, if it begins as what its grant allows.
pub(super) fn copy_of(pool: &Pool, area: Area, page: u32, line: &Line) -> Option<Vec<u8>> {
    if !may_be_there(pool, area, page, line) {
        return None;
    }
    let at = area.page_at(page);
    let bytes = line.slot_bytes();
    let mut copy = Vec::with_capacity(bytes as usize + 8);
    pool.region()
        .load_behind(at, bytes.next_multiple_of(8), &mut copy);
    copy.truncate(bytes as usize);
    Some(copy)
}

fn has_arrived(pool: &Pool, area: Area, page: u32, line: &Line) -> bool {
    let copy = copy_of(pool, area, page, line);
    copy.is_some_and(|mut copy| parse(&mut copy, line, pool.secret()).is_some())
}

/// Looks at the area of a pool that is open to be read.
///
/// # Errors
/// [`Error::Corrupt`], without the path, unless it is noted as `damage`. [`Error::Options`]: something has
/// arrived that was not applied.
pub(crate) fn look(pool: &Pool, damage: Option<&Arc<Damage>>) -> Result<(), Error> {
    let Some(area) = found_area(pool).or_else(|error| tolerate(damage, error).map(|()| None))?
    else {
        return Ok(());
    };
    let mut arrived = 0;
    for_each_given(pool, area, |page, given| {
        let line = match given {
            Ok(line) => line,
            Err(error) => return tolerate(damage, error),
        };
        let Some(mut copy) = copy_of(pool, area, page, &line) else {
            return Ok(());
        };
        if let Some(arrival) = parse(&mut copy, &line, pool.secret()) {
            arrived += 1;
            if let Some(damage) = damage {
                note(damage, area.page_at(page), arrival.key.to_vec());
            }
        }
        Ok(())
    })?;
    if arrived == 0 || damage.is_some() {
        return Ok(());
    }
    Err(Error::Options(format!(
        "{arrived} values have arrived in the landing area and are not applied yet, so they could not be shown; open \
         the pool to write once"
    )))
}

/// Notes an arrival that a salvage does not show.
fn note(damage: &Damage, offset: u64, key: Vec<u8>) {
    // No state of the key that the engine has is certain.
    let version = u64::MAX;
    damage.doubt(key.clone(), Doubt { version, offset });
    damage.note(Finding {
        key: Some(key),
        missing: 1,
        ..Finding::new(offset, "a value that has arrived here is not applied yet")
    });
}

/// The area of a pool, with a sound head; `None`: there is none, or nothing was ever granted.
fn found_area(pool: &Pool) -> Result<Option<Area>, Error> {
    match area_of(pool)? {
        Some(area) if area.has_head(pool)? => Ok(Some(area)),
        _ => Ok(None),
    }
}

/// The damage in the area of a pool.
///
/// # Errors
/// None but those of damage are known.
pub(crate) fn check(pool: &Pool) -> Result<Vec<Finding>, Error> {
    let damage = Damage::default();
    match found_area(pool) {
        Err(error) => damage.note_error(error)?,
        Ok(None) => {}
        Ok(Some(area)) => for_each_given(pool, area, |_, given| {
            given.map_or_else(|error| damage.note_error(error), |_| Ok(()))
        })?,
    }
    Ok(damage.findings())
}

/// Refuses a damaged area, before anything changes.
///
/// # Errors
/// [`Error::Corrupt`], without the path.
pub(crate) fn refuse_damage(pool: &Pool) -> Result<(), Error> {
    match found_area(pool)? {
        Some(area) => for_each_given(pool, area, |_, given| given.map(drop)),
        None => Ok(()),
    }
}

/// How the area of a pool is used; `None`: it has none.
pub(crate) fn describe(pool: &Pool) -> Option<(LandingStats, u64)> {
    let area = found_area(pool).ok()??;
    let mut stats = LandingStats {
        pages: u64::from(area.pages),
        pages_free: u64::from(area.pages),
        ..LandingStats::default()
    };
    let mut arrived = 0;
    let all = for_each_given(pool, area, |page, given| {
        if let Ok(line) = given {
            stats.grants += 1;
            stats.pages_free = stats.pages_free.saturating_sub(u64::from(line.pages));
            arrived += u64::from(has_arrived(pool, area, page, &line));
        }
        Ok(())
    });
    all.ok().map(|()| (stats, arrived))
}
