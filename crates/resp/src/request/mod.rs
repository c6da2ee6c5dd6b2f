//! From bytes to requests: arrays and inline commands, their arguments, numbers and patterns. Limits stand on
//! everything that a client controls.

pub(super) mod args;
pub(super) mod frame;
pub(super) mod glob;
pub(super) mod inline;
pub(super) mod number;
