//! Runs a plan on a recorded pool: one process after the other, each on what the one before left.

pub(super) mod caller;
pub(super) mod clients;
pub mod death;
pub mod process;
pub mod recorder;
pub(super) mod remote;
pub mod schedule;
pub(super) mod threads;
pub mod trace;

use crate::judge::catching_panics;
use crate::judge::history::SESSIONS;
use crate::medium::image::Image;
use crate::medium::outage::outage;
use crate::plan::call::{Call, Outcome};
use crate::plan::{CLOCK_START, Fault, Manner, Plan};
use caller::{Caller, Common, jobs};
use clients::Clients;
use death::mortal;
use everdram::Error;
use everdram::engine::EngineSession;
use everdram::lab::Job;
use everdram_pm::lab::{DiskTap, Tap};
use parking_lot::Mutex;
use process::{Environment, Numbers, Observers, Process};
use recorder::{Record, Recorder};
use std::sync::Arc;
use trace::{Step, StepId};

/// A run, recorded.
#[derive(Clone)]
pub struct Run {
    /// The pool before the run.
    pub start: Image,
    /// What happened.
    pub record: Record,
    /// The pool in the end, as the process saw it.
    pub end: Image,
}

impl Run {
    /// The step of the first call that is not of the first session.
    #[must_use]
    pub fn met(&self) -> StepId {
        let Record { trace, history, .. } = &self.record;
        let is_others = |step: &Step| match step {
            Step::Invoke(call) => history.entries[*call as usize].planned_session() > 0,
            _ => false,
        };
        trace.iter().position(is_others).unwrap_or(0) as StepId
    }

    /// The step in which a process died first.
    #[must_use]
    pub fn death(&self) -> Option<StepId> {
        let is_end = |step: &Step| matches!(step, Step::Death | Step::Outage(_));
        let trace = &self.record.trace;
        trace.iter().position(is_end).map(|step| step as StepId)
    }
}

/// Runs a plan the way its profile is run.
///
/// # Errors
/// What the engine said that it should not have said, a panic included.
pub fn execute(plan: &Plan, environment: &Environment) -> Result<Run, String> {
    catching_panics(|| run(plan, environment, false))
}

impl Numbers for Recorder {
    fn bytes(&self, number: u32) -> Vec<u8> {
        self.value(number)
    }

    fn number(&self, bytes: &[u8]) -> u32 {
        Recorder::number(self, bytes)
    }
}

/// A session, if it is open.
pub(crate) type Session = Option<Box<dyn EngineSession>>;

/// A run under way.
pub(crate) struct Driver<'a> {
    pub(crate) plan: &'a Plan,
    /// The pool before the run.
    start: &'a Image,
    pub(crate) recorder: &'a Arc<Recorder>,
    pub(crate) process: Process,
    pub(crate) sessions: Vec<Session>,
    /// Background work that calls ask for.
    pub(crate) work: Mutex<Vec<Job>>,
    pub(crate) clients: Clients,
    /// Processes that ended: the sessions of each have numbers of their own.
    pub(crate) killed: u32,
    /// Whether a process was started again after a failure of the disk.
    pub(crate) was_struck: bool,
    /// Whether the fault of an interleaving has begun to count events.
    pub(crate) was_armed: bool,
}

/// Runs a plan, from an empty pool. `loads`: records reads, too.
///
/// # Errors
/// What the engine said that it should not have said.
pub fn run(plan: &Plan, environment: &Environment, loads: bool) -> Result<Run, String> {
    // Another run may have moved the clock.
    environment.clock.set(CLOCK_START);
    let start = environment
        .create(plan.seed)
        .map_err(|error| error.to_string())?;
    let is_threaded = plan.manner.is_threaded();
    let turn = is_threaded.then(|| Arc::new(schedule::event) as _);
    let recorder = Arc::new(Recorder::new(plan.values.clone(), loads, turn));
    let process = match Process::open(environment, start.clone(), &observers(&recorder)) {
        Ok(process) => process,
        // The disk has no room for a pool. What was written is examined all the same.
        Err(_) if recorder.faults.struck() > 0 => {
            return Ok(Run {
                end: start.clone(),
                start,
                record: recorder.take(),
            });
        }
        Err(error) => return Err(format!("opening a new pool: {error}")),
    };
    // Faults come after the pool is made: before that there is nothing to lose.
    if !matches!(plan.manner, Manner::Stops(..)) {
        recorder.arm(plan.medium, plan.fault);
    }
    let end = drive(plan, &start, &recorder, process)?;
    Ok(Run {
        start,
        record: recorder.take(),
        end,
    })
}

/// Makes the calls of a plan in a process whose pool was `start` when the recorder began. Returns the pool as
/// the process saw it in the end.
///
/// # Errors
/// What the engine said that it should not have said.
pub(crate) fn drive(
    plan: &Plan,
    start: &Image,
    recorder: &Arc<Recorder>,
    process: Process,
) -> Result<Image, String> {
    let mut driver = Driver {
        plan,
        start,
        recorder,
        work: Mutex::new(jobs(&process)),
        process,
        clients: Clients::default(),
        sessions: Vec::new(),
        killed: 0,
        was_struck: false,
        was_armed: false,
    };
    let outcome = match plan.manner {
        Manner::Turns => driver.in_turns(),
        Manner::Threads { .. } | Manner::Stops(..) => driver.in_threads(),
    };
    let end = driver.process.killed();
    let Driver {
        process,
        sessions,
        work,
        ..
    } = driver;
    if outcome.is_err() {
        // A thread that panicked or hangs may hold a lock that dropping these would wait for.
        std::mem::forget((process, sessions, work));
    } else {
        recorder.unrecorded(|| drop((sessions, work, process)));
    }
    outcome.map(|()| end)
}

/// A recorder as the observers of a process.
#[must_use]
pub fn observers(recorder: &Arc<Recorder>) -> Observers {
    Observers {
        tap: Some(Arc::clone(recorder) as Arc<dyn Tap>),
        disk: Some(Arc::clone(recorder) as Arc<dyn DiskTap>),
    }
}

impl Driver<'_> {
    /// Makes the calls, one after the other.
    fn in_turns(&mut self) -> Result<(), String> {
        for (number, (session, call)) in self.plan.calls.iter().enumerate() {
            self.alone(*session, call)
                .map_err(|error| format!("call {number}, {call:?}, failed: {error}"))?;
        }
        Ok(())
    }

    /// Makes a call while no other session does anything. If the process dies meanwhile, the next one starts
    /// on what is left. If the disk fails, the process starts again on what the page cache has. In both cases
    /// the call stays open: it may have happened or not.
    pub(crate) fn alone(&mut self, session: u32, call: &Call) -> Result<(), Error> {
        let said = match mortal(|| self.call(session, call)) {
            Some(said) if !self.recorder.death.is_over() => said,
            _ => return self.bury(),
        };
        match said {
            Err(Error::Pool(_) | Error::Halted(_)) if self.is_struck() => self.restart(),
            other => other,
        }
    }

    /// Whether the disk has failed and the process was not started again since.
    pub(crate) fn is_struck(&self) -> bool {
        !self.was_struck
            && !matches!(self.plan.fault, Fault::Room(_) | Fault::Full(..))
            && self.recorder.faults.struck() > 0
    }

    /// Starts the process again after the disk has failed.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.was_struck = true;
        self.kill()
    }

    /// Starts the next process on what a dead one left.
    pub(crate) fn bury(&mut self) -> Result<(), Error> {
        self.begin_another();
        let observers = observers(self.recorder);
        let next = match self.plan.fault {
            Fault::Outage(_, kept) => {
                let capacity = self.process.environment.options.max_bytes;
                let left = |trace: &_| outage(self.start, trace, capacity, kept);
                let image = self.recorder.lost(left);
                Process::open(&self.process.environment, image, &observers)?
            }
            _ => self.process.reopened(self.recorder.died(), &observers)?,
        };
        self.replace(next);
        Ok(())
    }

    /// A clock that had been set back is right again for the next process.
    fn begin_another(&mut self) {
        self.killed += 1;
        self.clients.lose_connections();
        if matches!(self.plan.fault, Fault::Full(..)) {
            // Whoever starts a store makes room for it first.
            self.recorder.faults.room(u64::MAX);
        }
        let clock = &self.process.environment.clock;
        clock.set(clock.now());
    }

    fn replace(&mut self, next: Process) {
        let sessions = std::mem::take(&mut self.sessions);
        let work = std::mem::replace(&mut self.work, Mutex::new(jobs(&next)));
        let before = std::mem::replace(&mut self.process, next);
        self.recorder.discard((sessions, work, before));
    }

    /// The place of a session.
    pub(crate) fn place(&mut self, session: u32) -> &mut Session {
        let place = session as usize;
        if self.sessions.len() <= place {
            self.sessions.resize_with(place + 1, || None);
        }
        &mut self.sessions[place]
    }

    fn call(&mut self, session: u32, call: &Call) -> Result<(), Error> {
        match call {
            Call::Advance(by) => {
                let now = self.process.advance(*by);
                self.recorder.clock(now);
                Ok(())
            }
            Call::Kill | Call::Reopen => {
                let number = self.recorder.invoke(self.name(session), call);
                match call {
                    Call::Kill => self.kill()?,
                    _ => self.reopen()?,
                }
                self.recorder.ret(number, Outcome::Done);
                Ok(())
            }
            _ => {
                let mut open = self.place(session).take();
                let name = self.name(session);
                let caller = Caller::new(self.plan, name, self.common());
                let said = mortal(|| caller.call(&mut open, call));
                *self.place(session) = open;
                // The thread goes on to unwind.
                said.unwrap_or_else(|| {
                    self.recorder.death.stop();
                    Ok(())
                })
            }
        }
    }

    /// What callers share.
    pub(crate) fn common(&self) -> Common<'_> {
        Common {
            recorder: self.recorder,
            process: &self.process,
            work: &self.work,
            clients: &self.clients,
        }
    }

    /// The number of a session in the history. Each process has other numbers: a call that a kill cut off
    /// need not come before the calls of the next process.
    pub(crate) fn name(&self, session: u32) -> u32 {
        session + SESSIONS * self.killed
    }

    /// The process dies; its caches live on.
    fn kill(&mut self) -> Result<(), Error> {
        self.begin_another();
        self.recorder.died();
        let next = self.process.reopened(None, &observers(self.recorder))?;
        self.replace(next);
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), Error> {
        self.sessions.clear();
        self.process.opened.engine().close()?;
        self.kill()
    }
}
