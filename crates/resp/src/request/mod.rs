//! From bytes to requests: arrays and inline commands, their arguments, numbers and patterns. Everything that
//! a client controls has a limit.

pub(super) mod args;
pub(super) mod frame;
pub(super) mod glob;
pub(super) mod inline;
pub(super) mod number;
