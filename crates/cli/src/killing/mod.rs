//! What `demo` and `crashtest --kill` share: servers that are killed, and how what they owe is known.

pub mod place;
pub mod process;
pub(crate) mod value;
