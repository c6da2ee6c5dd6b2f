//! Rows of the command table: the server. The module above explains the columns.

use super::commands;
use crate::command::{Command, container};
use crate::commands::{config, info, introspection, latency, server, slowlog};

const COMMAND: &[Command] = commands! {
    "command|count" 2 [loading stale] (0 0 0){} [connection] server "2.8.13" "O(1)"
        introspection::count: "How many commands there are.";
    "command|info" -2 [loading stale] (0 0 0){} [connection] server "2.8.13" "O(N)"
        introspection::info: "Arity, flags and keys of commands.";
    "command|docs" -2 [loading stale] (0 0 0){} [connection] server "7.0.0" "O(N)"
        introspection::docs: "Descriptions of commands.";
    "command|list" -2 [loading stale] (0 0 0){} [connection] server "7.0.0" "O(N)"
        introspection::list: "Names of commands.";
    "command|getkeys" -4 [loading stale] (0 0 0){} [connection] server "2.8.13" "O(N)"
        introspection::getkeys: "The keys of a request.";
    "command|getkeysandflags" -4 [loading stale] (0 0 0){} [connection] server "7.0.0" "O(N)"
        introspection::getkeysandflags: "The keys of a request and what is done to them.";
    "command|help" 2 [loading stale] (0 0 0){} [connection] server "5.0.0" "O(1)"
        introspection::help: "What COMMAND can do.";
};

const CONFIG: &[Command] = commands! {
    "config|get" -3 [admin noscript loading stale] (0 0 0){} [] server "2.0.0" "O(N)"
        config::get: "Settings that match patterns.";
    "config|set" -4 [admin noscript loading stale] (0 0 0){} [] server "2.0.0" "O(N)"
        config::set: "Changes settings.";
    "config|resetstat" 2 [admin noscript loading stale] (0 0 0){} [] server "2.0.0" "O(1)"
        config::resetstat: "Sets counters back to zero.";
    "config|rewrite" 2 [admin noscript loading stale] (0 0 0){} [] server "2.8.0" "O(1)"
        config::rewrite: "Refused: settings files are not written.";
    "config|help" 2 [loading stale] (0 0 0){} [] server "5.0.0" "O(1)"
        config::help: "What CONFIG can do.";
};

const LATENCY: &[Command] = commands! {
    "latency|latest" 2 [admin noscript loading stale] (0 0 0){} [] server "2.8.13" "O(1)"
        latency::latest: "Latest samples of events; none are kept.";
    "latency|history" 3 [admin noscript loading stale] (0 0 0){} [] server "2.8.13" "O(1)"
        latency::history: "Samples of an event; none are kept.";
    "latency|reset" -2 [admin noscript loading stale] (0 0 0){} [] server "2.8.13" "O(1)"
        latency::reset: "Forgets samples.";
    "latency|doctor" 2 [admin noscript loading stale] (0 0 0){} [] server "2.8.13" "O(1)"
        latency::doctor: "Says what makes things slow.";
    "latency|graph" 3 [admin noscript loading stale] (0 0 0){} [] server "2.8.13" "O(1)"
        latency::graph: "A picture of an event's samples; none are kept.";
    "latency|histogram" -2 [admin noscript loading stale] (0 0 0){} [] server "7.0.0" "O(N)"
        latency::histogram: "Distribution of the execution times of commands.";
    "latency|help" 2 [loading stale] (0 0 0){} [] server "2.8.13" "O(1)"
        latency::help: "What LATENCY can do.";
};

const SLOWLOG: &[Command] = commands! {
    "slowlog|get" -2 [admin loading stale] (0 0 0){} [] server "2.2.12" "O(N)"
        slowlog::get: "Slow commands, newest first.";
    "slowlog|len" 2 [admin loading stale] (0 0 0){} [] server "2.2.12" "O(1)"
        slowlog::len: "How many slow commands are kept.";
    "slowlog|reset" 2 [admin loading stale] (0 0 0){} [] server "2.2.12" "O(N)"
        slowlog::reset: "Forgets slow commands.";
    "slowlog|help" 2 [loading stale] (0 0 0){} [] server "6.2.0" "O(1)"
        slowlog::help: "What SLOWLOG can do.";
};

pub(super) const ROWS: &[Command] = commands! {
    "command" -1 [loading stale] (0 0 0){} [connection] server "2.8.13" "O(N)"
        introspection::command [COMMAND]: "About the commands of this server.";
    "info" -1 [loading stale] (0 0 0){} [dangerous] server "1.0.0" "O(1)"
        info::info: "What the server is, does and promises.";
    "config" -2 [] (0 0 0){} [] server "2.0.0" "As its subcommands"
        container [CONFIG]: "Reads and changes settings.";
    "time" 1 [loading stale fast] (0 0 0){} [] server "2.6.0" "O(1)"
        server::time: "The server's wall clock.";
    "shutdown" -1 [admin noscript loading stale no_multi allow_busy] (0 0 0){} [] server "1.0.0" "O(N)"
        server::shutdown: "Answers what was received, makes it durable and stops.";
    "wait" 3 [noscript] (0 0 0){} [connection] generic "3.0.0" "O(1)"
        server::wait: "Counts replicas that have this connection's writes: there are none.";
    "waitaof" 4 [noscript] (0 0 0){} [connection] generic "7.2.0" "O(1)"
        server::waitaof: "Waits until this connection's writes are durable.";
    "latency" -2 [] (0 0 0){} [] server "2.8.13" "As its subcommands"
        container [LATENCY]: "How long commands take.";
    "slowlog" -2 [] (0 0 0){} [] server "2.2.12" "As its subcommands"
        container [SLOWLOG]: "The slowest commands of late.";
    "debug" -2 [admin noscript loading stale] (0 0 0){} [] server "1.0.0" "As its subcommands"
        server::debug: "Not allowed here.";
};
