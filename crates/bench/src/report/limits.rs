//! The part of the page about the machine's limits: everdram's shares of them, and the limits themselves.

use super::chart::{Bar, Chart, Kind};
use super::stores::part;
use crate::compare::{Ground, Group, Line};
use crate::limits;
use crate::show::words::percent;
use crate::timing::Spread;

/// The section; nothing without limits.
pub(super) fn section(lines: &[Line], groups: &[Group<'_>]) -> String {
    let limits = lines.iter().filter_map(|line| match line {
        Line::Limit { limit, .. } => Some(limit),
        _ => None,
    });
    let table = limits::table(limits).html("All limits");
    if table.is_empty() {
        return String::new();
    }
    let charts: String = Ground::ALL.map(|ground| shares(ground, groups)).concat();
    let charts = part(
        "everdram as a share of the limit",
        "On emulated persistent memory of processor time, background work included; on a disk by the clock. 100 % is a \
         loop without a store around it.",
        &charts,
    );
    format!(
        "<section><h2>What the machine can do at most</h2><p>Bare loops, without a store: measured once in each round \
         of the same run.</p>{charts}{table}</section>\n"
    )
}

fn shares(ground: Ground, groups: &[Group<'_>]) -> String {
    let mut bars = Vec::new();
    for group in groups.iter().filter(|group| group.ground == ground) {
        let mut own: Vec<_> = group
            .rows
            .iter()
            .filter(|row| row.configuration.store == "everdram")
            .collect();
        own.sort_by_key(|row| row.configuration.fixed);
        for row in own {
            let Some(share) = group.share(row) else {
                continue;
            };
            let pages = if row.configuration.fixed {
                ", fixed"
            } else {
                ""
            };
            let threads = match (ground, group.threads) {
                (Ground::Disk, threads) if threads > 1 => format!(", {threads} threads"),
                _ => String::new(),
            };
            bars.push(Bar {
                label: format!("{}{threads}{pages}", group.workload),
                kind: Kind::Own,
                values: Spread::of([share]),
            });
        }
    }
    Chart {
        title: ground.what(),
        note: "",
        unit: percent,
        bars,
        limit: Some((1.0, "limit of the machine".into())),
        is_log: false,
    }
    .figure()
}
