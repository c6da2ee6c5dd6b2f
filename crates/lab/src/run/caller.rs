//! A session that makes calls. Each is recorded when it begins and when it returns.

use super::clients::Clients;
use super::process::{Process, perform};
use super::recorder::Recorder;
use super::schedule::linger;
use crate::plan::Plan;
use crate::plan::call::{Call, Key, Outcome, ValueId};
use crate::plan::profile::Profile;
use everdram::engine::EngineSession;
use everdram::lab::Job;
use everdram::{Error, Ticket};
use everdram_pm::Pool;
use parking_lot::Mutex;
use std::sync::Arc;

/// One round of what a background thread of the store, or of its pool, repeats.
pub(crate) type Round = Box<dyn FnMut() -> Result<bool, Error> + Send>;

/// A session that calls.
pub(crate) struct Caller<'a> {
    /// Its number in the history.
    pub(crate) name: u32,
    pub(crate) profile: Profile,
    pub(crate) recorder: &'a Arc<Recorder>,
    pub(crate) process: &'a Process,
    /// Background work that calls may ask for, from several sessions at once.
    pub(crate) work: &'a Mutex<Vec<Job>>,
    pub(crate) clients: &'a Clients,
    /// Decides how the writes of remote clients are cut.
    pub(crate) seed: u64,
}

/// What callers share.
#[derive(Clone, Copy)]
pub(crate) struct Common<'a> {
    pub(crate) recorder: &'a Arc<Recorder>,
    pub(crate) process: &'a Process,
    pub(crate) work: &'a Mutex<Vec<Job>>,
    pub(crate) clients: &'a Clients,
}

/// Puts, and removals where there is no value.
type Parts = [(Key, Option<ValueId>)];

impl<'a> Caller<'a> {
    pub(crate) fn new(plan: &Plan, name: u32, common: Common<'a>) -> Caller<'a> {
        let Common {
            recorder,
            process,
            work,
            clients,
        } = common;
        Caller {
            name,
            profile: plan.profile,
            recorder,
            process,
            work,
            clients,
            seed: plan.seed,
        }
    }

    /// Makes a call, but none that is about the process or the clock.
    ///
    /// # Errors
    /// Those of the engine. A full pool is an outcome and no error.
    pub(crate) fn call(
        &self,
        session: &mut Option<Box<dyn EngineSession>>,
        call: &Call,
    ) -> Result<(), Error> {
        match call {
            Call::Tend | Call::Reclaim | Call::Checkpoint => self.asked(call),
            Call::Remote(..) if self.process.opened.landing().is_some() => {
                self.remote(session, call)
            }
            Call::Late(client) => self.about(call, || self.late(*client)),
            Call::Hangup(client) => self.about(call, || self.hangup(*client)),
            Call::Leave => {
                let number = self.recorder.invoke(self.name, call);
                *session = None;
                self.recorder.ret(number, Outcome::Done);
                Ok(())
            }
            Call::Pipeline(parts) => self.pipeline(self.open(session)?, parts, None),
            Call::Slow(parts, events) => self.pipeline(self.open(session)?, parts, Some(*events)),
            _ => {
                // Opening a session is not part of the call.
                let session = self.open(session)?;
                let number = self.recorder.invoke(self.name, call);
                let outcome = perform(self.profile, session, call, &**self.recorder)?;
                self.recorder.ret(number, outcome);
                Ok(())
            }
        }
    }

    /// A call about a remote client. The answer says nothing.
    fn about(&self, call: &Call, body: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let number = self.recorder.invoke(self.name, call);
        body()?;
        self.recorder.ret(number, Outcome::Done);
        Ok(())
    }

    pub(super) fn open<'s>(
        &self,
        session: &'s mut Option<Box<dyn EngineSession>>,
    ) -> Result<&'s mut dyn EngineSession, Error> {
        match session {
            Some(open) => Ok(&mut **open),
            None => Ok(&mut **session.insert(self.process.session()?)),
        }
    }

    /// Does the background work that a call asks for.
    fn asked(&self, call: &Call) -> Result<(), Error> {
        let number = self.recorder.invoke(self.name, call);
        let done = self.recorder.working(|| match call {
            Call::Tend => self.tend(),
            Call::Reclaim => self.process.opened.engine().reclaim().map(drop),
            _ => self.process.checkpoint(),
        });
        match done {
            Ok(()) | Err(Error::NoSpace(_)) => {}
            Err(error) => return Err(error),
        }
        self.recorder.ret(number, Outcome::Done);
        Ok(())
    }

    /// Does a round of all background work that no other session is doing.
    fn tend(&self) -> Result<(), Error> {
        let Some(mut work) = self.work.try_lock() else {
            return Ok(());
        };
        for job in &mut *work {
            (job.round)()?;
        }
        Ok(())
    }

    /// Submits several calls, then commits them together. A slow pipeline lets other sessions run in between.
    fn pipeline(
        &self,
        session: &mut dyn EngineSession,
        parts: &Parts,
        lingers: Option<u32>,
    ) -> Result<(), Error> {
        let (mut submitted, mut seen) = (Vec::new(), Ticket::NONE);
        let said = self.submit(session, parts, &mut submitted, &mut seen);
        let said = said.and_then(|()| {
            let Some(events) = lingers else {
                return Ok(());
            };
            linger(events);
            let pool = &self.process.pool;
            self.recorder
                .working(|| pool.checkpoint().map_err(Error::from))
        });
        // Also after an error: submitted writes hold locks on their keys.
        let committed = session.commit();
        said?;
        session.wait(committed?.max(seen))?;
        for (number, outcome) in submitted {
            self.recorder.ret(number, outcome);
        }
        Ok(())
    }

    fn submit(
        &self,
        session: &mut dyn EngineSession,
        parts: &Parts,
        submitted: &mut Vec<(u32, Outcome)>,
        seen: &mut Ticket,
    ) -> Result<(), Error> {
        for &(key, value) in parts {
            let call = match value {
                Some(value) => Call::Put(key, value, 0),
                None => Call::Delete(key),
            };
            // An arrival counts as later than what was submitted for its key and is not committed, and so as
            // later than that alone: such calls are concurrent, and have no order.
            let name = match self.process.opened.landing() {
                Some(_) => self.clients.name(self.name),
                None => self.name,
            };
            let number = self.recorder.invoke(name, &call);
            let bytes = self.profile.key(key);
            let outcome = match value {
                Some(value) => session
                    .put(&bytes, &self.recorder.value(value), 0)
                    .map(|()| Outcome::Done),
                None => session.delete(&bytes).map(Outcome::Was),
            };
            if value.is_none() {
                *seen = (*seen).max(session.last_read());
            }
            let outcome = match outcome {
                Err(Error::NoSpace(_)) => Outcome::NoRoom,
                other => other?,
            };
            submitted.push((number, outcome));
        }
        Ok(())
    }
}

/// The background work of a store: of its engine, and of the redo log below it.
pub(crate) fn jobs(process: &Process) -> Vec<Job> {
    let mut jobs = process.opened.jobs();
    let pool = |round: fn(&Pool) -> Result<(), everdram_pm::Error>| {
        let pool = Arc::clone(&process.pool);
        Box::new(move || round(&pool).map(|()| true).map_err(Error::from)) as Round
    };
    jobs.push(Job {
        name: "log flusher",
        round: pool(Pool::flush_once),
    });
    jobs.push(Job {
        name: "log checkpointer",
        round: pool(Pool::checkpoint_once),
    });
    jobs
}
