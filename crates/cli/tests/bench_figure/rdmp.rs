//! Figures of RDMP-KV's paper.

use crate::small::bench;
use everdram_bench::{Metric, Row, row};

/// Clients and doors with clocks of their own: latencies in which the modelled network is, and work of the
/// server that has no waits.
#[test]
fn ways_to_a_store_over_a_modelled_network() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = |figure: &str, arguments: &str| -> Vec<Row> {
        let size = "--records 200 --seconds 0.02 --rounds 1 --json";
        let arguments = size.split(' ').chain(arguments.split_whitespace());
        let arguments: Vec<&str> = arguments.collect();
        let output = bench(figure, dir.path(), out.path(), &arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{figure}: {error}");
        let rows = row::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        let measured = rows.into_iter().filter(|row| row.suite != row::LEFT_OUT);
        measured.collect()
    };
    let of = |row: &Row, metric| row.get(metric).median;
    // Two ways of a message and the work of both ends; a durable write takes two more, and a completion.
    let least_ns = |row: &Row| match row.subject.as_str() {
        "herd" => 1700.0,
        _ => 1700.0 + 2000.0,
    };
    let rows = run("rdmp-7", "--systems herd,rdmp-cc");
    assert_eq!(rows.len(), 2 * 7);
    for row in &rows {
        let bytes_ns = row.number("value") / 11.0;
        let least_ns = least_ns(row) + bytes_ns + of(row, Metric::ServerNs) * 0.1;
        assert!(of(row, Metric::P50Ns) > least_ns, "{row:?}");
        let rate = 1e9 / of(row, Metric::ServerNs);
        assert!((of(row, Metric::ServerRate) / rate - 1.0).abs() < 1e-6);
        assert_eq!(row.say("network"), "edr");
    }
    let page = std::fs::read_to_string(out.path().join("rdmp-7.md")).unwrap();
    assert!(page.contains("**emulated network**"), "{page}");

    let rows = run("rdmp-9", "--systems rdmp-cc");
    for writes in [50.0, 5.0] {
        let calls = |load: fn(&str) -> bool| {
            let same = |row: &&Row| row.number("writes") == writes && load(&row.workload);
            let rows = rows.iter().filter(same);
            rows.map(|row| of(row, Metric::Operations)).sum::<f64>()
        };
        let all = calls(|load| load == "all");
        assert!(all > 0.0 && calls(|load| load != "all") == all, "{rows:?}");
    }

    let rows = run("rdmp-11", "--systems rdmp-sa").len();
    assert_eq!(rows, 3 * 3);
}
