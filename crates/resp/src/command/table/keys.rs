//! Rows of the command table: keys and their expiry. The module above explains the columns.

use super::commands;
use crate::command::Command;
use crate::commands::{expire, key};

const OBJECT: &[Command] = commands! {
    "object|encoding" 3 [readonly] (2 2 1){[RO]} [keyspace] generic "2.2.3" "O(1)"
        key::object: "How the value would be kept by Redis.";
    "object|freq" 3 [readonly] (2 2 1){[RO]} [keyspace] generic "4.0.0" "O(1)"
        key::object: "Access frequency; not kept.";
    "object|idletime" 3 [readonly] (2 2 1){[RO]} [keyspace] generic "2.2.3" "O(1)"
        key::object: "Seconds without access.";
    "object|refcount" 3 [readonly] (2 2 1){[RO]} [keyspace] generic "2.2.3" "O(1)"
        key::object: "References to the value: one.";
    "object|help" 2 [loading stale] (0 0 0){} [keyspace] generic "6.2.0" "O(1)"
        key::object: "What OBJECT can do.";
};

const MEMORY: &[Command] = commands! {
    "memory|usage" -3 [readonly] (2 2 1){[RO]} [] server "4.0.0" "O(N)"
        key::memory: "Bytes that a key takes.";
    "memory|help" 2 [loading stale] (0 0 0){} [] server "4.0.0" "O(1)"
        key::memory: "What MEMORY can do.";
};

pub(super) const ROWS: &[Command] = commands! {
    "del" -2 [write] (1 -1 1){[RM delete]} [keyspace] generic "1.0.0" "O(N)"
        key::del: "Removes keys.";
    "unlink" -2 [write fast] (1 -1 1){[RM delete]} [keyspace] generic "4.0.0" "O(1)"
        key::unlink: "Removes keys; here the same as DEL.";
    "exists" -2 [readonly fast] (1 -1 1){[RO]} [keyspace] generic "1.0.0" "O(N)"
        key::exists: "Counts which of the keys are there.";
    "type" 2 [readonly fast] (1 1 1){[RO]} [keyspace] generic "1.0.0" "O(1)"
        key::type_: "The type of a key: string or none.";
    "touch" -2 [readonly fast] (1 -1 1){[RO]} [keyspace] generic "3.2.1" "O(N)"
        key::touch: "Counts which of the keys are there.";
    "rename" 3 [write] (1 2 1){[RW access delete] [OW update]} [keyspace] generic "1.0.0" "O(1)"
        key::rename: "Gives a key another name.";
    "renamenx" 3 [write fast] (1 2 1){[RW access delete] [OW insert]} [keyspace] generic "1.0.0" "O(1)"
        key::renamenx: "Gives a key another name if that is free.";
    "copy" -3 [write denyoom] (1 2 1){[RO access] [OW update]} [keyspace] generic "6.2.0" "O(N)"
        key::copy: "Copies a key.";
    "randomkey" 1 [readonly] (0 0 0){} [keyspace] generic "1.0.0" "O(1)"
        key::randomkey: "Some key.";
    "keys" 2 [readonly] (0 0 0){} [keyspace dangerous] generic "1.0.0" "O(N)"
        key::keys: "All keys that match a pattern.";
    "scan" -2 [readonly] (0 0 0){} [keyspace] generic "2.8.0" "O(1)"
        key::scan: "Walks over all keys in steps.";
    "dbsize" 1 [readonly fast] (0 0 0){} [keyspace] server "1.0.0" "O(1)"
        key::dbsize: "Counts the keys.";
    "flushall" -1 [write] (0 0 0){} [keyspace dangerous] server "1.0.0" "O(N)"
        key::flushall: "Removes every key.";
    "flushdb" -1 [write] (0 0 0){} [keyspace dangerous] server "1.0.0" "O(N)"
        key::flushdb: "Removes every key.";
    "expire" -3 [write fast] (1 1 1){[RW update]} [keyspace] generic "1.0.0" "O(1)"
        expire::expire: "Lets a key expire after seconds.";
    "pexpire" -3 [write fast] (1 1 1){[RW update]} [keyspace] generic "2.6.0" "O(1)"
        expire::pexpire: "Lets a key expire after milliseconds.";
    "expireat" -3 [write fast] (1 1 1){[RW update]} [keyspace] generic "1.2.0" "O(1)"
        expire::expireat: "Lets a key expire at a time in seconds.";
    "pexpireat" -3 [write fast] (1 1 1){[RW update]} [keyspace] generic "2.6.0" "O(1)"
        expire::pexpireat: "Lets a key expire at a time in milliseconds.";
    "ttl" 2 [readonly fast] (1 1 1){[RO access]} [keyspace] generic "1.0.0" "O(1)"
        expire::ttl: "Seconds until a key expires.";
    "pttl" 2 [readonly fast] (1 1 1){[RO access]} [keyspace] generic "2.6.0" "O(1)"
        expire::pttl: "Milliseconds until a key expires.";
    "expiretime" 2 [readonly fast] (1 1 1){[RO access]} [keyspace] generic "7.0.0" "O(1)"
        expire::expiretime: "When a key expires, in Unix seconds.";
    "pexpiretime" 2 [readonly fast] (1 1 1){[RO access]} [keyspace] generic "7.0.0" "O(1)"
        expire::pexpiretime: "When a key expires, in Unix milliseconds.";
    "persist" 2 [write fast] (1 1 1){[RW update]} [keyspace] generic "2.2.0" "O(1)"
        expire::persist: "Takes a key's expiry away.";
    "object" -2 [] (0 0 0){} [] generic "2.2.3" "As its subcommands"
        key::object [OBJECT]: "How a key is kept.";
    "memory" -2 [] (0 0 0){} [] server "4.0.0" "As its subcommands"
        key::memory [MEMORY]: "What keys weigh.";
};
