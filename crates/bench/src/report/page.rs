//! The page around the charts: what was measured, where, what came out in sentences, and how much the machine
//! shook.

use super::sections;
use crate::compare::{Duels, Group, groups, of_suite, tables};
use crate::row::{LEFT_OUT, Metric, Row, SERVERS};
use crate::server;
use crate::show::words::{count, escaped, percent};
use crate::timing::Spread;
use std::collections::BTreeSet;

/// The report of a comparison.
#[must_use]
pub fn html(rows: &[Row]) -> String {
    let groups = groups(rows);
    let parts = [
        opening(rows, &groups),
        legend(),
        sections::stores(&groups),
        sections::servers(rows),
        sections::limits(rows, &groups),
        every_row(rows, &groups),
        left_out(rows),
        closing().to_owned(),
    ];
    super::page("everdram, measured", &parts)
}

fn opening(rows: &[Row], groups: &[Group<'_>]) -> String {
    let sentences: String = [Duels::of_stores(groups), Duels::of_servers(rows)]
        .iter()
        .flat_map(Duels::sentences)
        .map(|sentence| format!("<p class=\"verdict\">{}</p>", escaped(&sentence)))
        .collect();
    format!(
        "<header><h1><span class=\"name\">everdram</span>, measured</h1><p class=\"subtitle\">beside what people use \
         today, and beside what the machine can do at most</p></header>\n<section>{sentences}{}</section>\n",
        super::facts(&facts_of(rows, groups))
    )
}

/// What was measured, where and how steadily: names and texts.
fn facts_of(rows: &[Row], groups: &[Group<'_>]) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(row) = rows.iter().find(|row| row.suite != LEFT_OUT) {
        facts.push(("Machine", super::described(&row.machine)));
        facts.push(("Built from", row.commit.clone()));
    }
    let stores: Vec<&Row> = groups.iter().flat_map(|group| group.rows.clone()).collect();
    if let Some(row) = stores.first() {
        let records = stores.iter().map(|row| row.number("records"));
        facts.push((
            "Records",
            format!(
                "{} of {} + {} bytes, keys at random; {} repetitions in alternating order",
                count(records.fold(0.0, f64::max) as u64),
                row.say("key"),
                row.say("value"),
                row.rounds(Metric::Rate).len()
            ),
        ));
        facts.push(("Grounds", grounds(groups)));
        let names = stores.iter().map(|row| (&row.subject, row.say("version")));
        let names: BTreeSet<String> = names.map(|(name, of)| format!("{name} {of}")).collect();
        facts.push(("Stores", names.into_iter().collect::<Vec<_>>().join("; ")));
        facts.push(("Noise", noise(&stores)));
    }
    facts
}

fn grounds(groups: &[Group<'_>]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for group in groups {
        let Some(row) = group.rows.first() else {
            continue;
        };
        let text = format!("{} on {}", group.ground, row.machine.filesystem);
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join(", ")
}

/// How far the repetitions of one row lie apart, as a rule, and how long threads waited for a core.
fn noise(rows: &[&Row]) -> String {
    let rates = rows.iter().map(|row| row.get(Metric::Rate));
    let apart = rates.map(|rate| (rate.max - rate.min) / rate.median.max(1e-9));
    let spread = Spread::of(apart).median;
    let queued = Spread::of(rows.iter().map(|row| row.mean(Metric::QueuedShare)));
    format!(
        "between the slowest and the fastest repetition of a row lie {} of its rate in the middle; threads waited for a \
         core {} of their time in the middle, {} at most. Compare rows of this page with each other, not with those of \
         another run",
        percent(spread),
        percent(queued.median),
        percent(queued.max)
    )
}

fn legend() -> String {
    let items: String = [
        ("own", "everdram"),
        ("durable", "others, each write durable"),
        ("loose", "others that may lose what they acknowledged"),
        ("limit", "limit of the machine"),
    ]
    .map(|(class, what)| format!("<span><span class=\"key {class}\"></span>{what}</span>"))
    .concat();
    format!("<p class=\"legend\">{items}</p>\n")
}

fn every_row(rows: &[Row], groups: &[Group<'_>]) -> String {
    let stores = tables(groups);
    let stores = stores.iter().map(|(scenario, table)| table.html(scenario));
    let servers = server::table(of_suite(rows, SERVERS)).html("Servers");
    format!(
        "<section><h2>Every row</h2>{}{servers}</section>\n",
        stores.collect::<String>()
    )
}

fn left_out(rows: &[Row]) -> String {
    let item = |row: &Row| {
        let (what, why) = (escaped(&row.subject), escaped(&row.say("why")));
        format!("<li><b>{what}</b>: {why}</li>")
    };
    let items: String = of_suite(rows, LEFT_OUT).map(item).collect();
    if items.is_empty() {
        return String::new();
    }
    format!("<section><h2>Left out</h2><ul>{items}</ul></section>\n")
}

fn closing() -> &'static str {
    "<footer><p>Made by <code>everdram bench compare</code>; <code>everdram bench report</code> makes this page again from \
     the rows. How each figure is made: <code>docs/benchmarks.md</code>.</p></footer>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{balance, sample};

    #[test]
    fn the_page_has_everything_and_is_well_formed() {
        let page = html(&sample::rows());
        balance::assert_balanced(&page);
        for part in [
            "rocksdb",
            "scc",
            "everdram, fixed",
            "redis always",
            "everdram emulated",
            "Emulated persistent memory, 1 thread",
            "An ordinary disk, 8 threads",
            "limit of the machine (get)",
            "limit of the machine (chain-get)",
            "everdram as a share of the chain",
            "valkey-server",
            "prefers-color-scheme: dark",
            "class=\"key loose\"",
        ] {
            assert!(page.contains(part), "{part}");
        }
        // The name of a format is no address that anybody asks.
        let text = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        assert!(!text.contains("http://") && !text.contains("https://"));
    }

    #[test]
    fn names_are_escaped_wherever_they_stand() {
        let hostile = "<script>alert('x')</script>";
        let mut rows = sample::rows();
        for row in &mut rows {
            row.subject = hostile.into();
            row.commit = hostile.into();
            row.machine.processor = hostile.into();
            row.machine.filesystem = hostile.into();
            for condition in [
                "version",
                "medium",
                "why",
                "durable",
                "key",
                "value",
                "connections",
            ] {
                row.conditions.insert(condition.into(), hostile.into());
            }
        }
        let page = html(&rows);
        balance::assert_balanced(&page);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    }

    #[test]
    fn any_part_may_be_missing() {
        balance::assert_balanced(&html(&[]));
        for row in sample::rows() {
            balance::assert_balanced(&html(&[row]));
        }
    }
}
