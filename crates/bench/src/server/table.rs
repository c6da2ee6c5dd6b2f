//! Several servers under several loads, taking turns; and the table of it.

use super::contender::Contender;
use super::load::{Data, Load};
use super::process::Pins;
use super::running::{Running, title};
use crate::report::Kind;
use crate::row::{Metric, Row, merged};
use crate::show::Table;
use crate::subject::Error;

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
) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for data in kinds_of_data(&comparison.loads) {
        let loads: Vec<&Load> = comparison
            .loads
            .iter()
            .filter(|load| load.data == data)
            .collect();
        let share_before = rows.len() as f64;
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
        let mut measured: Vec<Vec<Row>> = vec![Vec::new(); steps];
        for repetition in 0..comparison.repetitions {
            for (step, measured) in measured.iter_mut().enumerate() {
                let (load, server) = (loads[step / servers.len()], step % servers.len());
                let done = repetition as f64 + step as f64 / steps as f64;
                let label = comparison.contenders[server].label();
                let share = share_of(steps as f64 * done / comparison.repetitions as f64);
                progress(share, &format!("{label}: {}", servers[server].title(load)));
                let row = servers[server].measure(load)?;
                measured.push(row);
            }
        }
        servers.into_iter().try_for_each(Running::stop)?;
        rows.extend(merged(measured.into_iter().flatten()));
    }
    Ok(rows)
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

/// All servers, in medians, and the spread of what matters most.
#[must_use]
pub fn table<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Table {
    let mut table = Table::new(
        "server | replies/s | least to most | server us | least to most | client us | p50 us \
             | p99 us | p99.9 us | max us | DRAM/key | durable | version | load",
    );
    for row in rows {
        let (rate, cpu) = (row.get(Metric::Rate), row.get(Metric::ProcessCpuNs));
        let us = |metric| row.get(metric).median / 1e3;
        let whole = |metric| format!("{:.0}", us(metric));
        let cells = [
            row.subject.clone(),
            format!("{:.0}", rate.median),
            format!("{:.0} to {:.0}", rate.min, rate.max),
            format!("{:.2}", cpu.median / 1e3),
            format!("{:.2} to {:.2}", cpu.min / 1e3, cpu.max / 1e3),
            format!("{:.2}", us(Metric::ClientCpuNs)),
            whole(Metric::P50Ns),
            whole(Metric::P99Ns),
            whole(Metric::P999Ns),
            whole(Metric::MaxNs),
            format!("{:.0}", row.get(Metric::DramBytes).median),
            row.say("durable"),
            row.say("version"),
            title(row),
        ];
        table.push_as(Kind::of(row).class(), cells);
    }
    table
}

/// The same for a terminal, load by load.
#[must_use]
pub fn text(rows: &[Row]) -> String {
    let loads = rows.chunk_by(|one, other| title(one) == title(other));
    loads
        .map(|same| format!("\n{}\n{}", title(&same[0]), table(same).text(11)))
        .collect()
}
