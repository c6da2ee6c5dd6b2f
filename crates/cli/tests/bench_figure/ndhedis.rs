//! Figures of NDHedis' paper.

use crate::small::bench;
use everdram_bench::{Metric, row};

/// With 200,000 entries the pool has 2 MiB, of which everything is in use from some point on.
#[test]
fn a_pool_with_a_log_below_stops_growing() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let output = bench("ndhedis-3", dir.path(), out.path(), &["--records", "200k"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let rows = std::fs::read_to_string(out.path().join("ndhedis-3.jsonl")).unwrap();
    let rows = row::read(&rows).unwrap();
    let used = |system: &str| -> Vec<f64> {
        let rows = rows.iter().filter(|row| row.subject == system);
        rows.map(|row| row.get(Metric::PmUsedBytes).median)
            .collect()
    };
    let (viper, tiered) = (used("viper"), used("tiered"));
    assert_eq!((viper.len(), tiered.len()), (6, 6));
    assert!(
        viper.is_sorted() && viper[5] > 200_000.0 * 48.0,
        "{viper:?}"
    );
    let most = f64::from(2 << 20);
    assert!(tiered.iter().all(|used| *used <= most), "{tiered:?}");
    assert!(
        tiered[5] > most / 2.0 && tiered[0] < viper[0] * 1.1,
        "{tiered:?}"
    );
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[test]
fn servers_of_each_device() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = tempfile::tempdir().unwrap();
    let data_dir = disk.path().to_str().unwrap();
    let arguments = "--records 20000 --seconds 0.1 --rounds 1 --systems tiered --json --data-dir";
    let arguments: Vec<&str> = arguments.split(' ').chain([data_dir]).collect();
    let output = bench("ndhedis-4", dir.path(), out.path(), &arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let rows = row::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let mut seen: Vec<(String, String)> = Vec::new();
    let mut processor_ns = 0.0;
    for row in rows.iter().filter(|row| row.suite != row::LEFT_OUT) {
        assert_eq!(row.say("device"), row.say("delays"));
        assert_eq!(row.say("durable"), "each write");
        assert!(row.get(Metric::Rate).median > 0.0, "{row:?}");
        processor_ns += row.get(Metric::ProcessCpuNs).median;
        seen.push((row.say("device"), row.say("value")));
    }
    // The kernel counts it in ticks of 10 ms, so that on a busy machine a short load may spend none.
    assert!(processor_ns > 0.0);
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((all, seen.len()), (20, 20), "four devices, five sizes");
    for place in [&dir, &disk] {
        let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
    // Logs need a disk.
    let output = bench("ndhedis-4", dir.path(), out.path(), &["--quick"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("--data-dir"), "{error}");
}
