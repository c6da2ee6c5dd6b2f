//! What a campaign prints: a table at the end, one JSON object, and the commands to continue with.

use super::campaign::{Plan, Summary};
use crate::terminal::{Tone, paint, row};
use crate::units;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) fn print_plan(plan: &Plan) {
    println!("{}", paint(Tone::Strong, "everdram crashtest --kill"));
    match &plan.pool {
        Some(pool) => row("pool", pool.display()),
        None => row("pools in", plan.directory.display()),
    }
    row("expected state in", plan.expected.display());
    row("medium", &plan.medium);
    row("seed", plan.seed);
}

/// A few words while it runs.
pub(super) fn progress(plan: &Plan, summary: &Summary) -> String {
    format!(
        "{} of {}, {} writes acknowledged, {} promises broken",
        units::count(summary.kills),
        units::count(plan.kills),
        units::count(summary.tally.acknowledged.get()),
        summary.tally.broken()
    )
}

/// The command that makes the same random choices again. The exact moment of a kill cannot be repeated.
pub(super) fn command(plan: &Plan) -> String {
    let mut command = format!(
        "everdram crashtest --kill {} --medium {} --engine {} --connections {} --seed {}",
        plan.kills, plan.medium, plan.engine, plan.connections, plan.seed
    );
    if let Some(pool) = &plan.pool {
        command += &about(pool, &plan.expected);
    }
    command
}

/// The command that only reads the last pool and judges it.
pub(super) fn judge_again(plan: &Plan, summary: &Summary) -> String {
    let (medium, engine) = (&plan.medium, &plan.engine);
    let about = about(&last_pool(plan, summary), &plan.expected);
    format!("everdram crashtest --kill 0 --medium {medium} --engine {engine}{about}")
}

fn about(pool: &Path, expected: &Path) -> String {
    format!(" --pool {} --expected {}", word(pool), word(expected))
}

pub(super) fn last_pool(plan: &Plan, summary: &Summary) -> PathBuf {
    let own = || plan.directory.join(format!("pool-{}", summary.pools));
    plan.pool.clone().unwrap_or_else(own)
}

/// A path as a word for the shell.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// The table.
pub(super) fn print(plan: &Plan, summary: &Summary, took: Duration) {
    let tally = &summary.tally;
    print_kills(plan, summary);
    let reclaimed = units::count(summary.blocks_reclaimed);
    let grown = units::bytes(summary.grown_bytes);
    row(
        "pools",
        format_args!(
            "{}, grown by {grown}, {reclaimed} blocks compacted",
            summary.pools
        ),
    );
    row(
        "writes acknowledged",
        units::count(tally.acknowledged.get()),
    );
    row("reads under load", units::count(tally.reads.get()));
    row("reads after a start", units::count(tally.checked.get()));
    for (name, broken) in [
        ("lost", &tally.lost),
        ("resurrected", &tally.resurrected),
        ("torn or damaged", &tally.damaged),
        ("inconsistent answers", &tally.inconsistent),
        ("damage in pools", &tally.in_pools),
        ("servers that failed", &tally.failures),
    ] {
        let broken = broken.get();
        let tone = if broken == 0 { Tone::Good } else { Tone::Bad };
        row(name, paint(tone, &units::count(broken)));
    }
    row(
        "longest start",
        format_args!(
            "{} to the first reply; longest recovery of a pool {}",
            units::time(summary.longest_start),
            units::time(summary.longest_recovery)
        ),
    );
    row("time", units::time(took));
    for words in tally.told() {
        println!("  {} {words}", paint(Tone::Bad, "broken:"));
    }
}

fn print_kills(plan: &Plan, summary: &Summary) {
    row("kills (SIGKILL)", units::count(summary.kills));
    row(
        "  while starting",
        units::count(summary.kills_while_starting),
    );
    row(
        "  while compacting",
        units::count(summary.kills_in_compaction),
    );
    row("  while growing", units::count(summary.kills_in_growth));
    if plan.medium == "file" {
        let image = units::count(summary.kills_in_image_write);
        row(
            "  while writing image",
            format_args!("{image} (checkpoints, growth)"),
        );
    }
}

pub(super) fn to_json(plan: &Plan, summary: &Summary, took: Duration) -> Value {
    let tally = &summary.tally;
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    json!({
        "seed": plan.seed, "medium": plan.medium, "engine": plan.engine, "connections": plan.connections,
        "complete": !summary.is_interrupted,
        "kills": summary.kills, "kills_while_starting": summary.kills_while_starting,
        "kills_in_compaction": summary.kills_in_compaction, "kills_in_growth": summary.kills_in_growth,
        "kills_in_image_write": summary.kills_in_image_write,
        "pools": summary.pools, "pools_checked": summary.pools_checked,
        "blocks_reclaimed": summary.blocks_reclaimed, "grown_bytes": summary.grown_bytes,
        "writes_acknowledged": tally.acknowledged.get(), "reads_under_load": tally.reads.get(),
        "reads_after_start": tally.checked.get(),
        "lost": tally.lost.get(), "resurrected": tally.resurrected.get(),
        "damaged": tally.damaged.get(), "inconsistent": tally.inconsistent.get(),
        "findings_in_pools": tally.in_pools.get(), "failures": tally.failures.get(),
        "longest_start_ns": nanoseconds(summary.longest_start),
        "longest_recovery_ns": nanoseconds(summary.longest_recovery),
        "time_ns": nanoseconds(took), "broken": tally.told(), "repeat": command(plan),
    })
}

#[cfg(test)]
mod tests {
    use super::word;
    use std::path::Path;

    #[test]
    fn paths_are_words_for_the_shell() {
        for (path, expected) in [
            ("/a/b-1.c", "/a/b-1.c"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
        ] {
            assert_eq!(word(Path::new(path)), expected);
        }
    }
}
