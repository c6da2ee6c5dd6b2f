//! `everdram bench compare` over next to nothing: rows of all kinds, a page that can be made again, and
//! nothing left.
#![forbid(unsafe_code)]

use everdram_bench::compare::Ground;
use everdram_bench::row::{self, LEFT_OUT, LIMITS, Metric, Row, SERVERS, STORES};
use std::path::Path;
use std::process::{Command, Output};

fn bench(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_everdram"))
        .current_dir(dir)
        .arg("bench")
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn everything_is_measured_and_told() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["disk", "memory"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    let line = "compare --quick --dir disk --emulated-dir memory --only everdram,redis --records 1000 \
                --seconds 0.002 --repeat 2";
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let output = bench(dir.path(), &arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{errors}");
    assert!(!table.contains('\x1b'), "colour without a terminal");
    for part in [
        "Emulated",
        "An ordinary disk, 8 threads",
        "everdram viper, fixed",
    ] {
        assert!(table.contains(part), "{part} in {table}");
    }

    let rows = std::fs::read_to_string(dir.path().join("everdram-compare.jsonl")).unwrap();
    let rows = row::read(&rows).unwrap();
    assert_stores(&rows, &table);
    assert_others(&rows, &table);

    let page = std::fs::read(dir.path().join("everdram-compare.html")).unwrap();
    let again = bench(
        dir.path(),
        &["report", "everdram-compare.jsonl", "-o", "again.html"],
    );
    assert!(again.status.success(), "{again:?}");
    assert!(std::fs::read(dir.path().join("again.html")).unwrap() == page);
    for name in ["disk", "memory"] {
        let left = std::fs::read_dir(dir.path().join(name)).unwrap().count();
        assert_eq!(left, 0, "in {name}");
    }
}

fn of_suite<'a>(rows: &'a [Row], suite: &str) -> Vec<&'a Row> {
    rows.iter().filter(|row| row.suite == suite).collect()
}

/// everdram has each workload of each scenario, with all repetitions, and was opened after crashes.
fn assert_stores(rows: &[Row], table: &str) {
    let rows = of_suite(rows, STORES);
    // Eleven workloads and three, twice for pages of either kind; three and three on the disk.
    assert_eq!(rows.len(), 2 * (11 + 3) + 3 + 3, "{table}");
    for row in &rows {
        let on = match row.say("ground").parse().unwrap() {
            Ground::Emulated => "emulated",
            Ground::Disk => "file",
        };
        assert!(row.is_own() && row.say("medium") == on, "{row:?}");
        assert_eq!(row.rounds(Metric::Rate).len(), 2);
        let rate = row.get(Metric::Rate);
        assert!(0.0 < rate.min && rate.min <= rate.max);
    }
    for ground in Ground::ALL {
        let recovered = |row: &&Row| {
            row.say("ground") == ground.name() && row.rounds(Metric::RecoveryNs).len() == 2
        };
        assert!(rows.iter().any(recovered), "{ground}");
    }
}

/// Limits are there, servers as far as they are installed, and what is missing is named.
fn assert_others(rows: &[Row], table: &str) {
    let limits = of_suite(rows, LIMITS);
    for name in ["get", "chain-get", "sync-4k"] {
        let mut same = limits.iter().filter(|limit| limit.subject == name);
        assert!(same.next().is_some() && same.next().is_none(), "{name}");
    }
    let served: Vec<&str> = of_suite(rows, SERVERS)
        .iter()
        .map(|row| row.subject.as_str())
        .collect();
    // SET and GET, one at once and sixteen.
    for label in ["everdram viper emulated", "everdram viper file"] {
        let count = served.iter().filter(|name| **name == label).count();
        assert_eq!(count, 4, "{label} in {table}");
    }
    let has_redis = served.contains(&"redis-server always");
    assert!(
        has_redis || table.contains("redis-server is not installed"),
        "{table}"
    );
    if cfg!(not(feature = "rivals")) {
        assert!(table.contains("--features rivals"), "{table}");
    }
    for row in of_suite(rows, LEFT_OUT) {
        let is_expected =
            row.subject.contains("RocksDB") || row.say("why").contains("not installed");
        assert!(is_expected, "{row:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &["compare", "--records", "1"][..],
        &["compare", "--dir", "nowhere"],
        &["compare", "--seconds", "0"],
        &["report"],
    ] {
        assert_eq!(
            bench(dir.path(), arguments).status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
    std::fs::write(dir.path().join("rows"), "{}\n").unwrap();
    let output = bench(dir.path(), &["report", "rows"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("line 1"), "{errors}");
    assert!(!dir.path().join("everdram-compare.html").exists());
}

/// A turn that fails ends with its reason, and says what it had measured until then.
#[test]
fn a_turn_that_fails_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let line = "turn --store unheard-of --threads 1 --workloads get --seconds 0.01 --dir";
    let arguments: Vec<&str> = line.split(' ').chain([place]).collect();
    let output = bench(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unheard-of"));
}
