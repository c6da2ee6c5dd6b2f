//! The crash lab.
#![forbid(unsafe_code)]

pub mod call;
pub mod campaign;
pub mod crash;
pub mod examine;
pub mod explain;
mod explain_disk;
mod explain_memory;
pub mod explore;
pub mod fault;
pub mod history;
pub mod image;
pub mod judge;
pub mod lazy;
pub mod lines;
pub mod lint;
pub mod model;
pub mod mutation;
pub mod plan;
pub mod plan_text;
pub mod profile;
pub mod recorder;
pub mod replay;
pub mod run;
pub mod schedule;
pub mod sectors;
pub mod shrink;
pub mod threads;
pub mod trace;
pub mod unit;
pub mod world;
