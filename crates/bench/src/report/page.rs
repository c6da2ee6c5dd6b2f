//! The page around the charts: what was measured, where, what came out in sentences, and how much the machine
//! shook.

use super::{limits, servers, stores};
use crate::compare::{Group, Line, Verdict, groups, label, tables};
use crate::machine::Machine;
use crate::row::Row;
use crate::server;
use crate::show::words::{bytes, count, escaped, percent};
use std::collections::BTreeSet;

const STYLE: &str = include_str!("style.css");

/// The report of a comparison.
#[must_use]
pub fn html(lines: &[Line]) -> String {
    let groups = groups(lines);
    [
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\"/><title>everdram, measured</title>\n\
             <style>\n{STYLE}</style></head><body>\n<main>\n"
        ),
        opening(lines, &groups),
        legend(),
        stores::sections(&groups),
        servers::section(lines),
        limits::section(lines, &groups),
        every_row(lines, &groups),
        left_out(lines),
        closing().to_owned(),
        "</main></body></html>\n".to_owned(),
    ]
    .concat()
}

fn opening(lines: &[Line], groups: &[Group<'_>]) -> String {
    let sentences: String = [Verdict::of_stores(groups), Verdict::of_servers(lines)]
        .iter()
        .flat_map(Verdict::sentences)
        .map(|sentence| format!("<p class=\"verdict\">{}</p>", escaped(&sentence)))
        .collect();
    let mut facts = String::new();
    for (name, text) in facts_of(lines, groups) {
        facts.push_str(&format!("<dt>{name}</dt><dd>{}</dd>", escaped(&text)));
    }
    format!(
        "<header><h1><span class=\"name\">everdram</span>, measured</h1><p class=\"subtitle\">beside what people use \
         today, and beside what the machine can do at most</p></header>\n<section>{sentences}<dl>{facts}</dl></section>\n"
    )
}

/// What was measured, where and how steadily: names and texts.
fn facts_of(lines: &[Line], groups: &[Group<'_>]) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some((machine, commit)) = lines.iter().find_map(origin) {
        facts.push((
            "Machine",
            format!(
                "{}, {} cores, {} of memory, {}; lines leave the cache by {}",
                machine.processor,
                machine.cores,
                bytes(machine.memory_bytes as f64),
                machine.kernel,
                machine.flush
            ),
        ));
        facts.push(("Built from", commit.clone()));
    }
    let rows: Vec<&Row> = groups.iter().flat_map(|group| group.rows.clone()).collect();
    if let Some(row) = rows.first() {
        let what = &row.configuration;
        let records = rows.iter().map(|row| row.configuration.records).max();
        facts.push((
            "Records",
            format!(
                "{} of {} + {} bytes, keys at random; {} repetitions in alternating order",
                count(records.unwrap_or(0)),
                what.keys,
                what.values,
                what.repeat
            ),
        ));
        facts.push(("Grounds", grounds(groups)));
        let stores: BTreeSet<String> = rows
            .iter()
            .map(|row| {
                format!(
                    "{} {}",
                    label(&row.configuration),
                    row.configuration.version
                )
            })
            .collect();
        facts.push(("Stores", stores.into_iter().collect::<Vec<_>>().join("; ")));
        facts.push(("Noise", noise(&rows)));
    }
    facts
}

fn origin(line: &Line) -> Option<(&Machine, &String)> {
    match line {
        Line::Store { row, .. } => Some((&row.machine, &row.commit)),
        Line::Server {
            machine, commit, ..
        }
        | Line::Limit {
            machine, commit, ..
        } => Some((machine, commit)),
        Line::LeftOut { .. } => None,
    }
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
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let spread = middle(
        rows.iter()
            .map(|row| {
                let rate = row.figures.rate;
                (rate.max - rate.min) / rate.median.max(1e-9)
            })
            .collect(),
    );
    let queued = middle(rows.iter().map(|row| row.figures.queued_share).collect());
    let most = rows
        .iter()
        .map(|row| row.figures.queued_share)
        .fold(0.0, f64::max);
    format!(
        "between the slowest and the fastest repetition of a row lie {} of its rate in the middle; threads waited for a \
         core {} of their time in the middle, {} at most. Compare rows of this page with each other, not with those of \
         another run",
        percent(spread),
        percent(queued),
        percent(most)
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

fn every_row(lines: &[Line], groups: &[Group<'_>]) -> String {
    let stores = tables(groups);
    let stores = stores.iter().map(|(scene, table)| table.html(scene));
    let servers = lines.iter().filter_map(|line| match line {
        Line::Server { summary, .. } => Some(summary),
        _ => None,
    });
    let servers = server::table(servers).html("Servers");
    format!(
        "<section><h2>Every row</h2>{}{servers}</section>\n",
        stores.collect::<String>()
    )
}

fn left_out(lines: &[Line]) -> String {
    let items: String = lines
        .iter()
        .filter_map(|line| match line {
            Line::LeftOut { what, why } => Some(format!(
                "<li><b>{}</b>: {}</li>",
                escaped(what),
                escaped(why)
            )),
            _ => None,
        })
        .collect();
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
        let page = html(&sample::lines());
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
        let mut lines = sample::lines();
        for line in &mut lines {
            match line {
                Line::Store { row, .. } => {
                    row.configuration.store = hostile.into();
                    row.configuration.version = hostile.into();
                    row.configuration.medium = hostile.into();
                    row.machine.processor = hostile.into();
                    row.machine.filesystem = hostile.into();
                    row.commit = hostile.into();
                }
                Line::Server { summary, .. } => summary.label = hostile.into(),
                Line::Limit { limit, .. } => limit.what = hostile.into(),
                Line::LeftOut { what, why } => {
                    *what = hostile.into();
                    *why = hostile.into();
                }
            }
        }
        let page = html(&lines);
        balance::assert_balanced(&page);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    }

    #[test]
    fn any_part_may_be_missing() {
        balance::assert_balanced(&html(&[]));
        for line in sample::lines() {
            balance::assert_balanced(&html(&[line]));
        }
    }
}
