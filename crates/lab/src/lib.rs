//! The crash lab.
#![forbid(unsafe_code)]

pub mod call;
pub mod campaign;
pub mod examine;
pub mod explore;
pub mod fault;
pub mod history;
pub mod image;
pub mod judge;
pub mod lines;
pub mod model;
pub mod plan;
pub mod profile;
pub mod recorder;
pub mod run;
pub mod schedule;
pub mod sectors;
pub mod threads;
pub mod trace;
pub mod unit;
pub mod world;
