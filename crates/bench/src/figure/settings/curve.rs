//! A curve: what its stores are, and where they lie.

use super::Settings;
use crate::figure::system::{Ground, System};
use crate::figure::{Measure, mib};
use crate::fixture::Place;
use crate::subject::Error;
use crate::workload::distribution::Keys;
use crate::workload::sizes::Sizes;
use serde_json::Value;
use std::path::Path;

/// Logs of a store, at least and at most.
const LOGS: std::ops::RangeInclusive<usize> = 4..=128;
/// The usual engine behind a fabric door.
const BACK_END: &str = "viper";
/// Records that are loaded under one sync, where there is a disk.
const LOADED_TOGETHER: usize = 64;

/// What the stores of a curve are.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// Which system.
    pub system: System,
    /// What it lies on, if the figure tells.
    pub ground: Option<Ground>,
    /// Bytes of each of its logs.
    pub log_bytes: u64,
    /// Sizes of its keys and of its values.
    pub key: Sizes,
    /// See `key`.
    pub value: Sizes,
    /// By which distribution keys are asked for.
    pub keys: Keys,
    /// Delay model of the emulated medium.
    pub delays: &'a str,
    /// The engine behind a fabric door, or one of its systems.
    pub back_end: &'a str,
    /// Bytes of each memtable of a rival, if they are to be others than usual.
    pub memtable_bytes: Option<u64>,
    pub(crate) settings: &'a Settings,
}

/// Where a store is: its pool or all of it, and what is elsewhere: its data file, or the log of a stand-in.
pub struct Site {
    main: Place,
    beside: Option<Place>,
}

impl Site {
    /// The directory of the store.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.main.path()
    }

    /// The directory of what is elsewhere.
    #[must_use]
    pub fn beside(&self) -> Option<&Path> {
        self.beside.as_ref().map(Place::path)
    }
}

impl<'a> Curve<'a> {
    pub(crate) fn new(
        settings: &'a Settings,
        system: System,
        ground: Option<Ground>,
        log_bytes: u64,
        (key, value): (Sizes, Sizes),
    ) -> Curve<'a> {
        Curve {
            system,
            ground,
            log_bytes,
            key,
            value,
            keys: Keys::Zipfian,
            delays: &settings.paper().delays,
            back_end: BACK_END,
            memtable_bytes: None,
            settings,
        }
    }

    /// The same, with another delay model.
    pub(crate) fn with_delays(mut self, delays: &'a str) -> Curve<'a> {
        self.delays = delays;
        self
    }

    /// The same, with keys by another distribution.
    pub(crate) fn with_keys(mut self, keys: Keys) -> Curve<'a> {
        self.keys = keys;
        self
    }

    /// The same, with another back end.
    pub(crate) fn with_back_end(mut self, back_end: &'a str) -> Curve<'a> {
        self.back_end = back_end;
        self
    }

    /// The same, with memtables of so many bytes.
    pub(crate) fn with_memtables(mut self, bytes: u64) -> Curve<'a> {
        self.memtable_bytes = Some(bytes);
        self
    }

    /// Bytes of a value, about.
    pub(crate) fn value_bytes(&self) -> usize {
        self.value.mean()
    }

    /// Bytes of a record, about.
    pub(crate) fn record_bytes(&self) -> u64 {
        (self.key.mean() + self.value.mean()) as u64
    }

    /// Records of a store: where sizes are compared, as many bytes of each.
    pub(crate) fn records(&self) -> u64 {
        let (settings, paper) = (self.settings, self.settings.paper());
        match settings.figure.sizes.is_empty() {
            true => settings.records,
            false => {
                let usual = (paper.key_bytes + paper.value_bytes) as u64;
                (settings.records * usual / self.record_bytes()).max(1)
            }
        }
    }

    /// The sizes as tables say them.
    pub(crate) fn sizes(&self) -> String {
        format!("{} + {} B", self.key, self.value)
    }

    /// The delay model of its memory, if that has one.
    pub(crate) fn delays(&self) -> Option<&'a str> {
        match self.system {
            System::Viper(viper) if !viper.is_delayed() => None,
            _ => Some(self.delays),
        }
    }

    /// Adds what its ground has to say to the conditions of a row.
    pub(crate) fn describe(&self, ground: Ground, conditions: &mut Value) {
        let is_emulated = ground != Ground::Files && !self.system.is_rival();
        conditions["ground"] = ground.name().into();
        if !is_emulated {
            conditions["medium"] = "file".into();
            conditions["delays"] = Value::Null;
        }
        if ground == Ground::Modelled && self.settings.figure.measure != Measure::Overhead {
            conditions["disk"] = self.settings.paper().disk.clone().into();
        }
        conditions["rival"] = self.system.is_rival().into();
        conditions["durable"] = self.system.durability().word().into();
        if let Some(of) = self.system.stands_in_for() {
            conditions["stands_in_for"] = of.into();
            conditions["log_medium"] = "emulated, without delays".into();
        }
        if let Some(bytes) = self.memtable_bytes {
            conditions["memtable_bytes"] = bytes.into();
        }
    }

    /// What tells it from others of its figure.
    pub(crate) fn label(&self) -> String {
        let mut label = self.system.name().to_owned();
        if let Some(ground) = self.ground {
            label += &format!(", ground {}", ground.name().to_uppercase());
        }
        if let Some(bytes) = self.memtable_bytes {
            label += &format!(", memtables of {}", mib(bytes));
        } else if self.settings.log_bytes.len() > 1 {
            label += &format!(", logs of {}", mib(self.log_bytes));
        }
        if self.settings.back_ends.len() > 1 {
            label += &format!(", {}", self.back_end);
        }
        if self.settings.delays.len() > 1 {
            label += &format!(", {}", self.delays);
        }
        if self.settings.values.len() > 1 {
            label += &format!(", values of {}", mib(self.value_bytes() as u64));
        }
        if self.settings.figure.sizes.len() > 1 {
            label += &format!(", {}", self.sizes());
        }
        if self.settings.figure.keys.len() > 1 {
            label += &format!(", {}", self.keys);
        }
        label
    }

    /// Numbers of workers.
    pub(crate) fn threads(&self) -> &'a [usize] {
        match self.ground.is_some_and(Ground::is_on_disk) {
            true => &self.settings.disk_threads,
            false => &self.settings.threads,
        }
    }

    /// The greatest number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.threads().iter().copied().max().unwrap_or(1)
    }

    /// Records that are put together where it is not measured.
    pub(crate) fn batch(&self) -> usize {
        match self.ground.is_some_and(Ground::is_on_disk) {
            true => LOADED_TOGETHER,
            false => 1,
        }
    }

    /// Cores that its workers share; `None` if they wait for a disk.
    pub(crate) fn shared(&self, cores: usize) -> Option<usize> {
        (!self.ground.is_some_and(Ground::is_on_disk)).then_some(cores)
    }

    /// Logs of a store.
    pub(crate) fn logs(&self) -> usize {
        let logs = self.settings.paper().logs_a_worker * self.workers();
        logs.clamp(*LOGS.start(), *LOGS.end())
    }

    /// Bytes of all logs.
    pub(crate) fn all_log_bytes(&self) -> u64 {
        self.logs() as u64 * self.log_bytes
    }

    /// The directory in which its stores are.
    fn dir(&self) -> Result<&'a Path, Error> {
        let settings = self.settings;
        let is_on_disk = self.system.is_rival() || self.ground == Some(Ground::Files);
        match is_on_disk {
            true => settings.data_dir(),
            false => Ok(&settings.dir),
        }
    }

    /// Empty directories for a store.
    pub(crate) fn site(&self) -> Result<Site, Error> {
        let has_log_beside = self.system.stands_in_for().is_some();
        let beside = match self.ground {
            Some(Ground::Modelled) => Some(&*self.settings.dir),
            Some(Ground::Disk) if has_log_beside => Some(&*self.settings.dir),
            Some(Ground::Disk) if !self.system.is_rival() => Some(self.settings.data_dir()?),
            _ => None,
        };
        Ok(Site {
            main: Place::within(self.dir()?)?,
            beside: beside.map(Place::within).transpose()?,
        })
    }
}
