//! The findings of a check or a salvage, in words.

use everdram::stats::Finding;
use serde_json::{Value, json};

/// Bytes of a key that are shown.
const KEY_SHOWN: usize = 64;

/// What to do about damage.
pub(crate) const REMEDY: &str = "copy the pool aside, then save what verifies with `everdram export --salvage POOL FILE`, or \
                                 read it with `everdram serve --salvage --pool POOL`";

/// A key for the terminal: printable, and not too long.
pub(crate) fn key(key: &[u8]) -> String {
    match key.get(..KEY_SHOWN) {
        Some(start) if key.len() > KEY_SHOWN => {
            format!("\"{}...\" ({} bytes)", start.escape_ascii(), key.len())
        }
        _ => format!("\"{}\"", key.escape_ascii()),
    }
}

/// One line: the place, the size, the key, the finding.
pub(crate) fn line(finding: &Finding) -> String {
    let mut line = match &finding.file {
        Some(file) => format!("{} at byte {}", file.display(), finding.offset),
        None => format!("at byte {}", finding.offset),
    };
    if finding.bytes > 0 {
        line += &format!(", {} bytes", finding.bytes);
    }
    if let Some(of) = &finding.key {
        line += &format!(", key {}", key(of));
    }
    format!("{line}: {}", finding.what)
}

/// The finding as JSON.
pub(crate) fn object(finding: &Finding) -> Value {
    json!({
        "file": finding.file, "offset": finding.offset, "bytes": finding.bytes,
        "key": finding.key.as_deref().map(String::from_utf8_lossy),
        "missing": finding.missing, "stale": finding.stale, "what": finding.what, "remedy": REMEDY,
    })
}

/// Whether this finding makes the salvaged store incomplete or partly outdated.
pub(crate) fn matters(finding: &Finding) -> bool {
    finding.missing > 0 || finding.stale
}
