//! A store that is measured: of `viper`, or with a log below its pool.

use super::Settings;
use crate::everdram::Everdram;
use crate::fixture::{Fixture, Place, Script};
use crate::subject::Error;
use crate::workload::Workload;
use crate::workload::corpus::Corpus;
use crate::workload::sizes::Sizes;
use anyhow::Context;
use everdram::{EngineKind, Medium, Store};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the keys.
pub(super) const KEY_BYTES: usize = 16;
/// Records for each one that the pool of [`Kind::Tight`] holds.
pub(super) const TIMES: u64 = 4;
/// Records that tell how many bytes of a pool one takes.
const FEW: u64 = 1000;
/// Nothing leaves a pool any more if nothing has for so long.
const AT_REST: Duration = Duration::from_millis(300);

/// What kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of `viper`.
    Viper,
    /// Of `viper`, with a pool that is small at first.
    Growing,
    /// Of `tiered`, with a pool for everything.
    Roomy,
    /// Of `tiered`, with a pool for the part [`TIMES`] of the records.
    Tight,
}

impl Kind {
    fn has_log(self) -> bool {
        matches!(self, Kind::Roomy | Kind::Tight)
    }
}

/// What stores of all kinds have in common.
pub(super) struct Ground<'a> {
    pub(super) settings: &'a Settings,
    pub(super) corpus: Corpus,
    pub(super) records: u64,
    /// Bytes that a record takes of a pool.
    pub(super) record_bytes: f64,
    pub(super) value_bytes: usize,
}

impl<'a> Ground<'a> {
    /// For so many records with values of this size.
    pub(super) fn new(
        settings: &'a Settings,
        records: u64,
        value_bytes: usize,
    ) -> Result<Ground<'a>, Error> {
        let (keys, values) = (Sizes::Fixed(KEY_BYTES), Sizes::Fixed(value_bytes));
        let mut ground = Ground {
            settings,
            corpus: Corpus::new(keys, values, settings.seed),
            records,
            record_bytes: 0.0,
            value_bytes,
        };
        let few = Bed::filled(&ground, Kind::Growing, FEW, |_| {})?;
        let stats = few.store()?.stats();
        drop(few);
        ground.record_bytes = stats.live_bytes as f64 / stats.keys.max(1) as f64;
        Ok(ground)
    }

    /// Of records of the usual size, as many as the settings say.
    pub(super) fn usual(settings: &'a Settings) -> Result<Ground<'a>, Error> {
        Ground::new(settings, settings.records, crate::bars::USUAL.1)
    }

    /// Bytes of keys and values of so many records.
    pub(super) fn payload(&self, records: u64) -> f64 {
        (records * (KEY_BYTES + self.value_bytes) as u64) as f64
    }

    /// Records that the pool of [`Kind::Tight`] would hold, were there nothing else in it.
    pub(super) fn pool_records(&self) -> u64 {
        self.records / TIMES
    }

    /// The limit of the pool of [`Kind::Tight`].
    pub(super) fn pool_bytes(&self) -> u64 {
        (self.pool_records() as f64 * self.record_bytes) as u64
    }

    pub(super) fn opener(&self, kind: Kind, below: &Path) -> Everdram {
        let mut opener = Everdram {
            prefault: kind != Kind::Growing,
            ..Everdram::on(Medium::Emulated)
        };
        if kind.has_log() {
            opener.engine = EngineKind::Tiered;
            opener.tiered.below = Some(below.to_owned());
            opener.max_bytes = Some(match kind {
                Kind::Tight => self.pool_bytes(),
                _ => self.payload(self.records) as u64 * 4 + (256 << 20),
            });
        }
        opener
    }

    pub(super) fn bed(&self, kind: Kind) -> Result<Bed<'_>, Error> {
        Bed::filled(self, kind, self.records, |_| {})
    }
}

/// An open store.
pub(super) struct Bed<'a> {
    pub(super) fixture: Fixture<'a>,
    // After the store, which has its log there.
    _below: Place,
    seed: u64,
}

impl<'a> Bed<'a> {
    /// With so many records in it, and whatever `set` changes.
    pub(super) fn filled(
        ground: &'a Ground<'_>,
        kind: Kind,
        records: u64,
        set: impl FnOnce(&mut Everdram),
    ) -> Result<Bed<'a>, Error> {
        let settings = ground.settings;
        let below = Place::within(&settings.file_dir)?;
        let mut opener = ground.opener(kind, below.path());
        set(&mut opener);
        // Room for all of them, even if they come later.
        let room = ground.records.max(records);
        let fixture = Fixture::open(&opener, &settings.dir, &ground.corpus, room)?;
        fixture.load(records, 1)?;
        Ok(Bed {
            fixture,
            _below: below,
            seed: settings.seed,
        })
    }

    pub(super) fn store(&self) -> Result<&Store, Error> {
        self.fixture.subject.store().context("no store of everdram")
    }

    /// One of its own counters.
    pub(super) fn count(&self, name: &str) -> Result<u64, Error> {
        let own = self.fixture.subject.own(name);
        own.with_context(|| format!("no counter {name}"))
    }

    /// A script over the first `records`.
    pub(super) fn script(&self, workload: Workload, records: u64) -> Script {
        Script::new(workload, records, 1, self.seed)
    }

    /// Waits until nothing leaves the pool any more.
    pub(super) fn rest(&self) -> Result<(), Error> {
        let (mut seen, mut since) = (self.count("evicted_records")?, Instant::now());
        while since.elapsed() < AT_REST {
            std::thread::sleep(AT_REST / 10);
            let now = self.count("evicted_records")?;
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        Ok(())
    }
}
