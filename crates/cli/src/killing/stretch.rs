//! One stretch of load from all connections, and the work that ends it.

use super::load::{self, Shared, Times, empty_times};
use std::sync::atomic::Ordering;
use std::thread;

/// Loads the server at `port` until `work` is done; `work` may kill the server. Returns the result of `work`
/// and the times of all requests.
///
/// # Errors
/// Those of `work` first, since a server that ended by itself also breaks the connections. Then those of the
/// load.
pub(crate) fn stretch<T>(
    shared: &Shared<'_>,
    port: u16,
    seed: u64,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, Times)> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..shared.keys.connections())
            .map(|number| scope.spawn(move || load::run(shared, number, port, seed)))
            .collect();
        let worked = work();
        shared.stop.store(true, Ordering::Relaxed);
        let loaded = threads.into_iter().map(join).collect::<Result<Vec<_>, _>>();
        let worked = worked?;
        let mut times = empty_times()?;
        for one in loaded? {
            times.add(one)?;
        }
        Ok((worked, times))
    })
}

/// Runs `work` once for each of `connections`, in parallel.
///
/// # Errors
/// The first error of `work`.
pub(crate) fn on_each<T: Send>(
    connections: usize,
    work: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|connection| scope.spawn(move || work(connection)))
            .collect();
        threads.into_iter().map(join).collect()
    })
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread of the load panicked")))
}
