//! What of a figure is not measured, and what would change that.

use super::Settings;
use crate::figure::fabric::MISSING;
use crate::figure::{Ground, Measure, System};
use crate::machine::Machine;
use crate::row::Row;

impl Settings {
    /// What of the figure is not measured, and what would change that.
    #[must_use]
    pub fn left_out(&self) -> Vec<(String, String)> {
        let mut left_out = Vec::new();
        for ground in &self.figure.grounds {
            if !self.grounds.contains(ground) {
                let why = match ground.is_on_disk() && self.data_dir.is_none() {
                    true => "give a directory on a disk: --data-dir DIR",
                    false => "not asked for",
                };
                let what = format!("ground {}, {}", ground.name().to_uppercase(), ground.what());
                left_out.push((what, why.into()));
            }
        }
        for ground in self
            .grounds
            .iter()
            .filter(|ground| **ground == Ground::Files)
        {
            let own = self.systems.iter().filter(|system| !system.is_rival());
            for system in own.filter(|system| !system.is_on(Some(*ground))) {
                let what = format!("{}, ground {}", system.name(), ground.name().to_uppercase());
                left_out.push((what, "it exists to be measured on memory".into()));
            }
        }
        for system in self.figure.systems() {
            if self.figure.compares(&system) && !system.is_installed() {
                let why = "redis-server is not installed; apt-get install redis-server";
                left_out.push((system.name().into(), why.into()));
            }
        }
        if self.figure.measure == Measure::Fabric {
            let missing = MISSING.map(|(what, why)| (what.to_owned(), why.to_owned()));
            left_out.extend(missing);
        }
        left_out.extend(self.figure.missing.iter().cloned());
        let has_rivals = self.systems.iter().any(System::is_rival);
        if self.figure.rivals && self.grounds.contains(&Ground::Disk) && !has_rivals {
            let why = "not asked for, or not in this build: cargo build --release -p everdram-cli --features rivals";
            left_out.push(("rivals".into(), why.into()));
        }
        left_out
    }

    /// The same as rows.
    #[must_use]
    pub fn left_out_rows(&self) -> Vec<Row> {
        let machine = Machine::here(&self.dir);
        let left_out = self.left_out().into_iter();
        let row = |(what, why): (String, String)| Row::left_out(&what, &why, &machine);
        left_out.map(row).collect()
    }
}
