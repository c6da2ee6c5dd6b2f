//! The report: one page of HTML made of the lines of a comparison, and of nothing else.
//!
//! [`html`] is a pure function: the same lines give the same page, today or from a file next year. The page asks for
//! nothing from anywhere. Its charts are SVG written by hand: they are rectangles and lines, whose places in
//! percent let a page as narrow as a phone keep its letters at their size, and whose colours are those of the
//! style sheet, so that light and dark are one picture. A drawing library would give neither.
//!
//! One colour is everdram's; others are grey, and hatched where an answered write may be lost: nobody needs
//! to tell colours apart.

#[cfg(test)]
mod balance;
mod chart;
mod limits;
mod page;
mod range;
#[cfg(test)]
pub(crate) mod sample;
mod servers;
mod stores;
mod tables;
mod words;

pub use page::html;
