//! Runs a plan on a recorded pool.

use crate::call::{Call, Outcome};
use crate::death::mortal;
use crate::history::SESSIONS;
use crate::image::{Image, Medium};
use crate::outage::outage;
use crate::plan::{Fault, Plan};
use crate::recorder::{Record, Recorder};
use crate::world::{Ears, Ground, Numbers, World, perform};
use everdram::{EngineSession, Error};
use everdram_pm::lab::{DiskTap, Tap};
use std::sync::Arc;

/// A run, recorded.
#[derive(Clone)]
pub struct Run {
    /// What the pool was before.
    pub start: Image,
    /// What happened.
    pub record: Record,
    /// What the program saw in the end.
    pub end: Image,
}

impl Numbers for Recorder {
    fn bytes(&self, number: u32) -> Vec<u8> {
        self.value(number)
    }

    fn number(&self, bytes: &[u8]) -> u32 {
        Recorder::number(self, bytes)
    }
}

/// A world being driven.
struct Driver<'a> {
    plan: &'a Plan,
    /// What the pool was before.
    start: &'a Image,
    recorder: &'a Arc<Recorder>,
    world: World,
    sessions: Vec<Option<Box<dyn EngineSession>>>,
    /// Processes that were killed: their sessions are not those of the next.
    killed: u32,
}

/// Runs a plan of one thread, from an empty pool.
///
/// # Errors
/// What the engine said that it should not have said.
pub fn run(plan: &Plan, ground: &Ground, loads: bool) -> Result<Run, String> {
    let start = ground
        .create(plan.seed)
        .map_err(|error| error.to_string())?;
    let recorder = Arc::new(Recorder::new(plan.values.clone(), loads, None));
    let world = match World::open(ground, start.clone(), &ears(&recorder, plan.medium)) {
        Ok(world) => world,
        // A disk without room for a pool: what it left is looked at all the same.
        Err(_) if recorder.faults.struck() > 0 => {
            return Ok(Run {
                end: start.clone(),
                start,
                record: recorder.take(),
            });
        }
        Err(error) => return Err(format!("opening a new pool: {error}")),
    };
    // A pool that cannot be made has nothing to lose.
    recorder.arm(plan.medium, plan.fault);
    let end = drive(plan, &start, &recorder, world)?;
    Ok(Run {
        start,
        record: recorder.take(),
        end,
    })
}

/// Makes the calls of a plan of one thread on an open world, which was `start` when the recorder began. Returns what the program saw in the end.
///
/// # Errors
/// What the engine said that it should not have said.
pub(crate) fn drive(
    plan: &Plan,
    start: &Image,
    recorder: &Arc<Recorder>,
    world: World,
) -> Result<Image, String> {
    let mut driver = Driver {
        plan,
        start,
        recorder,
        world,
        sessions: Vec::new(),
        killed: 0,
    };
    let outcome = driver.run();
    let end = driver.world.killed();
    let Driver {
        world, sessions, ..
    } = driver;
    recorder.deaf(|| {
        drop(sessions);
        drop(world);
    });
    outcome.map(|()| end)
}

/// A recorder as a world's ears.
#[must_use]
pub fn ears(recorder: &Arc<Recorder>, medium: Medium) -> Ears {
    Ears {
        tap: Some(Arc::clone(recorder) as Arc<dyn Tap>),
        disk: (medium == Medium::File).then(|| Arc::clone(recorder) as Arc<dyn DiskTap>),
    }
}

impl Driver<'_> {
    /// Makes the calls. When the disk has failed nobody knows what becomes of the call that met it; the process is
    /// started again on what the page cache has, and goes on.
    fn run(&mut self) -> Result<(), String> {
        let mut struck = false;
        for (number, (session, call)) in self.plan.calls.iter().enumerate() {
            let said = match self.call_or_die(*session, call) {
                Err(Error::Pool(_)) if !struck && self.is_struck() => {
                    struck = true;
                    self.kill()
                }
                other => other,
            };
            said.map_err(|error| format!("call {number}, {call:?}, failed: {error}"))?;
        }
        Ok(())
    }

    /// Makes a call. If the process dies meanwhile, the next one is started on what is left, and the call stays
    /// open.
    fn call_or_die(&mut self, session: u32, call: &Call) -> Result<(), Error> {
        match mortal(|| self.call(session, call)) {
            Some(said) if !self.recorder.death.is_over() => said,
            _ => self.bury(),
        }
    }

    /// Starts the next process on what a dead one left.
    fn bury(&mut self) -> Result<(), Error> {
        self.killed += 1;
        let left = match self.plan.fault {
            Fault::Outage(_, kept) => {
                let capacity = self.world.ground.profile.capacity();
                let left = |trace: &_| outage(self.start, trace, capacity, kept);
                Some(self.recorder.lost(left))
            }
            _ => self.recorder.died(),
        };
        let ears = ears(self.recorder, self.plan.medium);
        let next = match left {
            Some(memory) => World::open(&self.world.ground, memory, &ears)?,
            None => self.world.reopened(&ears)?,
        };
        self.replace(next);
        Ok(())
    }

    fn replace(&mut self, next: World) {
        let sessions = std::mem::take(&mut self.sessions);
        let before = std::mem::replace(&mut self.world, next);
        self.recorder.deaf(|| {
            drop(sessions);
            drop(before);
        });
    }

    fn is_struck(&self) -> bool {
        !matches!(self.plan.fault, Fault::Room(_)) && self.recorder.faults.struck() > 0
    }

    fn session(&mut self, session: u32) -> Result<&mut Box<dyn EngineSession>, Error> {
        let place = session as usize;
        if self.sessions.len() <= place {
            self.sessions.resize_with(place + 1, || None);
        }
        let world = &self.world;
        let slot = &mut self.sessions[place];
        if slot.is_none() {
            *slot = Some(world.session()?);
        }
        match slot {
            Some(session) => Ok(session),
            None => unreachable!("it was opened just now"),
        }
    }

    fn call(&mut self, session: u32, call: &Call) -> Result<(), Error> {
        match call {
            Call::Pipeline(parts) => self.pipeline(session, parts),
            Call::Tend | Call::Reclaim | Call::Checkpoint => {
                let number = self.recorder.invoke(self.name(session), call);
                let done = match call {
                    Call::Tend => self.world.opened.tend(),
                    Call::Reclaim => self.world.opened.engine().reclaim().map(|_| ()),
                    _ => self.world.checkpoint(),
                };
                match done {
                    Ok(()) | Err(Error::NoSpace(_)) => {}
                    Err(error) => return Err(error),
                }
                self.recorder.ret(number, Outcome::Done);
                Ok(())
            }
            Call::Advance(by) => {
                let now = self.world.ground.clock.now() + by;
                self.world.ground.clock.set(now);
                self.recorder.clock(now);
                Ok(())
            }
            Call::Kill | Call::Reopen | Call::Leave => {
                let number = self.recorder.invoke(self.name(session), call);
                match call {
                    Call::Kill => self.kill()?,
                    Call::Reopen => self.reopen()?,
                    _ => drop(
                        self.sessions
                            .get_mut(session as usize)
                            .and_then(Option::take),
                    ),
                }
                self.recorder.ret(number, Outcome::Done);
                Ok(())
            }
            _ => {
                let profile = self.plan.profile;
                let recorder = Arc::clone(self.recorder);
                // Sessions are opened before the call begins: that is no part of it.
                let name = self.name(session);
                let session_of = self.session(session)?;
                let number = recorder.invoke(name, call);
                let outcome = perform(profile, &mut **session_of, call, &*recorder)?;
                recorder.ret(number, outcome);
                Ok(())
            }
        }
    }

    /// Submits several calls, then commits them together.
    fn pipeline(&mut self, session: u32, parts: &[(u8, Option<u32>)]) -> Result<(), Error> {
        let profile = self.plan.profile;
        let recorder = Arc::clone(self.recorder);
        let name = self.name(session);
        let open = self.session(session)?;
        let mut submitted = Vec::new();
        for &(key, value) in parts {
            let call = match value {
                Some(value) => Call::Put(key, value, 0),
                None => Call::Delete(key),
            };
            let number = recorder.invoke(name, &call);
            let bytes = profile.key(key);
            let outcome = match value {
                Some(value) => open
                    .put(&bytes, &recorder.value(value), 0)
                    .map(|()| Outcome::Done),
                None => open.delete(&bytes).map(Outcome::Was),
            };
            let outcome = match outcome {
                Err(Error::NoSpace(_)) => Outcome::NoRoom,
                other => other?,
            };
            submitted.push((number, outcome));
        }
        let ticket = open.commit()?.max(open.last_read());
        open.wait(ticket)?;
        for (number, outcome) in submitted {
            recorder.ret(number, outcome);
        }
        Ok(())
    }

    /// What the history calls a session: a call that a kill cut off is not before those of the next process.
    fn name(&self, session: u32) -> u32 {
        session + SESSIONS * self.killed
    }

    /// The process dies; its caches live on.
    fn kill(&mut self) -> Result<(), Error> {
        self.killed += 1;
        self.recorder.died();
        let ears = ears(self.recorder, self.plan.medium);
        let next = self.world.reopened(&ears)?;
        self.replace(next);
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), Error> {
        self.sessions.clear();
        self.world.opened.engine().close()?;
        self.kill()
    }
}
