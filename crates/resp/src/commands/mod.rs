//! The handlers of all commands, by group. Each writes exactly one reply and leaves limits, arity,
//! authentication and queueing to the dispatcher.

pub(crate) mod client;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod expire;
pub(crate) mod info;
pub(crate) mod introspection;
pub(crate) mod key;
pub(crate) mod latency;
pub(crate) mod server;
pub(crate) mod slowlog;
pub(crate) mod string;
pub(crate) mod transaction;

use crate::reply::Reply;

/// The reply to `<CONTAINER> HELP`: the usage, then `lines`.
pub(crate) fn help(reply: &mut Reply<'_>, container: &str, lines: &[&str]) {
    reply.array(lines.len() + 3);
    reply.simple(&format!(
        "{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for line in lines.iter().chain(&["HELP", "    Prints this help."]) {
        reply.simple(line);
    }
}
