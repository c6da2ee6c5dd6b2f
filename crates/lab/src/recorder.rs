//! Writes down what a run does, in the order in which it happens.

use crate::call::{Call, Outcome, Values};
use crate::death::{Death, Died};
use crate::fault::Faults;
use crate::history::{Entry, History};
use crate::trace::{DiskStep, Step, Trace};
use everdram_pm::Region;
use everdram_pm::lab::{Actor, Answer, DiskEvent, DiskTap, Event, Perform, Site, Source, Tap};
use parking_lot::Mutex;
use std::cell::Cell;
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Lets another thread run, at every event; see [`crate::schedule`].
pub type Yield = Arc<dyn Fn() + Send + Sync>;

thread_local! {
    static CALL: Cell<Option<u32>> = const { Cell::new(None) };
}

/// What a run left.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Every event.
    pub trace: Trace,
    /// Every call.
    pub history: History,
    /// The values of the run.
    pub values: Values,
}

/// See the module text.
#[derive(Default)]
pub struct Recorder {
    record: Mutex<Record>,
    actors: AtomicU32,
    /// Nothing is written down while the remains of a killed process are cleared away.
    deaf: AtomicBool,
    loads: bool,
    turn: Option<Yield>,
    /// What goes wrong with the disk.
    pub faults: Faults,
    /// When the process dies in the middle of a call.
    pub death: Death,
}

impl Recorder {
    /// A recorder of a run that uses `values`. `loads`: also of what is read. `turn` is called at every event.
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

    /// A call begins; its number.
    pub fn invoke(&self, session: u32, call: &Call) -> u32 {
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

    /// A call's caller is told.
    pub fn ret(&self, number: u32, outcome: Outcome) {
        let mut record = self.record.lock();
        if let Some(entry) = record.history.entries.get_mut(number as usize) {
            entry.outcome = Some(outcome);
        }
        record.trace.push(Step::Return(number));
        CALL.set(None);
    }

    /// The clock goes on.
    pub fn clock(&self, now: u64) {
        self.record.lock().trace.push(Step::Clock(now));
    }

    /// The bytes of a value of the run.
    pub fn value(&self, number: u32) -> Vec<u8> {
        self.record.lock().values.bytes(number).to_vec()
    }

    /// The number of bytes that were read.
    pub fn number(&self, bytes: &[u8]) -> u32 {
        self.record.lock().values.number(bytes)
    }

    /// Runs `body` without writing anything down.
    pub fn deaf<T>(&self, body: impl FnOnce() -> T) -> T {
        self.deaf.store(true, Ordering::SeqCst);
        let done = body();
        self.deaf.store(false, Ordering::SeqCst);
        done
    }

    /// The process is dead; writes down what the next one does.
    pub fn died(&self) {
        self.deaf.store(false, Ordering::SeqCst);
        self.write(Step::Death);
    }

    /// What was written down so far.
    pub fn take(&self) -> Record {
        std::mem::take(&mut *self.record.lock())
    }

    fn write(&self, step: Step) {
        if !self.deaf.load(Ordering::SeqCst) {
            self.record.lock().trace.push(step);
        }
    }

    fn turn(&self) {
        if let Some(turn) = &self.turn {
            turn();
        }
    }
}

impl Tap for Recorder {
    fn actor(&self) -> Actor {
        self.actors.fetch_add(1, Ordering::Relaxed)
    }

    fn event(&self, source: Source, event: Event<'_>, perform: Perform<'_>) -> bool {
        self.turn();
        if !self.deaf.load(Ordering::SeqCst) && self.death.comes() {
            self.deaf.store(true, Ordering::SeqCst);
            panic_any(Died);
        }
        let Source { actor, site } = source;
        let done = perform();
        match event {
            Event::Store { at, bytes, kind } if done => self.write(Step::Store {
                actor,
                at,
                bytes: bytes.into(),
                kind,
                site,
            }),
            Event::Store { .. } => {}
            Event::Flush { at, bytes, late } => self.write(Step::Flush {
                actor,
                at,
                bytes,
                late,
                site,
            }),
            Event::Fence => self.write(Step::Fence { actor, site }),
        }
        done
    }

    fn load(&self, _region: &Region, at: u64, bytes: u64) {
        if self.loads {
            self.turn();
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
        if self.deaf.load(Ordering::SeqCst) {
            return Answer::Skip;
        }
        self.turn();
        let answer = self.faults.answer(&event);
        let ok = answer == Answer::Go;
        if !ok && self.faults.is_death() {
            return answer;
        }
        let step = match event {
            DiskEvent::Sync { file, .. } => DiskStep::Sync { file: file.0, ok },
            DiskEvent::SyncDirectory => DiskStep::SyncDirectory { ok },
            _ if !ok => return answer,
            DiskEvent::Create { file, name } => DiskStep::Create {
                file: file.0,
                name: name.into(),
            },
            DiskEvent::Unlink { file } => DiskStep::Unlink { file: file.0 },
            DiskEvent::Write { file, at, bytes } => DiskStep::Write {
                file: file.0,
                at,
                bytes: bytes.into(),
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
