//! Between C and Rust: memory of the caller, panics, and the text of the last error.
//!
//! Lengths and pointers are judged before memory is touched. What remains to the caller, that memory is there
//! and nobody else writes it meanwhile, is the safety condition of each function here.

use crate::code::{ARGUMENT, BUG, Failure, ROOM};
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a call: a failure and a panic become codes, and their texts what `everdram_error` tells.
pub(crate) fn guarded(call: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    // What a panic leaves behind is not used: the lock of its client is poisoned.
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let failure = match outcome {
        Ok(Ok(code)) => return code,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(
            BUG,
            "everdram has panicked, which is a bug; close the client",
        ),
    };
    // While a thread ends, there may be no place for the text.
    let _text_is_lost = LAST.try_with(|last| last.replace(failure.text));
    failure.code
}

/// The text of the last error of this thread.
pub(crate) fn last_text() -> String {
    let text = LAST.try_with(|last| last.borrow().clone());
    text.unwrap_or_default()
}

fn bad(what: &str) -> Failure {
    Failure::new(ARGUMENT, what)
}

/// `count` elements that the caller has.
///
/// # Errors
/// There is no memory, it is misaligned, or longer than memory can be.
///
/// # Safety
/// If `at` is not null, `count` initialised elements lie there, and nobody writes them during `'a`.
pub(crate) unsafe fn input<'a, T>(
    at: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    judge(at, count, name)?;
    // SAFETY: not null, aligned, at most isize::MAX bytes; the rest is this function's condition.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// Whether `count` elements may lie at `at`.
pub(crate) fn judge<T>(at: *const T, count: usize, name: &str) -> Result<(), Failure> {
    let bytes = count.checked_mul(size_of::<T>());
    if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(bad(&format!("{name}: more bytes than memory can have")));
    }
    if count > 0 && (at.is_null() || !at.is_aligned()) {
        return Err(bad(&format!("{name} is NULL or misaligned")));
    }
    Ok(())
}

/// Bytes that the caller has.
///
/// # Errors
/// As [`input`].
///
/// # Safety
/// As [`input`].
pub(crate) unsafe fn bytes<'a>(
    at: *const c_void,
    count: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    // SAFETY: this function's condition.
    unsafe { input(at.cast(), count, name) }
}

/// A text with a zero behind it.
///
/// # Errors
/// There is none, or it is not UTF-8.
///
/// # Safety
/// If `at` is not null, a text that ends with a zero lies there, and nobody writes it during `'a`.
pub(crate) unsafe fn text<'a>(at: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if at.is_null() {
        return Err(bad(&format!("{name} is NULL")));
    }
    // SAFETY: not null; the rest is this function's condition.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str()
        .map_err(|_| bad(&format!("{name} is not UTF-8")))
}

/// Writes one thing to where the caller wants it.
///
/// # Errors
/// There is no such place.
///
/// # Safety
/// If `at` is not null, a `T` may be written there, and nobody else uses it meanwhile.
pub(crate) unsafe fn give<T>(at: *mut T, value: T, name: &str) -> Result<(), Failure> {
    judge(at, 1, name)?;
    // SAFETY: not null and aligned; the rest is this function's condition.
    unsafe { at.write(value) };
    Ok(())
}

/// Writes bytes to where the caller has `room`, and how many there are to `count`, also if there is too
/// little room.
///
/// # Errors
/// Too little room, or there is no such place.
///
/// # Safety
/// If they are not null, `room` bytes may be written at `at` and a length at `count`, and nobody else uses
/// them meanwhile.
pub(crate) unsafe fn copy(
    from: &[u8],
    at: *mut c_void,
    room: usize,
    count: *mut usize,
    name: &str,
) -> Result<(), Failure> {
    judge(at.cast::<u8>(), room, name)?;
    // SAFETY: this function's condition.
    unsafe { give(count, from.len(), "the place of a length") }?;
    if from.len() > room {
        let text = format!("{name}: {} bytes, and room for {room}", from.len());
        return Err(Failure::new(ROOM, text));
    }
    if !from.is_empty() {
        // SAFETY: `room` is not 0, so `at` is not null and has room for these bytes; they are this process's
        // own, which no caller knows, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at.cast::<u8>(), from.len()) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    /// Reads through `input`, and judges what is refused.
    #[test]
    fn what_cannot_be_memory_is_refused_before_it_is_touched() {
        let words = [1_u64, 2, 3];
        let read = |at: *const u64, count: usize| {
            // SAFETY: what is neither null, misaligned nor too long is `words`.
            let read = unsafe { input(at, count, "words") };
            read.map(<[u64]>::to_vec).map_err(|failure| failure.code)
        };
        assert_eq!(read(words.as_ptr(), 3), Ok(words.to_vec()));
        assert_eq!(read(null(), 0), Ok(Vec::new()));
        assert_eq!(read(null(), 1), Err(ARGUMENT));
        assert_eq!(read(words.as_ptr(), usize::MAX), Err(ARGUMENT));
        assert_eq!(
            read(words.as_ptr(), isize::MAX as usize / 8 + 1),
            Err(ARGUMENT)
        );
        let misaligned = words.as_ptr().wrapping_byte_add(1);
        assert_eq!(read(misaligned, 1), Err(ARGUMENT));
    }

    #[test]
    fn texts_end_with_a_zero_and_are_utf8() {
        let read = |at: *const c_char| {
            // SAFETY: what is not null ends with a zero.
            let read = unsafe { text(at, "text") };
            read.map(str::to_owned).map_err(|failure| failure.code)
        };
        assert_eq!(read(c"tcp".as_ptr()), Ok("tcp".to_owned()));
        assert_eq!(read(c"\xff".as_ptr()), Err(ARGUMENT));
        assert_eq!(read(null()), Err(ARGUMENT));
    }

    #[test]
    fn copies_stay_within_their_room() {
        let mut into = [0xee_u8; 8];
        let at: *mut c_void = into.as_mut_ptr().cast();
        let mut count = 0;
        let copied = |from: &[u8], at: *mut c_void, room: usize, count: *mut usize| {
            // SAFETY: what is not null is `into`, which has 8 bytes, and `count`.
            let copied = unsafe { copy(from, at, room, count, "bytes") };
            copied.map_err(|failure| failure.code)
        };
        let place = &raw mut count;
        assert_eq!(copied(b"1234", at, 4, place), Ok(()));
        assert_eq!(copied(b"12345", at, 4, place), Err(ROOM));
        assert_eq!(copied(b"", null_mut(), 0, place), Ok(()));
        assert_eq!(copied(b"1", null_mut(), 0, place), Err(ROOM));
        assert_eq!(copied(b"1", null_mut(), 1, place), Err(ARGUMENT));
        assert_eq!(copied(b"1", at, 1, null_mut()), Err(ARGUMENT));
        assert_eq!(count, 1, "how many there are is told without room for them");
        assert_eq!(&into, b"1234\xee\xee\xee\xee");
    }

    #[test]
    fn a_panic_is_a_code_with_a_text() {
        let code = guarded(|| std::panic::resume_unwind(Box::new(())));
        assert_eq!(code, BUG);
        assert!(last_text().contains("bug"));
        assert_eq!(guarded(|| Err(Failure::new(ROOM, "no room"))), ROOM);
        assert_eq!(guarded(|| Ok(0)), 0);
        assert_eq!(last_text(), "no room", "a success leaves the text");
    }
}
