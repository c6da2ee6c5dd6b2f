//! Rows of the command table: transactions. The module above explains the columns.

use super::commands;
use crate::command::Command;
use crate::commands::transaction;

pub(super) const ROWS: &[Command] = commands! {
    "multi" 1 [noscript loading stale fast allow_busy] (0 0 0){} [transaction] transactions "1.2.0" "O(1)"
        transaction::multi: "Begins a transaction.";
    "exec" 1 [noscript loading stale skip_slowlog] (0 0 0){} [transaction] transactions "1.2.0" "As its commands"
        transaction::exec: "Executes the transaction, atomically and durably.";
    "discard" 1 [noscript loading stale fast allow_busy] (0 0 0){} [transaction] transactions "2.0.0" "O(N)"
        transaction::discard: "Drops the transaction.";
    "watch" -2 [noscript loading stale fast allow_busy] (1 -1 1){[RO]} [transaction] transactions "2.2.0" "O(1)"
        transaction::watch: "Makes the next EXEC depend on keys being unchanged.";
    "unwatch" 1 [noscript loading stale fast allow_busy] (0 0 0){} [transaction] transactions "2.2.0" "O(1)"
        transaction::unwatch: "Forgets what was watched.";
};
