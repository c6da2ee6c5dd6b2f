//! Records what a run does, in the order in which it happens.
//!
//! Stores that may race with those of other threads are made while the trace is locked. So the last recorded
//! store to a word is the one that memory has. Streamed stores go to lines that their thread owns and take no
//! lock. They must not: on files they may write the log, which is recorded as well.

use super::death::{Death, surviving};
use super::trace::{DiskStep, Held, Step, StepId, Trace};
use crate::judge::history::{Entry, History};
use crate::medium::image::{Image, Medium};
use crate::plan::Fault;
use crate::plan::call::{Call, Outcome, Values};
use crate::plan::fault::Faults;
use everdram_pm::Region;
use everdram_pm::lab::{
    Actor, Answer, DiskEvent, DiskTap, Errno, Event, Perform, Site, Source, StoreKind, Tap,
};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Lets another thread run, at every event; see [`crate::run::schedule`].
pub type Yield = Arc<dyn Fn() + Send + Sync>;

thread_local! {
    static CALL: Cell<Option<u32>> = const { Cell::new(None) };
    /// Whether no other thread runs in between.
    static IS_AT_ONCE: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread does the store's own work.
    static IS_WORKING: Cell<bool> = const { Cell::new(false) };
}

/// What was recorded of a run.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Every event.
    pub trace: Trace,
    /// Every call.
    pub history: History,
    /// The values of the run.
    pub values: Values,
    /// Steps of the store's own work, in order.
    pub own: Vec<StepId>,
}

impl Record {
    fn push(&mut self, step: Step) {
        if IS_WORKING.get() {
            self.own.push(self.trace.len() as StepId);
        }
        self.trace.push(step);
    }
}

/// See the module text.
#[derive(Default)]
pub struct Recorder {
    record: Mutex<Record>,
    actors: AtomicU32,
    /// Set while what is left of a killed process is dropped: nothing is recorded then.
    unrecorded: AtomicBool,
    loads: bool,
    turn: Option<Yield>,
    /// What goes wrong with the disk.
    pub faults: Faults,
    /// When the process dies within a call.
    pub death: Death,
}

impl Recorder {
    /// A recorder of a run that uses `values`. `loads`: records reads, too. `turn` is called at every event.
    #[must_use]
    pub fn new(values: Values, loads: bool, turn: Option<Yield>) -> Recorder {
        Recorder {
            record: Mutex::new(Record {
                values,
                ..Record::default()
            }),
            loads,
            turn,
            ..Recorder::default()
        }
    }

    /// Starts to count the events after which the fault of a plan comes.
    pub fn arm(&self, medium: Medium, fault: Fault) {
        match fault {
            Fault::None => {}
            Fault::Sync(after) => self.faults.fail_sync_after(after),
            Fault::Kill(after) => self.death.after(medium, after),
            Fault::Outage(after, _) => self.death.after(medium, after),
            Fault::Room(bytes) => self.faults.room(bytes),
            Fault::Full(bytes, refusals) => self.faults.room_until(bytes, refusals),
        }
    }

    /// A call begins. Returns its number, but not to a thread of a dead process.
    pub fn invoke(&self, session: u32, call: &Call) -> u32 {
        self.death.stop();
        let mut record = self.record.lock();
        let number = record.history.entries.len() as u32;
        record.history.entries.push(Entry {
            session,
            call: call.clone(),
            outcome: None,
        });
        record.trace.push(Step::Invoke(number));
        CALL.set(Some(number));
        number
    }

    /// A call returns to its caller. Does not come back to a thread of a dead process.
    pub fn ret(&self, number: u32, outcome: Outcome) {
        self.death.stop();
        let mut record = self.record.lock();
        if let Some(entry) = record.history.entries.get_mut(number as usize) {
            entry.outcome = Some(outcome);
        }
        record.trace.push(Step::Return(number));
        CALL.set(None);
    }

    /// The clock was moved.
    pub fn clock(&self, now: u64) {
        self.record.lock().trace.push(Step::Clock(now));
    }

    /// The bytes of a value.
    pub fn value(&self, number: u32) -> Vec<u8> {
        self.record.lock().values.bytes(number).to_vec()
    }

    /// The number of the value with these bytes.
    pub fn number(&self, bytes: &[u8]) -> u32 {
        self.record.lock().values.number(bytes)
    }

    /// Runs `body`, which is the store's own work.
    pub fn working<T>(&self, body: impl FnOnce() -> T) -> T {
        struct End(bool);
        impl Drop for End {
            fn drop(&mut self) {
                IS_WORKING.set(self.0);
            }
        }
        let _end = End(IS_WORKING.replace(true));
        body()
    }

    /// Runs `body` while no other thread does anything.
    pub fn at_once<T>(&self, body: impl FnOnce() -> T) -> T {
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                IS_AT_ONCE.set(false);
            }
        }
        IS_AT_ONCE.set(true);
        let _end = End;
        body()
    }

    /// Runs `body` without recording anything.
    pub fn unrecorded<T>(&self, body: impl FnOnce() -> T) -> T {
        self.unrecorded.store(true, Ordering::SeqCst);
        let done = body();
        self.unrecorded.store(false, Ordering::SeqCst);
        done
    }

    /// Drops the objects of a process that died.
    pub fn discard<T>(&self, left: T) {
        self.unrecorded(|| surviving(|| drop(left)));
    }

    /// The process is dead, and the next one is recorded from here on. Returns the memory at the moment of
    /// death, if the process died at an event on memory.
    pub fn died(&self) -> Option<Vec<u8>> {
        let left = self.death.bury();
        self.write(Step::Death);
        left
    }

    /// Power has failed, and `left` says what that leaves of what was recorded so far. The next process finds
    /// it, and is recorded from here on. Its files are numbered anew.
    pub fn lost(&self, left: impl FnOnce(&Trace) -> (Held, Image)) -> Image {
        let _stored = self.death.bury();
        let mut record = self.record.lock();
        let (held, image) = left(&record.trace);
        record.trace.push(Step::Outage(held));
        image
    }

    /// What was recorded so far.
    pub fn take(&self) -> Record {
        std::mem::take(&mut *self.record.lock())
    }

    fn write(&self, step: Step) {
        if !self.unrecorded.load(Ordering::SeqCst) {
            self.record.lock().push(step);
        }
    }

    /// Lets other threads run. Returns whether an event of this thread, on `memory` or on the disk, is to be
    /// recorded.
    fn records(&self, memory: Option<&Region>) -> bool {
        self.turn();
        !self.unrecorded.load(Ordering::SeqCst) && self.death.spares(memory)
    }

    fn turn(&self) {
        if let Some(turn) = &self.turn
            && !IS_AT_ONCE.get()
        {
            turn();
        }
    }
}

impl Tap for Recorder {
    fn actor(&self) -> Actor {
        self.actors.fetch_add(1, Ordering::Relaxed)
    }

    fn event(
        &self,
        region: &Region,
        source: Source,
        event: Event<'_>,
        perform: Perform<'_>,
    ) -> bool {
        if !self.records(Some(region)) {
            return perform();
        }
        let is_shared = matches!(event, Event::Store { kind, .. } if kind != StoreKind::Stream);
        let record = is_shared.then(|| self.record.lock());
        if !perform() {
            return false;
        }
        let Source { actor, site } = source;
        let step = match event {
            Event::Store { at, bytes, kind } => Step::Store {
                actor,
                at,
                bytes: bytes.into(),
                kind,
                site,
            },
            Event::Flush { at, bytes } => Step::Flush {
                actor,
                at,
                bytes,
                site,
            },
            Event::Fence => Step::Fence { actor, site },
        };
        let mut record = record.unwrap_or_else(|| self.record.lock());
        record.push(step);
        true
    }

    fn load(&self, _region: &Region, at: u64, bytes: u64) {
        if self.turn.is_none() && !self.loads {
            return;
        }
        self.turn();
        if self.death.is_alive() && self.loads {
            self.write(Step::Load {
                call: CALL.get(),
                at,
                bytes,
            });
        }
    }
}

impl DiskTap for Recorder {
    fn disk(&self, site: Site, event: DiskEvent<'_>) -> Answer {
        if let DiskEvent::Reserve { .. } = event {
            // It changes nothing that a crash could leave.
            return self.faults.answer(&event);
        }
        if !self.records(None) {
            // The next process must not find a file that a dead one has made.
            let makes_a_file = matches!(event, DiskEvent::Create { .. });
            return match makes_a_file || self.death.is_over() {
                true => Answer::Fail(Errno::IO),
                false => Answer::Skip,
            };
        }
        let answer = self.faults.answer(&event);
        let ok = answer == Answer::Go;
        let step = match event {
            DiskEvent::Sync { file, .. } => DiskStep::Sync { file: file.0, ok },
            DiskEvent::SyncDirectory { folder } => DiskStep::SyncDirectory {
                folder: folder.into(),
                ok,
            },
            DiskEvent::Write { file, at, bytes } => DiskStep::Write {
                file: file.0,
                at,
                bytes: match answer {
                    Answer::FailAfter(count, _) => bytes[..count as usize].into(),
                    _ if ok => bytes.into(),
                    _ => return answer,
                },
            },
            _ if !ok => return answer,
            // Answered above.
            DiskEvent::Reserve { .. } => return answer,
            DiskEvent::Create { file, name } => DiskStep::Create {
                file: file.0,
                name: name.into(),
            },
            DiskEvent::Unlink { file } => DiskStep::Unlink { file: file.0 },
            DiskEvent::Rename { file, name } => DiskStep::Rename {
                file: file.0,
                name: name.into(),
            },
            DiskEvent::SetLen { file, bytes } => DiskStep::SetLen {
                file: file.0,
                bytes,
            },
            DiskEvent::Allocate { file, at, bytes } => DiskStep::Allocate {
                file: file.0,
                at,
                bytes,
            },
        };
        self.write(Step::Disk { step, site });
        answer
    }
}
