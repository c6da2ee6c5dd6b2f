//! Runs a plan of several threads on a recorded pool, under the scheduler.
//!
//! A fault ends the run: each thread stops at the call in which it meets it, and that call stays open. What the disk
//! is left with is what its crash points are about; a next process would only be a run of one thread.

use crate::call::{Call, Outcome};
use crate::death::mortal;
use crate::judge::guarded;
use crate::plan::{Fault, Plan};
use crate::profile;
use crate::recorder::Recorder;
use crate::run::{Run, ears};
use crate::schedule::Scheduler;
use crate::world::{Ground, World, perform};
use everdram::{EngineSession, Error};
use everdram_pm::lab::{Waiter, wait_as};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs a plan: the calls of session n are made by thread n.
///
/// # Errors
/// What the engine said that it should not have said.
pub fn run(plan: &Plan, ground: &Ground) -> Result<Run, String> {
    let threads = plan.profile.sessions();
    let start = ground
        .create(plan.seed)
        .map_err(|error| error.to_string())?;
    let scheduler = Scheduler::new(threads, profile::random(plan.seed, 3));
    let turn = {
        let scheduler = Arc::clone(&scheduler);
        Arc::new(move || {
            if let Some(me) = ME.get() {
                scheduler.event(me);
            }
        })
    };
    let recorder = Arc::new(Recorder::new(plan.values.clone(), true, Some(turn)));
    let world = World::open(ground, start.clone(), &ears(&recorder, plan.medium))
        .map_err(|error| format!("opening a new pool: {error}"))?;
    let world = Mutex::new(world);
    let mut sessions = Vec::new();
    for _ in 0..threads {
        let session = world.lock().session();
        sessions.push(session.map_err(|error| format!("opening a session: {error}"))?);
    }
    recorder.arm(plan.medium, plan.fault);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for (me, session) in sessions.iter_mut().enumerate() {
            let (scheduler, recorder, world, failed) = (&scheduler, &recorder, &world, &failed);
            scope.spawn(move || {
                let waiter = Arc::new(Turn {
                    scheduler: Arc::clone(scheduler),
                    recorder: Arc::clone(recorder),
                    me,
                });
                let thread = Thread {
                    plan,
                    me,
                    recorder,
                    world,
                };
                scheduler.begin(me);
                ME.set(Some(me));
                let done = guarded(|| {
                    let lives = mortal(|| wait_as(waiter, || thread.run(&mut **session)));
                    lives.unwrap_or(Ok(()))
                });
                ME.set(None);
                scheduler.end(me);
                if let Err(wrong) = done {
                    failed.lock().get_or_insert(wrong);
                }
            });
        }
    });
    let world = world.into_inner();
    let left = recorder.death.is_over().then(|| recorder.died());
    let end = left.flatten().unwrap_or_else(|| world.killed());
    recorder.deaf(|| {
        drop(sessions);
        drop(world);
    });
    match failed.into_inner() {
        Some(wrong) => Err(wrong),
        None => Ok(Run {
            start,
            record: recorder.take(),
            end,
        }),
    }
}

/// A thread that waits for others. If the process dies on memory meanwhile it does not come back.
struct Turn {
    scheduler: Arc<Scheduler>,
    recorder: Arc<Recorder>,
    me: usize,
}

impl Waiter for Turn {
    fn wait(&self) {
        self.scheduler.wait(self.me);
        self.recorder.death.is_alive();
    }
}

struct Thread<'a> {
    plan: &'a Plan,
    me: usize,
    recorder: &'a Arc<Recorder>,
    world: &'a Mutex<World>,
}

impl Thread<'_> {
    fn run(&self, session: &mut dyn EngineSession) -> Result<(), String> {
        let mine = self
            .plan
            .calls
            .iter()
            .filter(|(session, _)| *session as usize == self.me);
        for (_, call) in mine {
            match self.call(session, call) {
                Err(Error::Pool(_) | Error::Halted(_)) if self.is_struck() => break,
                said => {
                    said.map_err(|error| format!("{call:?} of thread {} failed: {error}", self.me))?
                }
            }
        }
        Ok(())
    }

    /// Whether the disk has failed, or the process is dead. A full disk is an answer, and no reason to stop.
    fn is_struck(&self) -> bool {
        let failed = matches!(self.plan.fault, Fault::Sync(_)) && self.recorder.faults.struck() > 0;
        failed || self.recorder.death.is_over()
    }

    fn call(&self, session: &mut dyn EngineSession, call: &Call) -> Result<(), Error> {
        match call {
            Call::Tend | Call::Reclaim | Call::Checkpoint => {
                // One thread at a time looks after the store; another one has better things to do than wait. Several may reclaim.
                let Some(mut world) = self.world.try_lock() else {
                    return Ok(());
                };
                let number = self.recorder.invoke(self.me as u32, call);
                let done = match call {
                    Call::Tend => world.opened.tend(),
                    Call::Reclaim => {
                        let engine = world.opened.engine();
                        drop(world);
                        engine.reclaim().map(|_| ())
                    }
                    _ => world.checkpoint(),
                };
                match done {
                    Ok(()) | Err(Error::NoSpace(_)) => {
                        self.recorder.ret(number, Outcome::Done);
                        Ok(())
                    }
                    other => other,
                }
            }
            Call::Put(..)
            | Call::Get(_)
            | Call::Delete(_)
            | Call::Swap(..)
            | Call::Add(..)
            | Call::Batch(_)
            | Call::Turn(_)
            | Call::Clear => {
                let number = self.recorder.invoke(self.me as u32, call);
                let outcome = perform(self.plan.profile, session, call, &**self.recorder)?;
                self.recorder.ret(number, outcome);
                Ok(())
            }
            // Threads do not kill each other's process, and the others have profiles of their own.
            Call::Pipeline(_) | Call::Advance(_) | Call::Kill | Call::Reopen | Call::Leave => {
                Ok(())
            }
        }
    }
}
