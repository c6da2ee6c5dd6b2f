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
    let output = bench(
        "dstore-8",
        dir.path(),
        dir.path(),
        &["--systems", "rocksdb"],
    );
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && error.contains("--features rivals"),
        "{error}"
    );
    let (code, error) = run(&["--records", "1G"]);
    assert!(code == Some(1) && error.contains("MiB are free"), "{error}");
}

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
