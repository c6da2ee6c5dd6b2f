//! Every row of a comparison, in figures.

use super::chart::Kind;
use super::words::{bytes, escaped, percent, rate, spread, time};
use crate::compare::{Group, Line, label};
use crate::row::Row;
use crate::server::{Persistence, Summary};

/// Tables of all stores and all servers.
pub(super) fn all(lines: &[Line], groups: &[Group<'_>]) -> String {
    let stores: String = groups
        .iter()
        .flat_map(|group| group.rows.iter().map(|row| store(group, row)))
        .collect();
    let servers: String = lines
        .iter()
        .filter_map(|line| match line {
            Line::Server { summary, .. } => Some(server(summary)),
            _ => None,
        })
        .collect();
    let mut text = String::from("<section><h2>Every row</h2>");
    if !stores.is_empty() {
        text.push_str(&table(
            "Stores",
            &[
                "ground",
                "threads",
                "workload",
                "store",
                "medium",
                "durable",
                "a second",
                "share of limit",
                "processor time",
                "p50",
                "p99",
                "p99.9",
                "slowest",
                "DRAM",
                "medium",
                "waiting for a core",
            ],
            &stores,
        ));
    }
    if !servers.is_empty() {
        text.push_str(&table(
            "Servers",
            &[
                "load",
                "server",
                "version",
                "durable",
                "replies a second",
                "server's processor",
                "client's",
                "p50",
                "p99",
                "p99.9",
                "slowest",
                "DRAM a key",
            ],
            &servers,
        ));
    }
    text.push_str("</section>\n");
    text
}

fn table(title: &str, heads: &[&str], rows: &str) -> String {
    let heads: String = heads
        .iter()
        .map(|head| format!("<th>{}</th>", escaped(head)))
        .collect();
    format!(
        "<details><summary>{title}</summary><div class=\"wide\"><table><thead><tr>{heads}</tr></thead><tbody>{rows}\
         </tbody></table></div></details>"
    )
}

fn line(kind: Kind, cells: &[String]) -> String {
    let cells: String = cells
        .iter()
        .map(|cell| format!("<td>{}</td>", escaped(cell)))
        .collect();
    format!("<tr class=\"{}\">{cells}</tr>\n", kind.class())
}

fn store(group: &Group<'_>, row: &Row) -> String {
    let (what, figures) = (&row.configuration, &row.figures);
    let kind = Kind::of(what);
    let latency = |of: fn(crate::latency::Latency) -> u64| {
        figures
            .latency
            .map_or(String::new(), |tail| time(of(tail.all) as f64))
    };
    let optional = |value: Option<f64>, unit: fn(f64) -> String| value.map_or(String::new(), unit);
    line(
        kind,
        &[
            group.ground.to_string(),
            group.threads.to_string(),
            group.workload.to_string(),
            format!("{} {}", label(what), what.version),
            what.medium.clone(),
            if kind == Kind::Loose {
                "no"
            } else {
                "each write"
            }
            .into(),
            spread(figures.rate, rate),
            optional(group.share(row), percent),
            spread(figures.process_cpu_ns, time),
            latency(|latency| latency.p50),
            latency(|latency| latency.p99),
            latency(|latency| latency.p999),
            latency(|latency| latency.max),
            optional(figures.dram_bytes, bytes),
            optional(figures.medium_bytes, bytes),
            percent(figures.queued_share),
        ],
    )
}

fn server(summary: &Summary) -> String {
    let first = summary.repetitions.first();
    let (version, persistence) = first.map_or((String::new(), Persistence::Never), |figures| {
        (figures.version.clone(), figures.persistence)
    });
    let durable = match persistence {
        Persistence::Never => "no",
        Persistence::EverySecond => "a second later",
        Persistence::EachWrite => "each write",
    };
    let kind = match (summary.label.starts_with("everdram "), persistence) {
        (true, _) => Kind::Own,
        (_, Persistence::EachWrite) => Kind::Durable,
        _ => Kind::Loose,
    };
    let load = &summary.load;
    let us = |spread: crate::timing::Spread| time(spread.median * 1e3);
    line(
        kind,
        &[
            format!(
                "{}, {}, {} at once",
                load.command.word(),
                bytes(load.data.value_bytes as f64),
                load.pipeline
            ),
            summary.label.clone(),
            version,
            durable.into(),
            spread(summary.rate, rate),
            us(summary.server_cpu_us),
            us(summary.client_cpu_us),
            us(summary.p50_us),
            us(summary.p99_us),
            us(summary.p999_us),
            us(summary.max_us),
            bytes(summary.dram_bytes_a_key),
        ],
    )
}
