//! The table of a comparison, for a terminal.

use crate::terminal::{Tone, paint};
use crate::units;
use everdram_bench::compare::{Group, Line, Verdict, groups, label};
use everdram_bench::server::{self, Summary};
use everdram_bench::{Durability, Row};
use std::time::Duration;

/// Prints stores, servers, what came out in sentences, and what was left out.
pub(super) fn print(lines: &[Line]) {
    let groups = groups(lines);
    let mut scene = String::new();
    for group in &groups {
        if group.scene() != scene {
            scene = group.scene();
            println!("\n{}", paint(Tone::Strong, &scene));
            println!(
                "  {:<34} {:>10} {:>23} {:>6} {:>10} {:>9} {:>9} {:>9}",
                "", "a second", "least to most", "share", "CPU each", "p50", "p99", "p99.9"
            );
        }
        print_group(group);
    }
    let summaries: Vec<Summary> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Server { summary, .. } => Some(summary.clone()),
            _ => None,
        })
        .collect();
    if !summaries.is_empty() {
        println!("\n{}", paint(Tone::Strong, "Servers over sockets"));
        println!("{}", server::text(&summaries).trim_end());
    }
    println!("\nshare: of the machine's limit. * = an answered write may be lost.");
    for verdict in [Verdict::of_stores(&groups), Verdict::of_servers(lines)] {
        for sentence in verdict.sentences() {
            println!("{sentence}");
        }
    }
    for line in lines {
        if let Line::LeftOut { what, why } = line {
            println!("{} {what}: {why}", paint(Tone::Bad, "left out"));
        }
    }
}

fn print_group(group: &Group<'_>) {
    println!("  {}: {}", group.workload, group.workload.what());
    if let Some(bound) = &group.bound {
        let name = format!("limit of the machine ({})", bound.name);
        println!("    {name:<32} {:>10}", rate(bound.rate));
    }
    for row in &group.rows {
        println!("{}", line(group, row));
    }
}

fn line(group: &Group<'_>, row: &Row) -> String {
    let (what, figures) = (&row.configuration, &row.figures);
    let mark = match what.durability {
        Durability::EachWrite => "",
        Durability::Never => " *",
    };
    // Colour has no width: it comes after the padding.
    let name = format!("{:<32}", format!("{}{mark}", label(what)));
    let name = if what.store == "everdram" {
        paint(Tone::Strong, &name)
    } else {
        name
    };
    let range = format!("{} to {}", rate(figures.rate.min), rate(figures.rate.max));
    let share = group.share(row);
    let latency = figures.latency.unwrap_or_default().all;
    let time = |ns: u64| units::time(Duration::from_nanos(ns));
    format!(
        "    {name} {:>10} {range:>23} {:>6} {:>10} {:>9} {:>9} {:>9}",
        rate(figures.rate.median),
        share.map_or(String::new(), |share| format!("{:.0} %", share * 100.0)),
        time(figures.process_cpu_ns.median as u64),
        time(latency.p50),
        time(latency.p99),
        time(latency.p999),
    )
}

/// `6.12 M/s`, `12.3 k/s`.
fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2} M/s", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} k/s", rate / 1e3),
        rate => format!("{rate:.1} /s"),
    }
}
