//! Work of a start, shared by several threads.

use crate::error::Error;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `each` once for every number below `count`, on this thread and up to `threads - 1` others, each with
/// a state of its own. Returns the states, that of this thread first. One thread takes the numbers in order.
///
/// # Errors
/// Of the calls that failed, that with the least number; no thread begins another one after that.
pub(crate) fn share<S: Send>(
    threads: usize,
    count: usize,
    begin: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, usize) -> Result<(), Error> + Sync,
) -> Result<Vec<S>, Error> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let work = || {
        let mut state = begin();
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && number < count
        {
            if let Err(error) = each(&mut state, number) {
                next.store(count, Ordering::Relaxed);
                let mut failed = failed.lock();
                if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                    *failed = Some((number, error));
                }
                break;
            }
        }
        state
    };
    let states = std::thread::scope(|scope| {
        let spawn = |_| {
            // If a thread cannot be started, the others do its work.
            let thread = std::thread::Builder::new().name("recovery".into());
            thread.spawn_scoped(scope, work).ok()
        };
        let others: Vec<_> = (1..threads.min(count)).filter_map(spawn).collect();
        let mut states = vec![work()];
        for thread in others {
            match thread.join() {
                Ok(state) => states.push(state),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        states
    });
    match failed.into_inner() {
        Some((_, error)) => Err(error),
        None => Ok(states),
    }
}

/// As [`share`], without states. Returns what the calls return, in the order of their numbers.
///
/// # Errors
/// As [`share`].
pub(crate) fn share_out<T: Send>(
    threads: usize,
    count: usize,
    each: impl Fn(usize) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let states = share(threads, count, Vec::new, |made, number| {
        made.push((number, each(number)?));
        Ok(())
    })?;
    let mut made: Vec<(usize, T)> = states.into_iter().flatten().collect();
    made.sort_unstable_by_key(|(number, _)| *number);
    Ok(made.into_iter().map(|(_, one)| one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_taken_once() {
        for (threads, count) in [(1, 0), (4, 1), (1, 100), (4, 1000)] {
            let taken = share_out(threads, count, Ok).unwrap();
            assert!(taken.into_iter().eq(0..count), "{threads} {count}");
        }
        let add = |sum: &mut usize, number| {
            *sum += number;
            Ok(())
        };
        let states = share(3, 100, || 0, add).unwrap();
        assert_eq!(states.into_iter().sum::<usize>(), 99 * 100 / 2);
    }

    #[test]
    fn of_several_errors_the_first_one_counts() {
        for threads in [1, 4] {
            let failed = share_out(threads, 1000, |number| match number {
                0..7 => Ok(()),
                _ => Err(Error::Options(number.to_string())),
            });
            assert!(matches!(failed, Err(Error::Options(which)) if which == "7"));
        }
    }
}
