//! Tables of stores: one for each scenario, with the limits of the machine.

use super::Group;
use crate::report::Kind;
use crate::row::{Metric, Row};
use crate::show::Table;
use crate::show::words::{bytes, percent, rate, time};

const HEADS: &str = "workload | store | a second | least to most | share | of the chain | CPU each | p50 | p99 | p99.9 | \
                     slowest | DRAM | medium | no core | durable | version | on | what the workload is";

/// Each scenario, with its stores under each workload.
#[must_use]
pub fn tables(groups: &[Group<'_>]) -> Vec<(String, Table)> {
    let scenarios = groups.chunk_by(|one, other| one.scenario() == other.scenario());
    scenarios
        .map(|groups| {
            let mut table = Table::new(HEADS);
            groups.iter().for_each(|group| add(group, &mut table));
            (groups[0].scenario(), table)
        })
        .collect()
}

fn add(group: &Group<'_>, table: &mut Table) {
    for bound in group.bound.iter().chain(&group.chain) {
        let mut cells = [(); 18].map(|()| String::new());
        cells[0] = group.workload.to_string();
        cells[1] = format!("limit of the machine ({})", bound.name);
        cells[2] = rate(bound.rate);
        cells[17] = group.workload.what().into();
        table.push_as("limit", cells);
    }
    for row in &group.rows {
        add_row(group, row, table);
    }
}

fn add_row(group: &Group<'_>, row: &Row, table: &mut Table) {
    let mark = if row.is_durable() { "" } else { " *" };
    let middle = |metric, show: fn(f64) -> String| row.median(metric).map_or(String::new(), show);
    let speed = row.get(Metric::Rate);
    let cells = [
        row.workload.clone(),
        format!("{}{mark}", row.subject),
        rate(speed.median),
        format!("{} to {}", rate(speed.min), rate(speed.max)),
        group.share(row).map_or(String::new(), percent),
        group.share_of_chain(row).map_or(String::new(), percent),
        middle(Metric::ProcessCpuNs, time),
        middle(Metric::P50Ns, time),
        middle(Metric::P99Ns, time),
        middle(Metric::P999Ns, time),
        time(row.get(Metric::MaxNs).max),
        middle(Metric::DramBytes, bytes),
        middle(Metric::MediumBytes, bytes),
        percent(row.mean(Metric::QueuedShare)),
        row.say("durable"),
        row.say("version"),
        row.say("medium"),
        group.workload.what().into(),
    ];
    table.push_as(Kind::of(row).class(), cells);
}
