//! A server that is empty at first, and gets SETs of uniform keys.

use crate::figure::progress::Progress;
use crate::figure::settings::SERVED_BYTES;
use crate::figure::settings::curve::{Curve, Site};
use crate::figure::store::Data;
use crate::figure::system::{REDIS, System};
use crate::row::{Metric, Row};
use crate::server::{self, Command, Contender, Load, Pins, Running};
use crate::subject::Error;
use anyhow::Context;
use everdram::EngineKind;
use serde_json::json;

/// As many as memtier_benchmark has, which the paper used.
const CONNECTIONS: usize = 50;
/// What a row of the figure has of the server's.
const METRICS: [Metric; 6] = [
    Metric::Operations,
    Metric::Rate,
    Metric::ProcessCpuNs,
    Metric::ClientCpuNs,
    Metric::P50Ns,
    Metric::P99Ns,
];

/// A row of one server.
pub(super) fn measure(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Vec<Row>, Error> {
    let (settings, curve) = (data.settings, progress.curve);
    let mut row = progress.row("SET", 100.0, 1);
    let site = curve.site()?;
    let contender = contender(&curve, &site)?;
    let data = server::Data {
        keys: settings.records,
        value_bytes: curve.value_bytes(),
    };
    let running = Running::start_empty(&contender, data, Pins::apart())?;
    let measured = running.measure(&Load {
        command: Command::Set,
        data,
        connections: CONNECTIONS,
        pipeline: 1,
        rate: None,
        most: Some(SERVED_BYTES / curve.value_bytes() as u64),
        warm_up_seconds: settings.warm_up_seconds(),
        seconds: settings.seconds,
        seed: settings.seed,
    })?;
    running.stop()?;
    let conditions = [
        ("connections", json!(CONNECTIONS)),
        ("durable", contender.persistence.word().into()),
        ("server_version", contender.version.into()),
    ];
    row.conditions.remove("skew");
    for (name, value) in conditions {
        row.conditions.insert(name.into(), value);
    }
    for metric in METRICS {
        row.extend(metric, measured.median(metric));
    }
    Ok(vec![row])
}

/// The server of a curve, on its site.
fn contender(curve: &Curve<'_>, site: &Site) -> Result<Contender, Error> {
    let engine = match curve.system {
        System::Redis(persistence) => return Contender::redis(REDIS, persistence, site.dir()),
        System::Tiered => EngineKind::Tiered,
        _ => EngineKind::Viper,
    };
    let settings = curve.settings;
    let program = settings.program.as_ref().context("no program `everdram`")?;
    let server = Contender::everdram(program, "emulated", site.dir(), engine)?;
    let server = server.with(["--delay", curve.delays]);
    let (EngineKind::Tiered, Some(bytes)) = (engine, settings.limit_bytes()) else {
        return Ok(server);
    };
    let below = site.beside().context("no directory for the log")?;
    // In steps that are small beside it, so that it comes up to its limit.
    let sizes = [
        "--max-bytes",
        &bytes.to_string(),
        "--chunk-bytes",
        &(bytes / 16).to_string(),
    ]
    .map(str::to_owned);
    let below = below
        .to_str()
        .context("a directory whose name is no text")?;
    Ok(server.with(sizes).with(["--below", below]))
}
