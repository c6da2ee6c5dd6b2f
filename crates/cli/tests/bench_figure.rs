//! `everdram bench figure` as a script sees it: rows that read back and whose figures fit each other, a
//! picture, a page, exit codes.

use everdram_bench::figure::of_volatile;
use everdram_bench::{Metric, Row, row};
use std::path::Path;
use std::process::{Command, Output};

/// Seconds of a point: as short as it can be, and long enough for a thread to get a core on a busy machine.
const SECONDS: &str = "0.2";

fn bench(figure: &str, dir: &Path, out: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_everdram"))
        .args(["bench", "figure", figure, "--dir"])
        .arg(dir)
        .arg("--out")
        .arg(out)
        .args(arguments)
        .output()
        .unwrap()
}

/// A small figure: its rows, checked for what all figures have in common, and its page.
fn small(figure: &str, arguments: &[&str]) -> (Vec<Row>, String) {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let size = [
        "--records",
        "2000",
        "--seconds",
        SECONDS,
        "--log-bytes",
        "64KiB",
    ];
    let size = &size[..if figure == "bullet-8" { 4 } else { 6 }];
    let output = bench(figure, dir.path(), out.path(), &[size, arguments].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{figure}: {error}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");

    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("What the paper says"), "{table}");
    let read = |end: &str| {
        let path = out.path().join(format!("{figure}.{end}"));
        std::fs::read_to_string(path).unwrap()
    };
    let rows = row::read(&read("jsonl")).unwrap();
    for row in &rows {
        assert_eq!(
            (row.suite.as_str(), row.number("records")),
            (figure, 2000.0)
        );
        assert_eq!(
            (row.say("medium"), row.say("delays")),
            ("emulated".into(), "bullet".into())
        );
        assert_eq!((row.number("key"), row.number("value")), (16.0, 100.0));
        assert!(row.number("seconds") > 0.0 && row.number("logs") > 0.0 && row.machine.cores > 0);
    }
    let (svg, page) = (read("svg"), read("md"));
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    assert!(page.contains(&format!("({figure}.svg)")) && page.contains("**emulated**"));
    assert!(page.contains("| paper says |"), "{page}");
    (rows, page)
}

/// Rates and latencies of `rounds` rounds that fit each other.
fn assert_rates(row: &Row, rounds: usize, askers: usize) {
    let (rates, means) = (row.rounds(Metric::Rate), row.rounds(Metric::MeanNs));
    assert_eq!((rates.len(), means.len()), (rounds, rounds));
    for (rate, ns) in rates.iter().zip(means) {
        // Of askers that wait for one answer each, there are never more requests at once; but a block of
        // requests may have begun before its span did.
        let at_once = rate * ns / 1e9;
        assert!(
            *rate > 0.0 && at_once < askers as f64 * 3.0,
            "{at_once} of {askers}: {row:?}"
        );
    }
}

#[test]
fn latency_against_throughput() {
    let line = "--threads 1,2 --writes 0,50 --systems volatile,+wrc --rounds 2";
    let (rows, page) = small("bullet-5", &line.split(' ').collect::<Vec<_>>());
    assert_eq!(rows.len(), 2 * 2 * 2);
    for row in &rows {
        assert_rates(row, 2, row.threads);
        assert!(row.get(Metric::CoreRate).median > 0.0);
        for metric in [Metric::GleaningShare, Metric::QueuedShare] {
            assert!((0.0..=1.0).contains(&row.get(metric).max), "{row:?}");
        }
        let has_puts = row.number("writes") > 0.0;
        assert_eq!(row.get(Metric::LogTurns).median > 0.0, has_puts, "{row:?}");
        for metric in [Metric::Rate, Metric::MeanNs] {
            let ratio = of_volatile(&rows, row, metric).unwrap();
            assert!(ratio > 0.0 && (row.subject != "volatile" || ratio == 1.0));
        }
    }
    assert!(page.contains("## Bars") && page.contains("not measured"));
}

#[test]
fn distributions_of_latency() {
    let line = "--threads 2 --systems volatile,+wrc --rounds 2";
    let (rows, _) = small("bullet-6", &line.split(' ').collect::<Vec<_>>());
    let calls: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    assert_eq!(calls, ["get", "put", "get", "put"]);
    for row in &rows {
        assert_eq!(row.rounds(Metric::CoreMeanNs).len(), 2);
        assert!(row.cdf.is_sorted() && !row.cdf.is_empty(), "{:?}", row.cdf);
        assert!(row.cdf.iter().all(|(ns, share)| *ns > 0 && *share < 1.0));
        let of = |metric| row.get(metric).median;
        assert!(of(Metric::P50Ns) <= of(Metric::P99Ns) && of(Metric::P999Ns) <= of(Metric::MaxNs));
        assert!(of_volatile(&rows, row, Metric::CoreMeanNs).unwrap() > 0.0);
    }
    for both in rows.chunks(2) {
        let [gets, puts] = [&both[0], &both[1]].map(|row| row.get(Metric::Operations).median);
        assert!(gets > puts, "{gets} {puts}");
    }
}

#[test]
fn phases_of_one_course_of_time() {
    let (rows, _) = small("bullet-7", &["--quick", "--threads", "2"]);
    let writes: Vec<f64> = rows.iter().map(|row| row.number("writes")).collect();
    assert_eq!(writes, [2.0, 15.0, 2.0, 0.0, 2.0, 50.0, 2.0]);
    let seconds = rows.iter().flat_map(|row| row.rounds(Metric::Second));
    assert!(seconds.is_sorted_by(|one, next| one < next));
    for row in &rows {
        let moments = row.rounds(Metric::Second).len();
        for metric in [
            Metric::Rate,
            Metric::CoreRate,
            Metric::Gleaners,
            Metric::GleaningShare,
        ] {
            assert_eq!(row.rounds(metric).len(), moments, "{metric}");
        }
        assert!(row.get(Metric::Gleaners).max <= 2.0 && row.get(Metric::Rate).min >= 0.0);
        assert!((0.0..=1.0).contains(&row.get(Metric::GleaningShare).max));
    }
    assert!(rows.iter().any(|row| row.get(Metric::Rate).max > 0.0));
}

#[test]
fn sizes_of_logs() {
    let line = "--threads 2 --writes 2,50 --log-bytes 64KiB,256KiB --rounds 1";
    let (rows, _) = small("bullet-8", &line.split(' ').collect::<Vec<_>>());
    let loads: Vec<(f64, f64)> = rows
        .iter()
        .map(|row| (row.number("log_bytes") / 1024.0, row.number("writes")))
        .collect();
    assert_eq!(
        loads,
        [(64.0, 2.0), (64.0, 50.0), (256.0, 2.0), (256.0, 50.0)]
    );
    rows.iter().for_each(|row| assert_rates(row, 1, 2));
}

#[test]
fn independent_clients() {
    let line = "--threads 2 --clients 1,3 --writes 15 --systems volatile,+wrc --rounds 1";
    let (rows, _) = small("bullet-9", &line.split(' ').collect::<Vec<_>>());
    let clients: Vec<f64> = rows.iter().map(|row| row.number("clients")).collect();
    assert_eq!(clients, [1.0, 3.0, 1.0, 3.0]);
    for row in &rows {
        assert_rates(row, 1, row.number("clients") as usize);
        assert!(row.spread(Metric::CoreRate).is_none());
    }
}

#[test]
fn rows_can_be_had_on_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--records 1k --seconds 0.02 --rounds 1 --threads 1 --writes 2 --systems +wrc --log-bytes 64KiB --json";
    let arguments: Vec<&str> = line.split(' ').collect();
    let output = bench("bullet-5", dir.path(), dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0));
    let rows = row::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let [row] = rows.as_slice() else {
        panic!("{rows:?}");
    };
    assert_eq!((row.subject.as_str(), row.number("writes")), ("+wrc", 2.0));
}

#[test]
fn what_cannot_be_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = bench("bullet-5", dir.path(), dir.path(), arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let (code, error) = run(&["--systems", "redis"]);
    assert!(code == Some(2) && error.contains("+wrc"), "{error}");
    assert_eq!(run(&["--threads", "0"]).0, Some(2));
    let (code, error) = run(&["--records", "1G"]);
    assert!(code == Some(1) && error.contains("MiB are free"), "{error}");
}
