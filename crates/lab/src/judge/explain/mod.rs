//! Explains a finding in words: the calls, the moment of the crash, and for everything that was lost the
//! lines of the source that stored it, flushed it and would have fenced it.

mod disk;
mod memory;

use crate::explore::after_crash::recovered;
use crate::explore::crash::{Crash, CrashPoint, Failure, Moment};
use crate::medium::lines::Mute;
use crate::plan::call::{Call, Held, Key, Outcome, Reach, Values};
use crate::run::process::Environment;
use crate::run::recorder::Record;
use crate::run::trace::{DiskStep, Step, StepId, name};
use std::fmt::{Display, Formatter};

/// A finding in words.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// What is wrong.
    pub defect: String,
    /// The calls until the crash, in the order in which they began.
    pub calls: Vec<ExplainedCall>,
    /// The crash, then the one in its recovery, and so on.
    pub crashes: Vec<ExplainedCrash>,
}

/// One call.
#[derive(Clone, Debug)]
pub struct ExplainedCall {
    /// Its number.
    pub number: u32,
    /// The session that called.
    pub session: u32,
    /// What was asked.
    pub call: String,
    /// The answer, if the call had returned before the crash.
    pub answer: Option<String>,
}

/// One crash.
#[derive(Clone, Debug)]
pub struct ExplainedCrash {
    /// The calls of the process that crashed. Empty if `Explanation` has them, or if it was recovering.
    pub calls: Vec<ExplainedCall>,
    /// The step before which it came.
    pub moment: String,
    /// What was lost, and why it could be.
    pub lost: Vec<Loss>,
}

/// A line, some sectors, a length or names that do not hold everything that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Where it is.
    pub place: String,
    /// What is missing, why it could be, and what would have kept it.
    pub sites: Vec<String>,
}

/// Explains a finding.
#[must_use]
pub fn explain(found: &mut Failure, environment: &Environment, mute: Option<Mute>) -> Explanation {
    let mut explanation = Explanation {
        defect: found.defect.clone(),
        ..Explanation::default()
    };
    let (Some(run), Some(first)) = (&mut found.run, found.crashes.first()) else {
        return explanation;
    };
    explanation.calls = calls(&run.record, first.step);
    let crash_point = CrashPoint::before(first.step, run, environment, mute);
    let mut left = None;
    for crash in &found.crashes {
        let Ok(crashed) = crash_point.crashed(left.as_ref(), crash) else {
            break;
        };
        explanation.crashes.push(match &crashed.after_crash {
            None => explained(
                crash,
                &crash_point.run.record,
                &crash_point.moment,
                mute,
                "the run",
            ),
            Some((record, moment)) if crash.step <= recovered(&record.trace) => {
                explained(crash, record, moment, mute, "the recovery from that")
            }
            Some((record, moment)) => ExplainedCrash {
                calls: calls(record, crash.step),
                ..explained(crash, record, moment, mute, "the next process")
            },
        });
        left = Some(crashed);
    }
    explanation
}

/// The calls that began before a step.
fn calls(record: &Record, step: StepId) -> Vec<ExplainedCall> {
    let mut calls: Vec<ExplainedCall> = Vec::new();
    let history = &record.history;
    for event in record.trace.iter().take(step as usize + 1) {
        match event {
            Step::Invoke(number) => {
                let entry = &history.entries[*number as usize];
                calls.push(ExplainedCall {
                    number: *number,
                    session: entry.planned_session(),
                    call: words(&entry.call, &record.values),
                    answer: None,
                });
            }
            Step::Return(number) => {
                let told = calls.iter_mut().find(|told| told.number == *number);
                let outcome = history.entries[*number as usize].outcome.as_ref();
                if let (Some(told), Some(outcome)) = (told, outcome) {
                    told.answer = Some(answer(outcome));
                }
            }
            _ => {}
        }
    }
    calls
}

fn words(call: &Call, values: &Values) -> String {
    let value = |number: &u32| format!("v{number} ({} bytes)", values.bytes(*number).len());
    let several = |parts: &[(u8, Option<u32>)]| {
        let parts = parts.iter().map(|(key, stored)| match stored {
            Some(stored) => format!("k{key} = {}", value(stored)),
            None => format!("k{key} removed"),
        });
        parts.collect::<Vec<_>>().join(", ")
    };
    match call {
        Call::Put(key, stored, 0) => format!("put k{key} = {}", value(stored)),
        Call::Put(key, stored, until) => format!("put k{key} = {} until {until}", value(stored)),
        Call::Get(key) => format!("get k{key}"),
        Call::Delete(key) => format!("delete k{key}"),
        Call::Swap(key, stored) => format!("swap k{key} = {}", value(stored)),
        Call::Take(key) => format!("take k{key}"),
        Call::Append(key, stored) => format!("append {} to k{key}", value(stored)),
        Call::Overwrite(key, at, stored) => format!("write {} to k{key} at {at}", value(stored)),
        Call::Cut(key, length) => format!("cut k{key} to {length} bytes"),
        Call::Part(key, at, count) => format!("read {count} bytes of k{key} at {at}"),
        Call::Many(keys) => format!("get {}", named(keys)),
        Call::Probe(key) => format!("probe k{key}"),
        Call::Scan(_) => "scan".into(),
        Call::Range(from, to, _) => format!("range k{from} to k{to}"),
        Call::RandomKey => "random key".into(),
        Call::Guarded(key, stored, _) => format!("watch k{key}, put k{key} = {}", value(stored)),
        Call::Exec(exec) => {
            let first = match exec.reach {
                Reach::Named => "get",
                Reach::All => "scan, get",
                Reach::Cleared => "scan, clear behind the first change, get",
            };
            format!(
                "transaction: {first} {}; {}",
                named(&exec.reads),
                several(&exec.parts)
            )
        }
        Call::Slow(parts, _) => format!("slow pipeline of {}", several(parts)),
        Call::Add(key, by) => format!("add {by} to k{key}"),
        Call::Batch(parts) => format!("batch of {}", several(parts)),
        Call::Pipeline(parts) => format!("pipeline of {}", several(parts)),
        Call::Clear => "clear".into(),
        Call::Tend => "background work".into(),
        Call::Turn(times) => format!("{times} turns"),
        Call::Reclaim => "reclaim".into(),
        Call::Checkpoint => "checkpoint".into(),
        Call::Advance(by) => format!("clock + {by} ms"),
        Call::Kill => "kill, open again".into(),
        Call::Reopen => "close, open again".into(),
        Call::Leave => "close the session".into(),
        Call::Remote(key, stored, expires, fate) => {
            let put = words(&Call::Put(*key, *stored, *expires), values);
            format!("a remote client: {put} ({fate:?})")
        }
        Call::Late(client) => format!("what remote client {client} wrote arrives late"),
        Call::Hangup(client) => format!("the connection of remote client {client} ends"),
    }
}

fn named(keys: &[Key]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("k{key}")).collect();
    keys.join(" ")
}

fn answer(outcome: &Outcome) -> String {
    let one = |held: &Held| match held {
        None => "nothing".to_owned(),
        Some((value, 0)) => format!("v{value}"),
        Some((value, until)) => format!("v{value} until {until}"),
    };
    match outcome {
        Outcome::Done => "done".into(),
        Outcome::Was(true) => "done, the key was there".into(),
        Outcome::Was(false) => "done, the key was not there".into(),
        Outcome::Value(Some(value)) => format!("it was v{value}"),
        Outcome::Value(None) => "it was not there".into(),
        Outcome::Word(Some(word)) => format!("it was {word}"),
        Outcome::Word(None) => "it had no such word".into(),
        Outcome::Several(held) => {
            let held: Vec<String> = held.iter().map(one).collect();
            format!("they were {}", held.join(", "))
        }
        Outcome::Size(Some((bytes, 0))) => format!("it had {bytes} bytes"),
        Outcome::Size(Some((bytes, until))) => format!("it had {bytes} bytes until {until}"),
        Outcome::Size(None) => "it was not there".into(),
        Outcome::Length(bytes) => format!("it has {bytes} bytes"),
        Outcome::Visited(visited) => {
            let visits = visited.iter();
            let visits: Vec<String> = visits
                .map(|(key, bytes, _)| format!("k{key} ({bytes})"))
                .collect();
            format!("there were {}", visits.join(", "))
        }
        Outcome::Key(Some(key)) => format!("k{key}"),
        Outcome::Key(None) => "there was none".into(),
        Outcome::Declined => "the key had changed, nothing done".into(),
        Outcome::NoRoom => "no room, nothing done".into(),
    }
}

fn explained(
    crash: &Crash,
    record: &Record,
    moment: &Moment,
    mute: Option<Mute>,
    of: &str,
) -> ExplainedCrash {
    let trace = &record.trace;
    let Moment { model, units } = moment;
    let in_memory = model.lines().into_iter();
    let in_memory = in_memory.flat_map(|lines| memory::losses(crash, trace, lines, mute));
    let in_files = disk::losses(crash, trace, model.disk(), units, mute);
    let before = match trace.get(crash.step as usize) {
        None => "after the last step".to_owned(),
        Some(step) => format!("before {}", event(step)),
    };
    ExplainedCrash {
        calls: Vec::new(),
        moment: format!("{before}, step {} of {} of {of}", crash.step, trace.len()),
        lost: in_memory.chain(in_files).collect(),
    }
}

/// A step, and the place in the source that asked for it.
#[must_use]
pub fn event(step: &Step) -> String {
    let (what, site) = match step {
        Step::Store { site, .. } => ("the store", site),
        Step::Flush { site, .. } => ("the flush", site),
        Step::Fence { site, .. } => ("the fence", site),
        Step::Disk { step, site } => (disk_event(step), site),
        Step::Load { .. } => return "a read".into(),
        Step::Invoke(call) => return format!("call {call} began"),
        Step::Return(call) => return format!("call {call} returned"),
        Step::Clock(now) => return format!("the clock showed {now}"),
        Step::Death => return "the process died".into(),
        Step::Outage(_) => return "power failed".into(),
    };
    format!("{what} at {}", name(site))
}

fn disk_event(step: &DiskStep) -> &'static str {
    match step {
        DiskStep::Create { .. } => "the creation",
        DiskStep::Unlink { .. } => "the removal",
        DiskStep::Rename { .. } => "the renaming",
        DiskStep::Write { .. } => "the write",
        DiskStep::SetLen { .. } => "the change of length",
        DiskStep::Allocate { .. } => "the allocation",
        DiskStep::Sync { ok: true, .. } => "the sync",
        DiskStep::Sync { ok: false, .. } => "the sync that failed",
        DiskStep::SyncDirectory { .. } => "the sync of the directory",
    }
}

fn list(f: &mut Formatter<'_>, calls: &[ExplainedCall]) -> std::fmt::Result {
    let widest = calls.iter().map(|told| told.call.len()).max();
    let wide = widest.unwrap_or(0).min(60);
    for told in calls {
        let answer = match &told.answer {
            Some(answer) => format!("acknowledged: {answer}"),
            None => "under way".into(),
        };
        let (number, session) = (told.number, told.session);
        writeln!(
            f,
            "  {number:>3}  s{session}  {:<wide$}  {answer}",
            told.call
        )?;
    }
    Ok(())
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "what is wrong\n  {}", self.defect)?;
        if !self.calls.is_empty() {
            writeln!(f, "the calls until then")?;
        }
        list(f, &self.calls)?;
        for explained in &self.crashes {
            if !explained.calls.is_empty() {
                writeln!(f, "the calls after recovery from that")?;
            }
            list(f, &explained.calls)?;
            writeln!(f, "the crash came {}", explained.moment)?;
            if explained.lost.is_empty() {
                writeln!(f, "  nothing was lost")?;
            }
            for loss in &explained.lost {
                writeln!(f, "  {}", loss.place)?;
                for site in &loss.sites {
                    writeln!(f, "    {site}")?;
                }
            }
        }
        Ok(())
    }
}
