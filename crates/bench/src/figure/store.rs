//! A store of one system, filled as the paper fills its stores: every record in the front, and logs that have
//! been written from end to end once, so that gleaning is under way as it would be after a long run.

use super::jobs::{self, Asking, Loading};
use super::settings::Settings;
use super::stream::{Stream, Writes};
use super::workers::Workers;
use crate::everdram::Open;
use crate::fixture::Fixture;
use crate::subject::{Durability, Error, Opener, Subject};
use crate::workload::corpus::Corpus;
use anyhow::{Context, bail};
use everdram::options::BulletSystem;
use everdram::{EngineKind, Medium, MediumChoice, Options, Store};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Seconds in which a store that is loaded must get at least one record further.
const STUCK_SECONDS: f64 = 30.0;
/// Seconds between two looks at how far loading is.
const LOOK_SECONDS: f64 = 0.02;
/// Seconds that writing the logs once may take; a system so slow has little in its logs anyway.
const PRIMING_SECONDS: f64 = 60.0;

/// What the stores of a curve are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Curve<'a> {
    pub(super) system: BulletSystem,
    pub(super) log_bytes: u64,
    settings: &'a Settings,
}

impl Opener for Curve<'_> {
    fn name(&self) -> &'static str {
        self.system.name()
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn durability(&self) -> Durability {
        match self.system {
            BulletSystem::Volatile => Durability::Never,
            _ => Durability::EachWrite,
        }
    }

    fn open(&self, dir: &Path, _: u64, _: usize) -> Result<Box<dyn Subject>, Error> {
        let mut options = Options::default();
        options.engine = Some(EngineKind::Bullet);
        options.medium = MediumChoice::Only(Medium::Emulated);
        options.delay = Some(self.settings.paper().delays.clone());
        options.prefault = true;
        options.initial_bytes = self.settings.pool_bytes(self.system, self.log_bytes);
        options.bullet.system = self.system;
        options.bullet.logs = u32::try_from(self.settings.logs())?;
        options.bullet.log_bytes = self.log_bytes;
        let store = Store::open(dir.join("pool"), &options)?;
        Ok(Box::new(Open {
            store,
            is_prefaulted: true,
        }))
    }
}

impl Curve<'_> {
    /// Whether it has logs.
    pub(super) fn has_logs(&self) -> bool {
        !matches!(
            self.system,
            BulletSystem::Volatile | BulletSystem::Phash | BulletSystem::HikvHt
        )
    }

    /// Whether workers glean when there is something to glean.
    pub(super) fn has_dynamic_roles(&self) -> bool {
        matches!(self.system, BulletSystem::Dyn | BulletSystem::Wrc)
    }

    /// Bytes of all logs.
    pub(super) fn all_log_bytes(&self) -> u64 {
        self.settings.logs() as u64 * self.log_bytes
    }
}

/// What all stores of a run have in common.
pub(super) struct Data<'a> {
    pub(super) settings: &'a Settings,
    pub(super) corpus: Corpus,
    pub(super) stream: Stream,
}

impl<'a> Data<'a> {
    pub(super) fn new(settings: &'a Settings) -> Data<'a> {
        let (keys, values) = settings.keys();
        Data {
            settings,
            corpus: Corpus::new(keys, values, settings.seed),
            stream: Stream::new(settings.records, settings.seed),
        }
    }

    /// Curves in the order in which they take turns.
    pub(super) fn curves(&self) -> Vec<Curve<'a>> {
        let settings = self.settings;
        let sizes = || settings.log_bytes.iter().copied();
        let of = |system| {
            sizes().map(move |log_bytes| Curve {
                system,
                log_bytes,
                settings,
            })
        };
        settings.systems.iter().copied().flat_map(of).collect()
    }

    /// A store that holds all records.
    pub(super) fn filled(&self, curve: &Curve<'_>) -> Result<Fixture<'_>, Error> {
        let fill = || {
            let fixture = Fixture::open(
                curve,
                &self.settings.dir,
                &self.corpus,
                self.settings.records,
            )?;
            self.load(&*fixture.subject)?;
            if curve.has_logs() {
                self.prime(&*fixture.subject, curve.all_log_bytes())?;
            }
            Ok::<_, Error>(fixture)
        };
        fill().with_context(|| format!("filling a store of the system {}", curve.system))
    }

    fn load(&self, store: &dyn Subject) -> Result<(), Error> {
        let records = self.settings.records;
        let workers = self.settings.workers();
        let next = AtomicU64::new(0);
        let watched = Workers::new(workers, Writes::ALL);
        let loading = (0..workers)
            .map(|_| Loading::new(&self.corpus, &next, records))
            .collect();
        jobs::run(store, &watched, loading, || {
            let (mut seen, mut waited) = (0, 0.0);
            while watched.tally(0..workers).puts() < records && !watched.is_over() {
                watched.sleep(LOOK_SECONDS);
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
                        watched.gleaners()
                    );
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Overwrites until the logs were written from end to end once.
    fn prime(&self, store: &dyn Subject, log_bytes: u64) -> Result<(), Error> {
        let wanted = log_bytes / self.settings.paper().logged_bytes;
        let Some(missing) = wanted.checked_sub(self.settings.records) else {
            return Ok(());
        };
        let workers = self.settings.workers();
        let watched = Workers::new(workers, Writes::ALL);
        let asking = Asking::all(&watched, &self.corpus, &self.stream);
        jobs::run(store, &watched, asking, || {
            let looks = (PRIMING_SECONDS / LOOK_SECONDS) as u32;
            for _ in 0..looks {
                if watched.tally(0..workers).puts() >= missing || watched.is_over() {
                    break;
                }
                watched.sleep(LOOK_SECONDS);
            }
            Ok(())
        })?;
        Ok(())
    }
}
