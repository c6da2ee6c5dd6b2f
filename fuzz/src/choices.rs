//! Input bytes as choices: numbers, ranges and strings, taken from the front. After the last byte every
//! choice is 0, so a prefix of an input does the first part of what the input does.

/// What is left of an input.
pub struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    /// All of an input.
    #[must_use]
    pub fn new(input: &'a [u8]) -> Choices<'a> {
        Choices { rest: input }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from(self.byte()) | u16::from(self.byte()) << 8
    }

    /// Eight bytes.
    pub fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    /// A number that is small, near a border, or anything: values that a length or version should not have.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            kind @ 0..=199 => u64::from(kind),
            kind @ 200..=231 => {
                (1_u64 << (2 * (u32::from(kind) - 200)).min(63)).saturating_sub(self.byte().into())
            }
            232..=239 => u64::from(self.short()),
            240..=247 => u64::MAX - u64::from(self.byte()),
            _ => self.word(),
        }
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        match end {
            0 => 0,
            1..=256 => usize::from(self.byte()) % end,
            257..=65_536 => usize::from(self.short()) % end,
            _ => self.word() as usize % end,
        }
    }

    /// One of these.
    pub fn of<'t, T>(&mut self, things: &'t [T]) -> &'t T {
        &things[self.below(things.len())]
    }

    /// Up to `count` bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// A string whose length comes first.
    pub fn string(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.take(length)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::Choices;

    #[test]
    fn an_input_that_is_used_up_chooses_zero() {
        let mut choices = Choices::new(&[5, 1, 2]);
        assert_eq!(choices.string(), [1, 2]);
        assert_eq!(
            (choices.byte(), choices.word(), choices.below(9)),
            (0, 0, 0)
        );
        assert!(choices.is_empty());
    }

    #[test]
    fn numbers_reach_borders() {
        assert_eq!(Choices::new(&[231, 1]).number(), (1 << 62) - 1);
        assert_eq!(Choices::new(&[240, 0]).number(), u64::MAX);
        assert_eq!(Choices::new(&[7]).number(), 7);
    }
}
