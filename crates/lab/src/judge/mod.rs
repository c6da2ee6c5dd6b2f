//! Judges an image: recovers it with the real code, compares it with what callers had been answered, and uses
//! it.
//!
//! The use is a probe. Every key is read. Half of the keys are removed and half overwritten, which brings out
//! records that recovery should have dropped. Then everything is removed, space is reclaimed, a key is
//! written, the process is killed, and the pool is opened again: it must be empty, have its room back and
//! take a key. After both recoveries every block must be accounted for. A recovery from a checkpoint of the
//! index leaves blocks to verify later; the store is used before that, and accounted for afterwards. One
//! image in [`CHECKED_ONE_IN`] is checked record by record as well.

pub mod explain;
pub mod history;
pub(super) mod interval;
pub mod linearize;

use crate::medium::image::Image;
use crate::medium::lazy::Oracle;
use crate::medium::unit::Unit;
use crate::plan::CLOCK_START;
use crate::plan::call::Values;
use crate::run::process::{Environment, Observers, Process};
use crate::run::trace::name;
use everdram::Error;
use everdram::engine::EngineSession;
use everdram_pm::lab::{Tap, Waiter, wait_as};
use history::{Allowed, State};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is wrong with an image.
pub type Defect = String;

/// How closely a recovered store is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// As a user would.
    Usual,
    /// Every record is verified, too.
    Checked,
}

impl Care {
    /// How closely the image with this hash is examined.
    #[must_use]
    pub fn of(hash: u64) -> Care {
        // The low bits decide whether recovery is crashed as well.
        match hash.rotate_left(16).is_multiple_of(CHECKED_ONE_IN) {
            true => Care::Checked,
            false => Care::Usual,
        }
    }
}

/// One image in so many is checked record by record, which costs about as much as all other judging.
pub const CHECKED_ONE_IN: u64 = 64;

/// Recovers an image, examines it as closely as possible, and uses it.
///
/// # Errors
/// What is wrong, in words.
pub fn judge(
    environment: &Environment,
    image: Image,
    allowed: &Allowed,
    values: &Values,
) -> Result<State, Defect> {
    judge_with(Care::Checked, environment, image, allowed, values)
}

/// As [`judge`], as closely as `care` says.
///
/// # Errors
/// As [`judge`].
pub fn judge_with(
    care: Care,
    environment: &Environment,
    image: Image,
    allowed: &Allowed,
    values: &Values,
) -> Result<State, Defect> {
    catching_panics(|| {
        let process = Process::open(environment, image, &Observers::default())
            .map_err(|error| format!("recovery refused it: {error}"))?;
        let state = compare(&process, allowed, values)?;
        if care == Care::Checked {
            check(&process)?;
        }
        probe(process, &state)?;
        Ok(state)
    })
}

/// As [`judge`], where `oracle` decides uncertain lines of the memory as they are read, and `choose` those
/// that are not.
///
/// # Errors
/// As [`judge`].
pub fn judge_lazily(
    environment: &Environment,
    base: Image,
    oracle: &Arc<Oracle>,
    allowed: &Allowed,
    values: &Values,
    choose: impl FnMut(&Unit) -> usize,
) -> Result<State, Defect> {
    catching_panics(|| {
        let observers = Observers {
            tap: Some(Arc::clone(oracle) as Arc<dyn Tap>),
            disk: None,
        };
        let process = Process::open(environment, base, &observers)
            .map_err(|error| format!("recovery refused it: {error}"))?;
        oracle.decide_rest(process.pool.region(), choose);
        let state = compare(&process, allowed, values)?;
        probe(process, &state)?;
        Ok(state)
    })
}

/// Waits of a thread without a scheduler before it sleeps at each of them, and before it counts as hanging:
/// some seconds later.
const WAITS: [u64; 2] = [25_000, 100_000];

/// Waits on a thread without a scheduler, and panics if that takes too long.
#[derive(Default)]
struct Alone(AtomicU64);

impl Waiter for Alone {
    fn wait(&self) {
        let [awake, most] = WAITS;
        let waits = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(waits < most, "it hangs: what it waits for does not come");
        if waits >= awake {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Runs `body`. A panic is a defect like any other, and so is waiting for ever.
///
/// # Errors
/// As `body`, or its panic.
pub fn catching_panics<T>(body: impl FnOnce() -> Result<T, Defect>) -> Result<T, Defect> {
    silence_panics();
    let outer = JUDGED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(|| {
        wait_as(Arc::new(Alone::default()), body)
    }));
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
    /// Whether a panic of this thread is a finding.
    static JUDGED: Cell<bool> = const { Cell::new(false) };
    /// The place of the last such panic.
    static PANICKED_AT: Cell<Option<String>> = const { Cell::new(None) };
}

/// Keeps panics of judged code off standard error, which a million images would flood. Other panics are
/// printed as before.
fn silence_panics() {
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

/// Reads every key of a recovered store.
///
/// # Errors
/// The state is not allowed.
pub fn compare(process: &Process, allowed: &Allowed, values: &Values) -> Result<State, Defect> {
    let mut session = process
        .session()
        .map_err(|error| format!("no session: {error}"))?;
    let state = process.state(&mut *session, |bytes| values.known(bytes))?;
    if allowed.states.contains(&state) {
        return Ok(state);
    }
    Err(describe(&state, allowed, values))
}

/// How a state differs from the nearest allowed one.
fn describe(state: &State, allowed: &Allowed, values: &Values) -> Defect {
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

/// Verifies every record.
///
/// # Errors
/// The first finding.
pub fn check(process: &Process) -> Result<(), Defect> {
    let report = process
        .opened
        .engine()
        .check()
        .map_err(|error| format!("checking it failed: {error}"))?;
    match report.findings.first() {
        None => Ok(()),
        Some(finding) => Err(format!(
            "a check finds, at byte {}: {}",
            finding.offset, finding.what
        )),
    }
}

/// Uses a recovered store; see the module text.
fn probe(mut process: Process, state: &State) -> Result<(), Defect> {
    // If the restart left blocks to verify, the store is used in that state.
    if process.opened.engine().stats().verification.is_none() {
        account(&process, state)?;
    }
    empty(&mut process, state)?;
    write(&process).map_err(|defect| format!("emptied after recovery, {defect}"))?;
    let image = process.killed();
    let environment = process.environment.clone();
    drop(process);
    let again = Process::open(&environment, image, &Observers::default())
        .map_err(|error| format!("after use, recovery refused it: {error}"))?;
    is_empty(&again).map_err(|defect| format!("after use, {defect}"))
}

/// Accounts for every key and every block.
///
/// # Errors
/// A count is wrong.
pub fn account(process: &Process, state: &State) -> Result<(), Defect> {
    let engine = process.opened.engine();
    engine.verify().map_err(failed("verifying"))?;
    let stats = process.opened.engine().stats();
    let found = state.iter().flatten().count() as u64;
    // Expired keys count until they are swept, and cannot be read.
    let has_expired = process.environment.clock.now() > CLOCK_START;
    if stats.keys < found || (stats.keys > found && !has_expired) {
        return Err(format!(
            "the store counts {} keys and has {found}",
            stats.keys
        ));
    }
    let space = process.opened.space();
    let (known, all) = (
        stats.blocks_free + stats.used_bytes / space.block_bytes,
        space.blocks,
    );
    if known != all {
        return Err(format!(
            "of {all} blocks {} are free and {} in use: the others are lost",
            stats.blocks_free,
            known - stats.blocks_free
        ));
    }
    Ok(())
}

/// Keys up to so many bytes fit into any free room.
const SHORT: usize = 64;

/// Removes every key, half of them after overwriting them, and reclaims their space.
fn empty(process: &mut Process, state: &State) -> Result<(), Defect> {
    let profile = process.environment.profile;
    let mut session = process.session().map_err(failed("opening a session"))?;
    let present: Vec<u8> = (0..profile.keys() as u8)
        .filter(|&key| state[usize::from(key)].is_some())
        .collect();
    let mut refused = Vec::new();
    let mut remove =
        |session: &mut dyn EngineSession, key: u8| match remove(session, &profile.key(key)) {
            // Removing a key that is longer than a block may take room that other removals give back.
            Err(Error::NoSpace(_)) => {
                refused.push(key);
                Ok(())
            }
            said => said.map_err(failed("removing a key")),
        };
    for (turn, &key) in present.iter().enumerate() {
        let name = profile.key(key);
        if turn % 2 == 0 {
            remove(&mut *session, key)?;
            continue;
        }
        match overwrite(&mut *session, &name)? {
            Written::Yes => {}
            // A full store only has to take removals. And a long key may need lines in a row, which the free
            // lines need not be.
            Written::NoRoom(_) if is_full(process) || name.len() > SHORT => {}
            Written::NoRoom(why) => {
                let free = process.opened.engine().stats().blocks_free;
                return Err(format!(
                    "overwriting a key found no room, and {free} blocks are free: {why}"
                ));
            }
        }
    }
    for &key in present.iter().skip(1).step_by(2) {
        remove(&mut *session, key)?;
    }
    drop(session);
    tidy(process)?;
    if refused.is_empty() {
        return Ok(());
    }
    let mut session = process.session().map_err(failed("opening a session"))?;
    for key in refused {
        let name = profile.key(key);
        self::remove(&mut *session, &name).map_err(failed("removing a key from an empty store"))?;
    }
    drop(session);
    tidy(process)
}

/// Does all background work of the store.
fn tidy(process: &mut Process) -> Result<(), Defect> {
    let tended = match process.opened.tend() {
        // A checkpoint of the index may need room that is yet to be reclaimed.
        Err(Error::NoSpace(_)) => Ok(()),
        tended => tended,
    };
    tended
        .and_then(|()| process.opened.engine().reclaim())
        .and_then(|_| process.opened.engine().sync())
        .map_err(failed("reclaiming"))
}

/// Whether a write may find no block: few are free, and the pool has no room to grow by a step.
fn is_full(process: &Process) -> bool {
    let stats = process.opened.engine().stats();
    let options = &process.environment.options;
    let space = process.opened.space();
    (stats.blocks_free < space.blocks_to_write || space.is_scattered)
        && stats.pool_bytes + options.chunk_bytes > process.environment.options.max_bytes
}

/// Puts, reads and removes a key in a store without keys.
///
/// # Errors
/// The store refuses, or answers wrongly.
pub fn write(process: &Process) -> Result<(), Defect> {
    let mut session = process.session().map_err(failed("opening a session"))?;
    let key = process.environment.profile.key(0);
    match overwrite(&mut *session, &key)? {
        Written::Yes => remove(&mut *session, &key).map_err(failed("removing a key")),
        Written::NoRoom(why) => Err(format!("an empty store has no room for a key: {why}")),
    }
}

/// Checks that a store that was emptied has no keys, and has its room back.
fn is_empty(process: &Process) -> Result<(), Defect> {
    let mut session = process.session().map_err(failed("opening a session"))?;
    let left = process.state(&mut *session, |_| Some(u32::MAX))?;
    drop(session);
    if let Some(key) = left.iter().position(Option::is_some) {
        return Err(format!("key {key} is back, which had been removed"));
    }
    let engine = process.opened.engine();
    engine.verify().map_err(failed("verifying"))?;
    let stats = process.opened.engine().stats();
    if stats.keys > 0 {
        return Err(format!("an empty store counts {} keys", stats.keys));
    }
    account(process, &left)?;
    let space = process.opened.space();
    let blocks = (stats.used_bytes - stats.checkpoint_bytes) / space.block_bytes;
    // Records without slots of their size are in blocks of another kind.
    let kinds = u64::from(process.environment.options.fixed.is_some());
    if blocks > space.blocks_left + kinds {
        return Err(format!(
            "an empty store still has {blocks} blocks in use ({} open, {} sealed, {} free)",
            stats.blocks_open, stats.blocks_sealed, stats.blocks_free
        ));
    }
    write(process)
}

fn failed(what: &'static str) -> impl Fn(Error) -> Defect {
    move |error| format!("{what} failed: {error}")
}

fn remove(session: &mut dyn EngineSession, key: &[u8]) -> Result<(), Error> {
    session.delete(key)?;
    let ticket = session.commit()?;
    session.wait(ticket)
}

/// What became of a write.
enum Written {
    Yes,
    /// Why not.
    NoRoom(String),
}

/// Gives a key a value, and reads it back.
fn overwrite(session: &mut dyn EngineSession, key: &[u8]) -> Result<Written, Defect> {
    let put = |session: &mut dyn EngineSession| -> Result<(), Error> {
        session.put(key, b"probe", 0)?;
        let ticket = session.commit()?;
        session.wait(ticket)
    };
    match put(session) {
        Ok(()) => {}
        Err(Error::NoSpace(why)) => return Ok(Written::NoRoom(why)),
        Err(error) => return Err(format!("writing a key failed: {error}")),
    }
    let mut value = Vec::new();
    match session.get(key, &mut value) {
        Ok(Some(_)) if value == b"probe" => Ok(Written::Yes),
        Ok(_) => Err("a key that was written after recovery does not hold it".into()),
        Err(error) => Err(format!("reading a key back failed: {error}")),
    }
}
