//! Requests made of choices: commands of the table with arguments that mean something, now and then not.

use crate::choices::Choices;

/// Commands; those that answer with time or chance too.
const NAMES: &[&str] = &[
    "get", "set", "setnx", "setex", "psetex", "getset", "getdel", "getex", "append", "strlen", "getrange", "substr",
    "setrange", "incr", "decr", "incrby", "decrby", "incrbyfloat", "mget", "mset", "msetnx", "lcs", "del", "unlink",
    "exists", "touch", "type", "rename", "renamenx", "copy", "keys", "scan", "randomkey", "dbsize", "flushall",
    "flushdb", "expire", "pexpire", "expireat", "pexpireat", "expiretime", "pexpiretime", "ttl", "pttl", "persist",
    "object", "dump", "restore", "sort", "multi", "exec", "discard", "watch", "unwatch", "ping", "echo", "select",
    "auth", "hello", "reset", "quit", "client", "command", "config", "info", "time", "latency", "slowlog", "memory",
    "debug", "wait", "waitaof", "shutdown", "bgsave", "save", "lastsave", "swapdb", "move", "role", "monitor",
    "subscribe", "hset", "lpush", "object", "acl", "failover", "module", "function", "eval",
];

/// Arguments that mean something.
const WORDS: &[&str] = &[
    "a", "b", "c", "key:1", "key:2", "", "0", "1", "-1", "2", "10", "100", "9223372036854775807", "-9223372036854775808",
    "18446744073709551615", "1e400", "-0", "3.14", "nan", "inf", "5e-324", "*", "?", "[a-c]*", "\\", "[^", "k*", "nx",
    "xx", "get", "ex", "px", "exat", "pxat", "keepttl", "persist", "gt", "lt", "match", "count", "type", "string",
    "len", "idx", "minmatchlen", "withmatchlen", "replace", "db", "encoding", "freq", "refcount", "idletime", "help",
    "list", "info", "id", "kill", "getname", "setname", "setinfo", "lib-name", "lib-ver", "no-evict", "no-touch",
    "reply", "on", "off", "skip", "on", "tracking", "caching", "docs", "getkeys", "getkeysandflags", "set", "resetstat",
    "rewrite", "requirepass", "maxclients", "timeout", "client-query-buffer-limit", "client-output-buffer-limit",
    "proto-max-bulk-len", "normal 1mb 1mb 60", "1gb", "65536", "2", "3", "auth", "default", "async", "sync", "nosave",
    "save", "abort", "now", "force", "usage", "doctor", "stats", "everything", "commandstats", "histogram", "reset",
    "filterby", "aclcat", "pattern", "module", "user", "addr", "laddr", "skipme", "yes", "no", "maxage", "pause",
];

/// Makes requests until the choices are used up, and a few bytes that may be none between them.
#[must_use]
pub fn requests(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut stream = Vec::new();
    while !choices.is_empty() && stream.len() < 16 << 10 {
        match choices.byte() {
            0..=3 => stream.extend_from_slice(choices.string()),
            4..=9 => inline(&mut stream, choices),
            _ => array(&mut stream, choices),
        }
    }
    stream
}

fn array(stream: &mut Vec<u8>, choices: &mut Choices<'_>) {
    let count = usize::from(choices.byte() % 7);
    let mut arguments = vec![NAMES[choices.below(NAMES.len())].as_bytes()];
    arguments.extend((0..count).map(|_| argument(choices)));
    stream.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        stream.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        stream.extend_from_slice(argument);
        stream.extend_from_slice(b"\r\n");
    }
}

fn inline(stream: &mut Vec<u8>, choices: &mut Choices<'_>) {
    stream.extend_from_slice(NAMES[choices.below(NAMES.len())].as_bytes());
    for _ in 0..choices.byte() % 4 {
        stream.push(b' ');
        stream.extend_from_slice(argument(choices));
    }
    stream.extend_from_slice(b"\r\n");
}

fn argument<'a>(choices: &mut Choices<'a>) -> &'a [u8] {
    match choices.byte() {
        index @ 0..=223 => WORDS[usize::from(index) % WORDS.len()].as_bytes(),
        _ => choices.string(),
    }
}
