//! The report: one page of HTML made of the rows of a comparison, and of nothing else.
//!
//! [`html`] is a pure function: the same rows give the same page, today or from a file next year. The page
//! asks for nothing from anywhere.
//!
//! everdram has one colour; others are grey, and empty where an answered write may be lost. The page can be
//! read without telling colours apart.

#[cfg(test)]
mod balance;
mod chart;
mod page;
#[cfg(test)]
pub(crate) mod sample;
mod sections;

pub(crate) use chart::Kind;
pub use page::html;
