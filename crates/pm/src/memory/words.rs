//! Copies between atomic words and private bytes, for memory that other threads may be writing.
//!
//! A word is never torn. The caller finds out which words of a copy are old and which are new.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::cpu;
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies all words; `into` has 8 bytes for each.
///
/// # Panics
/// If it has not that length.
#[inline(always)]
pub(crate) fn copy_out(words: &[AtomicU64], into: &mut [u8]) {
    assert!(into.len() == size_of_val(words));
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `words` are live, aligned to 8 and accessed through atomics only, and as long as `into`.
    unsafe {
        cpu::copy_words(words.as_ptr().cast(), into.as_mut_ptr(), into.len());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    for (word, chunk) in words.iter().zip(into.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&u64::from_le(word.load(Ordering::Relaxed)).to_le_bytes());
    }
}

/// Appends all words to `into`, without zeroing that memory first.
#[inline]
pub(crate) fn copy_behind(words: &[AtomicU64], into: &mut Vec<u8>) {
    let before = into.len();
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        into.reserve(size_of_val(words));
        let room = into.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: `words` are live, aligned to 8 and accessed through atomics only; `room` has as many bytes
        // (reserved above), which belong to the vector alone.
        unsafe { cpu::copy_words(words.as_ptr().cast(), room, size_of_val(words)) };
        // SAFETY: within the capacity (reserved above), and initialised by the copy.
        unsafe { into.set_len(before + size_of_val(words)) };
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    {
        into.resize(before + size_of_val(words), 0);
        copy_out(words, &mut into[before..]);
    }
}

/// Stores bytes, 8 to a word, with relaxed ordering.
#[inline]
pub(crate) fn copy_in(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_le_bytes(*chunk).to_le(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_are_whole_and_no_longer() {
        let words: Vec<AtomicU64> = (1..=80).map(|word| AtomicU64::new(word << 32)).collect();
        for count in 0..=words.len() {
            let expected: Vec<u8> = (1..=count as u64)
                .flat_map(|word| (word << 32).to_le_bytes())
                .collect();
            let mut copy = vec![0xee; count * 8 + 16];
            copy_out(&words[..count], &mut copy[8..8 + count * 8]);
            assert_eq!(copy[8..8 + count * 8], expected, "{count} words");
            assert_eq!([&copy[..8], &copy[8 + count * 8..]], [[0xee; 8]; 2]);
            let mut behind = vec![7];
            copy_behind(&words[..count], &mut behind);
            assert_eq!((behind[0], &behind[1..]), (7, &*expected));
        }
    }
}
