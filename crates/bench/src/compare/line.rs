//! What a comparison writes down: one line of JSON for each store under each workload, each server under each
//! load, each limit, and everything that was left out.

use super::scene::Ground;
use crate::limits::Limit;
use crate::machine::Machine;
use crate::row::{Configuration, Row};
use crate::server::Summary;
use crate::subject::Error;
use anyhow::Context;
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[expect(
    clippy::large_enum_variant,
    reason = "there are some hundred of them, most are the large ones"
)]
pub enum Line {
    /// A store under a workload.
    Store {
        /// What it stands on.
        ground: Ground,
        /// The measurement.
        row: Row,
    },
    /// A server under a load.
    Server {
        /// The measurement.
        summary: Summary,
        /// Where.
        machine: Machine,
        /// The source it was built from.
        commit: String,
    },
    /// What the machine can do at most.
    Limit {
        /// The measurement.
        limit: Limit,
        /// Where.
        machine: Machine,
        /// The source it was built from.
        commit: String,
    },
    /// Something that could not be measured, or not all of it.
    LeftOut {
        /// What.
        what: String,
        /// Why, and what to do about it.
        why: String,
    },
}

/// Reads what was written, one line each; blank lines are none.
///
/// # Errors
/// If a line is not one of a comparison; the error says which.
pub fn read_lines(text: &str) -> Result<Vec<Line>, Error> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| {
                format!("line {}: no line of `everdram bench compare`", number + 1)
            })
        })
        .collect()
}

/// How tables call a store: everdram is there with an engine, and may be there twice.
#[must_use]
pub fn label(configuration: &Configuration) -> String {
    let engine = configuration.engine.as_deref();
    label_of(&configuration.store, engine, configuration.fixed)
}

/// As [`label`]: `everdram viper, fixed`.
#[must_use]
pub fn label_of(store: &str, engine: Option<&str>, fixed: bool) -> String {
    let mut label = store.to_owned();
    if let Some(engine) = engine {
        label.push(' ');
        label.push_str(engine);
    }
    if fixed {
        label.push_str(", fixed");
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_which_engine() {
        assert_eq!(label_of("redb", None, false), "redb");
        assert_eq!(label_of("everdram", None, true), "everdram, fixed");
        let bullet = label_of("everdram", Some("bullet"), true);
        assert_eq!(bullet, "everdram bullet, fixed");
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let good = serde_json::to_string(&Line::LeftOut {
            what: "valkey".into(),
            why: "not installed".into(),
        })
        .unwrap();
        assert_eq!(read_lines(&format!("{good}\n\n{good}\n")).unwrap().len(), 2);
        let error = read_lines(&format!("{good}\n{{}}\n")).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
