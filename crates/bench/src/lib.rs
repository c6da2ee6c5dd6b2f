//! Measurements: what the machine can do at most, and what stores on it do.
//!
//! [`limits`] runs bare loops over the medium, so that every figure of a store can be said as a share of what
//! the hardware allows. A [`Plan`] measures a store behind [`Subject`] and [`Client`], whatever it is, under
//! a [`Workload`]; a [`Row`] is what came out. The library prints nothing: it tells its caller what it
//! measured.
#![forbid(unsafe_code)]

pub mod bars;
pub mod compare;
mod counted;
mod drive;
mod everdram;
pub mod figure;
mod fixture;
mod latency;
pub mod limits;
mod machine;
mod named;
mod pace;
mod pass;
mod plan;
mod pool;
mod process;
pub mod recovery;
pub mod report;
pub mod row;
pub mod server;
mod show;
mod subject;
pub mod timing;
mod verdict;
pub mod workload;

pub use counted::Counted;
pub use everdram::Everdram;
pub use fixture::Place;
pub use machine::{Machine, built_from, commit};
pub use plan::{Extent, Plan};
pub use recovery::Recovery;
pub use row::{Metric, Row};
pub use show::Table;
pub use subject::{Client, Durability, Error, Opener, Otherwise, Subject, Traffic};
pub use verdict::{Compared, Verdict};
pub use workload::sizes::Sizes;
pub use workload::{Workload, corpus};
