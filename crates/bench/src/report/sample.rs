//! A small comparison for tests: two grounds, durable rivals and others, a victory and a loss.

use crate::latency::ALL;
use crate::machine::Machine;
use crate::row::{LIMITS, Metric, Row, SERVERS, STORES};
use serde_json::{Value, json};

fn machine() -> Machine {
    Machine {
        processor: "A processor".into(),
        cores: 2,
        memory_bytes: 24 << 30,
        kernel: "Linux 6".into(),
        filesystem: "tmpfs".into(),
        flush: "clwb".into(),
    }
}

/// A row at `rate` operations a second.
fn row(
    suite: &str,
    (subject, workload): (&str, &str),
    threads: usize,
    rate: f64,
    conditions: Value,
) -> Row {
    let mut row = Row::new(suite, subject, workload, threads, conditions, &machine());
    for (metric, value) in [
        (Metric::Rate, rate),
        (Metric::CpuRate, rate),
        (Metric::WallNs, 1e9 / rate),
        (Metric::CpuNs, 1e9 / rate),
        (Metric::ProcessCpuNs, 1e9 / rate),
    ] {
        row.extend(metric, [value * 0.9, value, value * 1.1]);
    }
    for (metric, ns) in ALL.into_iter().zip([300.0, 900.0, 21_000.0, 3e6]) {
        row.push(metric, ns);
    }
    row.push(Metric::DramBytes, 12.0);
    row
}

/// A bare loop at `rate` operations a second.
pub(crate) fn limit(name: &str, rate: f64) -> Row {
    row(
        LIMITS,
        (name, "a loop"),
        1,
        rate,
        json!({ "group": "records" }),
    )
}

fn store(ground: &str, threads: usize, subject: &str, workload: &str, rate: f64) -> Row {
    let durable = if subject == "scc" { "no" } else { "each write" };
    let conditions = json!({
        "ground": ground, "version": "1.2", "medium": "emulated", "durable": durable, "records": 1_000_000,
        "key": "16", "value": "200",
    });
    let mut row = row(STORES, (subject, workload), threads, rate, conditions);
    row.push(Metric::MediumBytes, 240.0);
    row.push(Metric::RecoveryNs, 80e6);
    row
}

fn server(label: &str, medium: &str, durable: &str, rate: f64) -> Row {
    let conditions = json!({
        "version": "7.0", "medium": medium, "durable": durable, "keys": 1000, "value": 200, "connections": 50,
        "pipeline": 16,
    });
    row(SERVERS, (label, "SET"), 1, rate, conditions)
}

/// Rows of all kinds.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        limit("get", 8e6),
        limit("chain-get", 7e6),
        store("emulated", 1, "everdram", "get", 6e6),
        store("emulated", 1, "everdram, fixed", "get", 6.5e6),
        store("emulated", 1, "rocksdb", "get", 3e5),
        store("emulated", 1, "scc", "get", 3e6),
        store("disk", 8, "everdram", "put", 2e4),
        store("disk", 8, "rocksdb", "put", 4e4),
        server("everdram emulated", "emulated", "each write", 2e5),
        server("everdram file", "file", "each write", 1e5),
        server("redis-server none", "dram", "no", 4e5),
        server("redis-server always", "file", "each write", 5e4),
        Row::left_out("valkey-server", "not installed", &machine()),
    ]
}
