//! In which order lines of memory are written (Viper's paper, figure 1).

use super::system::System;
use crate::named::named;
use everdram_pm::limits::Line;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// Lines of a page of 4 KiB.
pub(super) const PAGE_LINES: usize = 64;

named! {
    /// In which order a thread writes.
    Pattern, "pattern":
    Sequential = "sequential": "64 bytes after 64 bytes, each thread in a region of its own",
    Random = "random": "64 bytes at random, each thread in a region of its own",
    OneLog = "one log": "64 bytes after 64 bytes, the threads in turns in one region",
    Aligned = "pages": "4 KiB after 4 KiB, on pages",
    Shifted = "shifted pages": "4 KiB after 4 KiB, 2 KiB behind pages",
}

/// Pieces of the memory: what one thread writes, in order.
pub(super) type Share<'a> = Vec<&'a mut [Line]>;

impl Pattern {
    pub(super) fn piece_lines(self) -> usize {
        match self {
            Pattern::Aligned | Pattern::Shifted => PAGE_LINES,
            _ => 1,
        }
    }

    /// What each of some threads writes.
    pub(super) fn shares(self, lines: &mut [Line], threads: usize, seed: u64) -> Vec<Share<'_>> {
        let piece = self.piece_lines();
        let skipped = if self == Pattern::Shifted {
            PAGE_LINES / 2
        } else {
            0
        };
        let pieces: Vec<_> = lines[skipped..].chunks_exact_mut(piece).collect();
        let each = (pieces.len() / threads).max(1);
        let mut shares: Vec<Share<'_>> = (0..threads).map(|_| Vec::with_capacity(each)).collect();
        for (number, piece) in pieces.into_iter().enumerate() {
            let thread = match self {
                Pattern::OneLog => number % threads,
                _ => (number / each).min(threads - 1),
            };
            shares[thread].push(piece);
        }
        if self == Pattern::Random {
            let mut random = SmallRng::seed_from_u64(seed);
            shares
                .iter_mut()
                .for_each(|share| share.shuffle(&mut random));
        }
        shares
    }
}

/// Points that a system has for each number of workers.
pub(super) fn of(system: System) -> usize {
    match system {
        System::Viper(viper) if viper.is_bare() => Pattern::ALL.len(),
        _ => 1,
    }
}
