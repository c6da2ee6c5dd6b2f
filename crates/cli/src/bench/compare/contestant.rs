//! Who takes part: the stores of this build, and everdram twice.

use super::super::store::{self, Store};
use everdram::{EngineKind, Medium};
use everdram_bench::Sizes;
use everdram_bench::compare::Ground;
use std::path::Path;

/// The one that knows no medium, and is no rival on a disk.
const VOLATILE: &str = "scc";

/// A store of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contestant {
    /// As `--store` takes it.
    pub(super) store: String,
    /// everdram: its engine.
    pub(super) engine: EngineKind,
    /// everdram: pages for records of one size.
    pub(super) fixed: bool,
}

impl Contestant {
    /// Those of this build whose names contain one of `only`, or all; everdram with this engine.
    pub(super) fn all(engine: EngineKind, only: &[String]) -> Vec<Contestant> {
        let with_pages = |store: String| {
            let fixed = (store == "everdram").then(|| Contestant {
                store: store.clone(),
                engine,
                fixed: true,
            });
            let usual = Contestant {
                store,
                engine,
                fixed: false,
            };
            std::iter::once(usual).chain(fixed)
        };
        store::names()
            .into_iter()
            .filter(|name| is_wanted(only, name))
            .flat_map(with_pages)
            .collect()
    }

    /// Whether it has anything to show there. Pages of one size make no difference to a disk.
    pub(super) fn stands_on(&self, ground: Ground) -> bool {
        ground == Ground::Emulated || (self.store != VOLATILE && !self.fixed)
    }

    /// As the command lines of this folder say it, with records of 16 + 200 bytes.
    pub(super) fn on(&self, ground: Ground, dir: &Path, records: u64, seed: u64) -> Store {
        Store {
            store: self.store.clone(),
            engine: self.engine,
            medium: match ground {
                Ground::Emulated => Medium::Emulated,
                Ground::Disk => Medium::File,
            },
            dir: dir.to_owned(),
            records,
            keys: Sizes::Fixed(16),
            values: Sizes::Fixed(200),
            fixed: self.fixed,
            grow: false,
            no_checkpoint: false,
            seed,
        }
    }

    /// `redb`, `everdram viper`, `everdram viper, fixed`.
    pub(super) fn label(&self) -> String {
        let opener = self.on(Ground::Emulated, Path::new("."), 1, 1).opener();
        opener.map_or_else(|_| self.store.clone(), |opener| opener.label())
    }
}

/// Whether `name` is among those that were asked for.
pub(super) fn is_wanted(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|part| name.contains(part.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everdram_is_there_twice_but_on_a_disk_once() {
        let own = Contestant::all(EngineKind::default(), &["everdram".into()]);
        let labels: Vec<_> = own.iter().map(Contestant::label).collect();
        assert_eq!(labels, ["everdram viper", "everdram viper, fixed"]);
        let on_disk = own.iter().filter(|one| one.stands_on(Ground::Disk));
        assert_eq!(on_disk.count(), 1);
        assert!(Contestant::all(EngineKind::default(), &["nobody".into()]).is_empty());
    }
}
