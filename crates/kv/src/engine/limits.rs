//! Limits of keys and values.

/// Largest key in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// Largest value in bytes.
pub const VALUE_BYTES_MAX: usize = 512 * 1024 * 1024;
