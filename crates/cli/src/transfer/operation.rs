//! One change from a file of any format.

use everdram::engine::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Store a value.
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        /// Unix milliseconds; 0 = never.
        expires_at_ms: u64,
    },
    /// Set the expiry of an existing key.
    Expire { key: Vec<u8>, expires_at_ms: u64 },
    /// Remove a key.
    Delete { key: Vec<u8> },
}

impl Operation {
    /// Refuses keys and values that a store cannot take.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (key, value_bytes) = match self {
            Operation::Put { key, value, .. } => (key, value.len()),
            Operation::Expire { key, .. } | Operation::Delete { key } => (key, 0),
        };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(format!(
                "a key of {} bytes; keys have 1 to {KEY_BYTES_MAX}",
                key.len()
            ));
        }
        if value_bytes > VALUE_BYTES_MAX {
            return Err(format!(
                "a value of {value_bytes} bytes; values have at most {VALUE_BYTES_MAX}"
            ));
        }
        Ok(())
    }
}
