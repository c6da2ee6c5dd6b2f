//! The mutation score: each flush, each fence, each sync of the program is taken out in turn, and the lab must notice.
//!
//! One that nobody misses is either of no use, and goes; or nothing that the lab runs needs it, and the workloads
//! have to grow.

use crate::campaign::execute;
use crate::examine::{Examiner, Scrutiny};
use crate::explore::Effort;
use crate::image::Medium;
use crate::lines::{Mute, Muted, key};
use crate::plan::Plan;
use crate::profile::Profile;
use crate::run::Run;
use crate::trace::{DiskStep, Step, Trace};
use crate::world::Ground;
use everdram_pm::lab::StoreKind;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// One event taken out.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What, and where.
    pub mute: Mute,
    /// How often it happened in the runs.
    pub events: u64,
    /// How it was noticed, if it was.
    pub caught: Option<Caught>,
}

/// How a mutant was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// In which workload.
    pub profile: Profile,
    /// Its seed.
    pub seed: u64,
    /// After how many different images.
    pub images: u64,
    /// What was wrong.
    pub wrong: String,
}

impl Mutant {
    /// `file:line`, without the folders above the crate.
    #[must_use]
    pub fn place(&self) -> String {
        let (file, line, _) = self.mute.site;
        let short = file.rsplit_once("crates/").map_or(file, |(_, rest)| rest);
        format!("{short}:{line}")
    }
}

/// What to take out of, and how hard to look.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// The medium.
    pub medium: Medium,
    /// The workloads.
    pub profiles: Vec<Profile>,
    /// Runs of each.
    pub seeds: std::ops::Range<u64>,
    /// Calls of each run.
    pub calls: usize,
    /// Threads.
    pub workers: usize,
    /// Images after which the search for one mutant ends.
    pub images: u64,
}

impl Default for Mutation {
    fn default() -> Mutation {
        Mutation {
            medium: Medium::Pmem,
            profiles: Profile::ALL.to_vec(),
            seeds: 1..4,
            calls: 80,
            workers: 2,
            images: u64::MAX,
        }
    }
}

/// How a mutant is looked for: a few images of all crash points first, then more.
const EFFORTS: [Effort; 3] = [
    Effort {
        exhaustive: 4,
        singles: false,
        random: 1,
        pairs: 4,
    },
    Effort {
        exhaustive: 16,
        singles: false,
        random: 6,
        pairs: 40,
    },
    Effort {
        exhaustive: 64,
        singles: true,
        random: 8,
        pairs: 40,
    },
];

fn scrutiny(effort: Effort, seed: u64, mute: Mute) -> Scrutiny {
    Scrutiny {
        effort,
        nested_one_in: 16,
        lazy: 0,
        mute: Some(mute),
        seed,
        ..Scrutiny::default()
    }
}

/// What happens in a trace, and where.
fn mutes(trace: &Trace) -> impl Iterator<Item = Mute> {
    trace.iter().filter_map(|step| {
        let (what, site) = match step {
            Step::Store {
                kind: StoreKind::Stream,
                site,
                ..
            } => (Muted::Stream, site),
            Step::Flush { site, .. } => (Muted::Flush, site),
            Step::Fence { site, .. } => (Muted::Fence, site),
            Step::Disk {
                step: DiskStep::Sync { .. } | DiskStep::SyncDirectory { .. },
                site,
            } => (Muted::Sync, site),
            _ => return None,
        };
        Some(Mute {
            what,
            site: key(site),
        })
    })
}

impl Mutation {
    /// Takes out everything there is to take out. `watch` hears of each mutant when it is done with.
    ///
    /// # Errors
    /// A workload does not run, or an unchanged one has a violation.
    pub fn score(&self, watch: &(dyn Fn(&Mutant) + Sync)) -> Result<Vec<Mutant>, String> {
        let mut runs = Vec::new();
        let mut sites: BTreeMap<(Muted, (&'static str, u32, u32)), u64> = BTreeMap::new();
        for seed in self.seeds.clone() {
            for &profile in &self.profiles {
                let plan = Plan::draw(self.medium, profile, seed, self.calls);
                let ground = Ground::new(profile, self.medium);
                let run = execute(&plan, &ground)?;
                for mute in mutes(&run.record.trace) {
                    // On memory the disk is silent, on a disk what memory does is decided by its syncs.
                    if (self.medium == Medium::File) == (mute.what == Muted::Sync) {
                        *sites.entry((mute.what, mute.site)).or_default() += 1;
                    }
                }
                runs.push((seed, profile, run));
            }
        }
        let mutants: Vec<Mutant> = sites
            .into_iter()
            .map(|((what, site), events)| Mutant {
                mute: Mute { what, site },
                events,
                caught: None,
            })
            .collect();
        let next = AtomicUsize::new(0);
        let done = Mutex::new(mutants.clone());
        std::thread::scope(|scope| {
            for _ in 0..self.workers.max(1) {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(mutant) = mutants.get(number) else {
                            return;
                        };
                        let mut mutant = mutant.clone();
                        mutant.caught = self.hunt(&runs, mutant.mute);
                        watch(&mutant);
                        if let Some(place) = done.lock().get_mut(number) {
                            *place = mutant;
                        }
                    }
                });
            }
        });
        Ok(done.into_inner())
    }

    /// Looks at a few images of each run, then at more: most of what is missing is missed at once.
    fn hunt(&self, runs: &[(u64, Profile, Run)], mute: Mute) -> Option<Caught> {
        let concerned: Vec<_> = runs
            .iter()
            .filter(|(_, _, run)| mutes(&run.record.trace).any(|other| other == mute))
            .collect();
        let mut images = 0;
        for effort in EFFORTS {
            let caught = self.hunt_with(effort, &concerned, mute, &mut images);
            if caught.is_some() {
                return caught;
            }
        }
        None
    }

    fn hunt_with(
        &self,
        effort: Effort,
        runs: &[&(u64, Profile, Run)],
        mute: Mute,
        images: &mut u64,
    ) -> Option<Caught> {
        for (seed, profile, run) in runs {
            let ground = Ground::new(*profile, self.medium);
            let scrutiny = scrutiny(effort, *seed, mute);
            let seen = AtomicU64::new(*images);
            let go_on = || seen.fetch_add(1, Ordering::Relaxed) < self.images;
            let mut examiner = Examiner::new(&ground, &scrutiny, &go_on);
            let outcome = examiner.run(&mut Run {
                start: run.start.clone(),
                record: run.record.clone(),
                end: run.end.clone(),
            });
            *images += examiner.totals.unique;
            if let Err(violation) = outcome {
                return Some(Caught {
                    profile: *profile,
                    seed: *seed,
                    images: *images,
                    wrong: violation.wrong,
                });
            }
        }
        None
    }
}
