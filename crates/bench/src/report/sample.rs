//! A small comparison for tests: two grounds, durable rivals and others, a victory and a loss.

use crate::compare::{Ground, Line};
use crate::latency::Latency;
use crate::limits::Limit;
use crate::machine::Machine;
use crate::recovery::Recovery;
use crate::row::{Configuration, Figures, Row, Tail};
use crate::server::{Command, Data, Load, Memory, Persistence, ServerFigures, Summary};
use crate::sizes::Sizes;
use crate::subject::Durability;
use crate::timing::Spread;
use crate::workload::Workload;
use std::time::Duration;

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

fn around(value: f64) -> Spread {
    Spread::of([value * 0.9, value, value * 1.1])
}

const LATENCY: Latency = Latency {
    p50: 300,
    p99: 900,
    p999: 21_000,
    max: 3_000_000,
};

/// A row at `rate` operations a second.
pub(crate) fn row(store: &str, workload: Workload, rate: f64) -> Row {
    let durability = if store == "scc" {
        Durability::Never
    } else {
        Durability::EachWrite
    };
    Row {
        configuration: Configuration {
            store: store.into(),
            version: "1.2".into(),
            engine: None,
            medium: "emulated".into(),
            durability,
            workload,
            records: 1_000_000,
            operations: 5000,
            threads: 1,
            keys: Sizes::Fixed(16),
            values: Sizes::Fixed(200),
            batch: 1,
            rate: None,
            pinned: false,
            fixed: false,
            seed: 1,
            repeat: 3,
        },
        machine: machine(),
        commit: "0123abc".into(),
        figures: Figures {
            rate: around(rate),
            wall_ns: around(1e9 / rate),
            cpu_ns: around(1e9 / rate),
            process_cpu_ns: around(1e9 / rate),
            latency: Some(Tail {
                all: LATENCY,
                ..Tail::default()
            }),
            dram_bytes: Some(12.0),
            medium_bytes: Some(240.0),
            recovery: Some(Recovery {
                records: 1_000_000,
                wall: Duration::from_millis(80),
                cpu: Duration::from_millis(60),
            }),
            ..Figures::default()
        },
    }
}

/// A limit at `rate` operations a second.
pub(crate) fn limit(name: &str, rate: f64) -> Limit {
    Limit {
        group: "records".into(),
        name: name.into(),
        what: "a loop".into(),
        unit: "record".into(),
        wall_ns: around(1e9 / rate),
        cpu_ns: around(1e9 / rate),
        rate: around(rate),
        cpu_rate: around(rate),
        bytes: Some(64),
        latency_ns: None,
    }
}

fn server(label: &str, medium: &str, persistence: Persistence, rate: f64) -> Summary {
    let load = Load {
        command: Command::Set,
        data: Data {
            keys: 1000,
            value_bytes: 200,
        },
        connections: 50,
        pipeline: 16,
        rate: None,
        warm_up_seconds: 0.1,
        seconds: 0.5,
        seed: 1,
    };
    let figures = ServerFigures {
        name: label.split(' ').next().unwrap_or_default().into(),
        version: "7.0".into(),
        medium: medium.into(),
        persistence,
        label: label.into(),
        load,
        operations: 100,
        rate,
        server_cpu_us: 2.5,
        client_cpu_us: 1.0,
        latency_ns: LATENCY,
        memory: Memory::default(),
        dram_bytes_a_key: 20.0,
    };
    Summary::of(vec![figures]).expect("one repetition")
}

/// All kinds of lines.
pub(crate) fn lines() -> Vec<Line> {
    let store = |ground, threads, fixed, mut row: Row| {
        row.configuration.threads = threads;
        row.configuration.fixed = fixed;
        Line::Store { ground, row }
    };
    let origin = |limit| Line::Limit {
        limit,
        machine: machine(),
        commit: "0123abc".into(),
    };
    let served = |summary| Line::Server {
        summary,
        machine: machine(),
        commit: "0123abc".into(),
    };
    let (get, put, each) = (Workload::Get, Workload::Put, Persistence::EachWrite);
    vec![
        origin(limit("get", 8e6)),
        store(Ground::Emulated, 1, false, row("everdram", get, 6e6)),
        store(Ground::Emulated, 1, true, row("everdram", get, 6.5e6)),
        store(Ground::Emulated, 1, false, row("rocksdb", get, 3e5)),
        store(Ground::Emulated, 1, false, row("scc", get, 3e6)),
        store(Ground::Disk, 8, false, row("everdram", put, 2e4)),
        store(Ground::Disk, 8, false, row("rocksdb", put, 4e4)),
        served(server("everdram emulated", "emulated", each, 2e5)),
        served(server("everdram file", "file", each, 1e5)),
        served(server("redis-server none", "dram", Persistence::Never, 4e5)),
        served(server("redis-server always", "file", each, 5e4)),
        Line::LeftOut {
            what: "valkey-server".into(),
            why: "not installed".into(),
        },
    ]
}
