//! Persistent memory: the only code that maps, stores, flushes and fences.

mod error;
mod medium;

pub use error::Error;
pub use medium::{Durability, Medium, MediumChoice, Report};
