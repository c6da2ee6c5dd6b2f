//! Every workload, small, over everdram on emulated persistent memory: the answers are right, the figures are
//! there.

use everdram::{EngineKind, Medium};
use everdram_bench::compare::Scenario;
use everdram_bench::{
    Counted, Error, Everdram, Extent, Machine, Metric, Opener, Plan, Row, Sizes, Workload,
};
use std::path::Path;

fn plan(dir: &Path, workload: Workload) -> Plan {
    Plan {
        workloads: vec![workload],
        records: 3000,
        extent: Extent::Operations(2000),
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

fn rows(plan: &Plan, opener: &dyn Opener) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    plan.measure(opener, &mut |_, _| {}, &mut |row| {
        rows.push(row);
        Ok(())
    })?;
    Ok(rows)
}

fn measure(plan: &Plan, opener: &dyn Opener) -> Row {
    let rows = rows(plan, opener);
    let row = rows.unwrap_or_else(|error| {
        panic!("{:?} (seed {}): {error:#}", plan.workloads, plan.seed);
    });
    let row = row.into_iter().next().unwrap();
    let (rate, of) = (row.get(Metric::Rate), |metric| row.get(metric).median);
    assert_eq!(row.rounds(Metric::Rate).len(), 2);
    assert!(rate.min > 0.0 && rate.min <= rate.max);
    assert!(of(Metric::MediumBytes) > 100.0);
    assert!(of(Metric::P50Ns) > 0.0 && of(Metric::P50Ns) <= of(Metric::MaxNs));
    assert!(of(Metric::CoreP50Ns) > 0.0);
    row
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
        let mut row = Row::left_out("nothing yet", "", &Machine::here(dir.path()));
        let counted = Counted {
            engine: EngineKind::default(),
            fixed: None,
        };
        plan.count(&counted, &mut row).unwrap();
        [Metric::Fences, Metric::Lines, Metric::StoredBytes]
            .map(|metric| row.median(metric).unwrap())
    };
    let put @ [fences, lines, bytes] = count(Workload::Put);
    assert!((0.9..2.5).contains(&fences), "{put:?}");
    assert!((1.8..8.0).contains(&lines), "{put:?}");
    assert!((116.0..400.0).contains(&bytes), "{put:?}");
    let many = count(Workload::PutMany);
    assert!(many[0] < fences / 4.0, "{many:?}");
    assert_eq!(count(Workload::Get), [0.0; 3]);
}

/// Each scenario of a comparison, by time: its workloads in order, those last that begin empty.
#[test]
fn every_scenario_can_be_measured_by_time() {
    let dir = tempfile::tempdir().unwrap();
    for scenario in Scenario::usual() {
        let plan = Plan {
            workloads: scenario.workloads.clone(),
            records: 800,
            extent: Extent::Seconds(0.002),
            threads: scenario.threads,
            repeat: 1,
            ..plan(dir.path(), Workload::Get)
        };
        let rows = rows(&plan, &everdram(None)).unwrap();
        for row in &rows {
            assert!(row.get(Metric::Rate).median > 0.0 && row.percentiles().is_some());
            // The process includes its threads; the clocks of the two tick apart a little.
            let of = |metric| row.get(metric).median;
            assert!(
                of(Metric::ProcessCpuNs) >= of(Metric::CpuNs) * 0.99,
                "{row:?}"
            );
        }
        let workloads: Vec<Workload> = rows
            .iter()
            .map(|row| row.workload.parse().unwrap())
            .collect();
        let (empty, filled): (Vec<Workload>, Vec<Workload>) = scenario
            .workloads
            .iter()
            .partition(|workload| workload.begins_empty());
        // Stores that are filled share one, whose memory all of their rows have.
        let has_memory = |row: &&Row| row.spread(Metric::DramBytes).is_some();
        assert_eq!(rows.iter().filter(has_memory).count(), filled.len());
        assert_eq!(workloads, [filled, empty].concat());
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_measured_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut none = plan(dir.path(), Workload::Get);
    none.extent = Extent::Operations(1);
    assert!(rows(&none, &everdram(None)).is_err());
    none.extent = Extent::Seconds(0.1);
    none.records = 0;
    let error = rows(&none, &everdram(None)).unwrap_err();
    assert!(error.to_string().contains("100 records"), "{error}");
    let plan = plan(dir.path(), Workload::Get);
    let mut row = measure(&plan, &everdram(None));
    plan.count(&everdram(None), &mut row).unwrap();
    assert_eq!(row.spread(Metric::Fences), None);
}
