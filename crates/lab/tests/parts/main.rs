//! The lab's own parts: what it says of crashes is only worth as much as they are right.
//!
//! Each file tests one module of the crate, by hand-made cases whose images can be counted on fingers, and
//! where that is not enough by comparing what must agree over random steps.

mod death;
mod explore;
mod fault;
mod history;
mod judge;
mod lazy;
mod lines;
mod outage;
mod plan;
mod recorder;
mod remote;
mod schedule;
mod sectors;
mod turns;
mod values;
