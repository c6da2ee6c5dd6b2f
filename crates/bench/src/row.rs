//! One measurement as one line of JSON: what was measured, where, and what came out.
//!
//! All subcommands write the same rows. A row names its subject and workload, lists the conditions that its
//! values depend on, and has a value of each metric for each round. Tables, pictures and verdicts are made of
//! rows and of nothing else.

use crate::machine::{Machine, commit};
use crate::named::named;
use crate::subject::Error;
use crate::timing::Spread;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Rows of [`crate::Plan`].
pub const STORES: &str = "stores";
/// Rows of [`crate::server`].
pub const SERVERS: &str = "servers";
/// Rows of [`crate::limits`].
pub const LIMITS: &str = "limits";
/// Rows of what could not be measured.
pub const LEFT_OUT: &str = "left-out";

/// Version of the format of rows.
const FORMAT: u32 = 2;

named! {
    /// What a value says.
    Metric, "metric":
    Rate = "rate": "operations a second, by the clock",
    CpuRate = "cpu_rate": "operations a second of processor time",
    WallNs = "wall_ns": "nanoseconds of an operation on its thread, by the clock",
    CpuNs = "cpu_ns": "nanoseconds of processor time an operation, of the threads that ask",
    ProcessCpuNs = "process_cpu_ns": "the same of the whole process, background threads included",
    ClientCpuNs = "client_cpu_ns": "the same of the load generator, where the subject is a server",
    Operations = "operations": "operations that were timed",
    QueuedShare = "queued_share": "share of the time in which a thread was ready to run and had no core",
    Preempted = "preempted": "times that a thread lost its core",
    P50Ns = "p50_ns": "nanoseconds: half of the calls took at most this",
    P99Ns = "p99_ns": "nanoseconds: 99 of 100 did",
    P999Ns = "p999_ns": "nanoseconds: 999 of 1000 did",
    P9999Ns = "p9999_ns": "nanoseconds: 9999 of 10000 did",
    MaxNs = "max_ns": "nanoseconds: all did",
    CoreP50Ns = "core_p50_ns": "p50 of the calls that did not wait for a core for half of their time",
    CoreP99Ns = "core_p99_ns": "p99 of these",
    CoreP999Ns = "core_p999_ns": "p99.9 of these",
    CoreP9999Ns = "core_p9999_ns": "p99.99 of these",
    CoreMaxNs = "core_max_ns": "the slowest of these",
    SlowShare = "slow_share": "share of the calls that took more than 20 microseconds",
    SlowQueuedShare = "slow_queued_share": "share of the slow calls that waited for a core for half of their time",
    DramBytes = "dram_bytes": "memory of the process a record, beside the medium",
    CountedDramBytes = "counted_dram_bytes": "what the store counts of it",
    MediumBytes = "medium_bytes": "bytes on the medium a record",
    ResidentBytes = "resident_bytes": "pages that the server's process has mapped and that are present",
    ProportionalBytes = "proportional_bytes": "the same, with shared pages divided by those who share them",
    AnonymousBytes = "anonymous_bytes": "pages of the server's process that belong to no file",
    Fences = "fences": "store fences an operation, or syncs on files",
    Lines = "lines": "cache lines flushed or streamed an operation",
    StoredBytes = "stored_bytes": "bytes stored on the medium an operation",
    MovedBytes = "moved_bytes": "bytes that an operation of a bare loop moves",
    RecoveryNs = "recovery_ns": "nanoseconds from opening after a crash to the first answer, by the clock",
    RecoveryCpuNs = "recovery_cpu_ns": "processor time of all threads meanwhile",
    RecoveryMetadataNs = "recovery_metadata_ns": "of that, what has nothing to do with logs: pages, index, order",
    RecoveryReplayNs = "recovery_replay_ns": "of that, reading the logs and replaying them",
    Replayed = "replayed": "changes in logs that a recovery has replayed",
    Recovered = "recovered": "records of the store that crashed",
    MeanNs = "mean_ns": "nanoseconds from one answer to the next, or of one call, on average",
    CoreRate = "core_rate": "operations a second, without the time in which workers had no core",
    CoreMeanNs = "core_mean_ns": "mean_ns, without the time in which workers had no core",
    GleaningShare = "gleaning_share": "share of the workers' time in which they gleaned",
    Gleaners = "gleaners": "workers whose last turn was one at gleaning",
    LogTurns = "log_turns": "times that the puts of a round would have filled all logs",
    Second = "second": "seconds since the first phase began",
    Checkpoints = "checkpoints": "checkpoints that ended meanwhile",
    DataWriteRate = "data_write_bytes_s": "bytes a second written to the data file",
    DataReadRate = "data_read_bytes_s": "bytes a second read from the data file",
    LogWriteRate = "log_write_bytes_s": "bytes a second written to logs",
    CheckpointWriteRate = "checkpoint_write_bytes_s": "bytes a second written by checkpoints",
    DataWriteNs = "data_write_ns": "nanoseconds of a bare write of the same data, on average",
    OverheadNs = "overhead_ns": "nanoseconds of a put beyond that write",
    DataNs = "data_ns": "nanoseconds of a put in writing its data and making them durable",
    DataShare = "data_share": "share of that in the put",
    StageNs = "stage_ns": "nanoseconds of a put in copying and summing its value",
    MetadataNs = "metadata_ns": "nanoseconds of a put in taking room and in its slot",
    OrderNs = "order_ns": "nanoseconds of a put in changing the index and the order of keys",
    LogNs = "log_ns": "nanoseconds of a put in appending to a log, and its fence",
    RestNs = "rest_ns": "nanoseconds of a put in all else: the lock and look-up of its key, message and reply",
    AllocNs = "alloc_ns": "nanoseconds of a put in taking room in persistent memory",
    WriteNs = "write_ns": "nanoseconds of a put in summing and storing its record",
    PersistNs = "persist_ns": "nanoseconds of a put in the fences behind that",
    IndexNs = "index_ns": "nanoseconds of a put in looking the old record up and changing the index",
    ServerNs = "server_ns": "nanoseconds that the server's thread works for an operation; waits are none",
    ServerRate = "server_rate": "operations a second of a server's thread that never waits",
    ServerShare = "server_share": "share of that work in the mean latency",
    LogUsedBytes = "log_used_bytes": "bytes of records in logs",
    DramTotalBytes = "dram_total_bytes": "memory of the process, beside persistent memory",
    PmTotalBytes = "pm_total_bytes": "bytes of files that play persistent memory",
    PmUsedBytes = "pm_used_bytes": "bytes of a pool that are in use",
    DiskTotalBytes = "disk_total_bytes": "bytes of files on the disk, or in its place",
    Amplification = "amplification": "bytes of all three for each byte of keys and values",
    ReclaimNs = "reclaim_ns": "nanoseconds that reclaiming room took",
    FreedBytes = "freed_bytes": "bytes of the pool that it freed",
    LeastRate = "least_rate": "operations a second in the slowest moment, with a core",
}

/// One subject under one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    format: u32,
    /// Which rows belong together: [`STORES`], [`SERVERS`], [`LIMITS`], or the name of a figure.
    pub suite: String,
    /// The store, server, system or bare loop.
    pub subject: String,
    /// What it was asked for.
    pub workload: String,
    /// Threads that asked, or workers that answered.
    pub threads: usize,
    /// Everything else that the values depend on.
    pub conditions: Map<String, Value>,
    /// What came out.
    pub values: BTreeMap<Metric, Rounds>,
    /// A distribution of latency: nanoseconds, and the share of calls that took at most as long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cdf: Vec<(u64, f64)>,
    /// Where it was measured.
    pub machine: Machine,
    /// The commit that the program was built from.
    pub commit: String,
}

/// A metric in each round, and how far the rounds lie apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// Least, middle and greatest.
    #[serde(flatten)]
    pub spread: Spread,
    /// One value for each round, or for each moment of a course of time.
    pub rounds: Vec<f64>,
}

impl Rounds {
    fn of(rounds: Vec<f64>) -> Rounds {
        Rounds {
            spread: Spread::of(rounds.iter().copied()),
            rounds,
        }
    }
}

impl Row {
    /// Without values. `conditions` is a JSON object.
    #[must_use]
    pub fn new(
        suite: &str,
        subject: &str,
        workload: &str,
        threads: usize,
        conditions: Value,
        machine: &Machine,
    ) -> Row {
        let Value::Object(conditions) = conditions else {
            unreachable!("conditions have names");
        };
        Row {
            format: FORMAT,
            suite: suite.into(),
            subject: subject.into(),
            workload: workload.into(),
            threads,
            conditions,
            values: BTreeMap::new(),
            cdf: Vec::new(),
            machine: machine.clone(),
            commit: commit().into(),
        }
    }

    /// Something that could not be measured, and why.
    #[must_use]
    pub fn left_out(what: &str, why: &str, machine: &Machine) -> Row {
        let conditions = serde_json::json!({ "why": why });
        Row::new(LEFT_OUT, what, "", 0, conditions, machine)
    }

    /// Adds a round of `metric`.
    pub fn push(&mut self, metric: Metric, value: f64) {
        self.extend(metric, [value]);
    }

    /// Adds rounds of `metric`.
    pub fn extend(&mut self, metric: Metric, values: impl IntoIterator<Item = f64>) {
        let entry = self.values.entry(metric).or_default();
        entry.rounds.extend(values);
        *entry = Rounds::of(std::mem::take(&mut entry.rounds));
    }

    /// Adds the rounds of another row of the same subject and workload.
    pub fn append(&mut self, other: &Row) {
        for (metric, value) in &other.values {
            self.extend(*metric, value.rounds.iter().copied());
        }
    }

    /// `metric` in each round; none if it was not measured.
    #[must_use]
    pub fn rounds(&self, metric: Metric) -> &[f64] {
        self.values.get(&metric).map_or(&[], |value| &value.rounds)
    }

    /// How `metric` spreads over the rounds, if it was measured.
    #[must_use]
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        self.values.get(&metric).map(|value| value.spread)
    }

    /// The same; zero if it was not measured.
    #[must_use]
    pub fn get(&self, metric: Metric) -> Spread {
        self.spread(metric).unwrap_or_default()
    }

    /// The middle of `metric`, if it was measured.
    #[must_use]
    pub fn median(&self, metric: Metric) -> Option<f64> {
        self.spread(metric).map(|spread| spread.median)
    }

    /// The mean of `metric`; zero if it was not measured.
    #[must_use]
    pub fn mean(&self, metric: Metric) -> f64 {
        let rounds = self.rounds(metric);
        rounds.iter().sum::<f64>() / rounds.len().max(1) as f64
    }

    /// From half of the calls over 99 of 100 to 999 of 1000, if calls were timed.
    #[must_use]
    pub fn percentiles(&self) -> Option<Spread> {
        Some(Spread {
            min: self.median(Metric::P50Ns)?,
            median: self.median(Metric::P99Ns)?,
            max: self.median(Metric::P999Ns)?,
        })
    }

    /// A condition as text; empty if there is none of this name.
    #[must_use]
    pub fn say(&self, condition: &str) -> String {
        match self.conditions.get(condition) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            // `2`, where JSON says `2.0`.
            Some(Value::Number(number)) if number.is_f64() => self.number(condition).to_string(),
            Some(value) => value.to_string(),
        }
    }

    /// A condition as a number; zero if there is none of this name.
    #[must_use]
    pub fn number(&self, condition: &str) -> f64 {
        let value = self.conditions.get(condition);
        value.and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Whether a condition is `true`.
    #[must_use]
    pub fn is(&self, condition: &str) -> bool {
        self.conditions.get(condition) == Some(&Value::Bool(true))
    }

    /// Whether the subject is everdram.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.subject.split([' ', ',']).next() == Some("everdram")
    }

    /// Whether each write is durable when it is answered.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.say("durable") == "each write"
    }
}

/// Rows of one subject, workload and set of conditions become one row with the rounds of all.
#[must_use]
pub fn merged(rows: impl IntoIterator<Item = Row>) -> Vec<Row> {
    let key = |row: &Row| (row.suite.clone(), row.subject.clone(), row.workload.clone());
    let mut merged: Vec<Row> = Vec::new();
    for row in rows {
        let mut others = merged.iter_mut();
        let same = others.find(|other| {
            (other.threads, &other.conditions) == (row.threads, &row.conditions)
                && key(other) == key(&row)
        });
        match same {
            Some(same) => same.append(&row),
            None => merged.push(row),
        }
    }
    merged
}

/// Reads rows, one a line; blank lines are none.
///
/// # Errors
/// If a line is not a row of this version; the error says which, and what to do.
pub fn read(text: &str) -> Result<Vec<Row>, Error> {
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| read_line(line).with_context(|| format!("line {}", number + 1)))
        .collect()
}

fn read_line(line: &str) -> Result<Row, Error> {
    let value: Value = serde_json::from_str(line).context("no row of `everdram bench`")?;
    match value.get("format").and_then(Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => bail!(
            "a row of format {format}, and this everdram reads {FORMAT}: read it with the everdram that wrote it"
        ),
        None => bail!(
            "no row of this `everdram bench`: rows from before format {FORMAT} name none; read them with the everdram \
             that wrote them, or measure again"
        ),
    }
    serde_json::from_value(value).context("a damaged row")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn row() -> Row {
        let conditions =
            serde_json::json!({ "records": 5_000_000, "durable": "each write", "fixed": true });
        let machine = Machine::here(Path::new("/"));
        let mut row = Row::new(STORES, "everdram viper", "ycsb-a", 2, conditions, &machine);
        row.extend(Metric::Rate, [3e6, 1e6, 2e6]);
        row
    }

    #[test]
    fn a_row_reads_back_from_its_line() {
        let mut row = row();
        row.cdf = vec![(100, 0.5)];
        let line = serde_json::to_string(&row).unwrap();
        assert!(!line.contains('\n') && line.contains(r#""rate":{"min":1000000.0"#));
        assert_eq!(
            read(&format!("{line}\n\n{line}\n")).unwrap(),
            [row.clone(), row.clone()]
        );
        assert!(row.is_own() && row.is_durable() && row.is("fixed") && !row.is("pinned"));
        assert_eq!(
            (row.number("records"), row.say("records")),
            (5e6, "5000000".into())
        );
    }

    #[test]
    fn what_is_no_row_is_named_with_what_to_do() {
        let line = serde_json::to_string(&row()).unwrap();
        for (other, says) in [
            ("x".to_owned(), "no row"),
            (
                r#"{"kind":"store","ground":"disk"}"#.into(),
                "measure again",
            ),
            (line.replace("\"format\":2", "\"format\":3"), "format 3"),
            (
                line.replace("\"threads\":2", "\"threads\":\"x\""),
                "damaged",
            ),
        ] {
            let error = format!("{:#}", read(&format!("{line}\n{other}\n")).unwrap_err());
            assert!(error.contains("line 2") && error.contains(says), "{error}");
        }
    }

    #[test]
    fn rounds_of_rows_become_one() {
        let (mut one, mut other, mut third) = (row(), row(), row());
        one.push(Metric::P50Ns, 7.0);
        other.extend(Metric::Rate, [9e6]);
        other.push(Metric::DramBytes, 12.0);
        third.threads = 3;
        let rows = merged([one, third, other]);
        assert_eq!(rows.len(), 2);
        let one = &rows[0];
        assert_eq!(one.rounds(Metric::Rate).len(), 7);
        assert_eq!(
            one.get(Metric::Rate),
            Spread {
                min: 1e6,
                median: 2e6,
                max: 9e6
            }
        );
        assert_eq!(
            (one.median(Metric::P50Ns), one.median(Metric::DramBytes)),
            (Some(7.0), Some(12.0))
        );
        assert_eq!(
            (one.median(Metric::P99Ns), one.mean(Metric::MaxNs)),
            (None, 0.0)
        );
    }
}
