//! Several servers under several loads, taking turns; and the table of it.

use super::affinity::Pins;
use super::contender::Contender;
use super::figures::{ServerFigures, Summary};
use super::load::{Data, Load};
use super::running::Running;
use crate::report::Kind;
use crate::show::Table;
use crate::subject::Error;
use crate::timing::Spread;
use std::fmt::Write as _;

/// What is to be compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The servers.
    pub contenders: Vec<Contender>,
    /// What each is asked. Loads with the same data are measured on the same servers.
    pub loads: Vec<Load>,
    /// How often.
    pub repetitions: usize,
    /// Where server and load generator run.
    pub pins: Pins,
}

/// Measures each server under each load. `progress` hears the share that is done and what comes next.
///
/// # Errors
/// A server does not come up, answers wrongly or does not answer.
pub fn compare(
    comparison: &Comparison,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<Vec<Summary>, Error> {
    let mut summaries = Vec::new();
    for data in kinds_of_data(&comparison.loads) {
        let loads: Vec<&Load> = comparison
            .loads
            .iter()
            .filter(|load| load.data == data)
            .collect();
        let share_before = summaries.len() as f64;
        let share_of = |steps: f64| {
            let all = comparison.loads.len() * comparison.contenders.len();
            (share_before + steps) / all.max(1) as f64
        };
        let mut servers = Vec::new();
        for contender in &comparison.contenders {
            progress(
                share_of(0.0),
                &format!("{}: setting all keys", contender.label()),
            );
            servers.push(Running::start(contender, data, comparison.pins)?);
        }
        let steps = loads.len() * servers.len();
        let mut figures: Vec<Vec<ServerFigures>> = vec![Vec::new(); steps];
        for repetition in 0..comparison.repetitions {
            for (step, figures) in figures.iter_mut().enumerate() {
                let (load, server) = (loads[step / servers.len()], step % servers.len());
                let done = repetition as f64 + step as f64 / steps as f64;
                let label = comparison.contenders[server].label();
                let share = share_of(steps as f64 * done / comparison.repetitions as f64);
                progress(share, &format!("{label}: {}", title(load)));
                figures.push(servers[server].measure(load)?);
            }
        }
        servers.into_iter().try_for_each(Running::stop)?;
        summaries.extend(figures.into_iter().filter_map(Summary::of));
    }
    Ok(summaries)
}

/// Each once, in the order of the loads.
fn kinds_of_data(loads: &[Load]) -> Vec<Data> {
    let mut kinds = Vec::new();
    for load in loads {
        if !kinds.contains(&load.data) {
            kinds.push(load.data);
        }
    }
    kinds
}

/// `SET, 200 B, 50 connections, pipeline 16`.
fn title(load: &Load) -> String {
    let mut title = format!(
        "{}, {} keys, values of {} B, {} connections, pipeline {}",
        load.command.word(),
        load.data.keys,
        load.data.value_bytes,
        load.connections,
        load.pipeline
    );
    if let Some(rate) = load.rate {
        let _ = write!(title, ", open loop of {rate} a second");
    }
    title
}

/// All servers, in medians, and the spread of what matters most.
#[must_use]
pub fn table<'a>(summaries: impl IntoIterator<Item = &'a Summary>) -> Table {
    let mut table = Table::new(
        "server | replies/s | least to most | server us | least to most | client us | p50 us \
             | p99 us | p99.9 us | max us | DRAM/key | durable | version | load",
    );
    for summary in summaries {
        let (rate, cpu) = (&summary.rate, &summary.server_cpu_us);
        let first = summary.repetitions.first();
        let whole = |spread: Spread| format!("{:.0}", spread.median);
        table.push_as(
            Kind::of_server(summary).class(),
            [
                summary.label.clone(),
                whole(*rate),
                format!("{:.0} to {:.0}", rate.min, rate.max),
                format!("{:.2}", cpu.median),
                format!("{:.2} to {:.2}", cpu.min, cpu.max),
                format!("{:.2}", summary.client_cpu_us.median),
                whole(summary.p50_us),
                whole(summary.p99_us),
                whole(summary.p999_us),
                whole(summary.max_us),
                format!("{:.0}", summary.dram_bytes_a_key),
                first
                    .map_or("", |figures| figures.persistence.word())
                    .into(),
                first.map_or(String::new(), |figures| figures.version.clone()),
                title(&summary.load),
            ],
        );
    }
    table
}

/// The same for a terminal, load by load.
#[must_use]
pub fn text(summaries: &[Summary]) -> String {
    let loads = summaries.chunk_by(|one, other| one.load == other.load);
    loads
        .map(|same| format!("\n{}\n{}", title(&same[0].load), table(same).text(11)))
        .collect()
}
