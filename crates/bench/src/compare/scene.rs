//! Where stores are compared, by how many threads, and under which workloads.

use crate::named::named;
use crate::workload::Workload;

named! {
    /// What stores stand on.
    Ground, "ground":
    Emulated = "emulated": "Emulated persistent memory",
    Disk = "disk": "An ordinary disk",
}

/// One ground, so many threads, some workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scene {
    /// Where.
    pub ground: Ground,
    /// Threads that ask.
    pub threads: usize,
    /// What they ask for; removals come last.
    pub workloads: Vec<Workload>,
    /// Whether opening after a crash is timed, too.
    pub recovers: bool,
}

impl Scene {
    /// Those of the usual comparison.
    #[must_use]
    pub fn usual() -> Vec<Scene> {
        use Workload::{
            Delete, Get, GetAbsent, GetMany, Overwrite, Put, PutMany, UpdateWord, YcsbA, YcsbB,
            YcsbC,
        };
        let scene = |ground, threads, workloads: &[Workload], recovers| Scene {
            ground,
            threads,
            workloads: workloads.to_vec(),
            recovers,
        };
        let all = [
            Put, PutMany, Get, GetAbsent, GetMany, YcsbC, YcsbB, YcsbA, UpdateWord, Overwrite,
            Delete,
        ];
        vec![
            scene(Ground::Emulated, 1, &all, true),
            scene(Ground::Emulated, 2, &[Put, Get, YcsbA], false),
            scene(Ground::Disk, 1, &[Put, Get, YcsbA], true),
            scene(Ground::Disk, 8, &[Put, Get, YcsbA], false),
        ]
    }

    /// `emulated persistent memory, 2 threads`.
    #[must_use]
    pub fn title(&self) -> String {
        title(self.ground, self.threads)
    }
}

/// As headings and tables say it.
pub(super) fn title(ground: Ground, threads: usize) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("{}, {threads} thread{plural}", ground.what())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grounds_read_back() {
        for ground in Ground::ALL {
            assert_eq!(ground.to_string().parse(), Ok(ground));
        }
        assert!("paper".parse::<Ground>().is_err());
    }

    #[test]
    fn what_removes_keys_comes_last() {
        for scene in Scene::usual() {
            let mut removing = scene
                .workloads
                .iter()
                .skip_while(|workload| **workload != Workload::Delete);
            removing.next();
            assert_eq!(removing.next(), None, "{}", scene.title());
        }
    }
}
