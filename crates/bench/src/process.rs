//! What the kernel knows of this process and its threads: memory of its own, time, and time spent waiting for
//! a core.

use crate::subject::Error;
use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Time that all threads of this process have spent on processors.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Memory of this process that is no mapping of a shared file, in bytes: what a store needs beside its
/// medium.
pub(crate) fn private_bytes() -> u64 {
    status("/proc/self/status", "RssAnon:").unwrap_or(0) * 1024
}

/// Bytes that this process has handed to the kernel in calls that write: what was stored into mapped memory
/// is not among them.
pub(crate) fn written_bytes() -> u64 {
    status("/proc/self/io", "wchar:").unwrap_or(0)
}

/// Memory that the system could still give away, in bytes.
pub(crate) fn available_bytes() -> u64 {
    status("/proc/meminfo", "MemAvailable:").unwrap_or(0) * 1024
}

fn status(path: &str, field: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Keeps the calling thread on one core.
pub(crate) fn pin(core: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
}

/// Cores that this thread may run on.
pub(crate) fn allowed() -> impl Iterator<Item = usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(move |core| set.is_set(*core))
}

/// The calling thread is on some cores only, and so are threads and processes that it starts, until this is
/// dropped.
pub(crate) struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    /// On one core; `None`: nothing changes.
    ///
    /// # Errors
    /// It is not one that this process may run on.
    pub(crate) fn to(core: Option<usize>) -> Result<Pinned, Error> {
        let Some(core) = core else {
            return Ok(Pinned { before: None });
        };
        let before = sched_getaffinity(None)?;
        anyhow::ensure!(
            core < CpuSet::MAX_CPU && before.is_set(core),
            "core {core} is not one that this process may run on; name another, or pin nothing"
        );
        pin(core).with_context(|| format!("moving to core {core}"))?;
        Ok(Pinned {
            before: Some(before),
        })
    }

    /// On all cores but the first; `None` where there is no other one.
    pub(crate) fn off_the_first() -> Option<Pinned> {
        let before = sched_getaffinity(None).ok()?;
        let mut others = before;
        others.unset(0);
        let is_there = before.is_set(0) && others.count() > 0;
        (is_there && sched_setaffinity(None, &others).is_ok()).then_some(Pinned {
            before: Some(before),
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The cores were ours before; should they be gone, any other will do.
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// Nanoseconds that another thread of this process has run so far, to some milliseconds; 0 of one that has
/// ended.
pub(crate) fn ran_ns(thread: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"));
    let text = text.unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// The number of the calling thread, as the kernel counts.
pub(crate) fn this_thread() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

/// How often and how long the calling thread was ready to run and did not.
pub(crate) struct Waiting {
    schedule: Option<File>,
}

/// What [`Waiting`] has counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waited {
    /// Nanoseconds in the queue for a core.
    pub ns: u64,
    /// Times that the kernel took the core away.
    pub preempted: u64,
}

impl Waited {
    /// What came after an earlier look.
    pub(crate) fn since(self, before: Waited) -> Waited {
        Waited {
            ns: self.ns.saturating_sub(before.ns),
            preempted: self.preempted.saturating_sub(before.preempted),
        }
    }
}

impl Waiting {
    /// Of the thread that calls this; it alone may ask.
    pub(crate) fn of_this_thread() -> Waiting {
        Waiting {
            schedule: File::open("/proc/thread-self/schedstat").ok(),
        }
    }

    /// Nanoseconds in the queue for a core so far. Costs a system call.
    pub(crate) fn queued_ns(&self) -> u64 {
        let mut text = [0; 64];
        let Some(file) = &self.schedule else { return 0 };
        let length = file.read_at(&mut text, 0).unwrap_or(0);
        std::str::from_utf8(&text[..length])
            .ok()
            .and_then(|text| text.split_whitespace().nth(1))
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0)
    }

    /// Both counts so far. Costs some system calls.
    pub(crate) fn so_far(&self) -> Waited {
        Waited {
            ns: self.queued_ns(),
            preempted: status("/proc/thread-self/status", "nonvoluntary_ctxt_switches:")
                .unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_holds_until_it_is_dropped() {
        let before: Vec<_> = allowed().collect();
        let pinned = Pinned::to(before.last().copied()).unwrap();
        assert_eq!(allowed().collect::<Vec<_>>(), before[before.len() - 1..]);
        drop(pinned);
        assert_eq!(allowed().collect::<Vec<_>>(), before);
        assert!(Pinned::to(Some(CpuSet::MAX_CPU)).is_err());
    }

    #[test]
    fn all_cores_but_the_first_are_left() {
        let before: Vec<_> = allowed().collect();
        let pinned = Pinned::off_the_first();
        let has_others = before.first() == Some(&0) && before.len() > 1;
        assert_eq!(pinned.is_some(), has_others);
        let from = usize::from(has_others);
        assert_eq!(allowed().collect::<Vec<_>>(), before[from..]);
        drop(pinned);
        assert_eq!(allowed().collect::<Vec<_>>(), before);
    }

    #[test]
    fn memory_that_is_touched_is_counted() {
        let before = private_bytes();
        // Other tests take and give back less meanwhile.
        let touched = vec![7u8; 128 << 20];
        let after = private_bytes();
        assert!(std::hint::black_box(&touched)[1] == 7);
        assert!(after >= before + (64 << 20), "{before} {after}");
    }

    #[test]
    fn threads_can_be_asked_how_long_they_ran() {
        let begun = crate::timing::thread_cpu();
        while crate::timing::thread_cpu() - begun < Duration::from_millis(20) {}
        let ran_ns = ran_ns(this_thread());
        assert!(ran_ns >= 10_000_000, "{ran_ns}");
        assert_eq!(super::ran_ns(u32::MAX), 0);
    }

    #[test]
    fn calls_that_write_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let before = written_bytes();
        fs::write(dir.path().join("file"), vec![7; 3 << 20]).unwrap();
        let written = written_bytes() - before;
        assert!(written >= 3 << 20, "{written}");
    }

    #[test]
    fn counts_only_grow() {
        let waiting = Waiting::of_this_thread();
        assert!(waiting.schedule.is_some());
        let first = waiting.so_far();
        let second = waiting.so_far();
        assert!(first.ns <= second.ns && first.preempted <= second.preempted);
        assert!(cpu() > Duration::ZERO);
    }
}
