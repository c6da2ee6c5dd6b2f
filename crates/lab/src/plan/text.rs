//! Plans as text: `everdram crashtest` saves a finding as one, and replays it.
//!
//! ```text
//! everdram crash plan 1
//! engine viper                   the same if there is no such line
//! medium pmem
//! profile variable
//! threads 3                      if sessions call at the same time: the store's jobs beside them, bit i for job i; or:
//!                                stops 4 8 0 again 6 0 0 (each session stops after so many events, 0: not at all, and
//!                                after so many more; without `again`: once)
//! seed 7
//! fault none                     or: sync 12 (one fails after so many), kill 12 (the process dies after so many
//!                                events), outage 12 5 (power fails after so many, and leaves the fifth of what it can
//!                                leave), room 40000 (bytes)
//! value 0 8f02a1                 bytes in hexadecimal, `-` for none
//! call s0 put k3 v0 until 1000153
//! call s1 batch k1=v0 k2-
//! crash 812 9f86d081884c7d65     the step that it came before, and the shape of the run until then
//! hold 73 00000000c0ffee00...    a place, and what it held; other places held all that was stored
//! recovery 14                    a crash in the recovery from that, or in the use after it; its holds follow
//! ```
//!
//! Empty lines and lines that begin with `#` are comments. Reading checks everything: keys and sessions
//! against the profile, lengths against limits.

use super::call::{Call, Exec, Fate, Key, Reach, ValueId, Values};
use super::profile::Profile;
pub use super::words::TextError;
use super::words::Words;
use super::{Fault, Manner, Plan, Stops};
use crate::explore::crash::Crash;
use crate::medium::image::Medium;
use everdram::EngineKind;
use std::collections::HashMap;
use std::fmt::Write;

/// The first line: kind of file and version.
const TITLE: &str = "everdram crash plan 1";
/// Most calls of a plan.
const CALLS: usize = 100_000;
/// Deepest nesting of crashes.
const CRASHES: usize = 8;
/// Most turns of one call.
const TURNS: u64 = 1000;
/// Most events for which a call lets other sessions run.
const EVENTS: u32 = 100_000;
/// The longest value that a plan may ask for.
const BYTES: u32 = 1 << 20;
/// Most milliseconds by which the clock moves at once.
const ADVANCE: u64 = 1 << 40;

/// A plan and what was found with it.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The workload.
    pub plan: Plan,
    /// The crash, then the one in its recovery, and so on.
    pub crashes: Vec<Crash>,
    /// The shape of the run until the crash: see [`crate::explore::crash::shape`].
    pub shape: u64,
}

/// Writes a plan.
#[must_use]
pub fn write(saved: &Saved) -> String {
    let plan = &saved.plan;
    let fault = match plan.fault {
        Fault::None => "none".to_owned(),
        Fault::Sync(after) => format!("sync {after}"),
        Fault::Kill(after) => format!("kill {after}"),
        Fault::Outage(after, kept) => format!("outage {after} {kept}"),
        Fault::Room(bytes) => format!("room {bytes}"),
        Fault::Full(bytes, refusals) => format!("full {bytes} {refusals}"),
    };
    let threads = match plan.manner {
        Manner::Turns => String::new(),
        Manner::Threads { jobs } => format!("threads {jobs}\n"),
        Manner::Stops(stops) => format!("stops {}\n", in_words(stops)),
    };
    let mut text = format!(
        "{TITLE}\nengine {}\nmedium {}\nprofile {}\n{threads}seed {}\nfault {fault}\n",
        plan.engine, plan.medium, plan.profile, plan.seed
    );
    let mut calls = plan.calls.clone();
    let named = calls.iter_mut().flat_map(|(_, call)| call.values_mut());
    let mut named: Vec<ValueId> = named.map(|value| *value).collect();
    named.sort_unstable();
    named.dedup();
    for value in named {
        line(
            &mut text,
            &["value", &value.to_string(), &hex(plan.values.bytes(value))],
        );
    }
    for (session, call) in &plan.calls {
        line(
            &mut text,
            &["call", &format!("s{session}"), &call_text(call)],
        );
    }
    for (level, crash) in saved.crashes.iter().enumerate() {
        let step = crash.step.to_string();
        match level {
            0 => line(
                &mut text,
                &["crash", &step, &format!("{:016x}", saved.shape)],
            ),
            _ => line(&mut text, &["recovery", &step]),
        }
        for (place, bytes) in &crash.held {
            line(&mut text, &["hold", &place.to_string(), &hex(bytes)]);
        }
    }
    text
}

fn line(text: &mut String, words: &[&str]) {
    text.push_str(&words.join(" "));
    text.push('\n');
}

fn call_text(call: &Call) -> String {
    let parts = |name: &str, parts: &[(Key, Option<ValueId>)]| {
        parts
            .iter()
            .fold(name.to_owned(), |text, (key, value)| match value {
                Some(value) => format!("{text} k{key}=v{value}"),
                None => format!("{text} k{key}-"),
            })
    };
    let names = |name: &str, keys: &[Key]| {
        keys.iter()
            .fold(name.to_owned(), |text, key| format!("{text} k{key}"))
    };
    match call {
        Call::Put(key, value, 0) => format!("put k{key} v{value}"),
        Call::Put(key, value, until) => format!("put k{key} v{value} until {until}"),
        Call::Remote(key, value, until, fate) => {
            let fate = match fate {
                Fate::Durable => "durable".into(),
                Fate::Told => "told".into(),
                Fate::Part(percent) => format!("part {percent}"),
            };
            format!("remote k{key} v{value} until {until} {fate}")
        }
        Call::Late(client) => format!("late {client}"),
        Call::Hangup(client) => format!("hangup {client}"),
        Call::Get(key) => format!("get k{key}"),
        Call::Delete(key) => format!("delete k{key}"),
        Call::Swap(key, value) => format!("swap k{key} v{value}"),
        Call::Take(key) => format!("take k{key}"),
        Call::Append(key, value) => format!("append k{key} v{value}"),
        Call::Overwrite(key, at, value) => format!("overwrite k{key} {at} v{value}"),
        Call::Cut(key, length) => format!("cut k{key} {length}"),
        Call::Part(key, at, count) => format!("part k{key} {at} {count}"),
        Call::Many(keys) => names("many", keys),
        Call::Probe(key) => format!("probe k{key}"),
        Call::Scan(events) => format!("scan {events}"),
        Call::Range(from, to, events) => format!("range k{from} k{to} {events}"),
        Call::RandomKey => "random".into(),
        Call::Guarded(key, value, events) => format!("guarded k{key} v{value} {events}"),
        Call::Exec(exec) => {
            let name = match exec.reach {
                Reach::Named => "exec",
                Reach::All => "exec-all",
                Reach::Cleared => "exec-clear",
            };
            let begun = names(&format!("{name} {}", exec.linger), &exec.reads);
            parts(&format!("{begun} ;"), &exec.parts)
        }
        Call::Slow(several, events) => parts(&format!("slow {events}"), several),
        Call::Add(key, by) => format!("add k{key} {by}"),
        Call::Batch(several) => parts("batch", several),
        Call::Pipeline(several) => parts("pipeline", several),
        Call::Advance(by) => format!("advance {by}"),
        Call::Turn(times) => format!("turn {times}"),
        Call::Clear => "clear".into(),
        Call::Tend => "tend".into(),
        Call::Reclaim => "reclaim".into(),
        Call::Checkpoint => "checkpoint".into(),
        Call::Kill => "kill".into(),
        Call::Reopen => "reopen".into(),
        Call::Leave => "leave".into(),
    }
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".into();
    }
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Reads a plan.
///
/// # Errors
/// The first line that is wrong.
pub fn read(text: &str) -> Result<Saved, TextError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(number, line)| Words::of(number + 1, line))
        .filter(|words| !words.line.is_empty() && !words.line.starts_with('#'));
    let last = text.lines().count();
    let mut next = |expected: &str| {
        let missing = || TextError {
            line: last,
            expected: expected.into(),
            found: "the end".into(),
        };
        lines.next().ok_or_else(missing)
    };
    let title = next(&format!("`{TITLE}`"))?;
    if title.line != TITLE {
        return Err(title.defect(&format!("`{TITLE}`")));
    }
    let second = next("`engine NAME`")?;
    let (engine, third) = match second.line.starts_with("engine") {
        true => (second.engine()?, next(MEDIUM)?),
        false => (EngineKind::Viper, second),
    };
    let medium: Medium = third.named("medium", MEDIUM)?;
    let profile: Profile = next("`profile NAME`")?.named("profile", &profiles())?;
    let fifth = next("`seed N`")?;
    let (manner, sixth) = match fifth.line.split_whitespace().next() {
        Some("threads") => {
            let jobs = fifth.named("threads", "`threads N`, N below 256")?;
            (Manner::Threads { jobs }, next("`seed N`")?)
        }
        Some("stops") => (fifth.stops()?, next("`seed N`")?),
        _ => (Manner::Turns, fifth),
    };
    let seed = sixth.named("seed", "`seed N`, N a number")?;
    let fault = next("`fault none`")?.fault()?;
    let mut reading = Reading {
        plan: Plan {
            engine,
            medium,
            profile,
            manner,
            seed,
            calls: Vec::new(),
            values: Values::default(),
            fault,
        },
        values: HashMap::new(),
        crashes: Vec::new(),
        shape: 0,
    };
    for words in lines {
        reading.line(words)?;
    }
    Ok(Saved {
        plan: reading.plan,
        crashes: reading.crashes,
        shape: reading.shape,
    })
}

/// The line about the medium.
const MEDIUM: &str = "`medium pmem` or `medium file`";

fn profiles() -> String {
    let known = Profile::ALL.map(Profile::name).join(", ");
    format!("`profile NAME`, NAME one of {known}")
}

/// A plan of which some lines were read.
struct Reading {
    plan: Plan,
    /// Numbers of values in the text, and in the plan.
    values: HashMap<ValueId, ValueId>,
    crashes: Vec<Crash>,
    shape: u64,
}

/// What may follow the first lines.
const LINE: &str = "`value`, `call`, `crash`, `hold` or `recovery`";

impl Reading {
    fn line(&mut self, mut words: Words<'_>) -> Result<(), TextError> {
        match words.next() {
            Some("value") => self.value(words),
            Some("call") => self.call(words),
            Some("crash") if self.crashes.is_empty() => self.crash(words),
            Some("recovery") if (1..CRASHES).contains(&self.crashes.len()) => self.recovery(words),
            Some("hold") if !self.crashes.is_empty() => self.hold(words),
            _ => Err(words.defect(LINE)),
        }
    }

    fn value(&mut self, mut words: Words<'_>) -> Result<(), TextError> {
        let expected = "`value N BYTES`, N a number not used before, BYTES in hexadecimal or `-`";
        let number = words.number(expected)?;
        let bytes = words.bytes(expected)?;
        words.end(expected)?;
        let number = u32::try_from(number).ok();
        let Some(number) = number.filter(|number| !self.values.contains_key(number)) else {
            return Err(words.defect(expected));
        };
        self.values.insert(number, self.plan.values.number(&bytes));
        Ok(())
    }

    fn call(&mut self, mut words: Words<'_>) -> Result<(), TextError> {
        let sessions = self.plan.sessions() as u64;
        let expected = format!("`call sN NAME ...` with N below {sessions}");
        let session = words.marked('s', &expected)?;
        if session >= sessions || self.plan.calls.len() >= CALLS {
            return Err(words.defect(&expected));
        }
        let call = self.named_call(&mut words)?;
        words.end("nothing more in this call")?;
        self.plan.calls.push((session as u32, call));
        Ok(())
    }

    fn named_call(&self, words: &mut Words<'_>) -> Result<Call, TextError> {
        Ok(match words.next().unwrap_or_default() {
            "put" => {
                let (key, value) = (self.key(words)?, self.stored(words)?);
                let until = match words.next() {
                    None => 0,
                    Some("until") => words.number("`until N`")?,
                    Some(_) => return Err(words.defect("`until N`, or nothing")),
                };
                Call::Put(key, value, until)
            }
            "remote" => self.remote(words)?,
            "late" => Call::Late(words.small_number("`late N`")?),
            "hangup" => Call::Hangup(words.small_number("`hangup N`")?),
            "get" => Call::Get(self.key(words)?),
            "delete" => Call::Delete(self.key(words)?),
            "swap" => Call::Swap(self.key(words)?, self.stored(words)?),
            "take" => Call::Take(self.key(words)?),
            "append" => Call::Append(self.key(words)?, self.stored(words)?),
            "overwrite" => {
                let (key, at) = (self.key(words)?, bytes(words)?);
                Call::Overwrite(key, at, self.stored(words)?)
            }
            "cut" => Call::Cut(self.key(words)?, bytes(words)?),
            "part" => Call::Part(self.key(words)?, bytes(words)?, bytes(words)?),
            "many" => Call::Many(self.keys(words)?),
            "probe" => Call::Probe(self.key(words)?),
            "scan" => Call::Scan(events(words)?),
            "range" => Call::Range(self.key(words)?, self.key(words)?, events(words)?),
            "random" => Call::RandomKey,
            "guarded" => {
                let (key, value) = (self.key(words)?, self.stored(words)?);
                Call::Guarded(key, value, events(words)?)
            }
            "exec" => Call::Exec(self.exec(words, Reach::Named)?),
            "exec-all" => Call::Exec(self.exec(words, Reach::All)?),
            "exec-clear" => Call::Exec(self.exec(words, Reach::Cleared)?),
            "slow" => {
                let events = events(words)?;
                Call::Slow(self.parts(words)?, events)
            }
            "add" => Call::Add(self.key(words)?, words.number("`add kN NUMBER`")?),
            "batch" => Call::Batch(self.parts(words)?),
            "pipeline" => Call::Pipeline(self.parts(words)?),
            "advance" => match words.number("`advance N`")? {
                by if by <= ADVANCE => Call::Advance(by),
                _ => return Err(words.defect(&format!("at most {ADVANCE} milliseconds"))),
            },
            "turn" => match words.number("`turn N`")? {
                times if times <= TURNS => Call::Turn(times),
                _ => return Err(words.defect(&format!("at most {TURNS} turns"))),
            },
            "clear" => Call::Clear,
            "tend" => Call::Tend,
            "reclaim" => Call::Reclaim,
            "checkpoint" => Call::Checkpoint,
            "kill" => Call::Kill,
            "reopen" => Call::Reopen,
            "leave" => Call::Leave,
            _ => {
                let known = "put, remote, late, hangup, get, delete, swap, take, append, add, many, probe, scan, range, random, guarded, exec, \
                             exec-all, exec-clear, batch, pipeline, slow, advance, clear, tend, turn, reclaim, checkpoint, kill, \
                             reopen or leave";
                return Err(words.defect(known));
            }
        })
    }

    fn remote(&self, words: &mut Words<'_>) -> Result<Call, TextError> {
        let expected = "`remote kN vN until N`, and `durable`, `told` or `part N`, N percent";
        let (key, value) = (self.key(words)?, self.stored(words)?);
        if words.next() != Some("until") {
            return Err(words.defect(expected));
        }
        let until = words.number(expected)?;
        let fate = match words.next() {
            Some("durable") => Fate::Durable,
            Some("told") => Fate::Told,
            Some("part") => match words.number(expected)? {
                percent @ 0..=100 => Fate::Part(percent as u8),
                _ => return Err(words.defect(expected)),
            },
            _ => return Err(words.defect(expected)),
        };
        Ok(Call::Remote(key, value, until, fate))
    }

    fn key(&self, words: &mut Words<'_>) -> Result<Key, TextError> {
        let keys = self.plan.profile.keys() as u64;
        let expected = format!("a key, `kN` with N below {keys}");
        match words.marked('k', &expected)? {
            key if key < keys => Ok(key as Key),
            _ => Err(words.defect(&expected)),
        }
    }

    /// Keys, up to the end or a semicolon.
    fn keys(&self, words: &mut Words<'_>) -> Result<Vec<Key>, TextError> {
        let mut keys = Vec::new();
        while let Some(word) = words.next().filter(|word| *word != ";") {
            keys.push(self.key(&mut words.instead(&[word]))?);
        }
        Ok(keys)
    }

    fn exec(&self, words: &mut Words<'_>, reach: Reach) -> Result<Exec, TextError> {
        let linger = events(words)?;
        let reads = self.keys(words)?;
        Ok(Exec {
            reads,
            parts: self.any_parts(words)?,
            linger,
            reach,
        })
    }

    fn stored(&self, words: &mut Words<'_>) -> Result<ValueId, TextError> {
        let expected = "a value, `vN`, that a line before says";
        let number = words.marked('v', expected)?;
        let number = u32::try_from(number).ok();
        let known = number.and_then(|number| self.values.get(&number));
        known.copied().ok_or_else(|| words.defect(expected))
    }

    fn parts(&self, words: &mut Words<'_>) -> Result<Vec<(Key, Option<ValueId>)>, TextError> {
        let parts = self.any_parts(words)?;
        match parts.is_empty() {
            true => Err(words.defect("parts, `kN=vN` or `kN-`")),
            false => Ok(parts),
        }
    }

    fn any_parts(&self, words: &mut Words<'_>) -> Result<Vec<(Key, Option<ValueId>)>, TextError> {
        let mut parts = Vec::new();
        while let Some(word) = words.next() {
            let mut inner = match word.split_once('=') {
                Some((key, value)) => words.instead(&[key, value]),
                None => words.instead(&[word.strip_suffix('-').unwrap_or_default()]),
            };
            let key = self.key(&mut inner)?;
            let value = word
                .contains('=')
                .then(|| self.stored(&mut inner))
                .transpose()?;
            parts.push((key, value));
        }
        Ok(parts)
    }

    fn crash(&mut self, mut words: Words<'_>) -> Result<(), TextError> {
        let expected = "`crash STEP SHAPE`, a number and 16 hexadecimal digits";
        self.push(&mut words, expected)?;
        let shape = words
            .next()
            .and_then(|word| u64::from_str_radix(word, 16).ok());
        self.shape = shape.ok_or_else(|| words.defect(expected))?;
        words.end(expected)
    }

    fn recovery(&mut self, mut words: Words<'_>) -> Result<(), TextError> {
        self.push(&mut words, "`recovery STEP`")?;
        words.end("`recovery STEP`")
    }

    fn push(&mut self, words: &mut Words<'_>, expected: &str) -> Result<(), TextError> {
        self.crashes.push(Crash {
            step: words.small_number(expected)?,
            held: Vec::new(),
        });
        Ok(())
    }

    fn hold(&mut self, mut words: Words<'_>) -> Result<(), TextError> {
        let expected = "`hold PLACE BYTES`, a number and bytes in hexadecimal";
        let place = words.number(expected)?;
        let bytes = words.bytes(expected)?;
        words.end(expected)?;
        if let Some(crash) = self.crashes.last_mut() {
            crash.held.push((place, bytes.into()));
        }
        Ok(())
    }
}

/// The events for which a call lets other sessions run.
fn bytes(words: &mut Words<'_>) -> Result<u32, TextError> {
    match words.small_number("a number of bytes")? {
        bytes if bytes <= BYTES => Ok(bytes),
        _ => Err(words.defect(&format!("at most {BYTES} bytes"))),
    }
}

fn events(words: &mut Words<'_>) -> Result<u32, TextError> {
    match words.small_number("a number of events")? {
        events if events <= EVENTS => Ok(events),
        _ => Err(words.defect(&format!("at most {EVENTS} events"))),
    }
}

/// When sessions stop.
fn in_words(stops: Stops) -> String {
    let row = |[first, second, third]: [u32; 3]| format!("{first} {second} {third}");
    match stops.again == Stops::default().again {
        true => row(stops.first),
        false => format!("{} again {}", row(stops.first), row(stops.again)),
    }
}
