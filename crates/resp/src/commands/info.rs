//! INFO: version, activity and memory of the server, and what an acknowledgement means here.

use super::connection::REDIS_VERSION;
use crate::command;
use crate::context::Context;
use crate::server::Shared;
use crate::server::statistics::{Counter, Statistics, sum_calls};
use std::fmt::{Display, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A section writes its lines.
type Section = fn(&Shared, &mut Lines);

/// All sections in order, and whether INFO without arguments shows them.
const SECTIONS: [(&str, bool, Section); 14] = [
    ("server", true, server),
    ("clients", true, clients),
    ("memory", true, memory),
    ("persistence", true, persistence),
    ("everdram", true, everdram),
    ("fabric", true, fabric),
    ("stats", true, stats),
    ("replication", true, replication),
    ("cpu", true, cpu),
    ("modules", true, |_, _| ()),
    ("commandstats", false, commandstats),
    ("errorstats", true, |_, _| ()),
    ("cluster", true, |_, lines| lines.add("cluster_enabled", 0)),
    ("keyspace", true, keyspace),
];

/// The text of the reply, line by line.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{name}:{value}\r\n");
    }

    fn add_bytes(&mut self, name: &str, bytes: u64) {
        self.add(name, bytes);
        self.add(&format!("{name}_human"), human(bytes));
    }
}

/// Bytes in a readable unit.
fn human(bytes: u64) -> String {
    let units = [(30, 'G'), (20, 'M'), (10, 'K')];
    match units.iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) => format!("{:.2}{unit}", bytes as f64 / f64::from(1u32 << shift)),
        None => format!("{bytes}B"),
    }
}

pub(crate) fn info(ctx: &mut Context<'_>) {
    let asked: Vec<String> = ctx
        .args
        .iter_from(1)
        .map(|word| String::from_utf8_lossy(word).to_ascii_lowercase())
        .collect();
    let says = |word: &str| asked.iter().any(|one| one == word);
    let everything = says("all") || says("everything");
    let usual = asked.is_empty() || says("default");
    let mut lines = Lines::default();
    for (name, is_usual, section) in SECTIONS {
        if everything || (usual && is_usual) || says(name) {
            if !lines.0.is_empty() {
                lines.0.push_str("\r\n");
            }
            let title = match name {
                "cpu" => "CPU".to_owned(),
                _ => name[..1].to_ascii_uppercase() + &name[1..],
            };
            let _ = write!(lines.0, "# {title}\r\n");
            section(ctx.shared, &mut lines);
        }
    }
    ctx.reply.verbatim("txt", &lines.0);
}

fn server(shared: &Shared, lines: &mut Lines) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let uptime = shared.started.elapsed().as_secs();
    lines.add("redis_version", REDIS_VERSION);
    lines.add("everdram_version", env!("CARGO_PKG_VERSION"));
    lines.add("redis_mode", "standalone");
    lines.add(
        "os",
        format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
    );
    lines.add("arch_bits", usize::BITS);
    lines.add("multiplexing_api", "epoll");
    lines.add("process_id", std::process::id());
    lines.add("run_id", &shared.run_id);
    lines.add("tcp_port", shared.port);
    lines.add("server_time_usec", now.as_micros());
    lines.add("uptime_in_seconds", uptime);
    lines.add("uptime_in_days", uptime / 86_400);
    lines.add("hz", 10);
    lines.add("config_file", "");
    lines.add("event_loops", shared.mailboxes().len());
}

/// The door for clients of a fabric.
fn fabric(shared: &Shared, lines: &mut Lines) {
    let Some(info) = shared.fabric.get() else {
        return lines.add("fabric_enabled", 0);
    };
    lines.add("fabric_enabled", 1);
    info()
        .iter()
        .for_each(|(name, value)| lines.add(name, value));
}

fn clients(shared: &Shared, lines: &mut Lines) {
    lines.add("connected_clients", shared.connected.load(Relaxed));
    lines.add("cluster_connections", 0);
    lines.add("maxclients", shared.config.maxclients.load(Relaxed));
    let peers = shared.peers();
    let most = |of: fn(&crate::connection::peer::Peer) -> u64| {
        peers.iter().map(|peer| of(peer)).max().unwrap_or(0)
    };
    lines.add(
        "client_recent_max_input_buffer",
        most(|peer| peer.query_bytes.load(Relaxed)),
    );
    lines.add(
        "client_recent_max_output_buffer",
        most(|peer| peer.output_bytes.load(Relaxed)),
    );
    lines.add("blocked_clients", 0);
    lines.add("tracking_clients", 0);
}

/// A field of `/proc/self/status` in bytes; 0 if it is missing.
fn process_bytes(status: &str, field: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

fn memory(shared: &Shared, lines: &mut Lines) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = process_bytes(&status, "VmRSS");
    lines.add_bytes("used_memory", resident);
    lines.add_bytes("used_memory_rss", resident);
    lines.add_bytes("used_memory_peak", process_bytes(&status, "VmHWM"));
    lines.add("mem_clients_normal", shared.buffered.load(Relaxed));
    lines.add_bytes("maxmemory", 0);
    lines.add("maxmemory_policy", "noeviction");
    lines.add("mem_fragmentation_ratio", "1.00");
    lines.add("mem_allocator", "libc");
}

/// In Redis' terms; section `everdram` is precise.
fn persistence(shared: &Shared, lines: &mut Lines) {
    let loading = shared.engine.loading();
    lines.add("loading", u8::from(loading.is_some()));
    if let Some((read, bytes)) = loading {
        lines.add("loading_total_bytes", bytes);
        lines.add("loading_loaded_bytes", read);
        let percent = 100.0 * read as f64 / bytes.max(1) as f64;
        lines.add("loading_loaded_perc", format_args!("{percent:.2}"));
    }
    lines.add("async_loading", 0);
    lines.add("rdb_changes_since_last_save", 0);
    lines.add("rdb_bgsave_in_progress", 0);
    lines.add("rdb_last_bgsave_status", "ok");
    lines.add("aof_enabled", 1);
    lines.add("aof_rewrite_in_progress", 0);
    lines.add("aof_rewrite_scheduled", 0);
    lines.add("aof_last_bgrewrite_status", "ok");
    lines.add("aof_last_write_status", "ok");
    // Of the engine `tiered`: all that lies below, and what of it still counts.
    let stats = shared.engine.stats();
    if let (Some(bytes), Some(stale)) = (stats.own("tier2_bytes"), stats.own("tier2_stale_bytes")) {
        lines.add("aof_current_size", bytes);
        lines.add("aof_base_size", bytes - stale);
    }
}

fn everdram(shared: &Shared, lines: &mut Lines) {
    let report = &shared.report;
    lines.add("engine", shared.engine.name());
    lines.add("medium", report.medium);
    lines.add("medium_reason", one_line(&report.why));
    lines.add("persist", one_line(&report.persist));
    lines.add("durability", report.durability);
    lines.add("durable_write_latency_usec", report.latency.as_micros());
    lines.add("acknowledgement", one_line(&report.acknowledgement));
    if let Some(data) = &report.data {
        lines.add("data_file", one_line(&data.to_string_lossy()));
    }
    for (name, model) in [
        ("delay_model", &report.delay),
        ("data_delay_model", &report.data_delay),
    ] {
        lines.add(name, model.as_deref().map_or("off".into(), one_line));
    }
    let stats = shared.engine.stats();
    let numbers = [
        ("pool_bytes", stats.pool_bytes),
        ("pool_used_bytes", stats.used_bytes),
        ("pool_live_bytes", stats.live_bytes),
        ("index_bytes", stats.index_bytes),
        ("blocks_free", stats.blocks_free),
        ("blocks_open", stats.blocks_open),
        ("blocks_sealed", stats.blocks_sealed),
        ("engine_puts", stats.puts),
        ("engine_gets", stats.gets),
        ("engine_misses", stats.misses),
        ("engine_deletes", stats.deletes),
        ("engine_expired", stats.expired),
        ("blocks_reclaimed", stats.blocks_reclaimed),
        ("reclaim_bytes_moved", stats.bytes_moved),
        ("recovery_usec", stats.recovery_us),
        ("recovered_records", stats.recovered_records),
        ("recovered_losers", stats.recovered_losers),
        ("checkpoint_bytes", stats.checkpoint_bytes),
        ("commits", sum(shared, |of| &of.commits)),
        ("worker_turns", sum(shared, |of| &of.turns)),
    ];
    for (name, number) in numbers {
        lines.add(name, number);
    }
    for (name, number) in &stats.own {
        lines.add(
            name,
            number.map_or("all".into(), |number| number.to_string()),
        );
    }
    // A salvaged store: its losses.
    let lacks = stats.salvage.unwrap_or_default();
    lines.add("salvage", u8::from(stats.salvage.is_some()));
    if stats.salvage.is_some() {
        lines.add("salvage_damaged_places", lacks.findings);
        lines.add("salvage_missing_records", lacks.missing_records);
        lines.add("salvage_doubtful_keys", lacks.doubtful_keys);
        lines.add("salvage_skipped_bytes", lacks.skipped_bytes);
    }
    // After a restart that began with a checkpoint of the index: verification while clients are served.
    let (verified, blocks) = stats.verification.unwrap_or((0, 0));
    lines.add("verifying", u8::from(stats.verification.is_some()));
    lines.add("verified_blocks", verified);
    lines.add("blocks_to_verify", blocks);
    lines.add(
        "verified_perc",
        format_args!("{:.2}", percent(verified, blocks)),
    );
}

fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 100.0,
        _ => 100.0 * part as f64 / whole as f64,
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

fn sum(shared: &Shared, of: fn(&Statistics) -> &Counter) -> u64 {
    shared
        .mailboxes()
        .iter()
        .map(|mailbox| of(&mailbox.statistics).get())
        .sum()
}

fn stats(shared: &Shared, lines: &mut Lines) {
    let engine = shared.engine.stats();
    lines.add("total_connections_received", shared.accepted.load(Relaxed));
    lines.add("total_commands_processed", sum(shared, |of| &of.commands));
    lines.add("total_net_input_bytes", sum(shared, |of| &of.read_bytes));
    lines.add("total_net_output_bytes", sum(shared, |of| &of.sent_bytes));
    lines.add("rejected_connections", shared.rejected.load(Relaxed));
    lines.add("expired_keys", engine.expired);
    lines.add("evicted_keys", 0);
    lines.add("evicted_clients", shared.evicted.load(Relaxed));
    lines.add(
        "acl_access_denied_auth",
        shared.wrong_passwords.load(Relaxed),
    );
    lines.add("keyspace_hits", engine.gets.saturating_sub(engine.misses));
    lines.add("keyspace_misses", engine.misses);
    lines.add("total_error_replies", sum(shared, |of| &of.errors));
    lines.add("read_commands_processed", sum(shared, |of| &of.reads));
    lines.add("write_commands_processed", sum(shared, |of| &of.writes));
    lines.add(
        "client_query_buffer_limit_disconnections",
        sum(shared, |of| &of.query_limit_closes),
    );
    lines.add(
        "client_output_buffer_limit_disconnections",
        sum(shared, |of| &of.output_limit_closes),
    );
}

fn replication(shared: &Shared, lines: &mut Lines) {
    lines.add("role", "master");
    lines.add("connected_slaves", 0);
    lines.add("master_failover_state", "no-failover");
    lines.add("master_replid", &shared.run_id);
    lines.add("master_replid2", "0".repeat(40));
    lines.add("master_repl_offset", 0);
    lines.add("second_repl_offset", -1);
    lines.add("repl_backlog_active", 0);
}

/// Times of the process, from `/proc/self/stat`, whose ticks are hundredths of a second.
fn cpu(_: &Shared, lines: &mut Lines) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may contain spaces; count fields after it.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    let seconds = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or(0.0)
            / 100.0
    };
    let times = [
        ("used_cpu_sys", 12),
        ("used_cpu_user", 11),
        ("used_cpu_sys_children", 14),
        ("used_cpu_user_children", 13),
    ];
    for (name, index) in times {
        lines.add(name, format_args!("{:.6}", seconds(index)));
    }
}

fn commandstats(shared: &Shared, lines: &mut Lines) {
    for number in 0..command::COUNT as u32 {
        let Some(command) = command::by_number(number) else {
            continue;
        };
        let sums = sum_calls(
            shared.mailboxes().iter().map(|mailbox| &mailbox.statistics),
            number,
        );
        if sums.calls + sums.rejected > 0 {
            let each = sums.microseconds as f64 / sums.calls.max(1) as f64;
            let value = format!(
                "calls={},usec={},usec_per_call={each:.2},rejected_calls={},failed_calls={}",
                sums.calls, sums.microseconds, sums.rejected, sums.failed
            );
            lines.add(&format!("cmdstat_{}", command.name), value);
        }
    }
}

fn keyspace(shared: &Shared, lines: &mut Lines) {
    let keys = shared.engine.len();
    if keys > 0 {
        lines.add("db0", format_args!("keys={keys},expires=0,avg_ttl=0"));
    }
}
