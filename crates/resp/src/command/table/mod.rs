//! Every command of this server, in rows.
//!
//! A row is: name, arity, [flags], (first key, last key, step){[use of the keys]}, [access categories that
//! the flags do not imply], group, the first Redis version that has it, cost, handler, [subcommands], and a
//! summary. `command::Command` explains each.

mod connections;
mod keys;
mod servers;
mod strings;
mod transactions;

use crate::command::Command;

/// Turns rows into a list of [`Command`].
macro_rules! commands {
    ($(
        $name:literal $arity:literal [$($flag:ident)*]
        ($first:literal $last:literal $step:literal) {$([$($use:ident)*])*} [$($category:ident)*]
        $group:ident $since:literal $complexity:literal
        $handler:path $([$subcommands:ident])? : $summary:literal;
    )*) => {
        &[$({
            const FLAGS: &[&str] = &[$(stringify!($flag)),*];
            Command {
                name: $name,
                arity: $arity,
                flags: FLAGS,
                first_key: $first,
                last_key: $last,
                step: $step,
                key_uses: &[$(&[$(stringify!($use)),*]),*],
                categories: &[$(concat!("@", stringify!($category))),*],
                group: stringify!($group),
                since: $since,
                complexity: $complexity,
                summary: $summary,
                subcommands: super::or_none(&[$($subcommands)?]),
                handler: $handler,
                writes: super::is_writing($name, FLAGS),
                reads: $first > 0 || super::is_reading($name, FLAGS),
            }
        }),*]
    };
}
use commands;

const LISTS: [&[Command]; 5] = [
    strings::ROWS,
    keys::ROWS,
    transactions::ROWS,
    connections::ROWS,
    servers::ROWS,
];

/// The table.
pub(crate) const COMMANDS: &[Command] = &concatenate();

const fn count() -> usize {
    let mut count = 0;
    let mut list = 0;
    while list < LISTS.len() {
        count += LISTS[list].len();
        list += 1;
    }
    count
}

const fn concatenate() -> [Command; count()] {
    let mut all = [LISTS[0][0]; count()];
    let (mut next, mut list) = (0, 0);
    while list < LISTS.len() {
        let mut row = 0;
        while row < LISTS[list].len() {
            all[next] = LISTS[list][row];
            row += 1;
            next += 1;
        }
        list += 1;
    }
    all
}

const fn or_none(subcommands: &[&'static [Command]]) -> &'static [Command] {
    if subcommands.is_empty() {
        &[]
    } else {
        subcommands[0]
    }
}

/// EXEC has no `write` flag, but its queued commands may write.
const fn is_writing(name: &str, flags: &[&str]) -> bool {
    contains(flags, "write") || same(name, "exec")
}

/// WAITAOF shows nothing, but vouches for every write before it.
const fn is_reading(name: &str, flags: &[&str]) -> bool {
    contains(flags, "readonly") || is_writing(name, flags) || same(name, "waitaof")
}

const fn contains(flags: &[&str], wanted: &str) -> bool {
    let mut index = 0;
    while index < flags.len() {
        if same(flags[index], wanted) {
            return true;
        }
        index += 1;
    }
    false
}

const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut index = 0;
    while index < one.len() {
        if one[index] != other[index] {
            return false;
        }
        index += 1;
    }
    true
}
