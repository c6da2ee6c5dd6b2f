//! The figures of RDMP-KV's paper: clients of a fabric door on a modelled network.
//!
//! Clients and doors take turns on one thread, each with a clock of its own that stands while the others
//! work (`everdram_fabric::EndClock`). So latency is that of a network of the preset, with a core for each
//! client and each server, on a machine with any number of cores; and the processor time of a server has no
//! waits in it. Nothing but the network, the delays of the medium and a read's view of forca is modelled:
//! clients, doors and engines are those of the product.

mod cluster;
mod crc;

pub(super) use cluster::{Asked, Cluster};

use crate::workload::sizes::Sizes;
use everdram::options::BulletSystem;
use everdram::{EngineKind, Options};
use everdram_fabric::{INLINE_BYTES, NETWORK_PRESETS, NetworkPreset, VALUE_BYTES_MAX, Way};
use std::time::Duration;

/// How requests travel: a curve of a figure.
#[derive(Debug)]
pub struct Route {
    pub(super) name: &'static str,
    put: Way,
    /// Name of the network.
    pub(super) network: &'static str,
    /// The longest body of a message, in bytes.
    body_bytes: usize,
    /// Whether the client sums up what it puts, and the server what is got: CRC32C.
    sums: bool,
    /// Whether long values are read where they lie, by one-sided reads.
    in_place: bool,
}

/// All routes. What paths there are is said here alone.
pub(super) static ROUTES: [Route; 7] = [
    // The request has the value, the server copies it, and the reply to a get has it.
    Route {
        name: "herd",
        put: Way::Inline,
        network: "edr",
        body_bytes: VALUE_BYTES_MAX,
        sums: false,
        in_place: false,
    },
    Route {
        name: "forca",
        put: Way::ServerAssisted,
        network: "edr",
        body_bytes: INLINE_BYTES,
        sums: true,
        in_place: false,
    },
    Route {
        name: "rdmp-sa",
        put: Way::Auto,
        network: "edr",
        body_bytes: INLINE_BYTES,
        sums: false,
        in_place: true,
    },
    Route {
        name: "rdmp-cc",
        put: Way::ClientCentric,
        network: "edr",
        body_bytes: INLINE_BYTES,
        sums: false,
        in_place: true,
    },
    // As the paper emulates commits: what the client writes has no delays of the medium.
    Route {
        name: "rdmp-cc-read",
        put: Way::ClientCentric,
        network: "edr-read",
        body_bytes: INLINE_BYTES,
        sums: false,
        in_place: true,
    },
    Route {
        name: "rdmp-cc-sa",
        put: Way::ClientCentricAsked,
        network: "edr",
        body_bytes: INLINE_BYTES,
        sums: false,
        in_place: true,
    },
    Route {
        name: "rdmp-cc-imm",
        put: Way::ClientCentricImmediate,
        network: "edr",
        body_bytes: INLINE_BYTES,
        sums: false,
        in_place: true,
    },
];

impl Route {
    pub(super) fn preset(&self) -> &'static NetworkPreset {
        let mut presets = NETWORK_PRESETS.iter();
        let named = presets.find(|preset| preset.name == self.network);
        named.expect("a network of this name")
    }
}

/// What figures want of the paper and this door does not have, and why.
pub(super) const MISSING: [(&str, &str); 1] = [(
    "one-sided gets of short values",
    "a record in a page has no check that a client could verify, and compaction moves it: what fits into one is \
     answered with its reply",
)];

/// How long clients may read a value in place.
pub(super) const LEASE: Duration = Duration::from_millis(100);
/// Bytes of the landing area of each store.
const LANDING_BYTES: u64 = 64 << 20;
/// Bytes of all values of a store, at most.
const VALUES_BYTES: u64 = 64 << 20;
/// Bytes of a pool, and of the logs of a back end that has some.
pub(super) const POOL_BYTES: u64 = 384 << 20;
const LOGS: u32 = 8;
const LOG_BYTES: u64 = 16 << 20;

/// Sizes of figure 9, section IV-C.
const YCSB_KEYS: Sizes = Sizes::OneOf([12, 16, 20, 0]);
const YCSB_VALUES: Sizes = Sizes::OneOf([64, 1 << 10, 4 << 10, 64 << 10]);

/// How many stores there are, and clients of them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Topology {
    pub(super) stores: usize,
    pub(super) clients: usize,
    /// Whether keys and values have the sizes of YCSB in the paper, evenly.
    pub(super) ycsb: bool,
}

impl Default for Topology {
    fn default() -> Topology {
        Topology {
            stores: 1,
            clients: 1,
            ycsb: false,
        }
    }
}

impl Topology {
    pub(super) fn stores(&self) -> usize {
        self.stores.max(1)
    }

    /// Sizes of keys and of values.
    pub(super) fn sizes(&self, key_bytes: usize, value_bytes: usize) -> (Sizes, Sizes) {
        match self.ycsb {
            true => (YCSB_KEYS, YCSB_VALUES),
            false => (Sizes::Fixed(key_bytes), Sizes::Fixed(value_bytes)),
        }
    }

    /// Records of each store, of the number wanted.
    pub(super) fn records(&self, wanted: u64, value_bytes: usize) -> u64 {
        let (_, values) = self.sizes(0, value_bytes);
        wanted.min(VALUES_BYTES / values.mean() as u64).max(1)
    }
}

/// A back end, as figures name it: an engine, or one of its systems.
pub(super) fn set_back_end(options: &mut Options, name: &str) -> Result<(), String> {
    options.bullet.logs = LOGS;
    options.bullet.log_bytes = LOG_BYTES;
    options.engine = Some(match name {
        "viper" => EngineKind::Viper,
        "bullet" => EngineKind::Bullet,
        "phash" => {
            options.bullet.system = BulletSystem::Phash;
            EngineKind::Bullet
        }
        _ => return Err(format!("back end `{name}`: viper, bullet or phash")),
    });
    Ok(())
}
