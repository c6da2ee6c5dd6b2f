//! `everdram bench figure` as a script sees it: rows that read back and whose figures fit each other, a
//! picture, a page, exit codes.

use everdram_bench::figure::{Figure, Line, Measured, Series};
use std::path::Path;
use std::process::{Command, Output};

/// Seconds of a point: as short as it can be, and long enough for a thread to get a core on a busy machine.
const SECONDS: &str = "0.2";

fn bench(figure: Figure, dir: &Path, out: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_everdram"))
        .args(["bench", "figure", figure.name(), "--dir"])
        .arg(dir)
        .arg("--out")
        .arg(out)
        .args(arguments)
        .output()
        .unwrap()
}

/// A small figure: its lines, checked for what all figures have in common, and its page.
fn small(figure: Figure, arguments: &[&str]) -> (Vec<Line>, String) {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let size = [
        "--records",
        "2000",
        "--seconds",
        SECONDS,
        "--log-bytes",
        "64KiB",
    ];
    let size = &size[..if figure == Figure::Bullet8 { 4 } else { 6 }];
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
    let lines: Vec<Line> = read("jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for line in &lines {
        let what = &line.conditions;
        assert_eq!((line.figure, what.records), (figure, 2000));
        assert_eq!(
            (what.medium.as_str(), what.preset.as_str()),
            ("emulated", "bullet")
        );
        assert_eq!((what.key_bytes, what.value_bytes), (16, 100));
        assert!(what.seconds > 0.0 && what.logs > 0 && line.machine.cores > 0);
    }
    let (svg, page) = (read("svg"), read("md"));
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    assert!(page.contains(&format!("({figure}.svg)")) && page.contains("**emulated**"));
    assert!(page.contains("| paper says |"), "{page}");
    (lines, page)
}

/// Rates and latencies of `rounds` rounds that fit each other.
fn assert_series(series: &Series, rounds: usize, askers: usize) {
    assert_eq!(
        (series.rounds_mops.len(), series.rounds_ns.len()),
        (rounds, rounds)
    );
    assert!(series.mops.min > 0.0 && series.mops.min <= series.mops.median);
    assert!(series.mops.median <= series.mops.max);
    for (mops, ns) in series.rounds_mops.iter().zip(&series.rounds_ns) {
        // Of askers that wait for one answer each, there are never more requests at once; but a block of
        // requests may have begun before its span did.
        let at_once = mops * ns / 1e3;
        assert!(
            at_once < askers as f64 * 3.0,
            "{at_once} of {askers}: {series:?}"
        );
    }
}

#[test]
fn latency_against_throughput() {
    let (lines, page) = small(
        Figure::Bullet5,
        &[
            "--threads",
            "1,2",
            "--writes",
            "0,50",
            "--systems",
            "volatile,+wrc",
            "--rounds",
            "2",
        ],
    );
    assert_eq!(lines.len(), 2 * 2 * 2);
    for line in &lines {
        let Measured::Rate(rate) = &line.measured else {
            panic!("{line:?}");
        };
        assert_series(&rate.by_clock, 2, line.threads);
        assert!(rate.undisturbed.as_ref().unwrap().mops.median > 0.0);
        assert!((0.0..=1.0).contains(&rate.gleaning_share.median));
        assert!((0.0..=1.0).contains(&rate.queued_share.max));
        assert_eq!(rate.log_turns > 0.0, line.writes_percent > 0.0, "{rate:?}");
        let ratio = rate.by_clock.against_volatile.unwrap();
        if line.system == "volatile" {
            assert_eq!((ratio.throughput, ratio.latency), (1.0, 1.0));
        }
        assert!(ratio.throughput > 0.0 && ratio.latency > 0.0);
    }
    assert!(page.contains("## Bars") && page.contains("not measured"));
}

#[test]
fn distributions_of_latency() {
    let (lines, _) = small(
        Figure::Bullet6,
        &[
            "--threads",
            "2",
            "--systems",
            "volatile,+wrc",
            "--rounds",
            "2",
        ],
    );
    assert_eq!(lines.len(), 2);
    for line in &lines {
        let Measured::Calls(calls) = &line.measured else {
            panic!("{line:?}");
        };
        let (get, put) = (calls.get.as_ref().unwrap(), calls.put.as_ref().unwrap());
        assert!(get.calls > put.calls, "{} {}", get.calls, put.calls);
        for kind in [get, put] {
            assert_eq!(kind.rounds_ns.len(), 2);
            assert!(kind.cdf.is_sorted(), "{:?}", kind.cdf);
            assert!(kind.cdf.iter().all(|(ns, share)| *ns > 0 && *share < 1.0));
            assert!(kind.all.p50 <= kind.all.p99 && kind.all.p999 <= kind.all.max);
            assert!(kind.against_volatile.unwrap() > 0.0);
        }
    }
}

#[test]
fn a_course_of_time() {
    let (lines, _) = small(Figure::Bullet7, &["--quick", "--threads", "2"]);
    assert_eq!(lines.len(), 1);
    let Measured::Course { moments } = &lines[0].measured else {
        panic!("{lines:?}");
    };
    let writes: Vec<f64> = moments.iter().map(|moment| moment.writes_percent).collect();
    assert_eq!(writes, [2.0, 15.0, 2.0, 0.0, 2.0, 50.0, 2.0]);
    assert!(moments.is_sorted_by(|one, next| one.second < next.second && one.phase < next.phase));
    for moment in moments {
        assert!(moment.gleaners <= 2 && moment.mops >= 0.0);
        assert!((0.0..=1.0).contains(&moment.gleaning_share));
    }
    assert!(moments.iter().any(|moment| moment.mops > 0.0));
}

#[test]
fn sizes_of_logs() {
    let (lines, _) = small(
        Figure::Bullet8,
        &[
            "--threads",
            "2",
            "--writes",
            "2,50",
            "--log-bytes",
            "64KiB,256KiB",
            "--rounds",
            "1",
        ],
    );
    let loads: Vec<(u64, f64)> = lines
        .iter()
        .map(|line| (line.conditions.log_bytes >> 10, line.writes_percent))
        .collect();
    assert_eq!(loads, [(64, 2.0), (64, 50.0), (256, 2.0), (256, 50.0)]);
    for line in &lines {
        assert_series(&line.rate().unwrap().by_clock, 1, 2);
    }
}

#[test]
fn independent_clients() {
    let (lines, _) = small(
        Figure::Bullet9,
        &[
            "--threads",
            "2",
            "--clients",
            "1,3",
            "--writes",
            "15",
            "--systems",
            "volatile,+wrc",
            "--rounds",
            "1",
        ],
    );
    let clients: Vec<Option<usize>> = lines.iter().map(|line| line.clients).collect();
    assert_eq!(clients, [Some(1), Some(3), Some(1), Some(3)]);
    for line in &lines {
        let rate = line.rate().unwrap();
        assert_series(&rate.by_clock, 1, line.clients.unwrap());
        assert!(rate.undisturbed.is_none());
    }
}

#[test]
fn rows_can_be_had_on_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = [
        "--records",
        "1k",
        "--seconds",
        "0.02",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--writes",
        "2",
        "--systems",
        "+wrc",
        "--log-bytes",
        "64KiB",
        "--json",
    ];
    let output = bench(Figure::Bullet5, dir.path(), dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0));
    let rows = String::from_utf8(output.stdout).unwrap();
    assert_eq!(rows.lines().count(), 1);
    let line: Line = serde_json::from_str(&rows).unwrap();
    assert_eq!((line.system.as_str(), line.writes_percent), ("+wrc", 2.0));
}

#[test]
fn what_cannot_be_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = bench(Figure::Bullet5, dir.path(), dir.path(), arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let (code, error) = run(&["--systems", "redis"]);
    assert!(code == Some(2) && error.contains("+wrc"), "{error}");
    assert_eq!(run(&["--threads", "0"]).0, Some(2));
    let (code, error) = run(&["--records", "1G"]);
    assert!(code == Some(1) && error.contains("MiB are free"), "{error}");
}
