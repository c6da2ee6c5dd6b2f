//! Lines that recovery finds in use, by several threads at once.
//!
//! A thread gathers what it finds of 64 neighbours, and marks that with one atomic operation. Of two owners
//! of a line, one is refused: in the gathered bits, or when the later of them is marked.

use super::lines::{Lines, low_bits};

/// Marks lines as taken, while other threads mark others: neighbours that come one after the other at once.
/// [`Lines::count_adopted`] must follow.
pub(crate) struct Adopting<'a> {
    lines: &'a Lines,
    /// Number of chunks, none of which is absent or a run.
    chunks: u64,
    /// Lines from `64 * word` on that are not marked yet.
    word: u64,
    bits: u64,
    /// Each line is marked when it comes.
    is_prompt: bool,
}

impl<'a> Adopting<'a> {
    pub(crate) fn of(lines: &'a Lines, is_prompt: bool) -> Adopting<'a> {
        Adopting {
            lines,
            chunks: lines.chunks(),
            word: 0,
            bits: 0,
            is_prompt,
        }
    }

    /// Marks these lines, or will.
    ///
    /// # Errors
    /// A line that is taken, or does not exist: one of these, or one that came before and was not marked yet.
    #[inline]
    pub(crate) fn adopt(&mut self, line: u64, lines: u32) -> Result<(), u64> {
        let (mut at, end) = (line, line.saturating_add(u64::from(lines)));
        while at < end {
            let (word, from) = (at / 64, (at % 64) as u32);
            let part = (end - at).min(u64::from(64 - from)) as u32;
            let bits = low_bits(part) << from;
            if word != self.word {
                self.flush()?;
                self.word = word;
            }
            if self.bits & bits != 0 {
                return Err(64 * word + u64::from((self.bits & bits).trailing_zeros()));
            }
            self.bits |= bits;
            at += u64::from(part);
        }
        match self.is_prompt {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Marks what has come and is not marked yet.
    ///
    /// # Errors
    /// As [`Adopting::adopt`].
    pub(crate) fn flush(&mut self) -> Result<(), u64> {
        let bits = std::mem::take(&mut self.bits);
        if bits == 0 {
            return Ok(());
        }
        let taken = match self.lines.is_word(self.word, self.chunks) {
            true => self.lines.adopt_word(self.word, bits),
            false => bits,
        };
        match taken {
            0 => Ok(()),
            taken => Err(64 * self.word + u64::from(taken.trailing_zeros())),
        }
    }
}
