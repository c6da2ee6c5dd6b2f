//! One measurement as one line of JSON: what was measured, where, and what came out.

use crate::latency::Latency;
use crate::machine::Machine;
use crate::recovery::Recovery;
use crate::sizes::Sizes;
use crate::subject::Durability;
use crate::timing::Spread;
use crate::workload::Workload;
use serde::{Deserialize, Serialize};

/// A measurement of one store under one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub configuration: Configuration,
    /// Where.
    pub machine: Machine,
    /// The source it was built from.
    pub commit: String,
    /// What came out.
    pub figures: Figures,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// The store.
    pub store: String,
    /// Its version, as it says itself.
    pub version: String,
    /// Its engine, if it has several.
    #[serde(default)]
    pub engine: Option<String>,
    /// `pmem`, `file`, or `emulated`: memory that plays persistent memory.
    pub medium: String,
    /// What an answered write means.
    pub durability: Durability,
    /// What it was asked for.
    pub workload: Workload,
    /// Records it held when the clock began to run; 0 = it was filled by the workload itself.
    pub records: u64,
    /// Operations of each repetition.
    pub operations: u64,
    /// Threads that asked.
    pub threads: usize,
    /// Lengths of keys.
    pub keys: Sizes,
    /// Lengths of values.
    pub values: Sizes,
    /// Operations at once, of batched workloads.
    pub batch: usize,
    /// Operations a second of all threads that the latency pass began; `None` = each when the one before had
    /// ended.
    pub rate: Option<f64>,
    /// Whether each thread stayed on one core.
    pub pinned: bool,
    /// Pages for records of one size were used.
    pub fixed: bool,
    /// Seed of the choices.
    pub seed: u64,
    /// Repetitions.
    pub repeat: usize,
}

/// What came out. Times and rates are of single records, also where several go at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Operations a second of all threads, by the clock.
    pub rate: Spread,
    /// Nanoseconds of one operation on its thread, by the clock.
    pub wall_ns: Spread,
    /// Nanoseconds of processor time an operation, of the threads that asked.
    pub cpu_ns: Spread,
    /// The same of the whole process, with what the store does in the background.
    pub process_cpu_ns: Spread,
    /// Share of the time in which a thread was ready to run and had no core.
    pub queued_share: f64,
    /// Times that a thread lost its core.
    pub preempted: u64,
    /// How long single calls took, in a pass of their own.
    pub latency: Option<Tail>,
    /// Memory of the process a record, beside the medium, in bytes.
    pub dram_bytes: Option<f64>,
    /// What the store counts of it.
    pub counted_dram_bytes: Option<f64>,
    /// Bytes on the medium a record.
    pub medium_bytes: Option<f64>,
    /// What went to the medium, an operation; in a pass of its own, where the store can count.
    pub traffic: Option<TrafficEach>,
    /// Opening after a crash.
    pub recovery: Option<Recovery>,
}

/// Latencies, and how much of the slow ones is the scheduler's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// Of all calls.
    pub all: Latency,
    /// Of those that did not spend at least half of their time waiting for a core.
    pub undisturbed: Latency,
    /// Share of the calls that took more than 20 microseconds.
    pub slow_share: f64,
    /// Share of these that spent at least half of their time waiting for a core.
    pub slow_disturbed_share: f64,
}

/// What one operation sends to the medium, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficEach {
    /// Store fences, or syncs on files.
    pub fences: f64,
    /// Cache lines flushed or streamed.
    pub lines: f64,
    /// Bytes written.
    pub bytes: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_row_reads_back_from_its_line() {
        let row = Row {
            configuration: Configuration {
                store: "everdram".into(),
                version: "0.1.0".into(),
                engine: Some("viper".into()),
                medium: "emulated".into(),
                durability: Durability::EachWrite,
                workload: Workload::YcsbA,
                records: 5_000_000,
                operations: 1_000_000,
                threads: 2,
                keys: Sizes::Fixed(16),
                values: Sizes::Normal { mean: 200 },
                batch: 1,
                rate: Some(100_000.0),
                pinned: true,
                fixed: false,
                seed: 7,
                repeat: 3,
            },
            machine: Machine::here(Path::new("/")),
            commit: "unknown".into(),
            figures: Figures {
                rate: Spread::of([1e6, 2e6, 3e6]),
                latency: Some(Tail::default()),
                traffic: Some(TrafficEach {
                    fences: 1.0,
                    lines: 4.5,
                    bytes: 232.0,
                }),
                ..Figures::default()
            },
        };
        let line = serde_json::to_string(&row).unwrap();
        // Rows that name no engine are read, too.
        let silent = line.replace("\"engine\":\"viper\",", "");
        let read: Row = serde_json::from_str(&silent).unwrap();
        assert!(silent != line && read.configuration.engine.is_none());
        assert!(!line.contains('\n'));
        assert!(
            line.contains(r#""workload":"ycsb-a""#)
                && line.contains(r#""durability":"each-write""#)
        );
        assert_eq!(serde_json::from_str::<Row>(&line).unwrap(), row);
    }
}
