//! Reports: one page of HTML made of the rows of a comparison ([`html`]), or of those of the papers' figures
//! ([`figures`]), and of nothing else.
//!
//! Both are pure functions: the same rows give the same page, today or from a file next year. The page
//! asks for nothing from anywhere.
//!
//! everdram has one colour; others are grey, and empty where an answered write may be lost. The page can be
//! read without telling colours apart.

#[cfg(test)]
mod balance;
mod chart;
pub mod figures;
mod page;
#[cfg(test)]
pub(crate) mod sample;
mod sections;

pub(crate) use chart::Kind;
pub use page::html;

const STYLE: &str = include_str!("style.css");
