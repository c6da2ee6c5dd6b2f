//! `everdram bench` as a script sees it: rows that read back, a crash that is survived, exit codes.

use everdram::{EngineKind, test_each_engine};
use everdram_bench::{Metric, Row, row};
use std::path::Path;
use std::process::{Command, Output};

test_each_engine!(a_run_gives_a_row_and_leaves_nothing);

fn bench(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_everdram"))
        .arg("bench")
        .args(arguments)
        .arg("--dir")
        .arg(dir)
        .output()
        .unwrap()
}

fn bench_well(dir: &Path, arguments: &[&str]) -> String {
    let output = bench(dir, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn read(rows: &str) -> Vec<Row> {
    row::read(rows).unwrap()
}

fn assert_empty(dir: &Path) {
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

fn a_run_gives_a_row_and_leaves_nothing(engine: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    let line =
        "run --workload ycsb-a --records 3000 --grow --threads 2 --repeat 2 --recovery --json -";
    let arguments: Vec<&str> = line.split(' ').chain(["--engine", engine.name()]).collect();
    let rows = read(&bench_well(dir.path(), &arguments));
    let [row] = rows.as_slice() else {
        panic!("{rows:?}");
    };
    assert_eq!((row.workload.as_str(), row.threads), ("ycsb-a", 2));
    assert_eq!(row.subject, format!("everdram {engine}"));
    assert_eq!(
        (row.say("medium"), row.number("records")),
        ("emulated".into(), 3000.0)
    );
    assert_eq!(row.rounds(Metric::Rate).len(), 2);
    for metric in [Metric::Rate, Metric::Fences, Metric::RecoveryNs] {
        assert!(row.get(metric).median > 0.0, "{metric}");
    }
    assert_eq!(row.median(Metric::Recovered), Some(3000.0));
    assert_empty(dir.path());
}

#[test]
fn rows_are_appended_beside_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows");
    let stores = dir.path().join("stores");
    std::fs::create_dir(&stores).unwrap();
    for workload in ["put", "get-many"] {
        let table = bench_well(
            &stores,
            &[
                &words("run --records 1k --fixed --grow --repeat 1 --workload")[..],
                &[workload, "--json", rows.to_str().unwrap()],
            ]
            .concat(),
        );
        assert!(
            table.contains(workload) && table.contains("p99.9"),
            "{table}"
        );
    }
    let rows = read(&std::fs::read_to_string(rows).unwrap());
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1].number("batch"), 16.0);
    assert_eq!(rows[1].subject, "everdram viper, fixed");
}

#[test]
fn limits_are_measured_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let rows = bench_well(
        dir.path(),
        &[
            &words("limits --records 5k --load-bytes 4MiB --repeat 1 --quick --json - --file-dir")
                [..],
            &[files.path().to_str().unwrap()],
        ]
        .concat(),
    );
    let limits = read(&rows);
    for name in [
        "put-padded",
        "get",
        "multi-get-16",
        "chain-get-checked",
        "chain-delete",
        "load-huge-pages",
        "data-4k",
        "data-4k-random",
        "data-16k-delayed",
        "data-read-4k-disk",
        "arena-delayed",
        "sync-64k",
    ] {
        let limit = limits.iter().find(|limit| limit.subject == name);
        let limit = limit.unwrap_or_else(|| panic!("no {name}"));
        assert!(limit.get(Metric::WallNs).min > 0.0, "{limit:?}");
        assert!(limit.get(Metric::Rate).max > 0.0, "{limit:?}");
    }
    let median = |name: &str| {
        let limit = limits.iter().find(|limit| limit.subject == name);
        limit.unwrap().get(Metric::P50Ns).median
    };
    assert!(median("data-4k-delayed") >= 8_900.0 && median("data-16k-delayed") >= 4.0 * 8_900.0);
    assert!(median("data-read-4k-delayed") >= 10_000.0);
    let sync = limits.last().unwrap();
    assert!(sync.get(Metric::P50Ns).median > 0.0, "{sync:?}");
    assert_empty(dir.path());
    assert_empty(files.path());
}

#[test]
fn bars_are_printed_with_their_verdicts() {
    let dir = tempfile::tempdir().unwrap();
    let line = "bars --only put,get,delete,batch,threads,space,recovery --records 2000 --ops 1000 --repeat 1";
    let table = bench_well(dir.path(), &words(line));
    for operation in [
        "put-many",
        "put, fixed",
        "get",
        "get, fixed, of its chain",
        "delete, of its chain",
        "two threads",
        "rounds of overwriting",
        "recovery",
    ] {
        let line = table.lines().find(|line| line.contains(operation));
        let line = line.unwrap_or_else(|| panic!("{operation} in {table}"));
        assert!(line.contains("ok") || line.contains("short"), "{line}");
    }
    assert!(!table.contains("ycsb-c"), "not asked for: {table}");
    assert_empty(dir.path());
}

/// The engine `bullet` has bars of its own.
#[test]
fn the_bars_of_bullet_are_printed_with_their_verdicts() {
    let dir = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let rows = out.path().join("bars.jsonl");
    let table = bench_well(
        dir.path(),
        &[
            &words("bars --engine bullet --quick --records 2000 --seconds 0.02 --repeat 1 --json")
                [..],
            &[rows.to_str().unwrap()],
        ]
        .concat(),
    );
    assert!(table.contains("engine bullet"), "{table}");
    for bar in ["0 %:", "2 %:", "15 %:", "50 %:", "a put", "restart"] {
        let line = table.lines().find(|line| line.contains(bar));
        let line = line.unwrap_or_else(|| panic!("{bar} in {table}"));
        assert!(line.contains(" yes ") || line.contains(" no "), "{line}");
    }
    let rows = std::fs::read_to_string(rows).unwrap();
    let rows: Vec<serde_json::Value> = rows
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert!(
            row["engine"] == "bullet" && row["holds"].is_boolean(),
            "{row}"
        );
    }
    assert_empty(dir.path());
}

/// And so has `dstore`, of which each group can be chosen.
#[test]
fn the_bars_of_dstore_are_printed_with_their_verdicts() {
    let [dir, disk, out] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let rows = out.path().join("bars.jsonl");
    let line = "bars --engine dstore --quick --records 500 --seconds 0.02 --repeat 1 \
                --only put,get,cold,cpu,steady,recovery,space,range --file-dir";
    let (disk_path, rows_path) = (disk.path().to_str().unwrap(), rows.to_str().unwrap());
    let table = bench_well(
        dir.path(),
        &[
            &line.split_whitespace().collect::<Vec<_>>()[..],
            &[disk_path, "--json", rows_path],
        ]
        .concat(),
    );
    assert!(table.contains("engine dstore"), "{table}");
    for (bar, against) in [
        ("put, 4 KiB, modelled, p50", "data-4k"),
        ("put, 16 KiB, modelled, p50", "data-16k"),
        ("put, 4 KiB, disk, p99.99", "data-4k"),
        ("get, 4 KiB, modelled, p50", "data-read-4k"),
        ("16 gets at once", "single gets"),
        ("processor time", "data-4k"),
        ("least 100 ms", "mean"),
        ("waits for log room", ""),
        ("restart after a kill", ""),
        ("DRAM an object", ""),
        ("data file", "values"),
        ("keys of ranges", ""),
    ] {
        // Below what says how it was measured.
        let mut bars = table.lines().skip_while(|line| !line.is_empty());
        let line = bars.find(|line| line.contains(bar));
        let line = line.unwrap_or_else(|| panic!("{bar} in {table}"));
        let words = [" ok ", " short ", " not measured "];
        let padded = format!("{line} ");
        assert!(words.iter().any(|word| padded.contains(word)), "{line}");
        assert!(line.contains(against), "{line}");
    }
    assert!(!table.contains("cow"), "not asked for: {table}");
    // The delays of the disk are in both, so that the ratio is near one.
    let rows = std::fs::read_to_string(rows).unwrap();
    let rows: Vec<serde_json::Value> = rows
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    let of = |says: &str| {
        let row = rows.iter().find(|row| row["says"] == says);
        row.unwrap_or_else(|| panic!("no {says}"))["measured"][0].clone()
    };
    let put = of("put, 4 KiB, modelled, p50");
    let (ours, bare) = (put["made_of"][0].as_f64(), put["against"][0].as_f64());
    assert!(ours.unwrap() >= 8.9 && bare.unwrap() >= 8.9, "{put}");
    let get = of("get, 4 KiB, modelled, p50");
    assert!(get["against"][0].as_f64().unwrap() >= 10.0, "{get}");
    assert_empty(dir.path());
    assert_empty(disk.path());
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &["run", "--workload", "everything"][..],
        &["run", "--store", "unheard-of"],
        &["run", "--threads", "0"],
        &["run", "--fixed", "--value", "normal:200"],
        &["bars", "--only", "nothing"],
        &["bars", "--engine", "bullet", "--only", "put"],
        &["bars", "--engine", "steam"],
        &["bars", "--seconds", "1"],
        &["bars", "--file-dir", "."],
        &["bars", "--engine", "dstore", "--only", "ycsb"],
        &["run", "--engine", "dstore", "--data-delay", "floppy"],
        &["run", "--data-delay", "p4800x", "--medium", "file"],
        &["run", "--delay", "floppy"],
        &["limits", "--records", "many"],
    ] {
        let output = bench(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
    let nowhere = dir.path().join("nowhere");
    assert_eq!(bench(&nowhere, &["run"]).status.code(), Some(2));
}

/// And `tiered`: where it is small, its figures say nothing, but each has one.
#[test]
fn the_bars_of_tiered_are_printed_with_their_verdicts() {
    let [dir, disk] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let line = "bars --engine tiered --records 20k --ops 500 --seconds 0.05 --repeat 1 \
                --only memory,fits,below,tail,restart --file-dir";
    let words: Vec<&str> = line.split_whitespace().collect();
    let disk_path = disk.path().to_str().unwrap();
    let table = bench_well(dir.path(), &[&words[..], &[disk_path]].concat());
    for (bar, against) in [
        ("DRAM a key", "viper"),
        ("put, all in the pool", "viper"),
        ("get from the log", "viper"),
        ("p99.9", "viper"),
        ("first answer", "viper"),
    ] {
        let line = table.lines().find(|line| line.contains(bar));
        let line = line.unwrap_or_else(|| panic!("{bar} in {table}"));
        let says = [" ok ", " short ", " not measured "];
        assert!(says.iter().any(|word| line.contains(word)), "{line}");
        assert!(line.contains(against), "{line}");
    }
    assert!(!table.contains("moves"), "not asked for: {table}");
    for dir in [dir, disk] {
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }
}
