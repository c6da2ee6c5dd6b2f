//! A thread that looks after something of an engine from time to time, or when it is asked.
//!
//! It holds no lock while it waits and keeps only a weak reference, so an engine that everybody dropped goes
//! away. If it panics the engine takes no more writes, since nobody knows what it was in the middle of; and
//! nobody waits for what it would have done.

use super::halt::Halt;
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Default)]
struct State {
    stop: bool,
    nudged: bool,
}

#[derive(Default)]
struct Signal {
    state: Mutex<State>,
    wake: Condvar,
}

/// Before the first look.
const FIRST: Duration = Duration::from_millis(10);

/// A thread and how to talk to it.
#[derive(Default)]
pub(crate) struct Background {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// `look` is told whether somebody asked for it, and says when the next one is due. If it panics, `halt`
    /// is set.
    pub(crate) fn start<E: Send + Sync + 'static>(
        &self,
        engine: Weak<E>,
        name: &'static str,
        halt: &Halt,
        look: impl FnMut(&Arc<E>, bool) -> Duration + Send + 'static,
    ) {
        assert!(
            self.thread.lock().is_none(),
            "a background thread is started while one runs"
        );
        let signal = Arc::clone(&self.signal);
        let halt = halt.clone();
        let work = move || {
            let run = || run(&engine, &signal, look);
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                halt.set(format!("the thread `{name}` panicked"));
            }
        };
        let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
        // Without a thread the store still works.
        *self.thread.lock() = spawned.ok();
    }

    /// Asks for a look now.
    pub(crate) fn wake(&self) {
        self.signal.state.lock().nudged = true;
        self.signal.wake.notify_one();
    }

    /// Whether the thread is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.signal.state.lock().stop
    }

    /// Stops the thread and waits for it (unless it is the caller).
    pub(crate) fn stop(&self) {
        self.signal.state.lock().stop = true;
        self.signal.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was reported on standard error already.
            let _ = thread.join();
        }
    }
}

fn run<E>(engine: &Weak<E>, signal: &Signal, mut look: impl FnMut(&Arc<E>, bool) -> Duration) {
    let mut pause = FIRST;
    loop {
        let is_asked = {
            let mut state = signal.state.lock();
            if !state.stop && !state.nudged {
                signal.wake.wait_for(&mut state, pause);
            }
            if state.stop {
                return;
            }
            std::mem::take(&mut state.nudged)
        };
        let Some(engine) = engine.upgrade() else {
            return;
        };
        pause = look(&engine, is_asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// It died with a line on standard error, and nobody noticed.
    #[test]
    fn a_thread_that_panics_halts_the_engine() {
        let (engine, halt, background) = (Arc::new(()), Halt::default(), Background::default());
        background.start(Arc::downgrade(&engine), "doomed", &halt, |_, _| {
            panic!("on purpose")
        });
        background.wake();
        let begun = std::time::Instant::now();
        while !halt.is_set() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let said = halt.check();
        assert!(
            matches!(&said, Err(Error::Halted(why)) if why.contains("doomed")),
            "{said:?}"
        );
        background.stop();
    }
}
