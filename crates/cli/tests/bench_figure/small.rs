//! Small figures: as short as they can be, checked for what all of them have in common.

use everdram_bench::{Metric, Row, row};
use std::path::Path;
use std::process::{Command, Output};

/// Seconds of a point: as short as it can be, and long enough for a thread to get a core on a busy machine.
const SECONDS: &str = "0.2";

pub(crate) fn bench(figure: &str, dir: &Path, out: &Path, arguments: &[&str]) -> Output {
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
pub(crate) fn small(figure: &str, arguments: &[&str]) -> (Vec<Row>, String) {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let size = [
        "--records",
        "2000",
        "--seconds",
        SECONDS,
        "--log-bytes",
        "64KiB",
    ];
    let has_sizes = arguments.contains(&"--log-bytes");
    let size = &size[..if has_sizes { 4 } else { 6 }];
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
    let mut rows = row::read(&read("jsonl")).unwrap();
    rows.retain(|row| row.suite != row::LEFT_OUT);
    let (delays, value) = match figure.starts_with("bullet") {
        true => ("bullet", 100.0),
        false => ("optane", 4096.0),
    };
    for row in &rows {
        assert_eq!(
            (row.suite.as_str(), row.number("records")),
            (figure, 2000.0)
        );
        if ["", "a", "b"].contains(&&*row.say("ground")) {
            let medium = (row.say("medium"), row.say("delays"));
            assert_eq!(medium, ("emulated".into(), delays.into()));
        }
        assert_eq!((row.number("key"), row.number("value")), (16.0, value));
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
pub(crate) fn assert_rates(row: &Row, rounds: usize, askers: usize) {
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
