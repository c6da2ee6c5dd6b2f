//! A thread that does some work of an engine periodically, or on request.
//!
//! It holds no lock while it waits and keeps only a weak reference, so it does not keep an engine alive. If
//! it panics, the engine takes no more writes, because its state is unknown; no session waits for the
//! thread's work.

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

/// Time before the first round.
const FIRST: Duration = Duration::from_millis(10);

/// A thread and the means to signal it.
#[derive(Default)]
pub(crate) struct Background {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Starts the thread. `look` runs a round: its argument says whether one was requested, its result when
    /// the next is due. If it panics, `halt` is set.
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
        // If no thread can be started, the store still works.
        *self.thread.lock() = spawned.ok();
    }

    /// Requests a round now.
    pub(crate) fn wake(&self) {
        self.signal.state.lock().nudged = true;
        self.signal.wake.notify_one();
    }

    /// Whether the thread must end.
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
            // The thread has reported its panic on standard error already.
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

    /// The thread died with a line on standard error, and the engine went on.
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
