//! What a medium is to the lab: what memory and disks hold, what is certain there, and what a crash may
//! leave.

pub(super) mod directory;
pub mod image;
pub mod lazy;
pub mod lines;
pub mod model;
pub mod outage;
pub mod sectors;
pub mod unit;
