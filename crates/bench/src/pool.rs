//! A thread for each of some jobs, beside the one that watches them.

use crate::subject::Error;
use anyhow::anyhow;

/// Runs `work` on a thread for each job, with its number, while `watch` runs on this one. Returns what
/// `watch` and the jobs returned.
///
/// # Errors
/// The first error of a job. Jobs end by themselves: `watch` has to tell them if they otherwise would not.
pub(crate) fn run<J: Send, T: Send, W>(
    jobs: impl IntoIterator<Item = J>,
    work: impl Fn(usize, J) -> Result<T, Error> + Sync,
    watch: impl FnOnce() -> W,
) -> Result<(W, Vec<T>), Error> {
    std::thread::scope(|scope| {
        let work = &work;
        let jobs = jobs.into_iter().enumerate();
        let threads: Vec<_> = jobs
            .map(|(number, job)| scope.spawn(move || work(number, job)))
            .collect();
        let seen = watch();
        let threads = threads.into_iter();
        let done: Result<Vec<T>, Error> = threads
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect();
        Ok((seen, done?))
    })
}
