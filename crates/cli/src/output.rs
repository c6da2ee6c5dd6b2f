//! Standard output, which its reader may close at any moment: `everdram inspect ... | head` is no failure.
//!
//! Rust's `println!` panics then. The one of this crate writes on into nothing, so that a command does its
//! work to the end and its exit code says how that went. Whoever writes without end uses [`Standard`], and
//! stops at the error that says [`Closed`]. The pipe or socket of somebody else that breaks is never mistaken
//! for it.

use std::fmt;
use std::io::{self, ErrorKind, StdoutLock, Write};

/// As the one of the standard library, but for a reader that has gone.
macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)+) => { $crate::output::line(format_args!($($text)+)) };
}

/// Standard output, whose errors tell by [`Closed`] that nobody reads it any more.
pub(crate) struct Standard(StdoutLock<'static>);

/// Nobody reads standard output any more.
#[derive(Debug)]
struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl std::error::Error for Closed {}

impl Standard {
    pub(crate) fn lock() -> Standard {
        Standard(io::stdout().lock())
    }
}

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(mark)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(mark)
    }
}

fn mark(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, Closed),
        _ => error,
    }
}

fn is_marked(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Closed>())
}

/// Whether work ended because nobody reads standard output any more.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| cause.downcast_ref().is_some_and(is_marked))
}

/// A line on standard output.
///
/// # Panics
/// If it cannot be written for another reason than that nobody reads it.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    match writeln!(Standard::lock(), "{text}") {
        Err(error) if !is_marked(&error) => panic!("standard output: {error}"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn only_the_own_output_counts_as_closed() {
        let broken = || io::Error::from(ErrorKind::BrokenPipe);
        let with_context = |error: io::Error| Err::<(), _>(error).context("writing").unwrap_err();
        assert!(is_closed(&with_context(mark(broken()))));
        assert!(is_closed(&anyhow::Error::new(mark(broken()))));
        assert!(!is_closed(&with_context(broken())));
        assert!(!is_closed(&with_context(mark(
            ErrorKind::StorageFull.into()
        ))));
    }
}
