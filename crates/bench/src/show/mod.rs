//! What people see of measurements: pictures, tables, and numbers with their units.

pub(crate) mod plot;
mod table;
pub(crate) mod words;

pub use table::Table;
