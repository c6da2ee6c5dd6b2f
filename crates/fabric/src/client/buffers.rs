//! Memory of values that have gone, for those that come. Allocators give long runs of it back to the system,
//! and each of their pages costs a fault when it is wanted again.

/// How many are kept, at most.
const KEPT: usize = 4;

/// See the module text.
#[derive(Default)]
pub(super) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    /// An empty one.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// One with these bytes.
    pub(super) fn copy_of(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.take();
        copy.extend_from_slice(bytes);
        copy
    }

    pub(super) fn keep(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < KEPT {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
