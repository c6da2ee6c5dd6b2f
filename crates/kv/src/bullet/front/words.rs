//! DRAM, as a table sees it: nothing in it is ever damaged.

use crate::bullet::table::{LINE, Memory};
use crate::error::Error;
use everdram_pm::Dram;
use std::convert::Infallible;

/// See the module text.
pub(in crate::bullet) struct Words(pub(in crate::bullet) Dram);

impl Memory for Words {
    type Damage = Infallible;

    #[inline]
    fn line(&self, at: u64) -> Result<[u64; 8], Infallible> {
        Ok(self.words(at))
    }

    #[inline]
    fn follow(&self, _link: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn circle(&self, at: u64) -> Infallible {
        panic!("the lines of a bucket of the front table form a cycle at {at}");
    }

    #[inline]
    fn prefetch(&self, at: u64) {
        self.0.prefetch((at / LINE) as usize);
    }
}

impl Words {
    /// The words of the line at `at`.
    #[inline]
    pub(in crate::bullet) fn words(&self, at: u64) -> [u64; 8] {
        self.0.line((at / LINE) as usize).load()
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}
