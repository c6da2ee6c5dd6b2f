//! Turns: what each of them is about, in order.

use super::Settings;
use super::curve::Curve;
use crate::figure::{Ground, Measure, System, pattern};
use crate::workload::sizes::Sizes;

/// Percent of the records at which a store that is filled is looked at.
pub(in crate::figure) const PERCENTS: [u64; 6] = [5, 10, 25, 50, 75, 100];

impl Settings {
    /// What each turn is about, in order; systems take turns within a ground.
    pub(in crate::figure) fn curves(&self) -> Vec<Curve<'_>> {
        let grounds: Vec<Option<Ground>> = match self.grounds.as_slice() {
            [] if self.figure.grounds.is_empty() => vec![None],
            grounds => grounds.iter().copied().map(Some).collect(),
        };
        let mut curves = Vec::new();
        let usual = std::slice::from_ref(&self.paper().delays);
        let delays = match self.delays.as_slice() {
            [] => usual,
            delays => delays,
        };
        let media = self.sizes().into_iter();
        let media = media.flat_map(|sizes| delays.iter().map(move |delays| (sizes, delays)));
        for (sizes, delays) in media {
            for ground in grounds.iter().copied() {
                let systems = self.systems.iter().copied();
                for system in systems.filter(|system| self.is_on(*system, ground)) {
                    let of = |log_bytes| {
                        Curve::new(self, system, ground, log_bytes, sizes).with_delays(delays)
                    };
                    if !self.back_ends.is_empty() {
                        let one = of(self.log_bytes[0]);
                        let all = self.back_ends.iter();
                        curves.extend(all.map(|back_end| one.with_back_end(back_end)));
                    } else if system.is_rival() {
                        curves.extend(self.sized(of(self.log_bytes[0])));
                    } else {
                        curves.extend(self.log_bytes.iter().copied().map(of));
                    }
                }
            }
        }
        curves.into_iter().flat_map(|one| self.asked(one)).collect()
    }

    /// A curve, by each distribution of keys of the figure; of rivals by the last alone.
    fn asked<'a>(&self, curve: Curve<'a>) -> Vec<Curve<'a>> {
        let keys = match (curve.system.is_rival(), self.figure.keys.as_slice()) {
            (_, []) => return vec![curve],
            (true, [.., last]) => std::slice::from_ref(last),
            (false, keys) => keys,
        };
        keys.iter().map(|keys| curve.with_keys(*keys)).collect()
    }

    /// Sizes of keys and values.
    fn sizes(&self) -> Vec<(Sizes, Sizes)> {
        let key = Sizes::Fixed(self.paper().key_bytes);
        let values = self.values.iter().map(|bytes| (key, Sizes::Fixed(*bytes)));
        match self.figure.sizes.is_empty() {
            true => values.collect(),
            false => self.figure.sizes.clone(),
        }
    }

    /// Whether a system is measured on a ground.
    #[must_use]
    pub fn is_on(&self, system: System, ground: Option<Ground>) -> bool {
        let is_alone = ground.is_some_and(|ground| self.figure.rivals_alone.contains(&ground));
        system.is_on(ground) && (system.is_rival() || !is_alone)
    }

    /// A rival, with memtables of each size that the figure wants.
    fn sized<'a>(&self, curve: Curve<'a>) -> Vec<Curve<'a>> {
        let sizes = self.figure.memtable_mib.iter();
        match self.figure.memtable_mib.is_empty() {
            true => vec![curve],
            false => sizes.map(|mib| curve.with_memtables(mib << 20)).collect(),
        }
    }

    /// Whether there is something to measure.
    #[must_use]
    pub fn has_turns(&self) -> bool {
        !self.curves().is_empty()
    }

    /// Points, or phases, that are measured in all.
    pub(in crate::figure) fn points(&self) -> usize {
        let of = |curve: &Curve<'_>| match self.figure.measure {
            Measure::Points | Measure::Tails => curve.threads().len() * self.writes.len(),
            Measure::Calls => self.writes.len().min(1),
            Measure::Phases => self.writes.len(),
            Measure::Clients => self.clients.len() * self.writes.len(),
            Measure::Fabric => self.writes.len(),
            Measure::Restart => 2,
            Measure::Growth => PERCENTS.len(),
            Measure::Overhead | Measure::Footprint | Measure::Servers | Measure::Steps => 1,
            Measure::Summary => 3,
            Measure::Patterns => curve.threads().len() * pattern::of(curve.system),
            Measure::Operations => curve.threads().len() * self.figure.operations.len(),
            Measure::Reclaiming => 4,
            Measure::Recovery => curve.threads().len(),
        };
        self.rounds * self.curves().iter().map(of).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;
    use crate::subject::{Durability, Error, Opener, Subject};
    use anyhow::bail;
    use std::path::Path;

    const GIB: u64 = 1 << 30;

    /// Each system is measured with each size of logs, on each ground.
    #[test]
    fn turns_are_of_systems_on_grounds() {
        let of = |name: &str| {
            let figure = Figure::find(name).unwrap();
            Settings::of(figure, true, Path::new("/there"), 2, GIB)
        };
        let labels = |settings: &Settings| {
            let curves = settings.curves().into_iter();
            curves.map(|curve| curve.label()).collect::<Vec<_>>()
        };
        assert_eq!(
            labels(&of("dstore-1")),
            [
                "+oe, ground A, logs of 4 MiB",
                "+oe, ground A, logs of 256 MiB",
                "cow, ground A, logs of 4 MiB",
                "cow, ground A, logs of 256 MiB",
            ]
        );
        // A bound is on memory alone, and a run of all grounds does not end at it.
        let mut all = of("dstore-8");
        all.grounds = all.figure.grounds.clone();
        let on_files = |label: &String| label.ends_with("ground C");
        let on_files: Vec<String> = labels(&all).into_iter().filter(on_files).collect();
        assert_eq!(on_files, ["+oe, ground C", "cow, ground C"]);
        assert_eq!(all.left_out()[0].0, "inline, ground C");
        let mut both = of("dstore-t3");
        assert_eq!(
            labels(&both),
            [
                "+oe, ground A, values of 4 KiB",
                "+oe, ground A, values of 16 KiB"
            ]
        );
        both.grounds = vec![Ground::Modelled, Ground::Disk];
        assert_eq!(both.curves().len(), 4);
        assert_eq!(labels(&of("bullet-7")), ["+wrc"]);
    }

    /// Sizes are compared by as many bytes of records, and rivals are asked by one distribution of keys.
    #[test]
    fn turns_are_of_sizes_and_of_distributions() {
        let of = |name: &str| {
            let figure = Figure::find(name).unwrap();
            Settings::of(figure, true, Path::new("/there"), 2, 20 * GIB)
        };
        let mut sizes = of("viper-7");
        sizes.systems.truncate(1);
        let curves = sizes.curves();
        let labels: Vec<String> = curves.iter().map(Curve::label).collect();
        assert_eq!(labels[0], "viper-fixed, 8 + 8 B");
        assert_eq!(labels[3], "viper-fixed, 100 + 900 B");
        for curve in &curves {
            let bytes = curve.records() * curve.record_bytes();
            let wanted = sizes.records * 216;
            assert!(
                (wanted - curve.record_bytes()..=wanted).contains(&bytes),
                "{curve:?}"
            );
        }
        let mut asked = of("viper-13");
        asked.grounds.clone_from(&asked.figure.grounds);
        asked.systems = vec![asked.systems[0], System::Rival(&Rival)];
        let labels: Vec<String> = asked.curves().iter().map(Curve::label).collect();
        assert_eq!(
            labels,
            [
                "viper-fixed, ground A, uniform",
                "viper-fixed, ground A, zipfian",
                "rival, ground B, zipfian"
            ]
        );
        // No file of data blocks is beside a pool, and a rival has no block for each value.
        let curves = asked.curves();
        assert!(asked.needs(&curves[0]).emulated < GIB / 2);
        assert!(asked.needs(&curves[2]).disk < GIB);
    }

    /// A store with memtables, whose log is elsewhere.
    struct Rival;

    impl Opener for Rival {
        fn name(&self) -> &'static str {
            "rival"
        }
        fn version(&self) -> String {
            String::new()
        }
        fn durability(&self) -> Durability {
            Durability::EachWrite
        }
        fn open(&self, _: &Path, _: u64, _: usize) -> Result<Box<dyn Subject>, Error> {
            bail!("never opened")
        }
        fn stands_in_for(&self) -> Option<&'static str> {
            Some("another")
        }
        fn has_memtables(&self) -> bool {
            true
        }
    }

    #[test]
    fn rivals_go_both_ways_where_systems_do() {
        let figure = Figure::find("dstore-1").unwrap();
        assert!(figure.takes(&Rival));
        let mut here = Settings::of(figure, true, Path::new("/there"), 2, GIB);
        here.grounds = figure.grounds.clone();
        here.data_dir = Some("/disk".into());
        here.systems = vec![here.systems[0], System::Rival(&Rival)];
        let labels = |settings: &Settings| {
            let curves = settings.curves().into_iter();
            curves.map(|curve| curve.label()).collect::<Vec<_>>()
        };
        assert_eq!(
            labels(&here),
            [
                "+oe, ground A, logs of 4 MiB",
                "+oe, ground A, logs of 256 MiB",
                "rival, ground B, memtables of 4 MiB",
                "rival, ground B, memtables of 4 GiB",
            ]
        );
        // What stays in a memtable is in memory twice, if the log is in memory, too.
        let needs = |curve: usize| here.needs(&here.curves()[curve]);
        assert!(needs(3).dram > 4 * GIB && needs(3).emulated > 4 * GIB);
        assert!(needs(2).dram < 2 * GIB && needs(2).emulated < GIB);
        here.grounds = vec![Ground::Disk];
        assert!(here.has_turns());
        here.systems.truncate(1);
        assert!(!here.has_turns());
        // In other figures, memtables are as always.
        here.figure = Figure::find("dstore-8").unwrap();
        here.systems = vec![System::Rival(&Rival)];
        here.log_bytes.truncate(1);
        assert_eq!(labels(&here), ["rival, ground B"]);
    }

    /// What figures say of systems is true.
    #[test]
    fn every_figure_can_be_measured() {
        for figure in Figure::all() {
            let mut settings = Settings::of(figure, true, Path::new("/nowhere"), 2, GIB);
            settings.grounds.clone_from(&figure.grounds);
            assert!(settings.points() > 0 && !settings.systems.is_empty());
        }
    }
}
