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

use crate::machine::Machine;
use crate::show::words::{bytes, escaped};

const STYLE: &str = include_str!("style.css");

/// A whole page.
fn page(title: &str, parts: &[String]) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"/><title>{}</title>\n<style>\n{STYLE}</style></head><body>\n\
         <main>\n{}</main></body></html>\n",
        escaped(title),
        parts.concat()
    )
}

/// A list of names and texts.
fn facts(facts: &[(&str, String)]) -> String {
    let fact = |(name, text): &(&str, String)| format!("<dt>{name}</dt><dd>{}</dd>", escaped(text));
    format!("<dl>{}</dl>", facts.iter().map(fact).collect::<String>())
}

/// Where it was measured, in words.
fn described(machine: &Machine) -> String {
    format!(
        "{}, {} cores, {} of memory, {}; lines leave the cache by {}",
        machine.processor,
        machine.cores,
        bytes(machine.memory_bytes as f64),
        machine.kernel,
        machine.flush
    )
}
