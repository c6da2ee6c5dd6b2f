//! Which cores server and load generator run on.

use crate::subject::Error;
use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Cores by number; `None` leaves the choice to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Where servers run, all of their threads.
    pub server: Option<usize>,
    /// Where the load generator runs.
    pub client: Option<usize>,
}

impl Pins {
    /// The first core of this process for the load, the second for the servers; no pins on a machine with one
    /// core.
    #[must_use]
    pub fn apart() -> Pins {
        let mut cores = allowed();
        match (cores.next(), cores.next()) {
            (Some(client), Some(server)) => Pins {
                server: Some(server),
                client: Some(client),
            },
            _ => Pins::default(),
        }
    }
}

/// Cores that this thread may run on.
fn allowed() -> impl Iterator<Item = usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(move |core| set.is_set(*core))
}

/// The calling thread is on one core, and so are processes that it starts, until this is dropped.
pub(super) struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    pub(super) fn to(core: Option<usize>) -> Result<Pinned, Error> {
        let Some(core) = core else {
            return Ok(Pinned { before: None });
        };
        let before = sched_getaffinity(None)?;
        anyhow::ensure!(
            core < CpuSet::MAX_CPU && before.is_set(core),
            "core {core} is not one that this process may run on; name another, or pin nothing"
        );
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).with_context(|| format!("moving to core {core}"))?;
        Ok(Pinned {
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
}
