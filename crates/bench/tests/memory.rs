//! What a store takes of memory, alone in a process: the scripts of the threads are not part of it.

use everdram::Medium;
use everdram_bench::{Everdram, Extent, Metric, Plan, Sizes, Workload};

/// The scripts of a put were freed before the store's memory was read, and so subtracted from it: a record
/// took less of the process than the store itself counted.
#[test]
fn scripts_are_not_the_stores_memory() {
    let dir = tempfile::tempdir().unwrap();
    for workload in [Workload::Put, Workload::Get] {
        let plan = Plan {
            workloads: vec![workload],
            records: 400_000,
            extent: Extent::Operations(400_000),
            threads: 1,
            keys: Sizes::Fixed(16),
            values: Sizes::Fixed(24),
            batch: 1,
            rate: None,
            repeat: 1,
            seed: 42,
            pin: false,
            dir: dir.path().to_owned(),
        };
        let opener = Everdram::on(Medium::Emulated);
        plan.measure(&opener, &mut |_, _| {}, &mut |row| {
            let of_process = row.get(Metric::DramBytes).median;
            let counted = row.get(Metric::CountedDramBytes).median;
            let ratio = of_process / counted;
            // Histograms, sessions and the allocator take some; a script takes 8 bytes an operation.
            assert!(
                (0.95..1.7).contains(&ratio),
                "{workload}: {of_process} of {counted}"
            );
            Ok(())
        })
        .unwrap();
    }
}
