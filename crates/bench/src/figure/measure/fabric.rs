//! Clients of a fabric door (figures of RDMP-KV), or of the Redis door over loopback beside them.

use crate::figure::fabric::{Asked, Cluster};
use crate::figure::progress::Progress;
use crate::figure::settings::curve::Curve;
use crate::figure::store::Data;
use crate::figure::system::System;
use crate::latency::{self, add_percentiles};
use crate::row::{Metric, Row};
use crate::server::{self, Command, Contender, Load, Pins, Running};
use crate::subject::Error;
use crate::workload::corpus::Corpus;
use anyhow::Context;
use everdram::EngineKind;

/// The load of a row that is of gets and of puts.
const ALL: &str = "all";

/// Rows of one curve: for each share of puts one for each kind of call, and one of all calls if they are
/// mixed.
pub(super) fn measure(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Vec<Row>, Error> {
    let (settings, curve) = (data.settings, progress.curve);
    let topology = settings.figure.topology;
    let records = topology.records(settings.records, curve.value_bytes());
    let System::Fabric(route) = curve.system else {
        return loopback(data, progress, records);
    };
    let (keys, values) = topology.sizes(settings.paper().key_bytes, curve.value_bytes());
    let corpus = Corpus::new(keys, values, settings.seed);
    let sizes = (topology.stores(), topology.clients.max(1), records);
    let seed = settings.seed;
    let mut cluster = Cluster::open(&curve, route, &corpus, sizes, topology.ycsb, seed)?;
    let mut rows = Vec::new();
    for percent in settings.writes.iter().copied() {
        progress.row("", percent, 1);
        cluster.ask(percent, settings.warm_up_seconds())?;
        #[cfg(feature = "steps")]
        let before = everdram::steps::taken();
        let asked = cluster.ask(percent, settings.seconds)?;
        let of = |kind: &str| {
            let mut row = progress.row_of(kind, percent, 1);
            describe(&mut row, &curve, records);
            row.conditions
                .insert("network".into(), route.network.into());
            row
        };
        let is_mixed = percent > 0.0 && percent < 100.0;
        for (kind, latencies) in ["get", "put"].into_iter().zip(&asked.latencies) {
            if latencies.all.is_empty() {
                continue;
            }
            let mut row = of(kind);
            add_latencies(&mut row, latencies)?;
            if !is_mixed {
                add_server(&mut row, &asked);
                #[cfg(feature = "steps")]
                if kind == "put" && curve.back_end == "viper" {
                    add_steps(&mut row, &asked, everdram::steps::taken().since(before));
                }
            }
            rows.push(row);
        }
        if is_mixed {
            let mut row = of(ALL);
            row.push(Metric::Operations, asked.calls as f64);
            add_server(&mut row, &asked);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn describe(row: &mut Row, curve: &Curve<'_>, records: u64) {
    let topology = curve.settings.figure.topology;
    let conditions = [
        ("records", records.into()),
        ("engine", curve.back_end.into()),
        ("stores", topology.stores().into()),
        ("clients", topology.clients.max(1).into()),
    ];
    for (name, value) in conditions {
        row.conditions.insert(name.into(), value);
    }
    for name in ["logs", "log_bytes"] {
        row.conditions.remove(name);
    }
    if topology.ycsb {
        row.conditions.insert("key".into(), "12, 16 and 20".into());
        let sizes = "64, 1024, 4096 and 65536";
        row.conditions.insert("value".into(), sizes.into());
    } else {
        row.conditions.remove("skew");
    }
}

fn add_latencies(row: &mut Row, latencies: &latency::Latencies) -> Result<(), Error> {
    let undisturbed = super::tails::had_core(latencies);
    row.push(Metric::Operations, latencies.all.len() as f64);
    row.push(Metric::MeanNs, latencies.all.mean());
    row.extend(Metric::CoreMeanNs, super::usual_mean(undisturbed));
    add_percentiles(row, latency::ALL, &latencies.all);
    add_percentiles(row, latency::UNDISTURBED, undisturbed);
    Ok(())
}

fn add_server(row: &mut Row, asked: &Asked) {
    row.push(Metric::Rate, asked.rate);
    row.push(Metric::QueuedShare, asked.queued_share);
    row.push(Metric::ServerNs, asked.server_ns);
    row.push(Metric::ServerRate, 1e9 / asked.server_ns.max(1.0));
    row.push(Metric::ClientCpuNs, asked.client_ns);
    if let Some(mean_ns) = row.median(Metric::CoreMeanNs).filter(|ns| *ns > 0.0) {
        row.push(Metric::ServerShare, asked.server_ns / mean_ns);
    }
}

/// Where the server's time of a put goes.
#[cfg(feature = "steps")]
fn add_steps(row: &mut Row, asked: &Asked, taken: everdram::steps::Taken) {
    // A stall of the machine is in some step; of all steps the same share is taken to be stalls.
    let with_core = asked.server_ns / asked.server_wall_ns.max(1.0);
    let each = |ns: u64| ns as f64 / asked.calls.max(1) as f64 * with_core;
    let mut rest_ns = asked.server_ns;
    for (metric, ns) in [
        (Metric::AllocNs, taken.room_ns),
        (Metric::WriteNs, taken.store_ns),
        (Metric::PersistNs, taken.fence_ns),
        (Metric::IndexNs, taken.index_ns),
    ] {
        row.push(metric, each(ns));
        rest_ns -= each(ns);
    }
    row.push(Metric::RestNs, rest_ns.max(0.0));
    let data_ns = each(taken.store_ns) + each(taken.fence_ns);
    row.push(Metric::DataShare, data_ns / asked.server_ns.max(1.0));
}

/// The Redis door over loopback: by the clock, in a process of its own.
fn loopback(data: &Data<'_>, progress: &mut Progress<'_>, records: u64) -> Result<Vec<Row>, Error> {
    let (settings, curve) = (data.settings, progress.curve);
    let site = curve.site()?;
    let program = settings.program.as_ref().context("no program `everdram`")?;
    let server = Contender::everdram(program, "emulated", site.dir(), EngineKind::Viper)?;
    let server = server.with(["--delay", curve.delays]);
    let data = server::Data {
        keys: records,
        value_bytes: curve.value_bytes(),
    };
    let running = Running::start(&server, data, Pins::apart())?;
    let mut rows = Vec::new();
    for percent in settings.writes.iter().copied() {
        let (kind, command) = match percent > 0.0 {
            true => ("put", Command::Set),
            false => ("get", Command::Get),
        };
        let mut row = progress.row(kind, percent, 1);
        describe(&mut row, &curve, records);
        let conditions = [("network", "loopback"), ("server_version", &server.version)];
        for (name, value) in conditions {
            row.conditions.insert(name.into(), value.into());
        }
        // Of this load generator.
        row.conditions.insert("key".into(), 16.into());
        let measured = running.measure(&Load {
            command,
            data,
            connections: 1,
            pipeline: 1,
            rate: None,
            most: None,
            warm_up_seconds: settings.warm_up_seconds(),
            seconds: settings.seconds,
            seed: settings.seed,
        })?;
        let of = |metric| measured.median(metric).unwrap_or(0.0);
        let server_ns = of(Metric::ProcessCpuNs);
        let mean_ns = 1e9 / of(Metric::Rate).max(1.0);
        for (metric, value) in [
            (Metric::Operations, of(Metric::Operations)),
            (Metric::Rate, of(Metric::Rate)),
            (Metric::MeanNs, mean_ns),
            (Metric::P50Ns, of(Metric::P50Ns)),
            (Metric::P99Ns, of(Metric::P99Ns)),
            (Metric::ClientCpuNs, of(Metric::ClientCpuNs)),
            (Metric::ServerNs, server_ns),
            (Metric::ServerRate, 1e9 / server_ns.max(1.0)),
            (Metric::ServerShare, server_ns / mean_ns),
        ] {
            row.push(metric, value);
        }
        rows.push(row);
    }
    running.stop()?;
    Ok(rows)
}
