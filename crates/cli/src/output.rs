//! Standard output. Its reader may close it at any moment: `everdram inspect ... | head` is no failure.
//!
//! Rust's `println!` panics then. This crate's `println!` discards the text instead, so that the command
//! completes its work and its exit code reports the result. A command without an end to its output uses
//! [`Standard`], and stops at the error [`Closed`]. Another broken pipe or socket is never mistaken for it.

use std::fmt;
use std::io::{self, ErrorKind, StdoutLock, Write};

/// Like the standard library's macro, but ignores a closed standard output.
macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)+) => { $crate::output::line(format_args!($($text)+)) };
}

/// Standard output that reports [`Closed`] once its reader has closed it.
pub(crate) struct Standard(StdoutLock<'static>);

/// The reader of standard output has closed it.
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

/// Whether the work ended because the reader of standard output has closed it.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| cause.downcast_ref().is_some_and(is_marked))
}

/// Prints a line on standard output.
///
/// # Panics
/// If the write fails for another reason than a closed output.
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
