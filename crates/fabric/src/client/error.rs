//! What can go wrong with a call.

use crate::link::LinkError;
use crate::wire::{INLINE_BYTES, KEY_BYTES_MAX, Status, VALUE_BYTES_MAX};

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no libfabric on this machine.
    #[error(transparent)]
    Library(#[from] everdram_fabric_sys::LoadError),
    /// The address does not parse.
    #[error("`{0}` is no fabric address; write tcp://127.0.0.1:7700")]
    Address(String),
    /// The fabric says so.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Nobody accepted in time, or the door refused the connection.
    #[error("no door has accepted the connection: is `everdram serve --fabric` running there?")]
    NoDoor,
    /// The connection ended before the reply. A write may have happened or not; read to know.
    #[error("the connection ended before the reply; a write may have happened or not")]
    Unknown,
    /// The key has no bytes, or too many.
    #[error("key of {0} bytes: over a fabric, keys have 1 to {KEY_BYTES_MAX} bytes")]
    KeyLength(usize),
    /// The value has too many bytes.
    #[error(
        "value of {0} bytes: over a fabric, values have at most {VALUE_BYTES_MAX} bytes, and {INLINE_BYTES} with their request"
    )]
    ValueLength(usize),
    /// The door has no memory that clients write durably by themselves.
    #[error(
        "this door does not offer this way: its pool has no landing area, or it does not trust its peers with \
         one (`--fabric-trust-peers`), or its fabric has no durable writes, or none with immediate data"
    )]
    NotOffered,
    /// The door refused the request.
    #[error("{text}")]
    Refused {
        /// Why, for programs.
        status: Status,
        /// Why, and what to do.
        text: String,
    },
}
