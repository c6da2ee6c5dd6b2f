//! Which store is measured, and where: what the command lines of this folder have in common.

use crate::settings::{engine, usage};
use crate::units;
use everdram::{EngineKind, Medium};
use everdram_bench::{Everdram, Opener, Sizes};
use everdram_pm::{DiskPreset, MediumChoice, Preset};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A store on a medium, and what its records look like.
#[derive(clap::Args, Clone)]
pub(crate) struct Store {
    /// The store; `bench run --list` names those of this build.
    #[arg(long, default_value = "everdram")]
    pub(crate) store: String,
    /// everdram: its engine.
    #[arg(long, default_value_t, value_parser = engine())]
    pub(crate) engine: EngineKind,
    /// Where everdram keeps its pool: emulated, file or pmem.
    #[arg(long, default_value = "emulated", value_parser = medium)]
    pub(crate) medium: Medium,
    /// A directory on the medium: on tmpfs for emulated persistent memory.
    #[arg(long, default_value = "/dev/shm")]
    pub(crate) dir: PathBuf,
    /// Records that the store holds, such as 5M.
    #[arg(long, default_value = "5M", value_parser = units::parse_count)]
    pub(crate) records: u64,
    /// Bytes of a key: a number, normal:MEAN or skewed:MEDIAN:MOST.
    #[arg(long = "key", default_value = "16")]
    pub(crate) keys: Sizes,
    /// Bytes of a value: a number, normal:MEAN or skewed:MEDIAN:MOST.
    #[arg(long = "value", default_value = "200")]
    pub(crate) values: Sizes,
    /// everdram: pages for records of exactly this size.
    #[arg(long)]
    pub(crate) fixed: bool,
    /// everdram: begin with a small pool that grows while it is measured, instead of one that is large and
    /// present.
    #[arg(long)]
    pub(crate) grow: bool,
    /// everdram: write no checkpoints of the index, so that a restart reads every record.
    #[arg(long)]
    pub(crate) no_checkpoint: bool,
    /// everdram: delay model of the emulated medium, by the name of a preset.
    #[arg(long)]
    pub(crate) delay: Option<String>,
    /// Engine dstore: delay model of the disk that the data file plays on the emulated medium, such as
    /// p4800x.
    #[arg(long)]
    pub(crate) data_delay: Option<String>,
    /// Engine dstore: bytes of each log.
    #[arg(long, hide = true)]
    pub(crate) log_bytes: Option<u64>,
    /// Engine dstore: bytes that a crash is to find in the logs.
    #[arg(long, hide = true)]
    pub(crate) logged_bytes: Option<u64>,
    /// Limit of everdram's pool in bytes.
    #[arg(long, hide = true)]
    pub(crate) max_bytes: Option<u64>,
    /// Engine tiered: the directory of its log.
    #[arg(long, hide = true)]
    pub(crate) below: Option<PathBuf>,
    /// Seed of all choices.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
}

/// The media that can be asked for by name.
fn medium(text: &str) -> Result<Medium, String> {
    match text {
        "emulated" => Ok(Medium::Emulated),
        "file" => Ok(Medium::File),
        "pmem" => Ok(Medium::Pmem),
        _ => Err(format!("medium `{text}`: emulated, file or pmem")),
    }
}

/// The other stores of this build.
pub(crate) fn rivals() -> &'static [Box<dyn Opener>] {
    #[cfg(feature = "rivals")]
    {
        static ALL: std::sync::LazyLock<Vec<Box<dyn Opener>>> =
            std::sync::LazyLock::new(everdram_bench_rivals::all);
        &ALL
    }
    #[cfg(not(feature = "rivals"))]
    &[]
}

/// Stores of this build that stand in for others that are not to be had.
pub(crate) fn stand_ins() -> &'static [Box<dyn Opener>] {
    #[cfg(feature = "rivals")]
    {
        static ALL: std::sync::LazyLock<Vec<Box<dyn Opener>>> =
            std::sync::LazyLock::new(everdram_bench_rivals::stand_ins);
        &ALL
    }
    #[cfg(not(feature = "rivals"))]
    &[]
}

/// Names of the stores of this build.
pub(crate) fn names() -> Vec<String> {
    let own = ["everdram".to_owned()];
    let rivals = rivals().iter().map(|rival| rival.name().to_owned());
    own.into_iter().chain(rivals).collect()
}

impl Store {
    /// With records of 16 + 200 bytes, and all else as the command line has it if nothing is said.
    pub(crate) fn new(
        store: &str,
        engine: EngineKind,
        dir: &Path,
        records: u64,
        seed: u64,
    ) -> Store {
        Store {
            store: store.into(),
            engine,
            medium: Medium::Emulated,
            dir: dir.to_owned(),
            records,
            keys: Sizes::Fixed(16),
            values: Sizes::Fixed(200),
            fixed: false,
            grow: false,
            no_checkpoint: false,
            delay: None,
            data_delay: None,
            log_bytes: None,
            logged_bytes: None,
            max_bytes: None,
            below: None,
            seed,
        }
    }

    /// How to open it.
    ///
    /// # Errors
    /// If this build has no such store, or it cannot be as asked.
    pub(crate) fn opener(&self) -> anyhow::Result<Box<dyn Opener>> {
        if self.store != "everdram" {
            return self.rival();
        }
        if let Some(name) = &self.delay {
            Preset::by_name(name).map_err(usage)?;
        }
        if let Some(name) = &self.data_delay {
            DiskPreset::by_name(name, MediumChoice::Only(self.medium)).map_err(usage)?;
        }
        let fixed = self.fixed.then(|| self.exact()).transpose()?;
        let mut opener = Everdram {
            engine: self.engine,
            fixed,
            prefault: !self.grow,
            checkpoint: !self.no_checkpoint,
            delay: self.delay.clone(),
            logged_bytes: self.logged_bytes,
            max_bytes: self.max_bytes,
            ..Everdram::on(self.medium)
        };
        opener.dstore.data_delay.clone_from(&self.data_delay);
        opener.dstore.log_bytes = self.log_bytes.unwrap_or(opener.dstore.log_bytes);
        opener.tiered.below.clone_from(&self.below);
        Ok(Box::new(opener))
    }

    /// The one size of all records.
    pub(crate) fn exact(&self) -> anyhow::Result<(u32, u32)> {
        match (self.keys, self.values) {
            (Sizes::Fixed(key), Sizes::Fixed(value)) => {
                Ok((u32::try_from(key)?, u32::try_from(value)?))
            }
            _ => Err(usage(
                "--fixed is for records of one size: give --key and --value as numbers",
            )),
        }
    }

    #[cfg(feature = "rivals")]
    fn rival(&self) -> anyhow::Result<Box<dyn Opener>> {
        everdram_bench_rivals::all()
            .into_iter()
            .find(|rival| rival.name() == self.store)
            .ok_or_else(|| self.unknown())
    }

    #[cfg(not(feature = "rivals"))]
    fn rival(&self) -> anyhow::Result<Box<dyn Opener>> {
        Err(self.unknown())
    }

    fn unknown(&self) -> anyhow::Error {
        let remedy = if cfg!(feature = "rivals") {
            ""
        } else {
            "; others are in a build with --features rivals"
        };
        usage(format!(
            "store `{}`: this build has {}{remedy}",
            self.store,
            names().join(", ")
        ))
    }

    /// As the command line takes it, of a store in `dir`.
    pub(crate) fn arguments(&self, dir: &Path) -> Vec<OsString> {
        let named = [
            ("--store", self.store.clone()),
            ("--engine", self.engine.to_string()),
            ("--medium", self.medium.to_string()),
            ("--records", self.records.to_string()),
            ("--key", self.keys.to_string()),
            ("--value", self.values.to_string()),
            ("--seed", self.seed.to_string()),
        ];
        let optional = [
            ("--delay", self.delay.clone()),
            ("--data-delay", self.data_delay.clone()),
            ("--max-bytes", self.max_bytes.map(|bytes| bytes.to_string())),
            ("--log-bytes", self.log_bytes.map(|bytes| bytes.to_string())),
            (
                "--logged-bytes",
                self.logged_bytes.map(|bytes| bytes.to_string()),
            ),
        ];
        let optional = optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let flags = [
            ("--fixed", self.fixed),
            ("--grow", self.grow),
            ("--no-checkpoint", self.no_checkpoint),
        ];
        let below = self.below.iter();
        let below = below.flat_map(|path| ["--below".into(), path.into()]);
        let named = named
            .into_iter()
            .chain(optional)
            .flat_map(|(name, value)| [name.into(), value.into()]);
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set);
        named
            .chain(below)
            .chain(flags.map(|(flag, _)| OsString::from(flag)))
            .chain(["--dir".into(), dir.into()])
            .collect()
    }
}

/// Refuses a directory that is not there before anything is measured.
pub(crate) fn ensure_directory(dir: &Path) -> anyhow::Result<()> {
    if dir.is_dir() {
        Ok(())
    } else {
        Err(usage(format!("{}: no such directory", dir.display())))
    }
}
