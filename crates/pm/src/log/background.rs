//! The two threads of a log: the flusher and the checkpointer. `mod.rs` says why there are two.

use super::Shared;
use super::frame::BLOCK;
use crate::error::Error;
use crate::lock::lock;
use crate::medium::Durability;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often class `everysec` syncs: acknowledged writes are durable within a second, the sync included.
const EVERY_SECOND: Duration = Duration::from_millis(800);
/// How often class `none` syncs, if nothing else did.
const NOW_AND_THEN: Duration = Duration::from_secs(10);
/// Delay before the next attempt to prepare a segment on a full disk.
const FULL_DISK: Duration = Duration::from_millis(50);

/// Without appends for this long, memory is given back before the log fills up.
const CALM: Duration = Duration::from_secs(1);
/// Longest time that memory is kept while writers append too little to fill the log.
const RESTLESS: Duration = Duration::from_secs(60);
/// Rounds that give everything back: the first watches the chunks, the second compares them and logs lines
/// that were never flushed, the third gives the memory back.
const ROUNDS_IN_CALM: u32 = 3;

/// How often an append without threads tries to make room.
const ROUNDS_WITHOUT_THREAD: u32 = 8;

/// What to do after a round of the checkpointer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Nothing is left to do.
    Last,
    /// Run another round.
    Again,
    /// The disk is full, and an append waits for room: run another round later.
    Starving,
}

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

    /// Stops both threads after their current round.
    pub(super) fn stop(self, log: &Shared) {
        log.stopping.store(true, Ordering::SeqCst);
        log.flusher.ring();
        log.checkpointer.ring();
        // A thread that panicked has reported it, and needs no stop.
        let _ = self.flusher.join();
        let _ = self.checkpointer.join();
    }
}

fn spawn(log: &Arc<Shared>, name: &'static str, run: fn(&Shared)) -> Result<JoinHandle<()>, Error> {
    let shared = Arc::clone(log);
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || shared.watched(name, || run(&shared)))
        .map_err(|error| Error::Io {
            path: log.options.directory.path().into(),
            what: "starting a thread of the redo log",
            source: error
                .raw_os_error()
                .map_or(Errno::AGAIN, Errno::from_raw_os_error),
        })
}

/// Detects that no session has appended for a while.
struct Calm {
    end: u64,
    /// Since when the log ends there.
    since: Instant,
    /// Time of the last calm.
    before: Instant,
}

impl Calm {
    fn new(end: u64) -> Calm {
        let since = Instant::now();
        Calm {
            end,
            since,
            before: since,
        }
    }

    /// Whether the log, which ends at `end`, had no appends for [`CALM`], or no calm for [`RESTLESS`].
    fn has_come(&mut self, end: u64) -> bool {
        let moment = Instant::now();
        if self.end != end {
            self.end = end;
            self.since = moment;
        }
        let come = moment - self.since >= CALM || moment - self.before >= RESTLESS;
        if come {
            self.since = moment;
            self.before = moment;
        }
        come
    }
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
            // A failure is permanent, and subscribers were told.
            let _ = self.flush_to(wanted);
        }
    }

    fn run_checkpointer(&self) {
        let interval = self.memory.as_ref().map(|_| CALM);
        let mut calm = Calm::new(self.end());
        while !self.stopping.load(Ordering::SeqCst) {
            self.checkpointer.listen(interval);
            while self.is_healthy() && !self.stopping.load(Ordering::SeqCst) {
                match self.checkpointer_round() {
                    Round::Last => break,
                    Round::Again => {}
                    Round::Starving => std::thread::sleep(FULL_DISK),
                }
            }
            if calm.has_come(self.end()) {
                self.give_all_back();
            }
        }
    }

    /// Writes and gives back all memory, unless a session appends meanwhile.
    fn give_all_back(&self) {
        for _ in 0..ROUNDS_IN_CALM {
            // The writer may pad what was appended until now to a block.
            let end = self.end().next_multiple_of(BLOCK);
            let stopping = self.stopping.load(Ordering::SeqCst);
            if stopping || !self.holds_memory() || self.checkpoint().is_err() {
                return;
            }
            let disturbed = self.end() > end;
            self.give_back();
            if disturbed {
                return;
            }
        }
    }

    /// One round of the checkpointer.
    fn checkpointer_round(&self) -> Round {
        let Ok(prepared) = self.prepare_what_fits() else {
            return Round::Last;
        };
        let starving = self.starving.load(Ordering::SeqCst) > 0 && !prepared;
        let used = self
            .end()
            .saturating_sub(self.checkpoint_lsn.load(Ordering::Acquire));
        if !starving && used < self.options.log_bytes / 2 {
            return Round::Last;
        }
        // The failure has poisoned the log already.
        if self.checkpoint().is_err() {
            return Round::Last;
        }
        if starving && self.starving.load(Ordering::SeqCst) > 0 {
            return Round::Starving;
        }
        self.give_back();
        Round::Again
    }

    /// Does the checkpointer's work if its bell was rung and no thread serves it.
    #[inline]
    pub(super) fn serve_without_thread(&self) {
        if !self.options.setup.has_threads() && self.checkpointer.silence() {
            while self.is_healthy() && self.checkpointer_round() == Round::Again {}
        }
    }

    /// Prepares segments for positions up to `end`, on a log without threads. A disk that stays full fails
    /// the log: nothing else could make room.
    pub(super) fn make_room(&self, end: u64) {
        self.starving.fetch_add(1, Ordering::SeqCst);
        for round in 1.. {
            if !self.is_healthy() || lock(&self.segments).end() >= end {
                break;
            }
            if round > ROUNDS_WITHOUT_THREAD {
                self.fail(self.options.directory.path(), Errno::NOSPC);
                break;
            }
            self.checkpointer_round();
        }
        self.starving.fetch_sub(1, Ordering::SeqCst);
    }
}
