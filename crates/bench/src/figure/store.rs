//! A store of one system, filled as its paper fills its stores. Bullet: every record in the front, and logs
//! that have been written from end to end once, so that gleaning is under way as it would be after a long
//! run. DStore: all objects, and a checkpoint of them.

use super::Measure;
use super::jobs::{self, Asking, Loading};
use super::settings::Settings;
use super::settings::curve::{Curve, Site};
use super::stream::{Stream, Writes};
use super::system::{Ground, System, Viper};
use super::workers::Workers;
use crate::everdram::Open;
use crate::process;
use crate::subject::{Durability, Error, Opener, Otherwise, Subject};
use crate::workload::corpus::Corpus;
use crate::workload::distribution::Keys;
use crate::workload::sizes::Sizes;
use anyhow::{Context, bail};
use everdram::{Medium, MediumChoice, Options, Store};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Seconds in which a store that is loaded must get at least one record further.
const STUCK_SECONDS: f64 = 30.0;
/// Seconds between two looks at how far loading is.
const LOOK_SECONDS: f64 = 0.02;
/// Seconds that writing the logs once may take; a system so slow has little in its logs anyway.
const PRIMING_SECONDS: f64 = 60.0;
/// What a store is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// Throughput and latency: its pool is made large at once, with all pages present.
    Speed,
    /// Room and restarts: its pool begins small.
    Room,
    /// To be killed: the same, and no checkpoint begins before the logs are full.
    Kill,
    /// Throughput while room is reclaimed: as for speed, and nothing is reclaimed before it is asked for.
    Reclaiming,
}

/// How to open a store of a curve, with what is elsewhere in `beside`.
pub(super) struct Opening<'a> {
    pub(super) curve: Curve<'a>,
    pub(super) beside: Option<PathBuf>,
    pub(super) what_for: For,
    /// Threads that open it; 0 = one for each core.
    pub(super) recovery_threads: usize,
}

impl Opener for Opening<'_> {
    fn name(&self) -> &'static str {
        self.curve.system.name()
    }

    fn version(&self) -> String {
        match self.curve.system {
            System::Rival(store) => store.version(),
            _ => env!("CARGO_PKG_VERSION").into(),
        }
    }

    fn durability(&self) -> Durability {
        self.curve.system.durability()
    }

    fn open(
        &self,
        dir: &Path,
        records: u64,
        record_bytes: usize,
    ) -> Result<Box<dyn Subject>, Error> {
        if let System::Rival(store) = self.curve.system {
            let otherwise = Otherwise {
                log_dir: self.beside.clone(),
                memtable_bytes: self.curve.memtable_bytes,
            };
            return store.open_otherwise(dir, records, record_bytes, &otherwise);
        }
        let store = Store::open(dir.join("pool"), &self.options()?)?;
        Ok(Box::new(Open {
            store,
            is_prefaulted: true,
        }))
    }
}

impl<'a> Opening<'a> {
    /// How to open the store of a site.
    pub(super) fn of(curve: &Curve<'a>, site: &Site, what_for: For) -> Opening<'a> {
        Opening {
            curve: *curve,
            beside: site.beside().map(Path::to_owned),
            what_for,
            recovery_threads: 0,
        }
    }

    fn options(&self) -> Result<Options, Error> {
        let (curve, settings) = (&self.curve, self.curve.settings);
        let (paper, measure) = (settings.paper(), settings.figure.measure);
        let mut options = Options::default();
        curve
            .system
            .set(&mut options, u32::try_from(curve.logs())?, curve.log_bytes);
        match curve.system {
            System::Dstore(_) => {
                options.dstore.data = self.beside.as_ref().map(|dir| dir.join("data"));
            }
            System::Tiered => {
                options.tiered.below.clone_from(&self.beside);
                if let Some(bytes) = settings.limit_bytes() {
                    options.max_bytes = bytes;
                    options.initial_bytes = bytes / 2;
                    // In steps that are small beside it, so that it comes up to its limit.
                    options.chunk_bytes = bytes / 16;
                }
            }
            System::Viper(viper) if viper != Viper::Variable => {
                let bytes = |sizes: Sizes| u32::try_from(sizes.mean());
                options.fixed = Some((bytes(curve.key)?, bytes(curve.value)?));
            }
            _ => {}
        }
        options.recovery_threads = self.recovery_threads;
        options.reclaim_background = !matches!(self.what_for, For::Kill | For::Reclaiming);
        if curve.ground == Some(Ground::Files) {
            options.medium = MediumChoice::Only(Medium::File);
            return Ok(options);
        }
        options.medium = MediumChoice::Only(Medium::Emulated);
        options.delay = curve.delays().map(str::to_owned);
        // Beside a bare write there is no model of a disk.
        if curve.ground == Some(Ground::Modelled) && measure != Measure::Overhead {
            options.dstore.data_delay.clone_from(&paper.disk);
        }
        if matches!(self.what_for, For::Speed | For::Reclaiming) {
            options.prefault = true;
            options.initial_bytes = settings.pool_bytes(curve);
        }
        Ok(options)
    }
}

/// An open store, in directories of its own.
pub(super) struct Filled {
    pub(super) subject: Box<dyn Subject>,
    // After the subject: it is closed before its directories go.
    pub(super) site: Site,
    /// Private memory of the process before the store was opened.
    pub(super) private_before: u64,
}

/// What all stores of a run have in common.
pub(super) struct Data<'a> {
    pub(super) settings: &'a Settings,
    made_for: (Sizes, Sizes, Keys),
    pub(super) records: u64,
    pub(super) value_bytes: usize,
    pub(super) corpus: Corpus,
    pub(super) stream: Stream,
}

impl<'a> Data<'a> {
    /// For the stores of a curve.
    pub(super) fn new(settings: &'a Settings, curve: &Curve<'_>) -> Data<'a> {
        let (records, seed) = (curve.records(), settings.seed);
        Data {
            settings,
            made_for: (curve.key, curve.value, curve.keys),
            records,
            value_bytes: curve.value_bytes(),
            corpus: Corpus::new(curve.key, curve.value, seed),
            stream: Stream::new(records, curve.keys, seed),
        }
    }

    /// Whether it is for the stores of this curve, too.
    pub(super) fn is_for(&self, curve: &Curve<'_>) -> bool {
        self.made_for == (curve.key, curve.value, curve.keys)
    }

    /// A store that holds all records.
    pub(super) fn filled(&self, curve: &Curve<'_>, what_for: For) -> Result<Filled, Error> {
        let fill = || {
            let private_before = process::private_bytes();
            let site = curve.site()?;
            let subject = self.open(&Opening::of(curve, &site, what_for), site.dir())?;
            self.fill(curve, &*subject)?;
            Ok::<_, Error>(Filled {
                subject,
                site,
                private_before,
            })
        };
        fill().with_context(|| format!("filling a store of the system {}", curve.system.name()))
    }

    pub(super) fn open(
        &self,
        opening: &Opening<'_>,
        dir: &Path,
    ) -> Result<Box<dyn Subject>, Error> {
        opening.open(dir, self.records, self.corpus.record_bytes())
    }

    /// Puts all records into an open store.
    pub(super) fn fill(&self, curve: &Curve<'_>, store: &dyn Subject) -> Result<(), Error> {
        self.load(curve, store)?;
        match curve.system {
            System::Bullet(_) if curve.system.gleans() => self.prime(curve, store),
            System::Bullet(_) | System::Viper(Viper::Scan) => Ok(()),
            _ => store.checkpoint(),
        }
    }

    fn load(&self, curve: &Curve<'_>, store: &dyn Subject) -> Result<(), Error> {
        let records = self.records;
        let workers = curve.workers();
        let next = AtomicU64::new(0);
        let watched = Workers::new(workers, Writes::ALL);
        let loading = (0..workers)
            .map(|_| Loading::new(&self.corpus, &next, (records, records), curve.batch()))
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
    fn prime(&self, curve: &Curve<'_>, store: &dyn Subject) -> Result<(), Error> {
        let wanted = curve.all_log_bytes() / self.settings.paper().logged_bytes;
        let Some(missing) = wanted.checked_sub(self.records) else {
            return Ok(());
        };
        let workers = curve.workers();
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
