//! What `linearizable.rs` is made of: a recorder, a model, a judge.

pub(crate) mod checker;
pub(crate) mod forgetful;
pub(crate) mod history;
pub(crate) mod model;
pub(crate) mod recorder;
