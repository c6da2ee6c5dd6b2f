//! The table of a comparison, for a terminal.

use crate::terminal::{Tone, paint};
use everdram_bench::compare::{Line, Verdict, groups, tables};
use everdram_bench::server::{self, Summary};

/// Prints stores, servers, what came out in sentences, and what was left out.
pub(super) fn print(lines: &[Line]) {
    let groups = groups(lines);
    for (scene, table) in tables(&groups) {
        println!("\n{}", paint(Tone::Strong, &scene));
        print!("{}", table.text(9));
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
