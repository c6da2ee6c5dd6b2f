//! What exploring prints: a line while it runs, a table at the end, a verdict, or one JSON object.

use super::End;
use super::finding::Followed;
use crate::terminal::{Tone, paint, row};
use crate::units::{count, time};
use everdram_lab::campaign::{Campaign, Row, Tally};
use everdram_lab::image::Medium;
use everdram_lab::profile::Profile;
use serde_json::{Value, json};
use std::time::Duration;

/// The columns behind the medium and the profile, with their widths. Nested are images of crashes in a
/// recovery, or in the use after it.
const COLUMNS: [(&str, usize); 8] = [
    ("runs", 9),
    ("calls", 11),
    ("crash points", 13),
    ("images", 12),
    ("unique", 12),
    ("nested", 20),
    ("worker time", 13),
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

/// What was done, and how it ended.
pub(super) struct Done<'a> {
    pub(super) campaign: &'a Campaign,
    pub(super) tally: &'a Tally,
    pub(super) took: Duration,
    pub(super) end: End,
    pub(super) is_interrupted: bool,
}

/// Media and profiles of which nothing was judged.
pub(super) fn not_reached(campaign: &Campaign, tally: &Tally) -> Vec<(Medium, Profile)> {
    let kinds = campaign.media.iter().flat_map(|&medium| {
        let profiles = campaign.profiles.iter();
        profiles.map(move |&profile| (medium, profile))
    });
    kinds
        .filter(|kind| {
            let row = tally.rows.get(kind);
            row.is_none_or(|row| row.totals.judged == 0)
        })
        .collect()
}

impl Done<'_> {
    /// The last lines.
    pub(super) fn print_verdict(&self) {
        let totals = self.tally.sum().totals;
        row(
            "images judged",
            format_args!(
                "{} in {}, {} each second",
                count(totals.judged),
                time(self.took),
                count(rate(totals.judged, self.took))
            ),
        );
        let all = self.campaign.media.len() * self.campaign.profiles.len();
        let left = not_reached(self.campaign, self.tally);
        if !left.is_empty() {
            let names = left
                .iter()
                .map(|(medium, profile)| format!("{medium} {profile}"));
            let names: Vec<String> = names.collect();
            row(
                "not reached",
                format_args!("{} of {all}: {}", left.len(), names.join(", ")),
            );
        }
        for why in &self.tally.unmade {
            row("no runs by hand", why);
        }
        match self.end {
            End::Sound => println!("{}", paint(Tone::Good, "sound: no violation")),
            End::Interrupted => println!("interrupted: no violation until then"),
            End::TooSoon => println!("too little time: not everything was looked at"),
            End::Defect => {
                let found = self.tally.findings.len() + self.tally.unmade.len();
                println!("{}", paint(Tone::Bad, &format!("violations: {found}")));
            }
        }
    }

    /// Everything, for programs.
    pub(super) fn to_json(&self, followed: &[Followed]) -> Value {
        let campaign = self.campaign;
        let kind = |(medium, profile): &(Medium, Profile)| json!({ "medium": medium.to_string(), "profile": profile.to_string() });
        let rows = self.tally.rows.iter();
        let rows = rows.map(|(name, row)| {
            let mut object = row_json(row);
            object["medium"] = name.0.to_string().into();
            object["profile"] = name.1.to_string().into();
            object
        });
        let sum = self.tally.sum();
        json!({
            "engine": campaign.engine.name(),
            "media": campaign.media.iter().map(Medium::to_string).collect::<Vec<_>>(),
            "profiles": campaign.profiles.iter().map(Profile::to_string).collect::<Vec<_>>(),
            "seed": campaign.seed, "calls_of_a_run": campaign.calls,
            "rows": rows.collect::<Vec<_>>(), "total": row_json(&sum),
            "not_reached": not_reached(self.campaign, self.tally).iter().map(kind).collect::<Vec<_>>(),
            "time_ns": nanoseconds(self.took),
            "images_each_second": rate(sum.totals.judged, self.took),
            "unmade": self.tally.unmade,
            "findings": followed.iter().map(Followed::to_json).collect::<Vec<_>>(),
            "complete": !self.is_interrupted && self.end != End::TooSoon,
            "sound": self.end == End::Sound,
        })
    }
}

fn row_json(row: &Row) -> Value {
    let totals = &row.totals;
    json!({
        "runs": totals.runs, "calls": totals.calls, "crash_points": totals.points,
        "images": totals.judged, "unique_images": totals.unique, "nested_images": totals.nested,
        "depth": totals.depth, "worker_time_ns": nanoseconds(row.time), "violations": row.violations,
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
