//! The arguments of one request: slices of the connection's query buffer, without copies.

/// Argument 0 is the command's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args<'a> {
    buffer: &'a [u8],
    spans: &'a [(u32, u32)],
}

impl<'a> Args<'a> {
    /// `spans` are (start, end) in `buffer`, checked by the parser.
    pub(crate) fn new(buffer: &'a [u8], spans: &'a [(u32, u32)]) -> Self {
        Args { buffer, spans }
    }
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }
    /// Argument `index`, or an empty slice if there are fewer.
    pub(crate) fn get(&self, index: usize) -> &'a [u8] {
        let Some(&(start, end)) = self.spans.get(index) else {
            return b"";
        };
        self.buffer.get(start as usize..end as usize).unwrap_or(b"")
    }
    pub(crate) fn iter_from(self, index: usize) -> impl Iterator<Item = &'a [u8]> {
        (index..self.len()).map(move |i| self.get(i))
    }
}
