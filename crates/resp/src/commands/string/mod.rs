//! Commands on values: every value is a string of bytes.
//!
//! Invariants: a command writes one reply and changes its keys atomically. Closures that decide a change may
//! run more than once, so they reset their results first and reply only afterwards.

mod bit;
mod counter;
mod range;
mod read;
mod set_options;
mod several;
mod write;

pub(crate) use bit::{getbit, setbit};
pub(crate) use counter::{decr, decrby, incr, incrby, incrbyfloat};
pub(crate) use range::{append, getrange, setrange, strlen, substr};
pub(crate) use read::{get, getdel, getex, getset};
pub(crate) use several::{mget, mset, msetnx};
pub(crate) use write::{psetex, set, setex, setnx};

/// Redis' answer to an argument or value that is not an integer.
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
/// Redis' answer to options that contradict each other.
pub(crate) const SYNTAX: &str = "ERR syntax error";
