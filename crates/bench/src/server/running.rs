//! A server that is up, with its data in it, and what it does under a load.

use super::contender::Contender;
use super::driver::{Driver, Run};
use super::load::{Command, Data, Load};
use super::process::{Memory, Pins, Process, processor_time};
use super::wire::Wire;
use crate::latency::{ALL, add_percentiles};
use crate::machine::Machine;
use crate::process::Pinned;
use crate::row::{Metric, Row, SERVERS};
use crate::subject::Error;
use crate::workload::{Author, Workload};
use anyhow::Context;
use serde_json::json;
use std::fmt::Write as _;
use std::time::Duration;

/// Connections and pipeline that bring the data in.
const FILL: (usize, usize) = (50, 32);
/// Longer than anybody would wait for the data.
const FILL_AT_MOST: Duration = Duration::from_secs(24 * 60 * 60);

/// A server with its data.
pub struct Running {
    contender: Contender,
    data: Data,
    pins: Pins,
    process: Process,
    dram_bytes_a_key: f64,
}

impl Running {
    /// Starts a server that holds nothing.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start_empty(contender: &Contender, data: Data, pins: Pins) -> Result<Running, Error> {
        let process =
            Process::start(&contender.starter, pins.server).with_context(|| contender.label())?;
        Ok(Running {
            contender: contender.clone(),
            data,
            pins,
            process,
            dram_bytes_a_key: 0.0,
        })
    }

    /// Starts a server and sets every key.
    ///
    /// # Errors
    /// It does not come up, or answers wrongly.
    pub fn start(contender: &Contender, data: Data, pins: Pins) -> Result<Running, Error> {
        let mut running = Running::start_empty(contender, data, pins)?;
        let empty = Memory::of(running.process.id())?;
        running
            .fill()
            .with_context(|| format!("{}: setting all keys", contender.label()))?;
        let filled = Memory::of(running.process.id())?;
        let grown = filled.anonymous_bytes.saturating_sub(empty.anonymous_bytes);
        running.dram_bytes_a_key = grown as f64 / data.keys.max(1) as f64;
        Ok(running)
    }

    fn fill(&mut self) -> Result<(), Error> {
        let _pinned = Pinned::to(self.pins.client)?;
        let (connections, pipeline) = FILL;
        // Large values go one by one, so that buffers of both sides stay small.
        let pipeline = if self.data.value_bytes > 16 << 10 {
            1
        } else {
            pipeline
        };
        let mut driver = Driver::connect(self.process.port, connections)?;
        driver.run(Run {
            wire: Wire::of(Command::Set, self.data),
            steps: Author::new(Workload::Put, self.data.keys, 0, 1, 0)
                .take(usize::try_from(self.data.keys)?),
            pipeline,
            rate: None,
            length: FILL_AT_MOST,
        })?;
        Ok(())
    }

    /// What it does under `load`: a row of one round.
    ///
    /// # Errors
    /// The load is for other data or asks for nothing; the server answers wrongly, or not.
    pub fn measure(&self, load: &Load) -> Result<Row, Error> {
        anyhow::ensure!(
            load.data == self.data,
            "the load is for other data than the server has"
        );
        anyhow::ensure!(
            load.connections > 0 && load.pipeline > 0 && load.data.keys > 0,
            "a load needs at least one connection, one request at a time and one key"
        );
        anyhow::ensure!(
            load.rate.is_none() || load.most.is_none(),
            "an open loop ends with its time"
        );
        anyhow::ensure!(
            load.rate.is_none_or(|rate| rate > 0.0),
            "the rate of an open loop is above zero"
        );
        self.measured(load)
            .with_context(|| format!("{} under load", self.contender.label()))
    }

    fn measured(&self, load: &Load) -> Result<Row, Error> {
        let _pinned = Pinned::to(self.pins.client)?;
        let mut driver = Driver::connect(self.process.port, load.connections)?;
        let most = load.most.map_or(Ok(usize::MAX), usize::try_from)?;
        let run = |seconds: f64, seed: u64| -> Result<Run, Error> {
            Ok(Run {
                wire: Wire::of(load.command, load.data),
                steps: Author::new(load.command.workload(), load.data.keys, 0, 1, seed).take(most),
                pipeline: load.pipeline,
                rate: load.rate,
                length: Duration::try_from_secs_f64(seconds).context("the length of a load")?,
            })
        };
        driver.run(run(load.warm_up_seconds, !load.seed)?)?;
        let before = processor_time(self.process.id())?;
        let outcome = driver.run(run(load.seconds, load.seed)?)?;
        let spent = processor_time(self.process.id())?.saturating_sub(before);
        let operations = outcome.sample.operations.max(1) as f64;
        let memory = Memory::of(self.process.id())?;
        let mut row = self.row(load);
        for (metric, value) in [
            (Metric::Operations, outcome.sample.operations as f64),
            (Metric::Rate, outcome.sample.rate()),
            (Metric::ProcessCpuNs, spent.as_nanos() as f64 / operations),
            // If this times the rate is near a second, the server was not the bottleneck. But an open loop
            // waits without sleeping for what is due soon.
            (Metric::ClientCpuNs, outcome.sample.cpu_ns()),
            (Metric::ResidentBytes, memory.resident_bytes as f64),
            (Metric::ProportionalBytes, memory.proportional_bytes as f64),
            (Metric::AnonymousBytes, memory.anonymous_bytes as f64),
            // What anonymous memory had grown by when all keys were set.
            (Metric::DramBytes, self.dram_bytes_a_key),
        ] {
            row.push(metric, value);
        }
        add_percentiles(&mut row, ALL, &outcome.latency);
        Ok(row)
    }

    /// Does something where load generators run; returns also the processor time that the server spent
    /// meanwhile.
    ///
    /// # Errors
    /// Those of the work, or of the kernel.
    pub(crate) fn beside<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(T, Duration), Error> {
        let _pinned = Pinned::to(self.pins.client)?;
        let before = processor_time(self.process.id())?;
        let done = work()?;
        let spent = processor_time(self.process.id())?.saturating_sub(before);
        Ok((done, spent))
    }

    /// Bytes of the server's own memory.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn anonymous_bytes(&self) -> Result<u64, Error> {
        Ok(Memory::of(self.process.id())?.anonymous_bytes)
    }

    /// What it is asked under `load`, in words.
    pub(super) fn title(&self, load: &Load) -> String {
        title(&self.row(load))
    }

    fn row(&self, load: &Load) -> Row {
        let contender = &self.contender;
        let conditions = json!({
            "version": contender.version,
            "medium": contender.medium,
            "durable": contender.persistence.word(),
            "keys": load.data.keys,
            "value": load.data.value_bytes,
            "connections": load.connections,
            "pipeline": load.pipeline,
            "due_each_second": load.rate,
            "seconds": load.seconds,
            "seed": load.seed,
        });
        let machine = Machine::here(contender.place());
        let (label, command) = (contender.label(), load.command.word());
        Row::new(SERVERS, &label, command, 1, conditions, &machine)
    }

    /// Ends the server in order.
    ///
    /// # Errors
    /// It does not end, or not well.
    pub fn stop(self) -> Result<(), Error> {
        self.process.stop().with_context(|| self.contender.label())
    }
}

/// What a server was asked: `SET, 1000 keys, values of 200 B, 50 connections, pipeline 16`.
pub(crate) fn title(row: &Row) -> String {
    let say = |condition| row.say(condition);
    let mut title = format!(
        "{}, {} keys, values of {} B, {} connections, pipeline {}",
        row.workload,
        say("keys"),
        say("value"),
        say("connections"),
        say("pipeline")
    );
    let rate = say("due_each_second");
    if !rate.is_empty() {
        let _ = write!(title, ", open loop of {rate} a second");
    }
    title
}

#[cfg(test)]
mod tests {
    use super::super::contender::Persistence;
    use super::super::table::{Comparison, compare, text};
    use super::*;

    fn load(command: Command, pipeline: usize, rate: Option<f64>) -> Load {
        Load {
            command,
            data: Data {
                keys: 500,
                value_bytes: 300,
            },
            connections: 5,
            pipeline,
            rate,
            most: None,
            warm_up_seconds: 0.0,
            seconds: 0.05,
            seed: 1,
        }
    }

    #[test]
    fn a_real_server_is_filled_measured_and_gone() {
        let dir = tempfile::tempdir().unwrap();
        let redis = match Contender::redis("redis-server", Persistence::EachWrite, dir.path()) {
            Ok(redis) => redis,
            Err(error) => return println!("skipped: {error:#}"),
        };
        let comparison = Comparison {
            contenders: vec![redis],
            loads: vec![
                load(Command::Set, 1, None),
                load(Command::Get, 4, None),
                load(Command::Get, 1, Some(2000.0)),
            ],
            repetitions: 2,
            pins: Pins::default(),
        };
        let mut shares = Vec::new();
        let rows = compare(&comparison, &mut |share, _| shares.push(share)).unwrap();
        assert!(shares.is_sorted() && shares.iter().all(|share| (0.0..1.0).contains(share)));
        let pipelines: Vec<f64> = rows.iter().map(|row| row.number("pipeline")).collect();
        assert_eq!(pipelines, [1.0, 4.0, 1.0]);
        for row in &rows {
            let rate = row.get(Metric::Rate);
            assert_eq!(row.rounds(Metric::Rate).len(), 2);
            assert!(rate.min > 0.0 && rate.min <= rate.median && row.is_durable());
        }
        // Every half millisecond, from the first moment to the last.
        assert_eq!(rows[2].rounds(Metric::Operations)[0], 101.0);
        assert_eq!(text(&rows).matches("redis-server always").count(), 3);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_server_that_does_not_start_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let Ok(mut redis) = Contender::redis("redis-server", Persistence::Never, dir.path()) else {
            return println!("skipped: redis-server is not installed");
        };
        redis.starter.arguments.push("--no-such-option".to_owned());
        redis.starter.arguments.push("x".to_owned());
        let data = load(Command::Set, 1, None).data;
        let error = Running::start(&redis, data, Pins::default()).err().unwrap();
        assert!(format!("{error:#}").contains("no-such-option"), "{error:#}");
    }
}
