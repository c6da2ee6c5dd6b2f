//! Rows of the command table: values. The module above explains the columns.

use super::commands;
use crate::command::Command;
use crate::commands::string;

pub(super) const ROWS: &[Command] = commands! {
    "get" 2 [readonly fast] (1 1 1){[RO access]} [string] string "1.0.0" "O(1)"
        string::get: "The value of a key.";
    "set" -3 [write denyoom] (1 1 1){[RW access update variable_flags]} [string] string "1.0.0" "O(1)"
        string::set: "Sets a key, with expiry and conditions if asked.";
    "setnx" 3 [write denyoom fast] (1 1 1){[OW insert]} [string] string "1.0.0" "O(1)"
        string::setnx: "Sets a key only if it is absent.";
    "setex" 4 [write denyoom] (1 1 1){[OW update]} [string] string "2.0.0" "O(1)"
        string::setex: "Sets a key that expires after seconds.";
    "psetex" 4 [write denyoom] (1 1 1){[OW update]} [string] string "2.6.0" "O(1)"
        string::psetex: "Sets a key that expires after milliseconds.";
    "getset" 3 [write denyoom fast] (1 1 1){[RW access update]} [string] string "1.0.0" "O(1)"
        string::getset: "Sets a key and answers what it held before.";
    "getdel" 2 [write fast] (1 1 1){[RW access delete]} [string] string "6.2.0" "O(1)"
        string::getdel: "Answers a key's value and removes the key.";
    "getex" -2 [write fast] (1 1 1){[RW access update]} [string] string "6.2.0" "O(1)"
        string::getex: "Answers a key's value and changes its expiry.";
    "mget" -2 [readonly fast] (1 -1 1){[RO access]} [string] string "1.0.0" "O(N)"
        string::mget: "The values of several keys, as of one moment.";
    "mset" -3 [write denyoom] (1 -1 2){[OW update]} [string] string "1.0.1" "O(N)"
        string::mset: "Sets several keys at once: all or none.";
    "msetnx" -3 [write denyoom] (1 -1 2){[OW insert]} [string] string "1.0.1" "O(N)"
        string::msetnx: "Sets several keys if none of them is there.";
    "append" 3 [write denyoom fast] (1 1 1){[RW insert]} [string] string "2.0.0" "O(1)"
        string::append: "Adds bytes to the end of a value.";
    "strlen" 2 [readonly fast] (1 1 1){[RO]} [string] string "2.2.0" "O(1)"
        string::strlen: "Length of a value in bytes.";
    "getrange" 4 [readonly] (1 1 1){[RO access]} [string] string "2.4.0" "O(N)"
        string::getrange: "Part of a value.";
    "substr" 4 [readonly] (1 1 1){[RO access]} [string] string "1.0.0" "O(N)"
        string::substr: "Part of a value; the old name of GETRANGE.";
    "setrange" 4 [write denyoom] (1 1 1){[RW update]} [string] string "2.2.0" "O(1)"
        string::setrange: "Overwrites part of a value.";
    "setbit" 4 [write denyoom] (1 1 1){[RW access update]} [bitmap] bitmap "2.2.0" "O(1)"
        string::setbit: "Sets or clears one bit of a value and answers what it was.";
    "getbit" 3 [readonly fast] (1 1 1){[RO access]} [bitmap] bitmap "2.2.0" "O(1)"
        string::getbit: "One bit of a value.";
    "incr" 2 [write denyoom fast] (1 1 1){[RW access update]} [string] string "1.0.0" "O(1)"
        string::incr: "Adds one to a number.";
    "decr" 2 [write denyoom fast] (1 1 1){[RW access update]} [string] string "1.0.0" "O(1)"
        string::decr: "Takes one from a number.";
    "incrby" 3 [write denyoom fast] (1 1 1){[RW access update]} [string] string "1.0.0" "O(1)"
        string::incrby: "Adds to a number.";
    "decrby" 3 [write denyoom fast] (1 1 1){[RW access update]} [string] string "1.0.0" "O(1)"
        string::decrby: "Takes from a number.";
    "incrbyfloat" 3 [write denyoom fast] (1 1 1){[RW access update]} [string] string "2.6.0" "O(1)"
        string::incrbyfloat: "Adds to a number with a fraction.";
};
