//! How long keys and values may be.

use crate::error::Error;

/// Largest key in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// Largest value in bytes.
pub const VALUE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Refuses what cannot be a key.
///
/// # Errors
/// [`Error::KeyLength`].
#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyLength(key.len()));
    }
    Ok(())
}

/// Refuses what cannot be a value.
///
/// # Errors
/// [`Error::ValueLength`].
#[inline]
pub(crate) fn check_value(value: &[u8]) -> Result<(), Error> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::ValueLength(value.len()));
    }
    Ok(())
}
