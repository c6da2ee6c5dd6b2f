//! The command table: name, arity, flags, where the keys stand, and the function that answers.

use crate::context::Context;

/// Answers one request. It writes exactly one reply.
pub(crate) type Handler = fn(&mut Context<'_>);

/// One command, as `COMMAND INFO` shows it.
pub(crate) struct Command {
    /// Lower case.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative = at least.
    pub(crate) arity: i32,
    /// Redis' flag names: `write`, `readonly`, `denyoom`, `fast`, `admin`, `noscript`, `loading`, `stale`, ...
    pub(crate) flags: &'static [&'static str],
    /// Index of the first key argument; 0 = none.
    pub(crate) first_key: i32,
    /// Index of the last key argument; negative counts from the end.
    pub(crate) last_key: i32,
    /// Distance between keys.
    pub(crate) step: i32,
    /// Redis' group: `string`, `generic`, `connection`, `server`, `transactions`.
    pub(crate) group: &'static str,
    /// One line for `COMMAND DOCS`.
    pub(crate) summary: &'static str,
    pub(crate) handler: Handler,
}
