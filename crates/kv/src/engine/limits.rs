//! Limits of keys and values.

/// Largest key in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// Largest object in bytes, of engines that change values by parts.
pub const OBJECT_BYTES_MAX: u64 = 1 << 40;
/// Largest value in bytes that is read or written at once.
pub const VALUE_BYTES_MAX: usize = 512 * 1024 * 1024;
