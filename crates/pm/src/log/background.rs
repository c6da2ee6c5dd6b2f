//! The two threads of a log: the flusher and the checkpointer. See `mod.rs` for why they are two.

use super::Shared;
use crate::error::Error;
use crate::medium::Durability;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often class `everysec` syncs: what was acknowledged is durable within a second, the sync included.
const EVERY_SECOND: Duration = Duration::from_millis(800);
/// How often class `none` syncs, if nothing else made it do so.
const NOW_AND_THEN: Duration = Duration::from_secs(10);
/// How long a full disk is left alone before the next attempt to prepare a segment.
const FULL_DISK: Duration = Duration::from_millis(50);

/// The threads; they run until [`Background::stop`].
pub(super) struct Background {
    flusher: JoinHandle<()>,
    checkpointer: JoinHandle<()>,
}

impl Background {
    pub(super) fn start(log: &Arc<Shared>) -> Result<Background, Error> {
        let flusher = spawn(log, "log flusher", Shared::run_flusher)?;
        match spawn(log, "checkpointer", Shared::run_checkpointer) {
            Ok(checkpointer) => Ok(Background {
                flusher,
                checkpointer,
            }),
            Err(error) => {
                log.stopping.store(true, Ordering::SeqCst);
                log.flusher.ring();
                let _ = flusher.join();
                Err(error)
            }
        }
    }

    /// Stops both threads after what they are at.
    pub(super) fn stop(self, log: &Shared) {
        log.stopping.store(true, Ordering::SeqCst);
        log.flusher.ring();
        log.checkpointer.ring();
        // A thread that panicked has said so; there is nothing of it left to stop.
        let _ = self.flusher.join();
        let _ = self.checkpointer.join();
    }
}

fn spawn(log: &Arc<Shared>, name: &str, run: fn(&Shared)) -> Result<JoinHandle<()>, Error> {
    let shared = Arc::clone(log);
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || run(&shared))
        .map_err(|error| Error::Io {
            path: log.options.directory.clone(),
            what: "starting a thread of the redo log",
            source: error
                .raw_os_error()
                .map_or(Errno::AGAIN, Errno::from_raw_os_error),
        })
}

impl Shared {
    fn run_flusher(&self) {
        let interval = match self.options.durability {
            Durability::Always => None,
            Durability::EverySec => Some(EVERY_SECOND),
            Durability::None => Some(NOW_AND_THEN),
        };
        while !self.stopping.load(Ordering::SeqCst) {
            self.flusher.listen(interval);
            let wanted = match interval {
                None => self.requested.load(Ordering::Acquire),
                Some(_) => self.end(),
            };
            // A failure is kept in `failed`, and subscribers were told.
            let _ = self.flush_to(wanted);
        }
    }

    fn run_checkpointer(&self) {
        while !self.stopping.load(Ordering::SeqCst) {
            self.checkpointer.listen(None);
            while self.failed.get().is_none()
                && !self.stopping.load(Ordering::SeqCst)
                && self.tend()
            {}
        }
    }

    /// One round of the checkpointer; `true` asks for another.
    fn tend(&self) -> bool {
        let prepared = match self.prepare_segments() {
            Ok(prepared) => prepared,
            Err(Error::NoSpace { .. }) => false,
            Err(Error::Io { path, source, .. }) => {
                self.fail(&path, source);
                return false;
            }
            Err(_) => return false,
        };
        let starving = self.starving.load(Ordering::SeqCst) > 0 && !prepared;
        let used = self
            .end()
            .saturating_sub(self.checkpoint_lsn.load(Ordering::Acquire));
        if !starving && used < self.options.log_bytes / 2 {
            return false;
        }
        // A failure has poisoned the log already.
        if self.checkpoint().is_err() {
            return false;
        }
        if starving && self.starving.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(FULL_DISK);
        }
        true
    }
}
