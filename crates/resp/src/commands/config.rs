//! CONFIG: settings that tools read, and those that may change while the server runs.
//!
//! A Redis setting without a meaning here answers with its effective value, and cannot be set to another.
//! Paths, addresses and durability cannot be set at run time.

use super::help as write_help;
use crate::context::Context;
use crate::request::glob;
use crate::request::number::parse_i64;
use crate::server::Shared;
use std::sync::atomic::Ordering::Relaxed;

/// Puts a number into effect.
type Apply = fn(&Shared, i64);

/// How a parameter may be set.
enum Change {
    /// Never, except to its current value.
    Never,
    /// Never: it decides where the server reads or writes.
    Protected,
    /// A number in this range.
    Number(i64, i64, Apply),
    /// As `Number`, with an optional unit (`kb`, `mb`, ...).
    Memory(i64, i64, Apply),
    /// The password.
    Password,
    /// Client classes with hard limit, soft limit and seconds.
    OutputLimits,
}

struct Parameter {
    name: &'static str,
    read: fn(&Shared) -> String,
    change: Change,
}

/// A parameter with one fixed value.
const fn fixed(name: &'static str, read: fn(&Shared) -> String) -> Parameter {
    Parameter {
        name,
        read,
        change: Change::Never,
    }
}

const fn number(
    name: &'static str,
    read: fn(&Shared) -> String,
    min: i64,
    max: i64,
    apply: Apply,
) -> Parameter {
    Parameter {
        name,
        read,
        change: Change::Number(min, max, apply),
    }
}

const fn memory(
    name: &'static str,
    read: fn(&Shared) -> String,
    min: i64,
    apply: Apply,
) -> Parameter {
    Parameter {
        name,
        read,
        change: Change::Memory(min, i64::MAX, apply),
    }
}

static PARAMETERS: [Parameter; 41] = [
    number(
        "maxclients",
        |s| s.config.maxclients.load(Relaxed).to_string(),
        1,
        u32::MAX as i64,
        |s, v| {
            s.config.maxclients.store(v as usize, Relaxed);
        },
    ),
    number(
        "timeout",
        |s| s.config.timeout_s.load(Relaxed).to_string(),
        0,
        i32::MAX as i64,
        |s, v| {
            s.config.timeout_s.store(v as u64, Relaxed);
        },
    ),
    number(
        "slowlog-log-slower-than",
        |s| s.config.slowlog_slower_than_us.load(Relaxed).to_string(),
        -1,
        i64::MAX,
        |s, v| {
            s.config.slowlog_slower_than_us.store(v, Relaxed);
        },
    ),
    number(
        "slowlog-max-len",
        |s| s.config.slowlog_max_len.load(Relaxed).to_string(),
        0,
        i64::MAX,
        |s, v| {
            s.config.slowlog_max_len.store(v as usize, Relaxed);
        },
    ),
    memory(
        "proto-max-bulk-len",
        |s| s.config.proto_max_bulk_len.load(Relaxed).to_string(),
        1 << 20,
        |s, v| {
            s.config.proto_max_bulk_len.store(v as u64, Relaxed);
        },
    ),
    memory(
        "client-query-buffer-limit",
        |s| s.config.query_buffer_bytes.load(Relaxed).to_string(),
        1 << 20,
        |s, v| {
            s.config.query_buffer_bytes.store(v as usize, Relaxed);
        },
    ),
    Parameter {
        name: "client-output-buffer-limit",
        read: output_limits,
        change: Change::OutputLimits,
    },
    // The password is not shown: a later client must not learn it.
    Parameter {
        name: "requirepass",
        read: |s| {
            if s.config.password.is_set() {
                "(set)".into()
            } else {
                String::new()
            }
        },
        change: Change::Password,
    },
    Parameter {
        name: "dir",
        read: |_| String::new(),
        change: Change::Protected,
    },
    Parameter {
        name: "dbfilename",
        read: |_| String::new(),
        change: Change::Protected,
    },
    fixed("appenddirname", |_| String::new()),
    // Only the engine `tiered` has such files.
    fixed("appendfilename", |s| match s.engine.name() {
        "tiered" => "everdram.aof".into(),
        _ => String::new(),
    }),
    fixed("logfile", |_| String::new()),
    fixed("pidfile", |_| String::new()),
    fixed("unixsocket", |s| {
        s.settings
            .unix_socket
            .as_ref()
            .map_or(String::new(), |path| path.display().to_string())
    }),
    fixed("unixsocketperm", |s| {
        format!("{:o}", s.settings.unix_socket_mode)
    }),
    fixed("bind", |s| {
        s.settings
            .bind
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    }),
    fixed("port", |s| s.port.to_string()),
    fixed("tcp-backlog", |s| s.settings.tcp_backlog.to_string()),
    fixed("tcp-keepalive", |s| {
        s.settings.tcp_keepalive.as_secs().to_string()
    }),
    fixed("io-threads", |s| s.mailboxes().len().to_string()),
    fixed("protected-mode", |s| {
        if s.settings.allow_open_network {
            "no".into()
        } else {
            "yes".into()
        }
    }),
    fixed("enable-debug-command", |_| "no".into()),
    fixed("databases", |_| "1".into()),
    fixed("maxmemory", |_| "0".into()),
    fixed("maxmemory-policy", |_| "noeviction".into()),
    fixed("maxmemory-clients", |_| "0".into()),
    fixed("save", |_| String::new()),
    fixed("appendonly", |_| "yes".into()),
    fixed("appendfsync", |s| match s.report.durability {
        everdram::Durability::None => "no".into(),
        durability => durability.to_string(),
    }),
    // Where stale bytes are half of a file, it has grown by as much as it is worth.
    fixed("auto-aof-rewrite-percentage", |_| "100".into()),
    fixed("auto-aof-rewrite-min-size", |_| "0".into()),
    fixed("aof-use-rdb-preamble", |_| "no".into()),
    fixed("aof-load-truncated", |_| "no".into()),
    fixed("no-appendfsync-on-rewrite", |_| "no".into()),
    fixed("notify-keyspace-events", |_| String::new()),
    fixed("latency-monitor-threshold", |_| "0".into()),
    fixed("latency-tracking", |_| "yes".into()),
    fixed("hz", |_| "10".into()),
    fixed("cluster-enabled", |_| "no".into()),
    fixed("loglevel", |_| "notice".into()),
];

fn output_limits(shared: &Shared) -> String {
    let config = &shared.config;
    let (hard, soft) = (
        config.output_hard_bytes.load(Relaxed),
        config.output_soft_bytes.load(Relaxed),
    );
    format!(
        "normal {hard} {soft} {} slave 0 0 0 pubsub 0 0 0",
        config.output_soft_s.load(Relaxed)
    )
}

pub(crate) fn get(ctx: &mut Context<'_>) {
    let patterns: Vec<Vec<u8>> = ctx
        .args
        .iter_from(2)
        .map(<[u8]>::to_ascii_lowercase)
        .collect();
    let is_wanted = |parameter: &&Parameter| {
        patterns
            .iter()
            .any(|p| glob::matches(p, parameter.name.as_bytes()))
    };
    let wanted = PARAMETERS.iter().filter(is_wanted);
    ctx.reply.map(wanted.clone().count());
    for parameter in wanted {
        ctx.reply.bulk(parameter.name.as_bytes());
        ctx.reply.bulk((parameter.read)(ctx.shared).as_bytes());
    }
}

/// A change that has been checked.
enum Checked {
    Nothing,
    Number(Apply, i64),
    Password(Option<Vec<u8>>),
    OutputLimits(usize, usize, u64),
}

/// All changes are checked before the first takes effect.
pub(crate) fn set(ctx: &mut Context<'_>) {
    let args = ctx.args;
    if !args.len().is_multiple_of(2) {
        return ctx
            .reply
            .error("ERR wrong number of arguments for 'config|set' command");
    }
    let mut changes = Vec::new();
    for at in (2..args.len()).step_by(2) {
        let name = args.get(at).to_ascii_lowercase();
        let Some(parameter) = PARAMETERS
            .iter()
            .find(|parameter| parameter.name.as_bytes() == name)
        else {
            let start = b"ERR Unknown option or number of arguments for CONFIG SET - '";
            return ctx
                .reply
                .error_bytes(&[start.as_slice(), args.get(at), b"'"].concat());
        };
        let is_repeated = (2..at)
            .step_by(2)
            .any(|before| args.get(before).eq_ignore_ascii_case(&name));
        let checked = if is_repeated {
            Err("duplicate parameter".to_owned())
        } else {
            check(ctx.shared, parameter, args.get(at + 1))
        };
        match checked {
            Ok(change) => changes.push(change),
            Err(reason) => {
                return ctx.reply.error(&format!(
                    "ERR CONFIG SET failed (possibly related to argument '{}') - {reason}",
                    parameter.name
                ));
            }
        }
    }
    changes
        .into_iter()
        .for_each(|change| apply(ctx.shared, change));
    ctx.reply.ok();
}

fn check(shared: &Shared, parameter: &Parameter, value: &[u8]) -> Result<Checked, String> {
    match parameter.change {
        Change::Never if value.eq_ignore_ascii_case((parameter.read)(shared).as_bytes()) => {
            Ok(Checked::Nothing)
        }
        Change::Never => Err("can't set immutable config".into()),
        Change::Protected => Err("can't set protected config".into()),
        Change::Number(min, max, apply) => {
            let number = parse_i64(value).ok_or("argument couldn't be parsed into an integer")?;
            in_range(number, min, max).map(|number| Checked::Number(apply, number))
        }
        Change::Memory(min, max, apply) => {
            let number = parse_memory(value).ok_or("argument must be a memory value")?;
            in_range(number, min, max).map(|number| Checked::Number(apply, number))
        }
        Change::Password
            if value.is_empty()
                && !shared.settings.is_local_only()
                && !shared.settings.allow_open_network =>
        {
            Err("other machines can reach this server, so it must keep a password".into())
        }
        Change::Password => Ok(Checked::Password(
            (!value.is_empty()).then(|| value.to_vec()),
        )),
        Change::OutputLimits => check_output_limits(value),
    }
}

fn in_range(number: i64, min: i64, max: i64) -> Result<i64, String> {
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(format!(
            "argument must be between {min} and {max} inclusive"
        ))
    }
}

/// Bytes with an optional unit: `k` is 1000, `kb` is 1024, and so on.
fn parse_memory(value: &[u8]) -> Option<i64> {
    let digits = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let (number, unit) = value.split_at_checked(digits)?;
    let factor = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    parse_i64(number)?.checked_mul(factor)
}

/// The limits of ordinary clients take effect; no other clients exist here.
fn check_output_limits(value: &[u8]) -> Result<Checked, String> {
    let words: Vec<&[u8]> = value
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty())
        .collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut checked = Checked::Nothing;
    for class in words.chunks_exact(4) {
        let [name, hard, soft, seconds] = class else {
            continue;
        };
        let is_normal = match name.to_ascii_lowercase().as_slice() {
            b"normal" => true,
            b"slave" | b"replica" | b"pubsub" => false,
            _ => {
                return Err("Invalid client class specified in buffer limit configuration.".into());
            }
        };
        let limits = (parse_memory(hard), parse_memory(soft), parse_i64(seconds));
        let (Some(hard), Some(soft), Some(seconds @ 0..)) = limits else {
            return Err(
                "Error in hard, soft or soft_seconds setting in buffer limit configuration.".into(),
            );
        };
        if is_normal {
            checked = Checked::OutputLimits(hard as usize, soft as usize, seconds as u64);
        }
    }
    Ok(checked)
}

fn apply(shared: &Shared, change: Checked) {
    match change {
        Checked::Nothing => {}
        Checked::Number(apply, number) => apply(shared, number),
        Checked::Password(password) => shared.config.password.set(password),
        Checked::OutputLimits(hard, soft, seconds) => {
            shared.config.output_hard_bytes.store(hard, Relaxed);
            shared.config.output_soft_bytes.store(soft, Relaxed);
            shared.config.output_soft_s.store(seconds, Relaxed);
        }
    }
}

pub(crate) fn resetstat(ctx: &mut Context<'_>) {
    ctx.shared
        .mailboxes()
        .iter()
        .for_each(|mailbox| mailbox.statistics.reset());
    ctx.shared.accepted.store(0, Relaxed);
    ctx.shared.rejected.store(0, Relaxed);
    ctx.reply.ok();
}

pub(crate) fn rewrite(ctx: &mut Context<'_>) {
    ctx.reply
        .error("ERR The server is running without a config file");
}

pub(crate) fn help(ctx: &mut Context<'_>) {
    let lines = [
        "GET <pattern> [<pattern> ...]",
        "    Settings whose names match, and their values.",
        "SET <directive> <value> [<directive> <value> ...]",
        "    Change settings: all or none.",
        "RESETSTAT",
        "    Set the counters of INFO back to zero.",
        "REWRITE",
        "    Refused: settings files are not written.",
    ];
    write_help(&mut ctx.reply, "CONFIG", &lines);
}
