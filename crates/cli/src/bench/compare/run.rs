//! The run: rounds of limits and turns, then the servers. What fails leaves a row that says why, and the rest
//! goes on.

use super::contestant::{Contestant, is_wanted};
use super::turn;
use crate::terminal::Progress;
use anyhow::Context;
use everdram::EngineKind;
use everdram_bench::compare::{Ground, Scenario};
use everdram_bench::limits;
use everdram_bench::row::merged;
use everdram_bench::server::{self, Command, Data, Load, Pins, Places};
use everdram_bench::{Machine, Place, Row, Workload};
use std::path::{Path, PathBuf};

/// Part of the progress that servers take.
const SERVERS_SHARE: f64 = 0.15;
/// Records on a disk are so many times fewer: there each write waits.
const FEWER_ON_DISK: u64 = 10;

/// What is compared, and over how much.
pub(super) struct Comparison {
    /// Of everdram.
    pub(super) engine: EngineKind,
    pub(super) emulated_dir: PathBuf,
    pub(super) disk_dir: PathBuf,
    pub(super) records: u64,
    pub(super) seconds: f64,
    pub(super) repeat: usize,
    pub(super) seed: u64,
    /// Names of stores and servers, or parts of them; all if there is none.
    pub(super) only: Vec<String>,
}

impl Comparison {
    fn dir(&self, ground: Ground) -> &Path {
        match ground {
            Ground::Emulated => &self.emulated_dir,
            Ground::Disk => &self.disk_dir,
        }
    }

    fn machine(&self) -> Machine {
        Machine::here(&self.disk_dir)
    }

    fn left_out(&self, what: &str, error: &anyhow::Error) -> Row {
        Row::left_out(what, &format!("{error:#}"), &self.machine())
    }

    fn records(&self, ground: Ground) -> u64 {
        match ground {
            Ground::Emulated => self.records,
            Ground::Disk => (self.records / FEWER_ON_DISK).max(100),
        }
    }
}

/// What one store gave in one scenario so far.
struct Seat<'a> {
    contestant: &'a Contestant,
    scenario: &'a Scenario,
    rows: Vec<Row>,
    /// What ended a turn; there is no other after it.
    failure: Option<String>,
}

/// Measures everything into `rows`.
///
/// # Errors
/// If this program cannot be started again.
pub(super) fn measure(
    comparison: &Comparison,
    contestants: &[Contestant],
    progress: &Progress,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let scenarios = Scenario::usual();
    let mut seats: Vec<Seat<'_>> = scenarios
        .iter()
        .flat_map(|scenario| {
            let here = contestants
                .iter()
                .filter(|contestant| contestant.stands_on(scenario.ground));
            here.map(move |contestant| Seat {
                contestant,
                scenario,
                rows: Vec::new(),
                failure: None,
            })
        })
        .collect();
    let steps = (comparison.repeat * (seats.len() + 1)) as f64;
    let mut done = 0.0;
    let mut tell = |what: &str| {
        progress.at((done / steps * (1.0 - SERVERS_SHARE) * 1000.0) as u64, what);
        done += 1.0;
    };
    let mut limits = Vec::new();
    for round in 0..comparison.repeat {
        tell("limits of the machine");
        match bare_loops(comparison) {
            Ok(measured) => limits.extend(measured),
            Err(error) => rows.push(comparison.left_out("limits of the machine", &error)),
        }
        let mut order: Vec<&mut Seat<'_>> = seats.iter_mut().collect();
        if round % 2 == 1 {
            // Whoever was last is first, scenario by scenario.
            order.reverse();
        }
        for seat in order {
            tell(&format!(
                "{}, {}",
                seat.contestant.label(),
                seat.scenario.title()
            ));
            take_turn(comparison, seat)?;
        }
    }
    rows.extend(merged(limits));
    for seat in seats {
        rows.extend(store_rows(comparison, seat));
    }
    if let Err(error) = servers(comparison, progress, rows) {
        rows.push(comparison.left_out("servers", &error));
    }
    Ok(())
}

fn bare_loops(comparison: &Comparison) -> anyhow::Result<Vec<Row>> {
    let load_bytes = (comparison.records * 512).clamp(4 << 20, 2 << 30);
    let settings = limits::Settings {
        dir: comparison.emulated_dir.clone(),
        file_dir: Some(comparison.disk_dir.clone()),
        records: comparison.records,
        key_bytes: 16,
        value_bytes: 200,
        load_bytes,
        repeat: 1,
        quick: comparison.seconds < 1.0,
    };
    limits::measure(&settings, &mut |_, _| {})
}

fn take_turn(comparison: &Comparison, seat: &mut Seat<'_>) -> anyhow::Result<()> {
    if seat.failure.is_some() {
        return Ok(());
    }
    let ground = seat.scenario.ground;
    // What a process that dies leaves behind goes with this.
    let place = Place::within(comparison.dir(ground))?;
    let arguments = turn::Arguments {
        store: seat.contestant.on(
            ground,
            place.path(),
            comparison.records(ground),
            comparison.seed,
        ),
        threads: seat.scenario.threads,
        workloads: seat.scenario.workloads.clone(),
        seconds: comparison.seconds,
        recovery: seat.scenario.recovers,
    };
    let rows = &mut seat.rows;
    let taken = turn::have(&arguments, &mut |mut row| {
        let ground = ground.name().into();
        row.conditions.insert("ground".into(), ground);
        rows.push(row);
    });
    if let Err(error) = taken {
        seat.failure = Some(format!("{error:#}"));
    }
    Ok(())
}

/// The rows of all turns become one for each workload, with how opening after a crash went.
fn store_rows(comparison: &Comparison, seat: Seat<'_>) -> Vec<Row> {
    let is_recovery = |row: &Row| row.workload == turn::RECOVERY;
    let (recovered, measured): (Vec<Row>, Vec<Row>) =
        merged(seat.rows).into_iter().partition(is_recovery);
    let workloads = &seat.scenario.workloads;
    let of = |row: &Row| row.workload.parse::<Workload>().ok();
    let mut rows = measured;
    rows.sort_by_key(|row| {
        workloads
            .iter()
            .position(|workload| of(row) == Some(*workload))
    });
    for row in &mut rows {
        if of(row).is_some_and(|workload| !workload.begins_empty()) {
            recovered.iter().for_each(|recovered| row.append(recovered));
        }
    }
    if let Some(why) = seat.failure {
        let what = format!("{}, {}", seat.contestant.label(), seat.scenario.title());
        rows.push(Row::left_out(&what, &why, &comparison.machine()));
    }
    rows
}

fn servers(
    comparison: &Comparison,
    progress: &Progress,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let places = Places {
        emulated: comparison.emulated_dir.clone(),
        file: comparison.disk_dir.clone(),
    };
    let program = std::env::current_exe().context("finding this program, to serve")?;
    let (mut contenders, missing) = server::known(&program, comparison.engine, &places)?;
    let machine = comparison.machine();
    rows.extend(
        missing
            .iter()
            .map(|why| Row::left_out("a server", why, &machine)),
    );
    contenders.retain(|contender| is_wanted(&comparison.only, &contender.label()));
    if contenders.is_empty() {
        return Ok(());
    }
    rows.extend(server::compare(
        &server::Comparison {
            contenders,
            loads: loads(comparison),
            repetitions: comparison.repeat,
            pins: Pins::apart(),
        },
        &mut |done, what| {
            let done = 1.0 - SERVERS_SHARE + done * SERVERS_SHARE;
            progress.at((done * 1000.0) as u64, what);
        },
    )?);
    Ok(())
}

/// SET and GET, one at once and sixteen.
fn loads(comparison: &Comparison) -> Vec<Load> {
    let load = |pipeline, command| Load {
        command,
        data: Data {
            keys: comparison.records.min(1_000_000),
            value_bytes: 200,
        },
        connections: 50,
        pipeline,
        rate: None,
        warm_up_seconds: comparison.seconds / 4.0,
        seconds: comparison.seconds * 2.0,
        seed: comparison.seed,
    };
    [1, 16]
        .into_iter()
        .flat_map(|pipeline| [Command::Set, Command::Get].map(|command| load(pipeline, command)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process of a turn is this program started again, and a test runner knows no such command: it ends
    /// with an error, as a store does that dies.
    #[test]
    fn a_store_that_ends_its_process_leaves_a_line_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let comparison = Comparison {
            engine: EngineKind::default(),
            emulated_dir: dir.path().to_owned(),
            disk_dir: dir.path().to_owned(),
            records: 1000,
            seconds: 0.01,
            repeat: 2,
            seed: 1,
            only: Vec::new(),
        };
        let (scenarios, contestants) = (
            Scenario::usual(),
            Contestant::all(EngineKind::default(), &["everdram".into()]),
        );
        let mut seat = Seat {
            contestant: &contestants[0],
            scenario: &scenarios[0],
            rows: Vec::new(),
            failure: None,
        };
        take_turn(&comparison, &mut seat).unwrap();
        take_turn(&comparison, &mut seat).unwrap();
        let rows = store_rows(&comparison, seat);
        let [row] = rows.as_slice() else {
            panic!("{rows:?}");
        };
        let (what, why) = (&row.subject, row.say("why"));
        assert_eq!(what, "everdram viper, Emulated persistent memory, 1 thread");
        assert!(
            why.contains("exit status") && why.contains("store"),
            "{why}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
