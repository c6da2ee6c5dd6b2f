//! The run: rounds of limits and turns, then the servers. What fails leaves a row that says why, and the rest
//! goes on.

use super::super::store::{self, Store};
use super::{Arguments, turn};
use crate::terminal::Progress;
use anyhow::Context;
use everdram::Medium;
use everdram_bench::compare::{Ground, Scenario};
use everdram_bench::limits;
use everdram_bench::row::merged;
use everdram_bench::server::{self, Command, Data, Load, Pins, Places};
use everdram_bench::{Machine, Place, Row, Workload};
use std::path::Path;

/// Part of the progress that servers take.
const SERVERS_SHARE: f64 = 0.15;
/// Records on a disk are so many times fewer: there each write waits.
const FEWER_ON_DISK: u64 = 10;

impl Arguments {
    fn dir_on(&self, ground: Ground) -> &Path {
        match ground {
            Ground::Emulated => &self.emulated_dir,
            Ground::Disk => &self.dir,
        }
    }

    fn machine(&self) -> Machine {
        Machine::here(&self.dir)
    }

    fn left_out(&self, what: &str, error: &anyhow::Error) -> Row {
        Row::left_out(what, &format!("{error:#}"), &self.machine())
    }

    fn records_on(&self, ground: Ground) -> u64 {
        match ground {
            Ground::Emulated => self.records(),
            Ground::Disk => (self.records() / FEWER_ON_DISK).max(100),
        }
    }
}

/// The one that knows no medium, and is no rival on a disk.
const VOLATILE: &str = "scc";

/// Whether `name` is among those that were asked for.
fn is_wanted(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|part| name.contains(part.as_str()))
}

/// A store in one scenario, and what it gave so far.
struct Entry {
    store: Store,
    label: String,
    scenario: Scenario,
    rows: Vec<Row>,
    /// What ended a turn; there is no other after it.
    failure: Option<String>,
}

/// The stores of this build in one scenario, everdram also with pages of one size. These make no difference
/// to a disk.
fn entries(comparison: &Arguments, scenario: &Scenario) -> anyhow::Result<Vec<Entry>> {
    let ground = scenario.ground;
    let names = store::names().into_iter();
    let names = names.filter(|name| is_wanted(&comparison.only, name));
    let with_pages = names.flat_map(|name| {
        let has_both = name == "everdram" && ground == Ground::Emulated;
        let kinds = if has_both {
            &[false, true][..]
        } else {
            &[false]
        };
        kinds.iter().map(move |fixed| (name.clone(), *fixed))
    });
    with_pages
        .filter(|(name, _)| ground == Ground::Emulated || name != VOLATILE)
        .map(|(name, fixed)| {
            let (dir, records) = (comparison.dir_on(ground), comparison.records_on(ground));
            let store = Store {
                fixed,
                medium: match ground {
                    Ground::Emulated => Medium::Emulated,
                    Ground::Disk => Medium::File,
                },
                ..Store::new(&name, comparison.engine, dir, records, comparison.seed)
            };
            Ok(Entry {
                label: store.opener()?.label(),
                store,
                scenario: scenario.clone(),
                rows: Vec::new(),
                failure: None,
            })
        })
        .collect()
}

/// Measures everything into `rows`.
///
/// # Errors
/// If this program cannot be started again.
pub(super) fn measure(
    comparison: &Arguments,
    progress: &Progress,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for scenario in Scenario::usual() {
        all.extend(entries(comparison, &scenario)?);
    }
    let steps = (comparison.repeat * (all.len() + 1)) as f64;
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
        let mut order: Vec<&mut Entry> = all.iter_mut().collect();
        if round % 2 == 1 {
            // The store that was last in each scenario goes first.
            order.reverse();
        }
        for entry in order {
            tell(&format!("{}, {}", entry.label, entry.scenario.title()));
            take_turn(comparison, entry)?;
        }
    }
    rows.extend(merged(limits));
    for entry in all {
        rows.extend(store_rows(comparison, entry));
    }
    if let Err(error) = servers(comparison, progress, rows) {
        rows.push(comparison.left_out("servers", &error));
    }
    Ok(())
}

fn bare_loops(comparison: &Arguments) -> anyhow::Result<Vec<Row>> {
    let load_bytes = (comparison.records() * 512).clamp(4 << 20, 2 << 30);
    let settings = limits::Settings {
        dir: comparison.emulated_dir.clone(),
        file_dir: Some(comparison.dir.clone()),
        records: comparison.records(),
        key_bytes: 16,
        value_bytes: 200,
        load_bytes,
        repeat: 1,
        quick: comparison.seconds() < 1.0,
    };
    limits::measure(&settings, &mut |_, _| {})
}

fn take_turn(comparison: &Arguments, entry: &mut Entry) -> anyhow::Result<()> {
    if entry.failure.is_some() {
        return Ok(());
    }
    let ground = entry.scenario.ground;
    // What a process that dies leaves behind goes with this.
    let place = Place::within(comparison.dir_on(ground))?;
    let arguments = turn::Arguments {
        store: Store {
            dir: place.path().to_owned(),
            ..entry.store.clone()
        },
        threads: entry.scenario.threads,
        workloads: entry.scenario.workloads.clone(),
        seconds: comparison.seconds(),
        recovery: entry.scenario.recovers,
    };
    let rows = &mut entry.rows;
    let taken = turn::have(&arguments, &mut |mut row| {
        let ground = ground.name().into();
        row.conditions.insert("ground".into(), ground);
        rows.push(row);
    });
    if let Err(error) = taken {
        entry.failure = Some(format!("{error:#}"));
    }
    Ok(())
}

/// The rows of all turns become one for each workload, with how opening after a crash went.
fn store_rows(comparison: &Arguments, entry: Entry) -> Vec<Row> {
    let is_recovery = |row: &Row| row.workload == turn::RECOVERY;
    let (recovered, measured): (Vec<Row>, Vec<Row>) =
        merged(entry.rows).into_iter().partition(is_recovery);
    let workloads = &entry.scenario.workloads;
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
    if let Some(why) = entry.failure {
        let what = format!("{}, {}", entry.label, entry.scenario.title());
        rows.push(Row::left_out(&what, &why, &comparison.machine()));
    }
    rows
}

fn servers(comparison: &Arguments, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let places = Places {
        emulated: comparison.emulated_dir.clone(),
        file: comparison.dir.clone(),
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
fn loads(comparison: &Arguments) -> Vec<Load> {
    let load = |pipeline, command| Load {
        command,
        data: Data {
            keys: comparison.records().min(1_000_000),
            value_bytes: 200,
        },
        connections: 50,
        pipeline,
        rate: None,
        most: None,
        warm_up_seconds: comparison.seconds() / 4.0,
        seconds: comparison.seconds() * 2.0,
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

    fn comparison(dir: &Path, only: &str) -> Arguments {
        let dir = dir.to_str().unwrap();
        let line = [
            "--only",
            only,
            "--dir",
            dir,
            "--emulated-dir",
            dir,
            "--records",
            "1000",
        ];
        super::super::tests::parse(line.into_iter().chain(["--seconds", "0.01"]))
    }

    #[test]
    fn everdram_is_there_twice_but_on_a_disk_once() {
        let own = comparison(Path::new("."), "everdram");
        for scenario in Scenario::usual() {
            let entries = entries(&own, &scenario).unwrap();
            let labels: Vec<&str> = entries.iter().map(|entry| entry.label.as_str()).collect();
            match scenario.ground {
                Ground::Emulated => assert_eq!(labels, ["everdram viper", "everdram viper, fixed"]),
                Ground::Disk => assert_eq!(labels, ["everdram viper"]),
            }
        }
        let nobody = comparison(Path::new("."), "nobody");
        let none = entries(&nobody, &Scenario::usual()[0]).unwrap();
        assert!(none.is_empty());
    }

    /// The process of a turn is this program started again, and a test runner knows no such command: it ends
    /// with an error, as a store does that dies.
    #[test]
    fn a_store_that_ends_its_process_leaves_a_line_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let comparison = comparison(dir.path(), "everdram");
        let mut entries = entries(&comparison, &Scenario::usual()[0]).unwrap();
        let mut entry = entries.remove(0);
        take_turn(&comparison, &mut entry).unwrap();
        take_turn(&comparison, &mut entry).unwrap();
        let rows = store_rows(&comparison, entry);
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
