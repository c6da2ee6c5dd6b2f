//! A campaign: many runs, examined by several workers until a limit is reached.

use super::examine::{Examiner, ExploreOptions, Totals, Violation};
use super::replay::replay;
use crate::medium::image::Medium;
use crate::plan::found;
use crate::plan::profile::Profile;
use crate::plan::scenario;
use crate::plan::text::Saved;
use crate::plan::{Fault, Manner, Plan};
use crate::run::process::Environment;
use crate::run::{Run, execute};
use everdram::EngineKind;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What to examine.
#[derive(Clone)]
pub struct Campaign {
    /// The engine.
    pub engine: EngineKind,
    /// The media of pools.
    pub media: Vec<Medium>,
    /// Kinds of workloads.
    pub profiles: Vec<Profile>,
    /// The first seed. Runs take this one and the following.
    pub seed: u64,
    /// Calls of a run.
    pub calls: usize,
    /// Whether the runs written by hand come first.
    pub by_hand: bool,
    /// How each run is examined.
    pub options: ExploreOptions,
    /// Worker threads; 0: two for each core.
    pub workers: usize,
    /// When to stop.
    pub limit: Limit,
    /// Changes how pools are opened, for tests.
    pub adapt: fn(&mut Environment),
}

/// Images of a run, by default.
pub const IMAGES: u64 = 300;
/// A run by hand in which a process dies is short, and has more images by this factor.
const MORE: u64 = 8;
/// Some runs have all of their images. The others have fewer by this factor, so that there are more runs:
/// many mistakes show in an answer.
const FEWER: u64 = 16;
/// A long run makes more calls by this factor, and a brief one fewer: a coincidence of three calls is most
/// likely where there are few others.
const LONG: usize = 3;
const BRIEF: usize = 5;
/// The shapes of runs, in turn. Interleavings are many because they take little time.
const SHAPES: [(Shape, bool); 16] = [
    (Shape::Long, true),
    (Shape::Interleaving, false),
    (Shape::Brief, false),
    (Shape::Interleaving, false),
    (Shape::Interleaving, false),
    (Shape::Usual, false),
    (Shape::Interleaving, false),
    (Shape::Interleaving, false),
    (Shape::Interleaving, false),
    (Shape::Long, false),
    (Shape::Interleaving, true),
    (Shape::Brief, false),
    (Shape::Interleaving, false),
    (Shape::Usual, true),
    (Shape::Interleaving, false),
    (Shape::Brief, false),
];
/// Workers for each core, by default. A core is idle while the threads of a run pass the turn.
const WORKERS: usize = 2;

/// When a campaign stops: at the first limit that is reached.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Time.
    pub time: Option<Duration>,
    /// Different images of each medium and profile.
    pub images: Option<u64>,
    /// Different images in all. With `images`, both must be reached.
    pub images_in_all: Option<u64>,
    /// Runs of each medium and profile.
    pub runs: Option<u64>,
    /// Violations.
    pub violations: usize,
}

impl Limit {
    /// Whether the limits of images are reached.
    fn has_enough(&self, tally: &Tally, kind: (Medium, Profile)) -> bool {
        let of_kind = tally.rows.get(&kind).map_or(0, |row| row.totals.unique);
        let in_all = tally.sum().totals.unique;
        (self.images.is_some() || self.images_in_all.is_some())
            && self.images.is_none_or(|images| of_kind >= images)
            && self.images_in_all.is_none_or(|images| in_all >= images)
    }
}

impl Default for Campaign {
    fn default() -> Campaign {
        Campaign {
            engine: EngineKind::default(),
            media: Medium::ALL.to_vec(),
            profiles: Profile::of(EngineKind::default()),
            seed: 1,
            calls: 60,
            by_hand: false,
            options: ExploreOptions {
                images: Some(IMAGES),
                ..ExploreOptions::default()
            },
            workers: 0,
            limit: Limit {
                time: Some(Duration::from_secs(60)),
                images: None,
                images_in_all: None,
                runs: None,
                violations: 1,
            },
            adapt: |_| {},
        }
    }
}

/// A violation that was found.
#[derive(Clone)]
pub struct Finding {
    /// The run.
    pub plan: Plan,
    /// What is wrong. `None`: the run itself failed, see `defect`.
    pub violation: Option<Violation>,
    /// In words.
    pub defect: String,
    /// Different images examined before it.
    pub after: u64,
    /// The run, if it came to its end.
    pub run: Option<Arc<Run>>,
}

/// What a campaign did, so far or in the end.
#[derive(Clone, Default)]
pub struct Tally {
    /// By medium and profile.
    pub rows: BTreeMap<(Medium, Profile), Row>,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What is examined at the moment.
    pub latest: Option<(Medium, Profile)>,
    /// Why there are no runs by hand, by medium: to make some of them, others are run.
    pub unmade: Vec<String>,
}

/// What was done on one medium with one profile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    /// What was examined.
    pub totals: Totals,
    /// Time of all workers.
    pub time: Duration,
    /// Violations.
    pub violations: u64,
}

impl Tally {
    /// All rows together.
    #[must_use]
    pub fn sum(&self) -> Row {
        let mut sum = Row::default();
        for row in self.rows.values() {
            sum.totals.add(&row.totals);
            sum.time += row.time;
            sum.violations += row.violations;
        }
        sum
    }
}

/// Called with what was done so far.
pub type Watch<'a> = &'a (dyn Fn(&Tally) + Sync);

impl Campaign {
    /// Runs the campaign. `watch` is called after each crash point. `stop` ends it early.
    #[must_use]
    pub fn run(&self, watch: Watch<'_>, stop: &AtomicBool) -> Tally {
        calm_the_allocator();
        let begun = Instant::now();
        let tally = Mutex::new(Tally::default());
        let next = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        let go_on = || {
            !over.load(Ordering::Relaxed)
                && !stop.load(Ordering::Relaxed)
                && self.limit.time.is_none_or(|time| begun.elapsed() < time)
        };
        let workers = match self.workers {
            0 => WORKERS * std::thread::available_parallelism().map_or(1, usize::from),
            asked => asked,
        };
        let (written, unmade) = self.written();
        tally.lock().unmade = unmade;
        let written = Mutex::new(written);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while go_on() {
                        let written = written.lock().pop();
                        let Some(job) = written.or_else(|| self.job(&next, &tally)) else {
                            return;
                        };
                        let account = Account {
                            kind: (job.plan.medium, job.plan.profile),
                            tally: &tally,
                            entered: Mutex::new((Totals::default(), Instant::now())),
                            watch,
                        };
                        let on_progress = |totals: &Totals| account.enter(totals, None);
                        let (totals, finding) = self.examine(job, &go_on, &on_progress);
                        account.enter(&totals, finding);
                        if tally.lock().findings.len() >= self.limit.violations {
                            over.store(true, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        tally.into_inner()
    }

    /// The runs written by hand, last one first, and why they could not be made where there are none.
    fn written(&self) -> (Vec<Job>, Vec<String>) {
        let media = self.media.iter().filter(|_| self.by_hand);
        let mut unmade = Vec::new();
        let of = |medium| crate::judge::catching_panics(|| Ok(scenario::all(self.engine, medium)));
        let jobs = media.flat_map(|&medium| {
            let again = found::all(self.engine, medium)
                .into_iter()
                .map(|saved| Job {
                    options: self.options_of(&saved.plan, true),
                    plan: saved.plan.clone(),
                    is_by_hand: true,
                    saved: Some(saved),
                });
            let scenarios = of(medium).unwrap_or_else(|why| {
                unmade.push(format!("{medium}: {why}"));
                Vec::new()
            });
            let by_hand = scenarios.into_iter().map(|scenario| {
                let mut options = self.options_of(&scenario.plan, !scenario.is_one_of_many);
                if let (Some(images), true) = (&mut options.images, is_deadly(&scenario.plan)) {
                    *images *= MORE;
                }
                Job {
                    options,
                    plan: scenario.plan,
                    is_by_hand: true,
                    saved: None,
                }
            });
            again.chain(by_hand).collect::<Vec<Job>>()
        });
        let ours = jobs.filter(|job| self.profiles.contains(&job.plan.profile));
        let mut jobs: Vec<Job> = ours.collect();
        jobs.reverse();
        (jobs, unmade)
    }

    /// What to examine next: media and profiles in turn, each with its own seeds.
    fn job(&self, next: &AtomicU64, tally: &Mutex<Tally>) -> Option<Job> {
        let kinds = (self.media.len() * self.profiles.len()) as u64;
        let mut skipped = 0;
        while skipped < kinds {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let (round, kind) = (number / kinds, (number % kinds) as usize);
            let medium = self.media[kind % self.media.len()];
            let profile = self.profiles[kind / self.media.len()];
            let enough = self.limit.has_enough(&tally.lock(), (medium, profile))
                || self.limit.runs.is_some_and(|runs| round >= runs);
            if !enough {
                return Some(self.drawn(medium, profile, self.seed.wrapping_add(round)));
            }
            skipped += 1;
        }
        None
    }

    /// The run of a seed.
    fn drawn(&self, medium: Medium, profile: Profile, seed: u64) -> Job {
        let (shape, is_whole) = SHAPES[(seed % SHAPES.len() as u64) as usize];
        let draw = |calls| Plan::draw(self.engine, medium, profile, seed, calls);
        let plan = match shape {
            Shape::Long => draw(LONG * self.calls),
            Shape::Usual => draw(self.calls),
            Shape::Brief => draw(self.calls.div_ceil(BRIEF)),
            Shape::Interleaving => Plan::interleaving(self.engine, medium, profile, seed),
        };
        Job {
            options: self.options_of(&plan, is_whole),
            plan,
            is_by_hand: false,
            saved: None,
        }
    }

    /// How a run is examined: with all of its images, or with fewer.
    fn options_of(&self, plan: &Plan, is_whole: bool) -> ExploreOptions {
        let mut options = ExploreOptions {
            seed: plan.seed,
            ..self.options.clone()
        };
        if let Some(images) = &mut options.images
            && !is_whole
        {
            *images /= FEWER;
            options.each = 0;
        }
        options
    }

    /// How pools of this campaign are opened.
    #[must_use]
    pub fn environment(&self, medium: Medium, profile: Profile) -> Environment {
        let mut environment = Environment::new(self.engine, profile, medium);
        (self.adapt)(&mut environment);
        environment
    }

    fn examine(
        &self,
        Job {
            plan,
            options,
            is_by_hand,
            saved,
        }: Job,
        go_on: &(dyn Fn() -> bool + Sync),
        on_progress: &(dyn Fn(&Totals) + Sync),
    ) -> (Totals, Option<Finding>) {
        let environment = self.environment(plan.medium, plan.profile);
        let finding = |violation: Option<Violation>, defect: String| {
            Some(Finding {
                plan: plan.clone(),
                violation,
                defect,
                after: 0,
                run: None,
            })
        };
        if let Some(saved) = saved {
            let replayed = replay(&saved, &environment, &options, go_on);
            let finding = replayed.found.map(|found| Finding {
                violation: Violation::of(&found.crashes, &found.defect),
                plan: found.plan,
                defect: found.defect,
                after: 0,
                run: found.run.map(Arc::new),
            });
            return (replayed.totals, finding);
        }
        let mut run = match execute(&plan, &environment) {
            Ok(run) => run,
            Err(defect) => return (Totals::default(), finding(None, defect)),
        };
        let mut examiner = Examiner::new(&environment, &options, go_on);
        examiner.on_progress = Some(on_progress);
        if let Manner::Stops(..) = plan.manner {
            // Crashes while the store is filled are examined in other runs.
            examiner.from = run.met();
        } else if is_by_hand && is_deadly(&plan) {
            // If a process dies in it, the run is about the next process.
            examiner.from = run.death().unwrap_or(0);
        }
        match examiner.run(&mut run) {
            Ok(()) => (examiner.totals, None),
            Err(violation) => {
                let defect = violation.defect.clone();
                let totals = examiner.totals;
                let mut finding = finding(Some(violation), defect);
                if let Some(finding) = &mut finding {
                    finding.run = Some(Arc::new(run));
                }
                (totals, finding)
            }
        }
    }
}

/// The shape of a run.
#[derive(Clone, Copy)]
enum Shape {
    Long,
    Usual,
    Brief,
    /// See [`crate::plan::interleaving`].
    Interleaving,
}

/// Whether a process dies in it.
fn is_deadly(plan: &Plan) -> bool {
    matches!(plan.fault, Fault::Kill(_) | Fault::Outage(..))
}

/// A run to be examined, and how.
struct Job {
    plan: Plan,
    options: ExploreOptions,
    /// Whether it was written by hand.
    is_by_hand: bool,
    /// A crash that was found once, to repeat.
    saved: Option<Saved>,
}

/// Adds to the tally while a run is examined.
struct Account<'a> {
    kind: (Medium, Profile),
    tally: &'a Mutex<Tally>,
    /// What was added so far, and when.
    entered: Mutex<(Totals, Instant)>,
    watch: Watch<'a>,
}

impl Account<'_> {
    fn enter(&self, totals: &Totals, finding: Option<Finding>) {
        let mut entered = self.entered.lock();
        let mut tally = self.tally.lock();
        tally.latest = Some(self.kind);
        let row = tally.rows.entry(self.kind).or_default();
        row.totals.add(&totals.since(&entered.0));
        row.time += entered.1.elapsed();
        *entered = (*totals, Instant::now());
        if let Some(mut finding) = finding {
            row.violations += 1;
            finding.after = tally.sum().totals.unique;
            tally.findings.push(finding);
        }
        (self.watch)(&tally);
    }
}

/// Makes the allocator keep the memory of a recovered image for the next one. Without this, the lab spends
/// most of its time on page faults. The C library keeps blocks up to the size of the first large one that is
/// freed.
pub(crate) fn calm_the_allocator() {
    drop(std::hint::black_box(vec![1u8; 24 << 20]));
}
