//! Tables of stores: one for each scene, with the limits that nobody can pass.

use super::group::Group;
use super::line::label;
use crate::report::Kind;
use crate::row::Row;
use crate::show::Table;
use crate::show::words::{bytes, percent, rate, time};
use crate::subject::Durability;

const HEADS: &str = "workload | store | a second | least to most | share | CPU each | p50 | p99 | p99.9 | \
                     slowest | DRAM | medium | no core | durable | version | on | what the workload is";

/// Each scene, with its stores under each workload.
#[must_use]
pub fn tables(groups: &[Group<'_>]) -> Vec<(String, Table)> {
    let scenes = groups.chunk_by(|one, other| one.scene() == other.scene());
    scenes
        .map(|groups| {
            let mut table = Table::new(HEADS);
            groups.iter().for_each(|group| add(group, &mut table));
            (groups[0].scene(), table)
        })
        .collect()
}

fn add(group: &Group<'_>, table: &mut Table) {
    if let Some(bound) = &group.bound {
        let mut cells = [(); 17].map(|()| String::new());
        cells[0] = group.workload.to_string();
        cells[1] = format!("limit of the machine ({})", bound.name);
        cells[2] = rate(bound.rate);
        cells[16] = group.workload.what().into();
        table.push_as("limit", cells);
    }
    for row in &group.rows {
        add_row(group, row, table);
    }
}

fn add_row(group: &Group<'_>, row: &Row, table: &mut Table) {
    let (what, figures) = (&row.configuration, &row.figures);
    let is_durable = what.durability == Durability::EachWrite;
    let latency = figures.latency.unwrap_or_default().all;
    let of_record = |value: Option<f64>| value.map_or(String::new(), bytes);
    table.push_as(
        Kind::of(what).class(),
        [
            group.workload.to_string(),
            format!("{}{}", label(what), if is_durable { "" } else { " *" }),
            rate(figures.rate.median),
            format!("{} to {}", rate(figures.rate.min), rate(figures.rate.max)),
            group.share(row).map_or(String::new(), percent),
            time(figures.process_cpu_ns.median),
            time(latency.p50 as f64),
            time(latency.p99 as f64),
            time(latency.p999 as f64),
            time(latency.max as f64),
            of_record(figures.dram_bytes),
            of_record(figures.medium_bytes),
            percent(figures.queued_share),
            if is_durable { "each write" } else { "no" }.into(),
            what.version.clone(),
            what.medium.clone(),
            group.workload.what().into(),
        ],
    );
}
