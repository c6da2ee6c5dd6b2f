//! Figures of Viper's paper.

use crate::small::bench;
use everdram_bench::{Metric, Row, row};

/// A small figure of Viper's paper: its rows, checked for what all of them have in common, and its page.
fn small_of_viper(figure: &str, arguments: &[&str]) -> (Vec<Row>, String) {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let size = "--records 2000 --seconds 0.1 --rounds 1 --log-bytes 64KiB";
    let size: Vec<&str> = size.split(' ').collect();
    let output = bench(figure, dir.path(), out.path(), &[&size, arguments].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{figure}: {error}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let read = |end: &str| {
        let path = out.path().join(format!("{figure}.{end}"));
        std::fs::read_to_string(path).unwrap()
    };
    let (svg, page) = (read("svg"), read("md"));
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    assert!(
        page.contains("**emulated**") && page.contains("| paper says |"),
        "{page}"
    );
    assert!(!svg.contains("data in memory"), "{svg}");
    let mut rows = row::read(&read("jsonl")).unwrap();
    rows.retain(|row| row.suite != row::LEFT_OUT);
    for row in &rows {
        let is_slow = !matches!(&*row.subject, "viper-dram" | "dram");
        let wanted = if is_slow { "optane" } else { "none" };
        assert_eq!(row.say("delays"), wanted, "{row:?}");
        let wanted = if row.subject == "dram" {
            "ordinary"
        } else {
            "emulated"
        };
        assert_eq!(row.say("medium"), wanted, "{row:?}");
        assert!(["uniform", "zipfian"].contains(&&*row.say("keys")));
    }
    (rows, page)
}

/// How many rows there are of each system and load, in the order in which they come first.
fn counted(rows: &[Row]) -> Vec<(String, usize)> {
    let mut all: Vec<(String, usize)> = Vec::new();
    for row in rows {
        let name = format!("{} {}", row.subject, row.workload);
        match all.iter_mut().find(|(other, _)| *other == name) {
            Some((_, count)) => *count += 1,
            None => all.push((name, 1)),
        }
    }
    all
}

/// Rates and latencies of operations that were measured one after another.
fn assert_operations(rows: &[Row]) {
    for row in rows {
        let of = |metric| row.get(metric).median;
        let at_once = of(Metric::Rate) * of(Metric::MeanNs) / 1e9;
        assert!(
            at_once > 0.0 && at_once < row.threads as f64 * 1.01,
            "{row:?}"
        );
        assert!(
            of(Metric::CoreRate) > 0.0 && of(Metric::CoreMeanNs) > 0.0,
            "{row:?}"
        );
        assert!((0.0..=1.0).contains(&of(Metric::QueuedShare)), "{row:?}");
    }
}

#[test]
fn writes_to_memory_with_a_store_and_without() {
    let (rows, page) = small_of_viper("viper-1", &["--threads", "1,3"]);
    let patterns = ["sequential", "random", "one log", "pages", "shifted pages"];
    let bare = ["pm", "dram"].iter();
    let bare = bare.flat_map(|system| patterns.map(|pattern| (format!("{system} {pattern}"), 2)));
    let all: Vec<_> = std::iter::once(("viper-fixed insert".to_owned(), 2))
        .chain(bare)
        .collect();
    assert_eq!(counted(&rows), all);
    assert_operations(&rows);
    assert!(
        page.contains("## Left out") && page.contains("DIMMs"),
        "{page}"
    );
    assert!(!page.contains("not measured"), "{page}");
}

#[test]
fn operations_of_each_system() {
    let (rows, page) = small_of_viper("viper-6", &["--threads", "1,2"]);
    let systems = ["viper-fixed", "+wrc", "phash"].iter();
    let operations = ["insert", "get", "update", "delete"];
    let all = systems.flat_map(|system| operations.map(|load| (format!("{system} {load}"), 2)));
    assert_eq!(counted(&rows), all.collect::<Vec<_>>());
    assert_operations(&rows);
    for row in &rows {
        // Half as many as there are records, if a busy machine has time for that.
        assert!(
            (1.0..=1000.0).contains(&row.get(Metric::Operations).median),
            "{row:?}"
        );
        let percent = if row.workload == "get" { 0.0 } else { 100.0 };
        assert_eq!(row.number("writes"), percent);
    }
    assert!(
        page.contains("| µTree | about 4 M |") && page.contains("pmemkv"),
        "{page}"
    );
}

#[test]
fn operations_by_size_strategy_and_place() {
    let of = |figure: &str, wanted: &[(&str, usize)]| {
        let (rows, _) = small_of_viper(figure, &["--threads", "2"]);
        assert_operations(&rows);
        let wanted = wanted
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        assert_eq!(counted(&rows), wanted.collect::<Vec<_>>());
        rows
    };
    let loads = [
        ("viper-fixed insert", 4),
        ("viper-fixed get", 4),
        ("+wrc insert", 4),
        ("+wrc get", 4),
    ];
    let rows = of("viper-7", &loads);
    for row in &rows {
        let bytes = row.number("key") + row.number("value");
        let missing = 2000.0 * 216.0 - row.number("records") * bytes;
        assert!((0.0..bytes).contains(&missing), "{row:?}");
        assert_eq!(
            row.say("sizes"),
            format!("{} + {} B", row.say("key"), row.say("value"))
        );
    }
    let rows = of(
        "viper-8",
        &[
            ("viper insert", 2),
            ("viper get", 2),
            ("viper-fixed insert", 2),
            ("viper-fixed get", 2),
            ("+wrc insert", 2),
            ("+wrc get", 2),
        ],
    );
    assert_eq!(
        rows.last().unwrap().say("sizes"),
        "normal:16 + normal:200 B"
    );
    let [update, both] = ["update", "read-modify-write"];
    let systems = ["viper", "viper-fixed", "+wrc", "phash"];
    let all = systems
        .map(|system| [update, both].map(|load| format!("{system} {load}")))
        .concat();
    of(
        "viper-10",
        &all.iter().map(|name| (&**name, 1)).collect::<Vec<_>>(),
    );
    let systems = ["viper-fixed", "viper-dram", "phash"];
    let all = systems
        .map(|system| ["insert", "get"].map(|load| format!("{system} {load}")))
        .concat();
    of(
        "viper-11",
        &all.iter().map(|name| (&**name, 1)).collect::<Vec<_>>(),
    );
    let rows = of(
        "viper-12",
        &[
            ("viper-fixed insert", 1),
            ("viper-fixed get", 1),
            ("viper-fixed update", 1),
            ("viper-fixed delete", 1),
            ("viper-dram insert", 1),
            ("viper-dram get", 1),
            ("viper-dram update", 1),
            ("viper-dram delete", 1),
        ],
    );
    for row in &rows {
        let has_steps = cfg!(feature = "steps") && row.workload == "insert";
        assert_eq!(
            row.spread(Metric::PersistNs).is_some(),
            has_steps,
            "{row:?}"
        );
    }
}

#[test]
fn ycsb_by_distribution() {
    let line = "--threads 1,2 --systems viper-fixed,phash";
    let (rows, page) = small_of_viper("viper-13", &line.split(' ').collect::<Vec<_>>());
    // Two distributions, two numbers of threads, two shares of writes.
    let loads = ["viper-fixed", "phash"]
        .map(|system| ["all", "get", "put"].map(|load| format!("{system} {load}")));
    let wanted = loads.concat().into_iter().map(|name| (name, 8));
    assert_eq!(counted(&rows), wanted.collect::<Vec<_>>());
    for row in &rows {
        let skew = if row.say("keys") == "uniform" {
            0.0
        } else {
            0.99
        };
        assert_eq!((row.number("skew"), row.number("key")), (skew, 8.0));
        assert_eq!(row.spread(Metric::P999Ns).is_some(), row.workload != "all");
        assert!(row.get(Metric::MeanNs).median > 0.0);
    }
    assert!(page.contains("25 µs"), "{page}");
}

/// A process for each system; on the ground of the disk there are other stores alone.
#[test]
fn memory_of_vipers_stores() {
    let disk = tempfile::tempdir().unwrap();
    let line = "--threads 2 --systems viper-fixed,phash --data-dir";
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.push(disk.path().to_str().unwrap());
    let (rows, _) = small_of_viper("viper-9", &arguments);
    let wanted = ["viper-fixed filled", "phash filled"].map(|name| (name.to_owned(), 1));
    assert_eq!(counted(&rows), wanted);
    for row in &rows {
        let of = |metric| row.get(metric).median;
        assert!(of(Metric::PmTotalBytes) > 2000.0 * 216.0 && of(Metric::DiskTotalBytes) == 0.0);
        assert_eq!(row.say("ground"), "a");
    }
}

#[test]
fn room_is_reclaimed_beside_gets_and_inserts() {
    let (rows, _) = small_of_viper(
        "viper-reclaim",
        &["--threads", "2", "--systems", "viper-fixed"],
    );
    let loads = ["gets", "gets beside it", "inserts", "inserts beside it"];
    let wanted = loads.map(|load| (format!("viper-fixed {load}"), 1));
    assert_eq!(counted(&rows), wanted);
    for row in &rows {
        let is_beside = row.workload.ends_with("it");
        assert_eq!(row.number("deleted"), 666.0);
        assert_eq!(row.get(Metric::FreedBytes).max > 0.0, is_beside, "{row:?}");
        assert_eq!(row.get(Metric::ReclaimNs).max > 0.0, is_beside, "{row:?}");
    }
    assert!(
        rows.iter()
            .all(|row| row.spread(Metric::CoreRate).is_some())
    );
}

#[test]
fn stores_are_opened_by_several_threads() {
    let (rows, page) = small_of_viper("viper-recovery", &["--threads", "1,2"]);
    let systems = ["viper-fixed", "viper-scan"];
    let loads =
        systems.map(|system| ["1 thread", "2 threads"].map(|load| (format!("{system} {load}"), 1)));
    assert_eq!(counted(&rows), loads.concat());
    for row in &rows {
        assert_eq!(row.get(Metric::Recovered).median, 2000.0);
        assert!(row.get(Metric::RecoveryNs).median > 0.0);
    }
    assert!(page.contains("| seconds | 38 | 19 |"), "{page}");
}
