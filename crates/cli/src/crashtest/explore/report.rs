//! What exploring prints: a line while it runs, a table at the end, a verdict, or one JSON object.

use super::finding::Followed;
use crate::terminal::{Tone, paint, row};
use crate::units::{count, time};
use everdram_lab::campaign::{Campaign, Row, Tally};
use everdram_lab::image::Medium;
use everdram_lab::profile::Profile;
use serde_json::{Value, json};
use std::time::Duration;

/// The columns behind the medium and the profile, with their widths.
const COLUMNS: [(&str, usize); 8] = [
    ("runs", 7),
    ("calls", 9),
    ("crash points", 13),
    ("images", 12),
    ("unique", 12),
    ("in recovery", 18),
    ("time", 10),
    ("violations", 11),
];

fn rate(images: u64, time: Duration) -> u64 {
    (images as f64 / time.as_secs_f64().max(1e-9)) as u64
}

/// One line, while it runs.
pub(super) fn progress(tally: &Tally, elapsed: Duration) -> String {
    let sum = tally.sum();
    let latest = match tally.latest {
        Some((medium, profile)) => format!("{medium} {profile}: "),
        None => String::new(),
    };
    format!(
        "{latest}{} images/s, {} unique images, {} crash points, {} violations",
        count(rate(sum.totals.judged, elapsed)),
        count(sum.totals.unique),
        count(sum.totals.points),
        count(sum.violations)
    )
}

/// The table.
pub(super) fn print(tally: &Tally, took: Duration) {
    if tally.rows.is_empty() {
        println!("  no run came to its end in {}", time(took));
        return;
    }
    let head = COLUMNS.iter().fold(String::new(), |head, (name, wide)| {
        format!("{head}{name:>wide$}")
    });
    println!();
    println!(
        "  {}",
        paint(Tone::Strong, &format!("{:<19}{head}", "medium profile"))
    );
    for ((medium, profile), row) in &tally.rows {
        print_row(&format!("{:<6} {profile}", medium.to_string()), row);
    }
    print_row("total", &tally.sum());
    println!();
}

fn print_row(name: &str, row: &Row) {
    let totals = &row.totals;
    let cells = [
        count(totals.runs),
        count(totals.calls),
        count(totals.points),
        count(totals.judged),
        count(totals.unique),
        format!("{} (depth {})", count(totals.nested), totals.depth),
        time(row.time),
        count(row.violations),
    ];
    let cells = cells.iter().zip(&COLUMNS);
    let line = cells.fold(String::new(), |line, (cell, (_, wide))| {
        format!("{line}{cell:>wide$}")
    });
    let line = if row.violations > 0 {
        paint(Tone::Bad, &line)
    } else {
        line
    };
    println!("  {name:<19}{line}");
}

/// The last line.
pub(super) fn verdict(tally: &Tally, took: Duration) {
    let totals = tally.sum().totals;
    row(
        "images judged",
        format_args!(
            "{} in {}, {} each second",
            count(totals.judged),
            time(took),
            count(rate(totals.judged, took))
        ),
    );
    match tally.findings.len() {
        0 if totals.judged == 0 => println!("nothing was judged: allow more time with --budget"),
        0 => println!("{}", paint(Tone::Good, "sound: no violation")),
        found => println!("{}", paint(Tone::Bad, &format!("violations: {found}"))),
    }
}

/// Everything, for programs.
pub(super) fn to_json(
    campaign: &Campaign,
    tally: &Tally,
    took: Duration,
    findings: &[Followed],
) -> Value {
    let rows: Vec<Value> = tally
        .rows
        .iter()
        .map(|((medium, profile), row)| {
            let mut object = row_json(row);
            object["medium"] = medium.to_string().into();
            object["profile"] = profile.to_string().into();
            object
        })
        .collect();
    let findings: Vec<Value> = findings.iter().map(Followed::to_json).collect();
    let sum = tally.sum();
    json!({
        "engine": "viper",
        "media": campaign.media.iter().map(Medium::to_string).collect::<Vec<_>>(),
        "profiles": campaign.profiles.iter().map(Profile::to_string).collect::<Vec<_>>(),
        "seed": campaign.seed, "calls_of_a_run": campaign.calls,
        "rows": rows, "total": row_json(&sum),
        "time_ns": nanoseconds(took), "images_each_second": rate(sum.totals.judged, took),
        "findings": findings, "sound": tally.findings.is_empty(),
    })
}

fn row_json(row: &Row) -> Value {
    let totals = &row.totals;
    json!({
        "runs": totals.runs, "calls": totals.calls, "crash_points": totals.points,
        "images": totals.judged, "unique_images": totals.unique, "images_in_recovery": totals.nested,
        "depth": totals.depth, "worker_time_ns": nanoseconds(row.time), "violations": row.violations,
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
