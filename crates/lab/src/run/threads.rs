//! Runs the calls of several sessions, and background jobs of the store, as threads under the scheduler.
//!
//! Each session is a thread, and so is each job that the plan names: those of the engine, and the two of the
//! redo log. A process lives until a call ends it (a kill, a reopening) or a fault does. A thread that meets
//! the end of its process stops, and its call stays open. The next process makes the calls that were not
//! begun.
//!
//! The clock moves only while no session is within a call, so that each call has one time.

use super::caller::{Caller, Common, jobs};
use super::death::{mortal, surviving};
use super::process::Process;
use super::recorder::Recorder;
use super::schedule::{Scheduler, Turn, linger, scheduled, wait};
use super::{Driver, Session};
use crate::judge::catching_panics;
use crate::plan::call::Call;
use crate::plan::profile;
use crate::plan::{Fault, Manner, Plan};
use everdram::Error;
use everdram::lab::Job;
use everdram_pm::lab::wait_as;
use parking_lot::{Mutex, RwLock};
use rand::RngExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Events between two rounds of a job, at most.
const PAUSE: u32 = 60;
/// Events between two calls of a session, at most.
const BETWEEN: u32 = 150;
/// Times that a call to move the clock waits for other calls to end.
const WAITS: usize = 200;

/// Whether job `number` is among the plan's jobs, which are bits.
fn runs(jobs: u8, number: usize) -> bool {
    u32::from(jobs).checked_shr(number as u32).unwrap_or(0) & 1 == 1
}

impl Driver<'_> {
    /// Makes the calls, those of different sessions at the same time.
    pub(crate) fn in_threads(&mut self) -> Result<(), String> {
        let mut left = self.plan.calls.clone();
        while !left.is_empty() {
            let end = left.iter().position(|(_, call)| call.outlives_process());
            let end = end.unwrap_or(left.len());
            let is_past = matches!(self.plan.manner, Manner::Stops(..)) && left[0].0 == 0;
            if end == 0 || is_past {
                let (session, call) = left.remove(0);
                self.alone(session, &call)
                    .map_err(|error| format!("{call:?} failed: {error}"))?;
                continue;
            }
            if matches!(self.plan.manner, Manner::Stops(..)) && !self.was_armed {
                // The calls that fill the store are over.
                self.recorder.arm(self.plan.medium, self.plan.fault);
                self.was_armed = true;
            }
            let rest = self.together(&left[..end])?;
            left.splice(..end, rest);
            let next = match self.recorder.death.is_over() {
                true => mortal(|| self.bury()).unwrap_or(Ok(())),
                false if self.is_struck() => self.restart(),
                false => Ok(()),
            };
            next.map_err(|error| format!("starting again after a fault failed: {error}"))?;
        }
        Ok(())
    }

    /// Makes calls at the same time. Returns those that were not begun, because the process died or its disk
    /// failed.
    fn together(&mut self, calls: &[(u32, Call)]) -> Result<Vec<(u32, Call)>, String> {
        let chosen = match self.plan.manner {
            Manner::Threads { jobs } => jobs,
            Manner::Stops(..) | Manner::Turns => 0,
        };
        let mut random = profile::random(self.plan.seed, 10 + u64::from(self.killed));
        let count = calls.iter().map(|(session, _)| *session as usize + 1).max();
        let mut sessions: Vec<Session> = (0..count.unwrap_or(0))
            .map(|session| self.place(session as u32).take())
            .collect();
        let mut work: Vec<(Job, u32)> = jobs(&self.process)
            .into_iter()
            .enumerate()
            .filter(|(number, _)| runs(chosen, *number))
            .map(|(_, job)| (job, random.random_range(1..PAUSE)))
            .collect();
        let threads = sessions.len() + work.len();
        let scheduler = match self.plan.manner {
            Manner::Stops(stops) => Scheduler::with_stops(threads, stops, random),
            _ => Scheduler::new(threads, random),
        };
        let shared = Shared {
            plan: self.plan,
            recorder: self.recorder,
            process: &self.process,
            common: self.common(),
            names: self.name(0),
            may_fail: matches!(self.plan.fault, Fault::Sync(_)) && !self.was_struck,
            clock: RwLock::new(()),
            callers: AtomicUsize::new(sessions.len()),
            begun: Mutex::new(vec![0; sessions.len()]),
            failed: Mutex::new(None),
        };
        std::thread::scope(|scope| {
            let (shared, scheduler) = (&shared, &scheduler);
            for (me, session) in sessions.iter_mut().enumerate() {
                scope.spawn(move || {
                    shared.as_thread(scheduler, me, || {
                        let _caller = Calling(&shared.callers);
                        shared.calls(me, calls, session)
                    });
                });
            }
            let first = shared.begun.lock().len();
            for (number, (job, pause)) in work.iter_mut().enumerate() {
                let me = first + number;
                scope.spawn(move || shared.as_thread(scheduler, me, || shared.job(job, *pause)));
            }
        });
        let Shared { begun, failed, .. } = shared;
        if let Some(defect) = failed.into_inner() {
            std::mem::forget((sessions, work));
            return Err(defect);
        }
        let recorder = self.recorder;
        // Dropping the jobs is part of the run, unless the process is dead.
        match recorder.death.is_over() {
            true => recorder.discard(work),
            false => mortal(|| recorder.working(|| drop(work))).unwrap_or(()),
        }
        for (number, session) in sessions.into_iter().enumerate() {
            *self.place(number as u32) = session;
        }
        let mut begun = begun.into_inner();
        let mut left = calls.to_vec();
        left.retain(|(session, _)| {
            let begun = &mut begun[*session as usize];
            let was_begun = *begun > 0;
            *begun = begun.saturating_sub(1);
            !was_begun
        });
        Ok(left)
    }
}

/// Counts a session that makes calls. Jobs end when none is left.
struct Calling<'a>(&'a AtomicUsize);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What the threads of a process share.
struct Shared<'a> {
    plan: &'a Plan,
    recorder: &'a Arc<Recorder>,
    process: &'a Process,
    common: Common<'a>,
    /// The number of the first session in the history.
    names: u32,
    /// Whether the disk may fail.
    may_fail: bool,
    /// Read-locked by calls, write-locked to move the clock.
    clock: RwLock<()>,
    /// Sessions that still have calls to make.
    callers: AtomicUsize,
    /// By session: calls that were begun.
    begun: Mutex<Vec<usize>>,
    failed: Mutex<Option<String>>,
}

impl Shared<'_> {
    fn as_thread(
        &self,
        scheduler: &Arc<Scheduler>,
        me: usize,
        body: impl FnOnce() -> Result<(), String>,
    ) {
        let recorder = Arc::clone(self.recorder);
        let turn = Arc::new(Turn(move || {
            recorder.death.is_alive();
        }));
        let done = scheduled(scheduler, me, || {
            catching_panics(|| mortal(|| wait_as(turn, body)).unwrap_or(Ok(())))
        });
        if let Err(defect) = done {
            self.failed.lock().get_or_insert(defect);
        }
    }

    /// The calls of a session.
    fn calls(&self, me: usize, calls: &[(u32, Call)], session: &mut Session) -> Result<(), String> {
        let caller = Caller::new(self.plan, self.names + me as u32, self.common);
        let mine = calls.iter().filter(|(session, _)| *session as usize == me);
        let mut random = profile::random(self.plan.seed, 100 + u64::from(caller.name));
        for (_, call) in mine {
            // A session that only reads would otherwise end before the others have begun.
            if matches!(self.plan.manner, Manner::Threads { .. }) && random.random_range(0..3) == 0
            {
                linger(random.random_range(1..BETWEEN));
            }
            if self.is_struck() || self.failed.lock().is_some() {
                break;
            }
            self.begun.lock()[me] += 1;
            let said = match call {
                Call::Advance(by) => {
                    self.advance(*by);
                    Ok(())
                }
                _ => {
                    let _shared = self.shared_clock();
                    match mortal(|| caller.call(session, call)) {
                        Some(said) => said,
                        None => break,
                    }
                }
            };
            match said {
                Err(Error::Pool(_) | Error::Halted(_)) if self.is_struck() => break,
                said => {
                    said.map_err(|error| format!("{call:?} of session {me} failed: {error}"))?
                }
            }
        }
        // A call that was cut off may have submitted writes, and other sessions would wait for those.
        if let Some(session) = session {
            match self.recorder.death.is_over() {
                true => surviving(|| drop(session.commit())),
                false => drop(session.commit()),
            }
        }
        Ok(())
    }

    /// Runs a job, round by round, until no session calls any more.
    fn job(&self, job: &mut Job, pause: u32) -> Result<(), String> {
        let recorder = self.recorder;
        while self.callers.load(Ordering::SeqCst) > 0 && self.failed.lock().is_none() {
            match recorder.working(&mut job.round) {
                // If the pool is full, the next call gets the error.
                Ok(_) | Err(Error::NoSpace(_)) => {}
                Err(Error::Pool(_) | Error::Halted(_)) if self.is_struck() => break,
                Err(error) => return Err(format!("the job {:?} failed: {error}", job.name)),
            }
            if self.is_struck() {
                break;
            }
            linger(pause);
        }
        Ok(())
    }

    /// Whether the disk has failed or the process is dead. A full disk is an answer, and no failure.
    fn is_struck(&self) -> bool {
        let has_failed = self.may_fail && self.recorder.faults.struck() > 0;
        has_failed || self.recorder.death.is_over()
    }

    fn shared_clock(&self) -> parking_lot::RwLockReadGuard<'_, ()> {
        loop {
            match self.clock.try_read() {
                Some(shared) => return shared,
                None => wait(),
            }
        }
    }

    fn advance(&self, by: u64) {
        for _ in 0..WAITS {
            let Some(_alone) = self.clock.try_write() else {
                wait();
                continue;
            };
            self.recorder.clock(self.process.advance(by));
            return;
        }
    }
}
