//! Which of the machine's limits a workload cannot pass.

use super::Ground;
use crate::limits::Chain;
use crate::row::{Metric, Row};
use crate::workload::Workload;

/// A limit, for one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Name of the limit.
    pub name: String,
    /// Operations a second, by the clock.
    pub rate: f64,
    /// Nanoseconds of processor time an operation; `None` where the time is the disk's.
    pub cpu_ns: Option<f64>,
}

impl Bound {
    /// Share of the limit, of operations that take `cpu_ns` of processor time, or that come at `rate` by the
    /// clock where the disk is the limit.
    #[must_use]
    pub fn share(&self, rate: f64, cpu_ns: f64) -> f64 {
        match self.cpu_ns {
            Some(least) => least / cpu_ns.max(1e-9),
            None => rate / self.rate.max(1e-9),
        }
    }
}

/// The limit of `workload`, if it was measured. Bare loops have one thread, so that several have no limit but
/// on a disk, where a sync carries at most one write of each thread.
#[must_use]
pub fn bound(limits: &[&Row], ground: Ground, threads: usize, workload: Workload) -> Option<Bound> {
    let names = match (ground, threads) {
        (Ground::Emulated, 1) => loops(workload),
        (Ground::Disk, _) if workload == Workload::Put => &["sync-4k"],
        _ => &[],
    };
    best(limits, names, ground, threads)
}

/// The limit of `workload` where each call has to wait for the one before, if it was measured.
#[must_use]
pub fn chain(limits: &[&Row], ground: Ground, threads: usize, workload: Workload) -> Option<Bound> {
    let chain = match (ground, threads, workload) {
        (Ground::Emulated, 1, Workload::Get) => Chain::Get,
        (Ground::Emulated, 1, Workload::UpdateWord) => Chain::Update,
        (Ground::Emulated, 1, Workload::Overwrite) => Chain::Overwrite,
        (Ground::Emulated, 1, Workload::Delete) => Chain::Delete,
        _ => return None,
    };
    best(limits, &[chain.name()], ground, threads)
}

/// The fastest of the loops with these names.
fn best(limits: &[&Row], names: &[&str], ground: Ground, threads: usize) -> Option<Bound> {
    let best = limits
        .iter()
        .filter(|limit| names.contains(&limit.subject.as_str()))
        .max_by(|one, other| {
            let rate = |limit: &Row| limit.get(Metric::CpuRate).median;
            rate(one).total_cmp(&rate(other))
        })?;
    let (carried, cpu_ns) = match ground {
        Ground::Emulated => (1, Some(best.get(Metric::CpuNs).median)),
        Ground::Disk => (threads, None),
    };
    Some(Bound {
        name: if carried > 1 {
            format!("{} × {carried}", best.subject)
        } else {
            best.subject.clone()
        },
        rate: best.get(Metric::Rate).median * carried as f64,
        cpu_ns,
    })
}

/// Loops that do the same as a workload, of which the best one counts.
fn loops(workload: Workload) -> &'static [&'static str] {
    match workload {
        Workload::Put | Workload::Overwrite => &["put-flushed", "put-streamed", "put-padded"],
        Workload::PutMany => &["batch-16-packed", "batch-16-padded"],
        Workload::GetMany => &["multi-get-16"],
        Workload::UpdateWord | Workload::Delete => &["update-8"],
        Workload::Get
        | Workload::GetAbsent
        | Workload::YcsbA
        | Workload::YcsbB
        | Workload::YcsbC => &["get"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn the_best_loop_that_does_the_same_is_the_limit() {
        let limits = [
            sample::limit("put-flushed", 4e6),
            sample::limit("put-padded", 5e6),
            sample::limit("get", 8e6),
            sample::limit("sync-4k", 7e3),
        ];
        let limits: Vec<&Row> = limits.iter().collect();
        let put = bound(&limits, Ground::Emulated, 1, Workload::Put).unwrap();
        assert_eq!((put.name.as_str(), put.rate), ("put-padded", 5e6));
        assert!((put.share(1.0, 400.0) - 0.5).abs() < 1e-9);
        let disk = bound(&limits, Ground::Disk, 8, Workload::Put).unwrap();
        assert_eq!((disk.name.as_str(), disk.rate), ("sync-4k × 8", 56e3));
        assert!((disk.share(28e3, 1.0) - 0.5).abs() < 1e-9);
        for (ground, threads, workload) in [
            (Ground::Emulated, 2, Workload::Get),
            (Ground::Disk, 1, Workload::Get),
            (Ground::Emulated, 1, Workload::UpdateWord),
            (Ground::Emulated, 1, Workload::Production),
        ] {
            assert_eq!(bound(&limits, ground, threads, workload), None);
        }
    }

    #[test]
    fn chains_are_limits_of_calls_that_wait_for_each_other() {
        let limits = Chain::ALL.map(|chain| sample::limit(chain.name(), 1e6 + chain as u8 as f64));
        let limits: Vec<&Row> = limits.iter().collect();
        for (workload, wanted) in [
            (Workload::Get, Chain::Get),
            (Workload::UpdateWord, Chain::Update),
            (Workload::Overwrite, Chain::Overwrite),
            (Workload::Delete, Chain::Delete),
        ] {
            let found = chain(&limits, Ground::Emulated, 1, workload).unwrap();
            assert_eq!(found.name, wanted.name());
            assert_eq!(found.rate, 1e6 + wanted as u8 as f64);
            assert_eq!(chain(&limits, Ground::Emulated, 2, workload), None);
            assert_eq!(chain(&limits, Ground::Disk, 1, workload), None);
            assert_eq!(chain(&[], Ground::Emulated, 1, workload), None);
        }
        for workload in [Workload::Put, Workload::GetAbsent, Workload::GetMany] {
            assert_eq!(chain(&limits, Ground::Emulated, 1, workload), None);
        }
    }
}
