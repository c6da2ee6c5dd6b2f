//! What was measured of a server: one repetition, and the spread of several.

use super::contender::Persistence;
use super::load::Load;
use super::usage::Memory;
use crate::latency::Latency;
use crate::timing::Spread;
use serde::{Deserialize, Serialize};

/// One server under one load, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerFigures {
    /// Which server.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Where its data is.
    pub medium: String,
    /// What its replies to writes mean.
    pub persistence: Persistence,
    /// How tables call it.
    pub label: String,
    /// What it was asked.
    pub load: Load,
    /// Replies, each of which was right.
    pub operations: u64,
    /// Replies a second.
    pub rate: f64,
    /// Processor time of the server, all threads, in microseconds a reply.
    pub server_cpu_us: f64,
    /// The same of the load generator. If that times the rate is near a million, the server was not the
    /// bottleneck, but for open loops, which wait for what is due soon without sleeping.
    pub client_cpu_us: f64,
    /// From a request to its reply.
    pub latency_ns: Latency,
    /// After the load.
    pub memory: Memory,
    /// What the server's anonymous memory had grown by when all keys were set.
    pub dram_bytes_a_key: f64,
}

/// One server under one load, over all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How tables call the server.
    pub label: String,
    /// What it was asked.
    pub load: Load,
    /// Replies a second.
    pub rate: Spread,
    /// Processor time of the server, in microseconds a reply.
    pub server_cpu_us: Spread,
    /// The same of the load generator.
    pub client_cpu_us: Spread,
    /// Half of the replies came in this many microseconds.
    pub p50_us: Spread,
    /// 99 of 100 did.
    pub p99_us: Spread,
    /// 999 of 1000 did.
    pub p999_us: Spread,
    /// All did.
    pub max_us: Spread,
    /// DRAM a key, in bytes.
    pub dram_bytes_a_key: f64,
    /// The repetitions.
    pub repetitions: Vec<ServerFigures>,
}

impl Summary {
    /// Of the repetitions of one server under one load; `None` if there are none.
    #[must_use]
    pub fn of(repetitions: Vec<ServerFigures>) -> Option<Summary> {
        let first = repetitions.first()?;
        let spread = |figure: fn(&ServerFigures) -> f64| Spread::of(repetitions.iter().map(figure));
        Some(Summary {
            label: first.label.clone(),
            load: first.load.clone(),
            rate: spread(|figures| figures.rate),
            server_cpu_us: spread(|figures| figures.server_cpu_us),
            client_cpu_us: spread(|figures| figures.client_cpu_us),
            p50_us: spread(|figures| figures.latency_ns.p50 as f64 / 1e3),
            p99_us: spread(|figures| figures.latency_ns.p99 as f64 / 1e3),
            p999_us: spread(|figures| figures.latency_ns.p999 as f64 / 1e3),
            max_us: spread(|figures| figures.latency_ns.max as f64 / 1e3),
            dram_bytes_a_key: first.dram_bytes_a_key,
            repetitions,
        })
    }
}
