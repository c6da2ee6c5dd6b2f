//! Judging an image: recovered by the real code, compared with what callers had been told, and then used.
//!
//! Using it is the probe: every key is read; half of the keys are removed and half overwritten, so that whatever
//! recovery left lying about shows; then everything is removed, space is reclaimed, the process is killed and
//! the pool opened once more. It must be empty then, with its room back.

use crate::call::Values;
use crate::history::{Allowed, State};
use crate::image::Image;
use crate::lazy::Oracle;
use crate::trace::name;
use crate::unit::Unit;
use crate::world::{Ears, Ground, World};
use everdram::{EngineSession, Error};
use everdram_pm::lab::Tap;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Arc;
use std::sync::Once;

/// What is wrong with an image.
pub type Wrong = String;

/// Recovers an image and looks at it and uses it.
///
/// # Errors
/// What is wrong, in words.
pub fn judge(
    ground: &Ground,
    image: Image,
    allowed: &Allowed,
    values: &Values,
) -> Result<State, Wrong> {
    guarded(|| {
        let world = World::open(ground, image, &Ears::default())
            .map_err(|error| format!("recovery refused it: {error}"))?;
        let state = compare(&world, allowed, values)?;
        probe(world, &state)?;
        Ok(state)
    })
}

/// As [`judge`], for memory whose uncertain lines `oracle` decides as they are read; `choose` decides the rest.
///
/// # Errors
/// As [`judge`].
pub fn judge_lazily(
    ground: &Ground,
    base: Image,
    oracle: &Arc<Oracle>,
    allowed: &Allowed,
    values: &Values,
    choose: impl FnMut(&Unit) -> usize,
) -> Result<State, Wrong> {
    guarded(|| {
        let ears = Ears {
            tap: Some(Arc::clone(oracle) as Arc<dyn Tap>),
            disk: None,
        };
        let world = World::open(ground, base, &ears)
            .map_err(|error| format!("recovery refused it: {error}"))?;
        oracle.decide_rest(world.pool.region(), choose);
        let state = compare(&world, allowed, values)?;
        probe(world, &state)?;
        Ok(state)
    })
}

/// Runs `body`; a panic is something wrong, like any other.
///
/// # Errors
/// As `body`, or its panic.
pub fn guarded<T>(body: impl FnOnce() -> Result<T, Wrong>) -> Result<T, Wrong> {
    hush();
    let outer = JUDGED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    JUDGED.set(outer);
    result.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let place = PANICKED_AT.take().unwrap_or_default();
        let text = text.unwrap_or("without a word");
        Err(format!("it panicked{place}: {text}"))
    })
}

thread_local! {
    /// Whether this thread runs code whose panic is a finding, and is told as one.
    static JUDGED: Cell<bool> = const { Cell::new(false) };
    /// Where in the source it panicked last.
    static PANICKED_AT: Cell<Option<String>> = const { Cell::new(None) };
}

/// Keeps panics of judged code off standard error: among a million images that would be all there is to see. Other
/// panics are told as before.
fn hush() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if JUDGED.get() {
                PANICKED_AT.set(panic.location().map(|site| format!(" at {}", name(site))));
            } else {
                before(panic);
            }
        }));
    });
}

/// Reads every key of a recovered store; what it holds must be allowed.
///
/// # Errors
/// It is not.
pub fn compare(world: &World, allowed: &Allowed, values: &Values) -> Result<State, Wrong> {
    let mut session = world
        .session()
        .map_err(|error| format!("no session: {error}"))?;
    let state = world.state(&mut *session, |bytes| values.known(bytes))?;
    if allowed.states.contains(&state) {
        return Ok(state);
    }
    Err(describe(&state, allowed, values))
}

/// Says how a state differs from the allowed one that is nearest to it.
fn describe(state: &State, allowed: &Allowed, values: &Values) -> Wrong {
    let differences = |other: &State| -> Vec<usize> {
        (0..state.len())
            .filter(|&key| state[key] != other[key])
            .collect()
    };
    let Some(nearest) = allowed
        .states
        .iter()
        .min_by_key(|other| differences(other).len())
    else {
        return "no state is allowed".into();
    };
    let show = |held: Option<(u32, u64)>| match held {
        None => "nothing".to_owned(),
        Some((value, expires)) => {
            let bytes = values.bytes(value);
            let until = match expires {
                0 => String::new(),
                at => format!(" until {at}"),
            };
            format!("value {value} ({} bytes{until})", bytes.len())
        }
    };
    let lines: Vec<String> = differences(nearest)
        .into_iter()
        .map(|key| {
            format!(
                "key {key} holds {} and should hold {}",
                show(state[key]),
                show(nearest[key])
            )
        })
        .collect();
    let others = match allowed.states.len() - 1 {
        0 => String::new(),
        more => format!(" (nearest of {} allowed states)", more + 1),
    };
    format!("{}{others}", lines.join("; "))
}

/// Uses a recovered store; see the module text.
fn probe(mut world: World, state: &State) -> Result<(), Wrong> {
    let failed = |what: &'static str| move |error: Error| format!("{what} failed: {error}");
    let profile = world.ground.profile;
    let mut session = world.session().map_err(failed("opening a session"))?;
    let present: Vec<u8> = (0..profile.keys() as u8)
        .filter(|&key| state[usize::from(key)].is_some())
        .collect();
    for (turn, &key) in present.iter().enumerate() {
        let name = profile.key(key);
        if turn % 2 == 0 {
            remove(&mut *session, &name).map_err(failed("removing a key"))?;
        } else {
            overwrite(&mut *session, &name)?;
        }
    }
    for &key in present.iter().skip(1).step_by(2) {
        remove(&mut *session, &profile.key(key)).map_err(failed("removing a key"))?;
    }
    drop(session);
    world
        .opened
        .tend()
        .and_then(|()| world.opened.engine().reclaim())
        .and_then(|_| world.opened.engine().sync())
        .map_err(failed("reclaiming"))?;
    let image = world.killed();
    let ground = world.ground.clone();
    drop(world);
    let again = World::open(&ground, image, &Ears::default())
        .map_err(|error| format!("after use, recovery refused it: {error}"))?;
    let mut session = again.session().map_err(failed("opening a session"))?;
    let left = again
        .state(&mut *session, |_| Some(u32::MAX))
        .map_err(|wrong| format!("after use: {wrong}"))?;
    drop(session);
    if let Some(key) = left.iter().position(Option::is_some) {
        return Err(format!(
            "key {key} was removed after recovery, and is back after the next crash"
        ));
    }
    room(&again)
}

/// An empty store has its blocks back, but for those that are open.
fn room(world: &World) -> Result<(), Wrong> {
    let stats = world.opened.engine().stats();
    let blocks = (stats.used_bytes / world.ground.block_bytes()) as usize;
    if stats.keys > 0 {
        return Err(format!(
            "after use, an empty store counts {} keys",
            stats.keys
        ));
    }
    if blocks > BLOCKS_LEFT {
        return Err(format!(
            "after use, an empty store still has {blocks} blocks in use ({} open, {} sealed, {} free)",
            stats.blocks_open, stats.blocks_sealed, stats.blocks_free
        ));
    }
    Ok(())
}

/// Blocks that an empty store may have in use: those that sessions had open, of each kind, sealed by recovery and
/// below the threshold of reclamation.
const BLOCKS_LEFT: usize = 9;

fn remove(session: &mut dyn EngineSession, key: &[u8]) -> Result<(), Error> {
    session.delete(key)?;
    let ticket = session.commit()?;
    session.wait(ticket)
}

fn overwrite(session: &mut dyn EngineSession, key: &[u8]) -> Result<(), Wrong> {
    let put = |session: &mut dyn EngineSession| -> Result<(), Error> {
        session.put(key, b"probe", 0)?;
        let ticket = session.commit()?;
        session.wait(ticket)
    };
    match put(session) {
        Ok(()) => {}
        // A full pool may have no room for it; that it can be emptied is shown by removing.
        Err(Error::NoSpace(_)) => return Ok(()),
        Err(error) => return Err(format!("overwriting a key failed: {error}")),
    }
    let mut value = Vec::new();
    match session.get(key, &mut value) {
        Ok(Some(_)) if value == b"probe" => Ok(()),
        Ok(_) => Err("a key that was overwritten after recovery does not hold it".into()),
        Err(error) => Err(format!("reading a key back failed: {error}")),
    }
}
