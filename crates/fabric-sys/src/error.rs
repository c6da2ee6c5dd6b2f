//! What can go wrong: the library is not there, a call of it failed, or the provider lacks something.

use crate::Conn;

/// Why libfabric could not be loaded.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "libfabric.so.1 cannot be used ({reason}); install libfabric 1.9 or newer (Debian: package `libfabric1`)"
)]
pub struct LoadError {
    /// What the dynamic linker said, or which symbol is missing.
    pub reason: String,
}

/// Why something could not be done with a fabric.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of the library failed.
    #[error("{call}: {text} (code {code})")]
    Call {
        /// The function.
        call: &'static str,
        /// Its code, positive: an `errno` below 256, else one of libfabric's own.
        code: i32,
        /// What the library says about the code, and what to do where that is known.
        text: String,
    },
    /// The provider, or this crate, cannot do what was asked for; the text says what, and what to do.
    #[error("{0}")]
    Unsupported(String),
    /// The connection is closed, or was never one of this port. Its [`crate::Event::Closed`] has come or
    /// follows.
    #[error("connection {0} is closed; connect again")]
    Closed(Conn),
    /// A message is longer than the port was made for.
    #[error(
        "a message of {bytes} bytes is longer than {limit}, the largest; send less or make the port for more"
    )]
    TooLong {
        /// Bytes of the message.
        bytes: usize,
        /// The port's largest message.
        limit: usize,
    },
    /// Bytes outside of an exposed area were asked for.
    #[error("bytes {at} to {end} are outside of an area of {bytes} bytes")]
    OutOfArea {
        /// First byte.
        at: usize,
        /// Byte behind the last.
        end: usize,
        /// Bytes of the area.
        bytes: usize,
    },
    /// The allocator refused memory.
    #[error("{bytes} bytes of memory cannot be had; use fewer or smaller buffers")]
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

impl Error {
    /// The library's code, positive, if a call of it failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Call { code, .. } => Some(*code),
            _ => None,
        }
    }
}
