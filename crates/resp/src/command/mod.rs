//! The command table: name, arity, flags, key positions, and the handler.
//!
//! The rows are in `table`. A *number* identifies a command or subcommand: its place in the table,
//! with subcommands counted after all commands.

pub(crate) mod table;

use crate::context::Context;
use crate::request::args::Args;
use table::COMMANDS;

/// Answers one request. It writes exactly one reply.
pub(crate) type Handler = fn(&mut Context<'_>);

/// One command, as `COMMAND INFO` shows it.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    /// Lower case; a subcommand is `container|name`.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative = at least.
    pub(crate) arity: i32,
    /// Redis' flag names: `write`, `readonly`, `denyoom`, `fast`, `admin`, `noscript`, `loading`, `stale`,
    /// ...
    pub(crate) flags: &'static [&'static str],
    /// Index of the first key argument; 0 = none.
    pub(crate) first_key: i32,
    /// Index of the last key argument; negative counts from the end.
    pub(crate) last_key: i32,
    /// Distance between keys.
    pub(crate) step: i32,
    /// The use of the keys, in Redis' words: one list for all of them, or one for each.
    pub(crate) key_uses: &'static [&'static [&'static str]],
    /// Access categories that the flags do not imply.
    pub(crate) categories: &'static [&'static str],
    /// Redis' group: `string`, `generic`, `connection`, `server`, `transactions`.
    pub(crate) group: &'static str,
    /// The first version of Redis that has it.
    pub(crate) since: &'static str,
    /// Cost, for `COMMAND DOCS`.
    pub(crate) complexity: &'static str,
    /// One line for `COMMAND DOCS`.
    pub(crate) summary: &'static str,
    /// The subcommands of a container.
    pub(crate) subcommands: &'static [Command],
    pub(crate) handler: Handler,
    /// Whether it may change keys, so that its reply must wait for the next commit.
    pub(crate) writes: bool,
    /// Whether it reads keys, so that its reply must wait for writes it may have seen.
    pub(crate) reads: bool,
}

impl Command {
    pub(crate) fn has_flag(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// Name of a subcommand without its container's.
    fn own_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, own)| own)
    }

    /// The subcommand called `name`, and its place.
    pub(crate) fn subcommand(&self, name: &[u8]) -> Option<(usize, &'static Command)> {
        self.subcommands
            .iter()
            .enumerate()
            .find(|(_, sub)| name.eq_ignore_ascii_case(sub.own_name().as_bytes()))
    }
}

/// Places in the hash index; a power of two, several times the number of commands.
const INDEX_PLACES: usize = 1024;
/// An empty place.
const EMPTY: u8 = u8::MAX;

/// Open-addressed hash of names to places in `COMMANDS`, built at compile time.
static INDEX: [u8; INDEX_PLACES] = build_index();

/// Number of the first subcommand of each container.
static FIRST_SUBCOMMAND: [u16; COMMANDS.len()] = number_subcommands();

/// Number of commands and subcommands.
pub(crate) const COUNT: usize = count_numbers();

const fn hash(name: &[u8]) -> usize {
    let mut hash: u32 = 0x811c_9dc5;
    let mut index = 0;
    while index < name.len() {
        hash = (hash ^ name[index].to_ascii_lowercase() as u32).wrapping_mul(0x0100_0193);
        index += 1;
    }
    (hash ^ (hash >> 15)) as usize & (INDEX_PLACES - 1)
}

const fn build_index() -> [u8; INDEX_PLACES] {
    let mut places = [EMPTY; INDEX_PLACES];
    let mut index = 0;
    assert!(COMMANDS.len() < EMPTY as usize);
    while index < COMMANDS.len() {
        let mut place = hash(COMMANDS[index].name.as_bytes());
        while places[place] != EMPTY {
            place = (place + 1) & (INDEX_PLACES - 1);
        }
        places[place] = index as u8;
        index += 1;
    }
    places
}

const fn number_subcommands() -> [u16; COMMANDS.len()] {
    let mut first = [0; COMMANDS.len()];
    let mut next = COMMANDS.len();
    let mut index = 0;
    while index < COMMANDS.len() {
        first[index] = next as u16;
        next += COMMANDS[index].subcommands.len();
        index += 1;
    }
    first
}

const fn count_numbers() -> usize {
    let mut count = COMMANDS.len();
    let mut index = 0;
    while index < COMMANDS.len() {
        count += COMMANDS[index].subcommands.len();
        index += 1;
    }
    count
}

fn find(name: &[u8]) -> Option<(usize, &'static Command)> {
    let mut place = hash(name);
    loop {
        let index = *INDEX.get(place)?;
        // The index is never full, so an empty place ends every search.
        let command = COMMANDS.get(usize::from(index))?;
        if name.eq_ignore_ascii_case(command.name.as_bytes()) {
            return Some((usize::from(index), command));
        }
        place = (place + 1) & (INDEX_PLACES - 1);
    }
}

/// The command called `name`, in any case; of a container, the container.
pub(crate) fn lookup(name: &[u8]) -> Option<&'static Command> {
    find(name).map(|(_, command)| command)
}

/// The command or subcommand called `name`, where a subcommand is written `container|name`.
pub(crate) fn lookup_full(name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|&byte| byte == b'|') {
        None => lookup(name),
        Some(bar) => {
            let (container, rest) = name.split_at_checked(bar)?;
            Some(lookup(container)?.subcommand(rest.get(1..)?)?.1)
        }
    }
}

/// Whether the command takes `arguments` arguments (with the name).
pub(crate) fn check_arity(command: &Command, arguments: usize) -> bool {
    let wanted = command.arity.unsigned_abs() as usize;
    if command.arity < 0 {
        arguments >= wanted
    } else {
        arguments == wanted
    }
}

/// Why a request cannot be executed at all.
pub(crate) enum Unknown {
    Command,
    Subcommand,
}

/// The command or subcommand of a request, and its number.
pub(crate) fn resolve(args: &Args<'_>) -> Result<(u32, &'static Command), Unknown> {
    let (index, command) = find(args.get(0)).ok_or(Unknown::Command)?;
    if command.subcommands.is_empty() || args.len() < 2 {
        return Ok((index as u32, command));
    }
    let (place, subcommand) = command.subcommand(args.get(1)).ok_or(Unknown::Subcommand)?;
    let first = FIRST_SUBCOMMAND.get(index).copied().unwrap_or(0);
    Ok((u32::from(first) + place as u32, subcommand))
}

/// The command with this number.
pub(crate) fn by_number(number: u32) -> Option<&'static Command> {
    let number = usize::try_from(number).ok()?;
    COMMANDS.get(number).or_else(|| {
        COMMANDS
            .iter()
            .flat_map(|command| command.subcommands)
            .nth(number.checked_sub(COMMANDS.len())?)
    })
}

/// Handler of a container: calls the subcommand. The dispatcher has refused unknown ones; EXEC also calls
/// this, with queued requests.
pub(crate) fn container(ctx: &mut Context<'_>) {
    match resolve(&ctx.args) {
        Ok((_, command)) if check_arity(command, ctx.args.len()) => {
            // A bare container would recurse here, but its arity (at least 2) excludes that.
            (command.handler)(ctx);
        }
        _ => ctx.reply.error("ERR syntax error"),
    }
}

/// Positions of the keys among `arguments` arguments.
pub(crate) fn key_positions(command: &Command, arguments: usize) -> impl Iterator<Item = usize> {
    let first = usize::try_from(command.first_key).unwrap_or(0);
    let behind_last = if command.last_key < 0 {
        (arguments + 1).saturating_sub(command.last_key.unsigned_abs() as usize)
    } else {
        (command.last_key.unsigned_abs() as usize + 1).min(arguments)
    };
    let range = if first == 0 { 0..0 } else { first..behind_last };
    range.step_by(usize::try_from(command.step).unwrap_or(1).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        for command in COMMANDS {
            let upper = command.name.to_ascii_uppercase();
            assert_eq!(
                lookup(upper.as_bytes()).map(|found| found.name),
                Some(command.name)
            );
            for subcommand in command.subcommands {
                assert_eq!(
                    lookup_full(subcommand.name.as_bytes()).map(|found| found.name),
                    Some(subcommand.name)
                );
            }
        }
        assert!(lookup(b"nothing").is_none() && lookup(b"").is_none());
    }

    #[test]
    fn numbers_name_each_command_once() {
        let names: std::collections::BTreeSet<_> = (0..COUNT as u32)
            .filter_map(by_number)
            .map(|command| command.name)
            .collect();
        assert_eq!(names.len(), COUNT);
        assert!(
            by_number(COUNT as u32).is_none()
                && by_number(crate::connection::peer::NO_COMMAND).is_none()
        );
    }

    #[test]
    fn keys_stand_where_the_row_says() {
        let keys = |name: &[u8], arguments| {
            lookup(name).map(|c| key_positions(c, arguments).collect::<Vec<_>>())
        };
        assert_eq!(keys(b"get", 2), Some(vec![1]));
        assert_eq!(keys(b"mset", 5), Some(vec![1, 3]));
        assert_eq!(keys(b"rename", 3), Some(vec![1, 2]));
        assert_eq!(keys(b"del", 4), Some(vec![1, 2, 3]));
        assert_eq!(keys(b"ping", 1), Some(vec![]));
    }
}
