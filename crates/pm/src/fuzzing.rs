//! What fuzzing needs of a pool (feature `fuzzing`): checksums recomputed after bytes were changed, so that
//! hostile bytes get past them, and the redo log by itself.
//!
//! No pool uses this. A program that turns the feature on can forge pools, but gains nothing else.

pub use crate::log::fuzzing::{Frames, Recovered, Shape, recover, write};

use crate::checksum::Secret;
use crate::pool::superblock;
use crate::pool::superblock::{COPIES_AT, PAGE};

/// Makes the checksum of both superblock copies hold, whatever they say.
///
/// # Panics
/// If the image has no room for them.
pub fn seal_superblocks(image: &mut [u8]) {
    for at in COPIES_AT {
        let copy = &mut image[at as usize..(at + PAGE) as usize];
        if let Some(block) = copy.first_chunk_mut() {
            superblock::seal(block, at);
        }
    }
}

/// From now on, every keyed sum is the same: pools that are made meanwhile verify whatever is changed in
/// them. Only lengths of bytes that are no multiple of 16 are hashed as ever; so keys must have such lengths.
pub fn forge_sums(on: bool) {
    crate::checksum::forged::set(on);
}

/// The key that the first superblock copy of an image states, whether or not the copy verifies.
///
/// # Panics
/// If the image has no room for it.
#[must_use]
pub fn secret(image: &[u8]) -> Secret {
    Secret::expand(&superblock::seed(image))
}
