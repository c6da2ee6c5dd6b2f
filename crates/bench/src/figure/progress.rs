//! How far a measurement is, and the row of each of its points.

use super::Measure;
use super::settings::Settings;
use super::settings::curve::Curve;
use super::system::{System, Viper};
use crate::machine::Machine;
use crate::row::Row;
use crate::workload::distribution::Keys;
use serde_json::json;

/// How far a measurement is.
pub(super) struct Progress<'a> {
    tell: &'a mut dyn FnMut(f64, &str),
    settings: &'a Settings,
    machine: Machine,
    pub(super) curve: Curve<'a>,
    what: String,
    done: usize,
}

impl<'a> Progress<'a> {
    /// Nothing is done; `first` comes next.
    pub(super) fn new(
        settings: &'a Settings,
        first: Curve<'a>,
        tell: &'a mut dyn FnMut(f64, &str),
    ) -> Progress<'a> {
        Progress {
            tell,
            settings,
            machine: Machine::here(&settings.dir),
            curve: first,
            what: String::new(),
            done: 0,
        }
    }

    /// A store of `curve` is opened and filled.
    pub(super) fn step(&mut self, round: usize, curve: Curve<'a>) {
        self.what = match self.settings.rounds {
            1 => curve.label(),
            _ => format!("round {}: {}", round + 1, curve.label()),
        };
        self.curve = curve;
        let next = match self.settings.figure.measure {
            Measure::Servers => "starting the server",
            Measure::Fabric => "filling the stores",
            Measure::Patterns => "beginning",
            _ => "filling the store",
        };
        self.say(&format!("{}: {next}", self.what));
    }

    fn say(&mut self, what: &str) {
        let all = self.settings.points().max(1);
        (self.tell)(self.done as f64 / all as f64, what);
    }

    /// The row of the point that comes next; `workload` = none: the share of writes says it all.
    pub(super) fn row(&mut self, workload: &str, percent: f64, threads: usize) -> Row {
        let what = std::mem::take(&mut self.what);
        self.say(&what);
        self.what = what;
        self.done += 1;
        self.row_of(workload, percent, threads)
    }

    /// Another row of the same point.
    pub(super) fn row_of(&self, workload: &str, percent: f64, threads: usize) -> Row {
        let settings = self.settings;
        let mut conditions = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "medium": "emulated",
            "delays": self.curve.delays().unwrap_or("none"),
            "records": self.curve.records(),
            "key": self.curve.key.mean(),
            "value": self.curve.value_bytes(),
            "skew": crate::workload::distribution::EXPONENT,
            "writes": percent,
            "logs": self.curve.logs(),
            "log_bytes": self.curve.log_bytes,
            "seconds": settings.seconds,
            "warm_up_seconds": settings.warm_up_seconds(),
            "rounds": settings.rounds,
            "seed": settings.seed,
        });
        if let Some(bytes) = settings.limit_bytes() {
            conditions["pool_bytes"] = bytes.into();
        }
        if !settings.delays.is_empty() {
            conditions["device"] = self.curve.delays.into();
        }
        if !settings.figure.sizes.is_empty() {
            conditions["sizes"] = self.curve.sizes().into();
        }
        if !settings.figure.keys.is_empty() {
            conditions["keys"] = self.curve.keys.name().into();
            if self.curve.keys == Keys::Uniform {
                conditions["skew"] = 0.into();
            }
        }
        if self.curve.system == System::Viper(Viper::Memory) {
            conditions["medium"] = "ordinary".into();
        }
        if let Some(ground) = self.curve.ground {
            self.curve.describe(ground, &mut conditions);
        }
        let share = format!("{percent} % writes");
        let workload = if workload.is_empty() {
            &share
        } else {
            workload
        };
        let (suite, system) = (&settings.figure.name, self.curve.system.name());
        Row::new(suite, system, workload, threads, conditions, &self.machine)
    }

    /// Cores of this machine.
    pub(super) fn cores(&self) -> usize {
        self.machine.cores.max(1)
    }

    /// How often so many puts would fill all logs.
    pub(super) fn log_turns(&self, puts: u64) -> f64 {
        let bytes = puts * self.settings.paper().logged_bytes;
        bytes as f64 / self.curve.all_log_bytes().max(1) as f64
    }
}
