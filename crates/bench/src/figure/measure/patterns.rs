//! How long stores to memory take, by their pattern (figure 1 of Viper's paper): bare loops without a store,
//! and beside them what a store does, which inserts.
//!
//! Whole lines are written past the caches and fenced, as the engine writes its records. Each thread has
//! pieces of its own, and goes through them once, or as far as the time of a point lets it.

use super::operations::{self, Operation};
use crate::figure::pattern::{PAGE_LINES, Pattern, Share, of};
use crate::figure::progress::Progress;
use crate::figure::store::Data;
use crate::figure::system::{System, Viper};
use crate::figure::workers::Span;
use crate::pass::Passed;
use crate::pool;
use crate::process::Waiting;
use crate::row::{Metric, Row};
use crate::subject::Error;
use crate::timing::Stopwatch;
use everdram_pm::limits::{Memory, Pages, Slowness};
use everdram_pm::{FlushKind, Preset};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of the memory, at most.
const MEMORY_BYTES: u64 = 256 << 20;
/// Pieces between two looks at the clock.
const LOOK: usize = 256;

/// A row for each number of workers and each pattern; of a store a row of inserts.
pub(super) fn measure(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Vec<Row>, Error> {
    let (settings, curve, cores) = (data.settings, progress.curve, progress.cores());
    let mut rows = Vec::new();
    if of(curve.system) == 1 {
        for threads in curve.threads() {
            let inserts = [Operation::Insert];
            rows.extend(operations::measure_some(
                data, progress, *threads, &inserts,
            )?);
        }
        return Ok(rows);
    }
    let bytes = (data.records * curve.record_bytes()).clamp(1 << 20, MEMORY_BYTES);
    let mut memory = match curve.system == System::Viper(Viper::Memory) {
        true => Memory::anonymous(bytes, Pages::Small)?,
        false => Memory::file(&settings.dir, bytes)?,
    };
    memory.populate(0, memory.len())?;
    let delays = curve.delays().map(Preset::by_name).transpose();
    let slowness = Slowness::new(delays.map_err(Error::msg)?, None);
    let time = Duration::from_secs_f64(settings.seconds);
    for threads in curve.threads().iter().copied() {
        for pattern in Pattern::ALL {
            let mut row = progress.row(pattern.name(), 100.0, threads);
            let shares = pattern.shares(memory.lines_mut(), threads, settings.seed);
            let passed = write(shares, &slowness, time)?;
            Span::of(threads, &passed).add_to(&mut row, Some(cores));
            row.push(Metric::Operations, passed.sample.operations as f64);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Writes each share on a thread of its own.
fn write(shares: Vec<Share<'_>>, slowness: &Slowness, time: Duration) -> Result<Passed, Error> {
    let (start, kind) = (Barrier::new(shares.len()), FlushKind::detect());
    let content = [[5; 64]; PAGE_LINES];
    let part = |_, mut share: Share<'_>| {
        start.wait();
        let waiting = Waiting::of_this_thread();
        let (before, end) = (waiting.so_far(), Instant::now() + time);
        let (watch, mut count) = (Stopwatch::start(), 0);
        for pieces in share.chunks_mut(LOOK) {
            for piece in pieces.iter_mut() {
                slowness.stream_and_fence(kind, piece, &content[..piece.len()]);
            }
            count += pieces.len() as u64;
            if Instant::now() >= end {
                break;
            }
        }
        let sample = watch.stop(count);
        Ok(Passed {
            sample,
            asked: sample.wall,
            process_cpu: sample.cpu,
            waited: waiting.so_far().since(before),
            latencies: None,
        })
    };
    let ((), parts) = pool::run(shares, part, || ())?;
    let wall = parts.iter().map(|part| part.sample.wall).max();
    let mut all = Passed::default();
    parts.into_iter().for_each(|part| all.add(part));
    all.sample.wall = wall.unwrap_or_default();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use everdram_pm::limits::Line;

    /// Where each thread writes, in lines from the start.
    fn places(pattern: Pattern) -> Vec<Vec<usize>> {
        let mut memory = Memory::anonymous(1 << 20, Pages::Small).unwrap();
        let lines = &mut memory.lines_mut()[..PAGE_LINES * 4];
        let base = lines.as_ptr().addr();
        let place = |piece: &&mut [Line]| (piece.as_ptr().addr() - base) / 64;
        let shares = pattern.shares(lines, 2, 42);
        shares
            .iter()
            .map(|share| share.iter().map(place).collect())
            .collect()
    }

    #[test]
    fn patterns_are_what_their_names_say() {
        let all: Vec<usize> = (0..PAGE_LINES * 4).collect();
        let (one, other) = all.split_at(PAGE_LINES * 2);
        assert_eq!(places(Pattern::Sequential), [one, other]);
        let [mut one, mut other] = places(Pattern::Random).try_into().unwrap();
        assert!(!one.is_sorted() && !other.is_sorted());
        one.sort_unstable();
        other.sort_unstable();
        assert_eq!([one, other].concat(), all);
        let of = |first| {
            all.iter()
                .copied()
                .skip(first)
                .step_by(2)
                .collect::<Vec<_>>()
        };
        assert_eq!(places(Pattern::OneLog), [of(0), of(1)]);
        assert_eq!(places(Pattern::Aligned), [[0, 64], [128, 192]]);
        assert_eq!(places(Pattern::Shifted), [vec![32], vec![96, 160]]);
    }

    #[test]
    fn every_piece_is_written_and_counted() {
        let mut memory = Memory::anonymous(1 << 20, Pages::Small).unwrap();
        for pattern in Pattern::ALL {
            memory.bytes_mut().fill(0);
            let shares = pattern.shares(memory.lines_mut(), 3, 42);
            let pieces: usize = shares.iter().map(Vec::len).sum();
            let passed = write(shares, &Slowness::default(), Duration::from_secs(60)).unwrap();
            assert_eq!(passed.sample.operations, pieces as u64, "{pattern}");
            let written = memory.bytes().iter().filter(|byte| **byte == 5).count();
            assert_eq!(written, pieces * pattern.piece_lines() * 64, "{pattern}");
        }
    }
}
