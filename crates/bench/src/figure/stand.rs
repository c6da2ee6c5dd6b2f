//! A store of one system, opened in a directory of its own and filled as the paper fills its stores: every
//! record in the front, and logs that have been written from end to end once, so that gleaning is under way
//! as it would be after a long run.

use super::board::Board;
use super::crew::{self, Asking, Loading};
use super::setup::{LOGGED_BYTES, PRESET, Settings};
use super::stream::{Stream, Writes};
use crate::fixture::Place;
use crate::subject::Error;
use crate::workload::corpus::Corpus;
use anyhow::{Context, bail};
use everdram::options::BulletSystem;
use everdram::{EngineKind, Medium, MediumChoice, Options, Store};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Seconds in which a store that is loaded must get at least one record further.
const STUCK_SECONDS: f64 = 30.0;
/// Seconds between two looks at how far loading is.
const LOOK_SECONDS: f64 = 0.02;
/// Seconds that writing the logs once may take; a system so slow has little in its logs anyway.
const PRIMING_SECONDS: f64 = 60.0;

/// What all stores of a run have in common.
pub(super) struct Stage<'a> {
    pub(super) settings: &'a Settings,
    pub(super) corpus: Corpus,
    pub(super) stream: Stream,
}

/// A filled store.
pub(super) struct Stand {
    pub(super) store: Store,
    // After the store: it is closed before its directory goes.
    _place: Place,
}

impl<'a> Stage<'a> {
    pub(super) fn new(settings: &'a Settings) -> Stage<'a> {
        let (keys, values) = settings.keys();
        Stage {
            settings,
            corpus: Corpus::new(keys, values, settings.seed),
            stream: Stream::new(settings.records, settings.seed),
        }
    }

    fn options(&self, system: BulletSystem, log_bytes: u64) -> Result<Options, Error> {
        let mut options = Options::default();
        options.engine = Some(EngineKind::Bullet);
        options.medium = MediumChoice::Only(Medium::Emulated);
        options.delay = Some(PRESET.into());
        options.prefault = true;
        options.initial_bytes = self.settings.pool_bytes(system, log_bytes);
        options.bullet.system = system;
        options.bullet.logs = u32::try_from(self.settings.logs())?;
        options.bullet.log_bytes = log_bytes;
        Ok(options)
    }

    /// An empty store.
    fn open(&self, system: BulletSystem, log_bytes: u64) -> Result<Stand, Error> {
        let place = Place::within(&self.settings.dir)?;
        let options = self.options(system, log_bytes)?;
        let store = Store::open(place.path().join("pool"), &options)
            .with_context(|| format!("opening a store of the system {system}"))?;
        Ok(Stand {
            store,
            _place: place,
        })
    }

    /// A store that holds all records.
    pub(super) fn filled(&self, system: BulletSystem, log_bytes: u64) -> Result<Stand, Error> {
        let stand = self.open(system, log_bytes)?;
        let filling = || format!("filling a store of the system {system}");
        self.load(&stand.store).with_context(filling)?;
        if has_logs(system) {
            self.prime(&stand.store, log_bytes).with_context(filling)?;
        }
        Ok(stand)
    }

    fn load(&self, store: &Store) -> Result<(), Error> {
        let records = self.settings.records;
        let workers = self.settings.workers();
        let next = AtomicU64::new(0);
        let board = Board::new(workers, Writes::ALL);
        let duties = (0..workers)
            .map(|_| Loading::new(&self.corpus, &next, records))
            .collect();
        crew::run(store, &board, duties, || {
            let (mut seen, mut waited) = (0, 0.0);
            while board.tally(0..workers).puts() < records && !board.is_over() {
                board.sleep(LOOK_SECONDS);
                let now = next.load(Relaxed);
                waited = if now == seen {
                    waited + LOOK_SECONDS
                } else {
                    0.0
                };
                seen = now;
                if waited > STUCK_SECONDS {
                    bail!(
                        "for {STUCK_SECONDS} s none of {workers} workers has put a record: {} are gleaning; give it more --threads",
                        board.gleaners()
                    );
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Overwrites until the logs were written from end to end once.
    fn prime(&self, store: &Store, log_bytes: u64) -> Result<(), Error> {
        let wanted = self.settings.logs() as u64 * log_bytes / LOGGED_BYTES;
        let Some(missing) = wanted.checked_sub(self.settings.records) else {
            return Ok(());
        };
        let workers = self.settings.workers();
        let board = Board::new(workers, Writes::ALL);
        let duties = Asking::crew(&board, &self.corpus, &self.stream, workers);
        crew::run(store, &board, duties, || {
            let looks = (PRIMING_SECONDS / LOOK_SECONDS) as u32;
            for _ in 0..looks {
                if board.tally(0..workers).puts() >= missing || board.is_over() {
                    break;
                }
                board.sleep(LOOK_SECONDS);
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Whether a system has logs.
pub(super) fn has_logs(system: BulletSystem) -> bool {
    !matches!(
        system,
        BulletSystem::Volatile | BulletSystem::Phash | BulletSystem::HikvHt
    )
}

/// Whether workers glean when there is something to glean.
pub(super) fn has_dynamic_roles(system: BulletSystem) -> bool {
    matches!(system, BulletSystem::Dyn | BulletSystem::Wrc)
}
