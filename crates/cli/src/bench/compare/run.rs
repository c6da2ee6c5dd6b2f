//! The run: rounds of limits and turns, then the servers. What fails leaves a line that says why, and the
//! rest goes on.

use super::contestant::{Contestant, is_wanted};
use super::turn;
use crate::terminal::Progress;
use anyhow::Context;
use everdram::EngineKind;
use everdram_bench::compare::{Ground, Line, Measured, Part, Scene, merged_limits, row};
use everdram_bench::limits::{self, Limit};
use everdram_bench::server::{self, Command, Data, Load, Pins, Places};
use everdram_bench::{
    Configuration, Figures, Machine, Place, Recovery, Row, Sizes, Workload, commit,
};
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

    fn records(&self, ground: Ground) -> u64 {
        match ground {
            Ground::Emulated => self.records,
            Ground::Disk => (self.records / FEWER_ON_DISK).max(100),
        }
    }
}

/// What one store gave in one scene so far.
struct Seat<'a> {
    contestant: &'a Contestant,
    scene: &'a Scene,
    measured: Vec<Measured>,
    recoveries: Vec<Recovery>,
    /// What ended a turn; there is no other after it.
    failure: Option<String>,
}

/// Measures everything into `lines`.
///
/// # Errors
/// If this program cannot be started again.
pub(super) fn measure(
    comparison: &Comparison,
    contestants: &[Contestant],
    progress: &Progress,
    lines: &mut Vec<Line>,
) -> anyhow::Result<()> {
    let scenes = Scene::usual();
    let mut seats: Vec<Seat<'_>> = scenes
        .iter()
        .flat_map(|scene| {
            let here = contestants
                .iter()
                .filter(|contestant| contestant.stands_on(scene.ground));
            here.map(move |contestant| Seat {
                contestant,
                scene,
                measured: Vec::new(),
                recoveries: Vec::new(),
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
            Ok(measured) => limits.push(measured),
            Err(error) => lines.push(left_out("limits of the machine", &error)),
        }
        let mut order: Vec<&mut Seat<'_>> = seats.iter_mut().collect();
        if round % 2 == 1 {
            // Whoever was last is first, scene by scene.
            order.reverse();
        }
        for seat in order {
            tell(&format!(
                "{}, {}",
                seat.contestant.label(),
                seat.scene.title()
            ));
            take_turn(comparison, seat)?;
        }
    }
    lines.extend(limit_lines(comparison, &limits));
    for seat in &seats {
        lines.extend(store_lines(comparison, seat)?);
    }
    if let Err(error) = servers(comparison, progress, lines) {
        lines.push(left_out("servers", &error));
    }
    Ok(())
}

fn left_out(what: &str, error: &anyhow::Error) -> Line {
    Line::LeftOut {
        what: what.into(),
        why: format!("{error:#}"),
    }
}

fn bare_loops(comparison: &Comparison) -> anyhow::Result<Vec<Limit>> {
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

fn limit_lines(comparison: &Comparison, rounds: &[Vec<Limit>]) -> Vec<Line> {
    let (machine, commit) = (Machine::here(&comparison.emulated_dir), commit());
    merged_limits(rounds)
        .into_iter()
        .map(|limit| Line::Limit {
            limit,
            machine: machine.clone(),
            commit: commit.clone(),
        })
        .collect()
}

fn take_turn(comparison: &Comparison, seat: &mut Seat<'_>) -> anyhow::Result<()> {
    if seat.failure.is_some() {
        return Ok(());
    }
    let ground = seat.scene.ground;
    // What a process that dies leaves behind goes with this.
    let place = Place::within(comparison.dir(ground))?;
    let arguments = turn::Arguments {
        store: seat.contestant.on(
            ground,
            place.path(),
            comparison.records(ground),
            comparison.seed,
        ),
        threads: seat.scene.threads,
        workloads: seat.scene.workloads.clone(),
        seconds: comparison.seconds,
        recovery: seat.scene.recovers,
    };
    let (measured, recoveries) = (&mut seat.measured, &mut seat.recoveries);
    let taken = turn::have(&arguments, &mut |part| match part {
        Part::Measured(one) => measured.push(*one),
        Part::Recovered(one) => recoveries.push(one),
    });
    if let Err(error) = taken {
        seat.failure = Some(format!("{error:#}"));
    }
    Ok(())
}

fn store_lines(comparison: &Comparison, seat: &Seat<'_>) -> anyhow::Result<Vec<Line>> {
    let (contestant, scene) = (seat.contestant, seat.scene);
    let mut lines = Vec::new();
    for workload in &scene.workloads {
        let same: Vec<Measured> = seat
            .measured
            .iter()
            .filter(|measured| measured.workload == *workload)
            .cloned()
            .collect();
        let blank = blank(comparison, contestant, scene, *workload)?;
        let filled = !workload.begins_empty();
        let recoveries = if filled { &seat.recoveries[..] } else { &[] };
        lines.extend(row(blank, &same, recoveries).map(|row| Line::Store {
            ground: scene.ground,
            row,
        }));
    }
    if let Some(why) = &seat.failure {
        lines.push(Line::LeftOut {
            what: format!("{}, {}", contestant.label(), scene.title()),
            why: why.clone(),
        });
    }
    Ok(lines)
}

/// A row without figures.
fn blank(
    comparison: &Comparison,
    contestant: &Contestant,
    scene: &Scene,
    workload: Workload,
) -> anyhow::Result<Row> {
    let ground = scene.ground;
    let (dir, records) = (comparison.dir(ground), comparison.records(ground));
    let opener = contestant
        .on(ground, dir, records, comparison.seed)
        .opener()?;
    Ok(Row {
        configuration: Configuration {
            store: contestant.store.clone(),
            version: opener.version(),
            engine: opener.engine().map(str::to_owned),
            medium: contestant.medium(ground, dir),
            durability: opener.durability(),
            workload,
            records: if workload.begins_empty() { 0 } else { records },
            operations: 0,
            threads: scene.threads,
            keys: Sizes::Fixed(16),
            values: Sizes::Fixed(200),
            batch: if workload.is_batched() {
                limits::records::BATCH
            } else {
                1
            },
            rate: None,
            pinned: false,
            fixed: contestant.fixed,
            seed: comparison.seed,
            repeat: comparison.repeat,
        },
        machine: Machine::here(dir),
        commit: commit(),
        figures: Figures::default(),
    })
}

fn servers(
    comparison: &Comparison,
    progress: &Progress,
    lines: &mut Vec<Line>,
) -> anyhow::Result<()> {
    let places = Places {
        emulated: comparison.emulated_dir.clone(),
        file: comparison.disk_dir.clone(),
    };
    let program = std::env::current_exe().context("finding this program, to serve")?;
    let (mut contenders, missing) = server::known(&program, comparison.engine, &places)?;
    lines.extend(missing.into_iter().map(|why| Line::LeftOut {
        what: "a server".into(),
        why,
    }));
    contenders.retain(|contender| is_wanted(&comparison.only, &contender.label()));
    if contenders.is_empty() {
        return Ok(());
    }
    let summaries = server::compare(
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
    )?;
    let (machine, commit) = (Machine::here(&comparison.disk_dir), commit());
    lines.extend(summaries.into_iter().map(|summary| Line::Server {
        summary,
        machine: machine.clone(),
        commit: commit.clone(),
    }));
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
        let (scenes, contestants) = (
            Scene::usual(),
            Contestant::all(EngineKind::default(), &["everdram".into()]),
        );
        let mut seat = Seat {
            contestant: &contestants[0],
            scene: &scenes[0],
            measured: Vec::new(),
            recoveries: Vec::new(),
            failure: None,
        };
        take_turn(&comparison, &mut seat).unwrap();
        take_turn(&comparison, &mut seat).unwrap();
        let lines = store_lines(&comparison, &seat).unwrap();
        let [Line::LeftOut { what, why }] = lines.as_slice() else {
            panic!("{lines:?}");
        };
        assert_eq!(what, "everdram viper, Emulated persistent memory, 1 thread");
        assert!(
            why.contains("exit status") && why.contains("store"),
            "{why}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
