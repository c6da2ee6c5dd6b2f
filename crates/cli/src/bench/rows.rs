//! Rows as JSON lines: in files, or on standard output instead of a table.

use crate::output::Standard;
use anyhow::Context;
use serde::Serialize;
use std::io::Write as _;
use std::path::Path;

/// A line for each.
pub(super) fn lines<T: Serialize>(rows: impl IntoIterator<Item = T>) -> anyhow::Result<String> {
    let mut text = String::new();
    for row in rows {
        text.push_str(&serde_json::to_string(&row)?);
        text.push('\n');
    }
    Ok(text)
}

/// Whether rows go to standard output, where then is nothing else.
pub(super) fn are_all(path: Option<&Path>) -> bool {
    path.is_some_and(|path| path.as_os_str() == "-")
}

/// Writes what is asked for.
pub(super) fn write(path: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match path {
        Some(_) if are_all(path) => Ok(Standard::lock().write_all(text.as_bytes())?),
        Some(path) => file(path, text),
        None => Ok(()),
    }
}

/// Writes a file.
pub(super) fn file(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
