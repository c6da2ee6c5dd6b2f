//! A thread that looks after something of an engine from time to time, or when it is asked.
//!
//! It holds no lock while it waits and keeps only a weak reference, so an engine that everybody dropped goes away.

use parking_lot::{Condvar, Mutex};
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
    /// `look` is told whether somebody asked for it, and says when the next one is due.
    pub(crate) fn start<E: Send + Sync + 'static>(
        &self,
        engine: Weak<E>,
        name: &str,
        look: impl FnMut(&Arc<E>, bool) -> Duration + Send + 'static,
    ) {
        let signal = Arc::clone(&self.signal);
        let work = move || run(&engine, &signal, look);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
        // Without a thread the store still works.
        *self.thread.lock() = spawned.ok();
    }

    /// Asks for a look now.
    pub(crate) fn nudge(&self) {
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
