//! The table of a comparison, for a terminal.

use crate::terminal::{Tone, paint};
use everdram_bench::compare::{Verdict, groups, tables};
use everdram_bench::row::{LEFT_OUT, Row, SERVERS};
use everdram_bench::server;

/// Prints stores, servers, what came out in sentences, and what was left out.
pub(super) fn print(rows: &[Row]) {
    let groups = groups(rows);
    for (scenario, table) in tables(&groups) {
        println!("\n{}", paint(Tone::Strong, &scenario));
        print!("{}", table.text(9));
    }
    let of_suite = |suite| rows.iter().filter(move |row| row.suite == suite).cloned();
    let servers: Vec<Row> = of_suite(SERVERS).collect();
    if !servers.is_empty() {
        println!("\n{}", paint(Tone::Strong, "Servers over sockets"));
        println!("{}", server::text(&servers).trim_end());
    }
    println!("\nshare: of the machine's limit. * = an answered write may be lost.");
    for verdict in [Verdict::of_stores(&groups), Verdict::of_servers(rows)] {
        for sentence in verdict.sentences() {
            println!("{sentence}");
        }
    }
    for row in of_suite(LEFT_OUT) {
        let (word, why) = (paint(Tone::Bad, "left out"), row.say("why"));
        println!("{word} {}: {why}", row.subject);
    }
}
