//! What a process has spent and holds, as the kernel tells in `/proc`.

use crate::subject::Error;
use anyhow::Context;
use std::fs;
use std::time::Duration;

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// All pages that it has mapped and that are present: a pool on tmpfs counts.
    pub resident_bytes: u64,
    /// The same, with shared pages divided by those who share them.
    pub proportional_bytes: u64,
    /// Pages of its own that belong to no file: heap, stacks and private changes. This is DRAM on any medium.
    pub anonymous_bytes: u64,
}

impl Memory {
    /// Of a running process.
    pub(super) fn of(process: u32) -> Result<Memory, Error> {
        let path = format!("/proc/{process}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        Memory::parse(&text).with_context(|| format!("{path} is not as expected"))
    }

    fn parse(text: &str) -> Option<Memory> {
        let bytes = |name: &str| {
            let mut words = text
                .lines()
                .find_map(|line| line.strip_prefix(name))?
                .split_ascii_whitespace();
            let kib: u64 = words.next()?.parse().ok()?;
            (words.next() == Some("kB")).then(|| kib * 1024)
        };
        Some(Memory {
            resident_bytes: bytes("Rss:")?,
            proportional_bytes: bytes("Pss:")?,
            anonymous_bytes: bytes("Anonymous:")?,
        })
    }
}

/// Processor time of a process, its threads and the children it has waited for (Redis rewrites its log in
/// one). The kernel counts it in ticks, a hundred a second as a rule: measure for seconds.
pub(super) fn processor_time(process: u32) -> Result<Duration, Error> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let ticks = parse_ticks(&text).with_context(|| format!("{path} is not as expected"))?;
    let ticks_a_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_nanos(ticks * 1_000_000_000 / ticks_a_second))
}

/// The name, in parentheses, may hold anything, so fields are counted from its end: the state is the first.
fn parse_ticks(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let times: Vec<u64> = fields
        .skip(11)
        .take(4)
        .map_while(|field| field.parse().ok())
        .collect();
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_user_and_kernel_and_children_add_up() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 300 400 1000 200 30 4 20 0 5 0 99 1 2";
        assert_eq!(parse_ticks(stat), Some(1234));
        assert_eq!(parse_ticks("7 (a) S 1 2"), None);
    }

    #[test]
    fn kinds_of_memory_are_told_apart() {
        let text = "00400000-7ffc [rollup]\nRss:    5 kB\nPss:   4 kB\nPss_Anon:  9 kB\nAnonymous:  3 kB\n";
        let memory = Memory {
            resident_bytes: 5 * 1024,
            proportional_bytes: 4 * 1024,
            anonymous_bytes: 3 * 1024,
        };
        assert_eq!(Memory::parse(text), Some(memory));
        assert_eq!(Memory::parse("Rss: 5 kB\n"), None);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.anonymous_bytes > 0 && memory.resident_bytes >= memory.anonymous_bytes);
        processor_time(std::process::id()).unwrap();
    }
}
