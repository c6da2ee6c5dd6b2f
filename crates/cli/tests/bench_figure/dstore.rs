//! Figures of DStore's paper.

use crate::small::{assert_rates, bench, small};
#[cfg(feature = "steps")]
use everdram_bench::row;
use everdram_bench::{Metric, Row};

/// Rows of a small figure of DStore, told by what tells them apart.
fn told(rows: &[Row]) -> Vec<(&str, &str, String, f64)> {
    rows.iter()
        .map(|row| {
            let writes = row.number("writes");
            (&*row.subject, &*row.workload, row.say("ground"), writes)
        })
        .collect()
}

#[test]
fn tails_of_gets_and_puts() {
    let line = "--threads 2 --systems +oe,cow --writes 50 --rounds 2";
    let (rows, page) = small("dstore-8", &line.split(' ').collect::<Vec<_>>());
    let of = |system, load| (system, load, "a".to_owned(), 50.0);
    let both = ["+oe", "cow"].map(|system| ["all", "get", "put"].map(|load| of(system, load)));
    assert_eq!(told(&rows), both.concat());
    for row in &rows {
        if row.workload == "all" {
            assert_rates(row, 2, 2);
            // Logs of 64 KiB fill again and again, if the threads get cores.
            let few = row.get(Metric::Operations).max < 4000.0;
            assert!(few || row.get(Metric::Checkpoints).max > 0.0, "{row:?}");
            continue;
        }
        let of = |metric| {
            assert_eq!(row.rounds(metric).len(), 2, "{metric}");
            row.get(metric).max
        };
        assert!(of(Metric::P50Ns) <= of(Metric::P99Ns) && of(Metric::P99Ns) <= of(Metric::P999Ns));
        assert!(
            of(Metric::P999Ns) <= of(Metric::P9999Ns) && of(Metric::P9999Ns) <= of(Metric::MaxNs)
        );
        assert!(of(Metric::CoreP9999Ns) > 0.0 && of(Metric::CoreMeanNs) > 0.0);
    }
    assert!(page.contains("## Left out") && page.contains("--data-dir"));
    assert!(
        page.contains("p99.99 of copy-on-write's puts is high | not measured") || {
            // So many calls on a fast machine.
            rows.iter()
                .any(|row| row.get(Metric::Operations).min >= 1e4)
        }
    );
}

#[test]
fn throughput_over_time_on_all_grounds() {
    let disk = tempfile::tempdir().unwrap();
    let line = "--threads 2 --systems +oe --data-dir";
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.push(disk.path().to_str().unwrap());
    let (rows, page) = small("dstore-7", &arguments);
    let of = |ground: &str, load, writes| ("+oe", load, ground.to_owned(), writes);
    let grounds =
        ["a", "b", "c"].map(|ground| [of(ground, "50 %", 50.0), of(ground, "100 %", 100.0)]);
    assert_eq!(told(&rows), grounds.concat());
    for row in &rows {
        let is_on_disk = row.say("ground") != "a";
        assert_eq!(row.spread(Metric::CoreRate).is_none(), is_on_disk);
        let rate = if is_on_disk {
            Metric::Rate
        } else {
            Metric::CoreRate
        };
        assert_eq!(row.get(Metric::LeastRate).min, row.get(rate).min);
    }
    assert!(std::fs::read_dir(disk.path()).unwrap().next().is_none());
    assert!(
        page.contains("With 2 workers on ground A, 2 workers on ground B"),
        "{page}"
    );
}

#[test]
fn a_restart_after_a_kill() {
    let (rows, page) = small(
        "dstore-t4",
        &["--threads", "2", "--rounds", "1", "--log-bytes", "1MiB"],
    );
    assert_eq!(
        told(&rows),
        ["clean", "killed"].map(|load| ("+oe", load, "a".to_owned(), 100.0))
    );
    // A clean stop leaves nothing to replay, and a kill four logs of 1 MiB, of which another writer may have
    // held one that was not full; a change has less than 192 bytes.
    let [clean, killed] = [&rows[0], &rows[1]].map(|row| row.get(Metric::Replayed).min);
    assert!(clean == 0.0 && killed > 3e6 / 192.0, "{clean} {killed}");
    for row in &rows {
        let of = |metric| {
            assert_eq!(row.rounds(metric).len(), 1, "{metric}");
            row.get(metric).min
        };
        let parts = of(Metric::RecoveryMetadataNs) + of(Metric::RecoveryReplayNs);
        assert!(parts > 0.0 && parts <= of(Metric::RecoveryNs), "{row:?}");
    }
    assert!(page.contains("| MongoDB-PM | SIGKILL | 7525 |"), "{page}");
}

#[test]
fn bytes_of_each_system_in_a_process_of_its_own() {
    let (rows, _) = small("dstore-10", &["--threads", "2"]);
    assert_eq!(
        told(&rows),
        ["+oe", "cow"].map(|system| (system, "filled", "a".to_owned(), 100.0))
    );
    for row in &rows {
        let of = |metric| row.get(metric).median;
        let parts = [
            Metric::DramTotalBytes,
            Metric::PmTotalBytes,
            Metric::DiskTotalBytes,
        ]
        .map(of);
        assert!(
            parts[0] > 1e5 && parts[1] > 1e5 && parts[2] >= 2000.0 * 4096.0,
            "{parts:?}"
        );
        let all = parts.iter().sum::<f64>() / (2000.0 * 4112.0);
        assert!((of(Metric::Amplification) - all).abs() < 1e-6);
    }
}

#[test]
fn a_put_takes_longer_than_its_data() {
    let (rows, _) = small("dstore-6", &["--systems", "+oe", "--rounds", "2"]);
    assert_eq!(told(&rows), [("+oe", "put", "a".to_owned(), 100.0)]);
    let of = |metric| rows[0].rounds(metric);
    for round in 0..2 {
        let overhead = of(Metric::CoreMeanNs)[round] - of(Metric::DataWriteNs)[round];
        assert!((of(Metric::OverheadNs)[round] - overhead).abs() < 1.0);
        assert!(of(Metric::DataWriteNs)[round] > 0.0);
    }
}

#[test]
fn the_worst_of_a_system() {
    let (rows, _) = small("dstore-t5", &["--systems", "+oe,inline", "--threads", "2"]);
    assert_eq!(
        told(&rows),
        ["+oe", "inline"].map(|system| (system, "worst", "a".to_owned(), 50.0))
    );
    for metric in [
        Metric::LeastRate,
        Metric::CoreP9999Ns,
        Metric::Amplification,
    ] {
        assert!(
            rows.iter().all(|row| row.rounds(metric).len() == 1),
            "{metric}"
        );
    }
    // A pool of the other is never opened twice.
    let restarts = rows.iter().map(|row| row.rounds(Metric::RecoveryNs).len());
    assert_eq!(restarts.collect::<Vec<_>>(), [1, 0]);
}

#[cfg(not(feature = "steps"))]
#[test]
fn a_build_without_clocks_says_which_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench("dstore-t3", dir.path(), dir.path(), &["--quick"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("--features steps"), "{error}");
}

#[cfg(feature = "steps")]
#[test]
fn the_steps_of_a_put_fit_into_it() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--records 1k --seconds 0.2 --rounds 1 --log-bytes 64KiB --json";
    let arguments: Vec<&str> = line.split(' ').collect();
    let output = bench("dstore-t3", dir.path(), dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0));
    let rows = row::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let loads: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    assert_eq!(loads, ["4 KiB", "16 KiB"]);
    for row in &rows {
        let steps = [
            Metric::DataNs,
            Metric::StageNs,
            Metric::MetadataNs,
            Metric::LogNs,
        ];
        let steps = steps.map(|metric| row.get(metric).median);
        assert!(steps.iter().all(|ns| *ns > 0.0), "{steps:?}");
        // The warm-up counts in the steps and not in the mean, on a machine that others use, too.
        assert!(steps.iter().sum::<f64>() < 3.0 * row.get(Metric::MeanNs).median);
    }
}
