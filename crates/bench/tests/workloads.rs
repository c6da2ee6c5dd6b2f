//! Every workload, small, over everdram on emulated persistent memory: the answers are right, the figures are
//! there.

use everdram::{EngineKind, Medium};
use everdram_bench::{Counted, Everdram, Figures, Opener, Plan, Sizes, Workload};
use std::path::Path;

fn plan(dir: &Path, workload: Workload) -> Plan {
    Plan {
        workload,
        records: 3000,
        operations: 2000,
        threads: 2,
        keys: Sizes::Fixed(16),
        values: Sizes::Fixed(100),
        batch: 16,
        rate: None,
        repeat: 2,
        seed: 42,
        pin: false,
        dir: dir.to_owned(),
    }
}

fn everdram(fixed: Option<(u32, u32)>) -> Everdram {
    Everdram {
        fixed,
        prefault: false,
        ..Everdram::on(Medium::Emulated)
    }
}

fn measure(plan: &Plan, opener: &dyn Opener) -> Figures {
    let figures = plan
        .measure(opener, &mut |_, _| {})
        .unwrap_or_else(|error| {
            panic!("{} (seed {}): {error:#}", plan.workload, plan.seed);
        });
    assert!(figures.rate.min > 0.0 && figures.rate.min <= figures.rate.max);
    assert!(figures.medium_bytes.unwrap() > 100.0);
    let tail = figures.latency.unwrap();
    assert!(tail.all.p50 > 0 && tail.all.p50 <= tail.all.max);
    assert!(tail.undisturbed.p50 > 0);
    figures
}

#[test]
fn every_workload_runs_on_pages_of_both_kinds() {
    let dir = tempfile::tempdir().unwrap();
    for workload in Workload::ALL {
        measure(&plan(dir.path(), workload), &everdram(None));
        measure(&plan(dir.path(), workload), &everdram(Some((16, 100))));
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "directories are left: {left:?}");
}

#[test]
fn records_of_many_lengths_and_open_loops() {
    let dir = tempfile::tempdir().unwrap();
    for values in [
        Sizes::Fixed(8),
        Sizes::Normal { mean: 200 },
        Sizes::Skewed {
            median: 300,
            most: 70_000,
        },
    ] {
        for workload in [Workload::YcsbA, Workload::Production, Workload::GetMany] {
            let mut plan = plan(dir.path(), workload);
            plan.keys = Sizes::Normal { mean: 16 };
            plan.values = values;
            plan.rate = Some(200_000.0);
            measure(&plan, &everdram(None));
        }
    }
}

#[test]
fn traffic_is_counted_and_reads_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let count = |workload| {
        let plan = plan(dir.path(), workload);
        plan.count(&Counted {
            engine: EngineKind::default(),
            fixed: None,
        })
        .unwrap()
        .unwrap()
    };
    let put = count(Workload::Put);
    assert!((0.9..2.5).contains(&put.fences), "{put:?}");
    assert!((116.0..400.0).contains(&put.bytes), "{put:?}");
    assert!((1.8..8.0).contains(&put.lines), "{put:?}");
    let many = count(Workload::PutMany);
    assert!(many.fences < put.fences / 4.0, "{many:?}");
    let get = count(Workload::Get);
    assert_eq!((get.fences, get.lines, get.bytes), (0.0, 0.0, 0.0));
}

#[test]
fn what_cannot_be_measured_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut none = plan(dir.path(), Workload::Get);
    none.operations = 1;
    assert!(none.measure(&everdram(None), &mut |_, _| {}).is_err());
    let counted = plan(dir.path(), Workload::Get).count(&everdram(None));
    assert_eq!(counted.unwrap(), None);
}
