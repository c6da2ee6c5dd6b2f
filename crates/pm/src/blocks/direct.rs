//! Reads that pass by the page cache: for data files much larger than memory, whose blocks are seldom read
//! twice, or where memory is for others.
//!
//! The kernel writes dirty pages back before such a read, so it sees what was written.

use crate::io::File;
use rustix::io::Errno;
use std::cell::RefCell;

/// The system wants buffers aligned to the blocks of the disk.
const ALIGN: usize = 4096;
/// A buffer that a large value has left is freed above this size.
const KEEP: usize = 1 << 20;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Fills `into` from byte `at` of a file that was opened for direct reads.
///
/// # Errors
/// `INVAL`: offset or length are no multiples of the disk's blocks.
pub(super) fn read(file: &File, at: u64, into: &mut [u8]) -> Result<(), Errno> {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < into.len() + ALIGN {
            buffer.resize(into.len() + ALIGN, 0);
        }
        let skipped = buffer.as_ptr().align_offset(ALIGN);
        let Some(aligned) = buffer.get_mut(skipped..skipped + into.len()) else {
            return Err(Errno::INVAL);
        };
        file.pread_exact(at, aligned)?;
        into.copy_from_slice(aligned);
        if buffer.len() > KEEP {
            *buffer = Vec::new();
        }
        Ok(())
    })
}
