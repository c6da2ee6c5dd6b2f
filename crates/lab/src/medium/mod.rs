//! The media of the lab: what memory and files hold, what of it is certain, and what a crash may leave.

pub(super) mod directory;
pub mod image;
pub mod lazy;
pub mod lines;
pub mod model;
pub mod outage;
pub mod sectors;
pub mod unit;
