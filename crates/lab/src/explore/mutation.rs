//! The mutation score: each flush, fence and sync of the program is taken out in turn, and the lab must
//! notice.
//!
//! If it does not notice, the instruction is of no use and goes; or no workload needs it, and one is missing.

use super::Effort;
use super::campaign::calm_the_allocator;
use super::crash::{CrashPoint, Verdict};
use super::examine::{Examiner, ExploreOptions};
use crate::medium::image::Medium;
use crate::medium::lines::{Mute, Muted, key};
use crate::plan::Plan;
use crate::plan::profile::Profile;
use crate::plan::scenario;
use crate::plan::scenario::Scenario;
use crate::run::process::Environment;
use crate::run::trace::{DiskStep, Step, Trace};
use crate::run::{Run, execute};
use everdram::EngineKind;
use everdram_pm::lab::StoreKind;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
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
    /// The workload that noticed it.
    pub work: usize,
    /// Different images until then.
    pub images: u64,
    /// What was wrong then.
    pub defect: String,
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

/// Which mutations to try, and how hard to look for each.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// The medium.
    pub medium: Medium,
    /// The workloads, all on that medium.
    pub works: Vec<Scenario>,
    /// Threads.
    pub workers: usize,
    /// The search for one mutant ends after about so many images.
    pub images: u64,
    /// Only mutants at places whose name contains this.
    pub only: String,
    /// Places where mutants need not be noticed, and how many images to spend on each there.
    pub excused: (Vec<String>, u64),
}

impl Mutation {
    /// Every profile with a few seeds, and all scenarios.
    #[must_use]
    pub fn new(engine: EngineKind, medium: Medium) -> Mutation {
        let seeds = match engine {
            EngineKind::Bullet => SEEDS_OF_BULLET,
            _ => SEEDS,
        };
        let drawn = seeds.flat_map(|seed| {
            let profiles = Profile::of(engine).into_iter();
            profiles.map(move |profile| {
                let plan = Plan::draw(engine, medium, profile, seed, CALLS);
                Scenario::new(format!("{profile} {seed}"), plan)
            })
        });
        let scenarios = scenario::all(engine, medium).into_iter();
        // A missing instruction shows without a particular interleaving.
        let scenarios = scenarios.filter(|scenario| !scenario.is_one_of_many);
        Mutation {
            medium,
            works: scenarios.chain(drawn).collect(),
            workers: 2,
            images: u64::MAX,
            only: String::new(),
            excused: (Vec::new(), u64::MAX),
        }
    }
}

/// Seeds of the plans that are drawn.
const SEEDS: Range<u64> = 1..4;
/// Fewer for Bullet, whose rare places have runs written by hand.
const SEEDS_OF_BULLET: Range<u64> = 1..2;
/// Calls of these.
const CALLS: usize = 80;
/// A run of at most so many calls is short: its images are few and come before all others.
const SHORT: usize = 4;

/// Rounds of the search: a few images of all crash points, then more.
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

fn options(effort: Effort, seed: u64, mute: Option<Mute>) -> ExploreOptions {
    ExploreOptions {
        effort,
        nested_one_in: 16,
        used_one_in: 4,
        lazy: 0,
        mute,
        seed,
        ..ExploreOptions::default()
    }
}

/// The events of a trace that can be muted.
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

/// A run, and the events in it and after its crashes.
struct Subject {
    name: String,
    seed: u64,
    is_short: bool,
    environment: Environment,
    run: Run,
    /// How often.
    events: HashMap<Mute, u64>,
}

impl Mutation {
    /// Tries all mutations. `watch` is called after each.
    ///
    /// # Errors
    /// A workload does not run, or an unchanged one has a violation.
    pub fn score(&self, watch: &(dyn Fn(&Mutant) + Sync)) -> Result<Vec<Mutant>, String> {
        calm_the_allocator();
        let subjects = self.each(&self.works, &|work| self.subject(work));
        let subjects = subjects.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut events: BTreeMap<(Muted, (&'static str, u32, u32)), u64> = BTreeMap::new();
        for (mute, count) in subjects.iter().flat_map(|subject| &subject.events) {
            // On files only syncs decide what a crash leaves. Beside a memory there may be a disk.
            if self.medium == Medium::Pmem || mute.what == Muted::Sync {
                *events.entry((mute.what, mute.site)).or_default() += count;
            }
        }
        let mutants: Vec<Mutant> = events
            .into_iter()
            .map(|((what, site), events)| Mutant {
                mute: Mute { what, site },
                events,
                caught: None,
            })
            .filter(|mutant| mutant.place().contains(&self.only))
            .collect();
        let hunted = self.each(&mutants, &|mutant| {
            let (excused, enough) = &self.excused;
            let place = mutant.place();
            let most = match excused.iter().any(|part| place.contains(part.as_str())) {
                true => self.images.min(*enough),
                false => self.images,
            };
            let caught = self.hunt(&subjects, mutant.mute, most)?;
            let mutant = Mutant {
                caught,
                ..mutant.clone()
            };
            watch(&mutant);
            Ok(mutant)
        });
        hunted.into_iter().collect()
    }

    /// Maps `items` on all workers.
    fn each<T: Sync, R: Send>(&self, items: &[T], work: &(dyn Fn(&T) -> R + Sync)) -> Vec<R> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.workers.max(1) {
                scope.spawn(|| {
                    while let number = next.fetch_add(1, Ordering::Relaxed)
                        && let Some(item) = items.get(number)
                    {
                        let result = work(item);
                        done.lock().push((number, result));
                    }
                });
            }
        });
        let mut done = done.into_inner();
        done.sort_unstable_by_key(|&(number, _)| number);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// Runs a plan without a mutation, and a few of its crashes for the events that come after them.
    fn subject(&self, work: &Scenario) -> Result<Subject, String> {
        let Scenario { name, plan, .. } = work;
        let environment = Environment::of(plan);
        let mut run = execute(plan, &environment)?;
        let events = RefCell::new(HashMap::new());
        let count = |trace: &Trace| {
            let mut events = events.borrow_mut();
            mutes(trace).for_each(|mute| *events.entry(mute).or_default() += 1);
        };
        count(&run.record.trace);
        let options = options(EFFORTS[0], plan.seed, None);
        let mut examiner = Examiner::new(&environment, &options, &|| true);
        examiner.on_trace = Some(&count);
        let outcome = examiner.run(&mut run);
        outcome
            .map_err(|violation| format!("{name}, with nothing taken out: {}", violation.defect))?;
        Ok(Subject {
            name: name.clone(),
            seed: plan.seed,
            is_short: plan.calls.len() <= SHORT,
            environment,
            run,
            events: events.into_inner(),
        })
    }

    /// Judges a few images of each run and then more: most mutants show at once.
    fn hunt(&self, subjects: &[Subject], mute: Mute, most: u64) -> Result<Option<Caught>, String> {
        let mut images = 0;
        for (round, &effort) in EFFORTS.iter().enumerate() {
            for (number, subject) in subjects.iter().enumerate() {
                // A short run was made for a few images, so all come at once.
                let effort = match (subject.is_short, round) {
                    (true, 0) => EFFORTS[EFFORTS.len() - 1],
                    (true, _) => continue,
                    (false, _) => effort,
                };
                if !subject.events.contains_key(&mute) {
                    continue;
                }
                let caught = hunt_in((number, subject), effort, mute, &mut images, most)?;
                if caught.is_some() || images >= most {
                    return Ok(caught);
                }
            }
        }
        Ok(None)
    }
}

/// Looks at one run's images.
fn hunt_in(
    (number, subject): (usize, &Subject),
    effort: Effort,
    mute: Mute,
    images: &mut u64,
    most: u64,
) -> Result<Option<Caught>, String> {
    let environment = subject.environment.apart();
    let options = options(effort, subject.seed, Some(mute));
    let seen = AtomicU64::new(*images);
    let go_on = || seen.fetch_add(1, Ordering::Relaxed) < most;
    let mut examiner = Examiner::new(&environment, &options, &go_on);
    let mut run = subject.run.clone();
    let outcome = examiner.run(&mut run);
    *images += examiner.totals.unique;
    let Err(violation) = outcome else {
        return Ok(None);
    };
    // A defect without the mutation does not count.
    let whole = CrashPoint::before(violation.step, &mut run, &environment, None);
    match whole.verdict(&violation.crashes()) {
        Verdict::Defect(defect) => Err(format!(
            "{}, with nothing taken out: {defect}",
            subject.name
        )),
        Verdict::Sound | Verdict::Impossible => Ok(Some(Caught {
            work: number,
            images: *images,
            defect: violation.defect,
        })),
    }
}
