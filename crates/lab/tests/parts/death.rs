//! The death of a process in the middle of a call: what is left, and that nothing is heard of it afterwards.

use everdram::EngineKind;
use everdram_lab::call::Values;
use everdram_lab::death::mortal;
use everdram_lab::image::Medium;
use everdram_lab::model::Model;
use everdram_lab::plan::{Fault, Plan};
use everdram_lab::process::{Environment, Observers, Process};
use everdram_lab::profile::Profile;
use everdram_lab::recorder::Recorder;
use everdram_lab::run::{Run, observers, run};
use everdram_lab::trace::{Step, StepId};
use everdram_lab::unit::Unit;
use everdram_pm::{DATA_AT, Pool};
use std::sync::Arc;

/// A pool without an engine, heard by a recorder.
fn pool() -> (Arc<Pool>, Arc<Recorder>) {
    let environment = Environment::new(EngineKind::Viper, Profile::Variable, Medium::Pmem);
    let start = environment.create(1).unwrap();
    let process = Process::open(&environment, start, &Observers::default()).unwrap();
    let bytes = process.killed().memory.expect("memory leaves memory");
    let recorder = Arc::new(Recorder::new(Values::default(), false, None));
    let tap = observers(&recorder).tap;
    let pool = everdram_pm::lab::open(&bytes, bytes.len() as u64, tap).unwrap();
    recorder.take();
    (pool, recorder)
}

/// Stores a word when it goes out of scope, as guards of the engine do.
struct LastWord(Arc<Pool>);

impl Drop for LastWord {
    fn drop(&mut self) {
        let _ = self.0.lane().store_word(DATA_AT, 99);
    }
}

#[test]
fn nothing_is_heard_of_a_dead_process() {
    let (pool, recorder) = pool();
    recorder.arm(Medium::Pmem, Fault::Kill(2));
    let done = mortal(|| {
        let _last = LastWord(Arc::clone(&pool));
        let mut lane = pool.lane();
        for word in 1..5 {
            let _ = lane.store_word(DATA_AT, word);
        }
    });
    assert!(done.is_none() && recorder.death.is_over());
    assert_eq!(pool.region().load_word(DATA_AT), 99);
    let left = recorder.died().expect("it died of an event in memory");
    assert_eq!(
        left[DATA_AT as usize], 2,
        "two stores of four, and none of the guard"
    );
    let trace = recorder.take().trace;
    assert!(matches!(
        trace[..],
        [Step::Store { .. }, Step::Store { .. }, Step::Death]
    ));
    // The next process lives, and dies of nothing.
    assert!(mortal(|| drop(LastWord(Arc::clone(&pool)))).is_some());
    assert_eq!(recorder.take().trace.len(), 1);
}

/// A process has no thread that survives it, and none that gives answers.
#[test]
fn all_threads_die() {
    let (pool, recorder) = pool();
    recorder.arm(Medium::Pmem, Fault::Kill(0));
    std::thread::scope(|scope| {
        let dying = || mortal(|| pool.lane().store_word(DATA_AT, 1)).is_none();
        assert!(dying() && scope.spawn(dying).join().unwrap());
        let answer = || mortal(|| recorder.ret(0, everdram_lab::call::Outcome::Done));
        assert!(scope.spawn(answer).join().unwrap().is_none());
    });
    assert_eq!(pool.region().load_word(DATA_AT), 0);
    assert!(recorder.take().trace.is_empty());
}

#[test]
fn other_panics_are_no_death() {
    let caught = std::panic::catch_unwind(|| mortal(|| std::panic::resume_unwind(Box::new(1))));
    assert!(caught.is_err());
}

/// What a model says of a run in which nothing is lost is what the program saw in the end.
#[track_caller]
pub(crate) fn agree(run: &Run, environment: &Environment, what: &str) {
    let mut model = Model::new(&run.start, environment.options.max_bytes, None);
    for (id, step) in run.record.trace.iter().enumerate() {
        model.step(id as StepId, step);
    }
    let units = model.units(&mut everdram_lab::profile::random(1, 1));
    let newest: Vec<usize> = units.iter().map(Unit::newest).collect();
    let all = model.image(&units, &newest);
    assert!(
        all.files == run.end.files,
        "{what}: the trace does not tell what the disk has"
    );
    let same = match (all.memory, &run.end.memory) {
        (Some(all), Some(end)) => {
            all[..end.len()] == end[..] && all[end.len()..].iter().all(|&byte| byte == 0)
        }
        (all, end) => all.is_none() && end.is_none(),
    };
    assert!(same, "{what}: the trace does not tell what memory has");
}

/// Wherever a process dies, in a call, in the recovery of another one or while that grows its pool: the
/// trace, the memory that is left and what the next process makes of it belong together.
#[test]
fn a_process_may_die_anywhere() {
    let cases = Medium::ALL
        .into_iter()
        .flat_map(|medium| [Profile::Variable, Profile::Growth].map(|profile| (medium, profile)));
    let deaths = std::thread::scope(|scope| {
        let threads: Vec<_> = cases
            .map(|(medium, profile)| scope.spawn(move || die_anywhere(medium, profile)))
            .collect();
        let deaths = threads.into_iter().map(|thread| thread.join().unwrap());
        deaths.sum::<usize>()
    });
    assert!(deaths > 400, "{deaths}");
}

/// Returns how many deaths left a call open.
fn die_anywhere(medium: Medium, profile: Profile) -> usize {
    let mut plan = Plan::draw(EngineKind::Viper, medium, profile, 3, 14);
    for at in [3, 8, 9] {
        plan.calls.insert(at, (0, everdram_lab::call::Call::Kill));
    }
    plan.calls.push((0, everdram_lab::call::Call::Reopen));
    plan.fault = Fault::None;
    let environment = || Environment::new(EngineKind::Viper, profile, medium);
    let whole = run(&plan, &environment(), false).unwrap();
    let is_event = |step: &&Step| match medium {
        Medium::Pmem => matches!(
            step,
            Step::Store { .. } | Step::Flush { .. } | Step::Fence { .. }
        ),
        Medium::File => matches!(step, Step::Disk { .. }),
    };
    let events = whole.record.trace.iter().filter(is_event).count();
    let mut deaths = 0;
    for event in 0..events as u32 {
        plan.fault = Fault::Kill(event);
        let environment = environment();
        let what = format!("{profile} on {medium}, death before event {event}");
        let run =
            run(&plan, &environment, false).unwrap_or_else(|defect| panic!("{what}: {defect}"));
        agree(&run, &environment, &what);
        let entries = &run.record.history.entries;
        deaths += usize::from(entries.iter().any(|entry| entry.outcome.is_none()));
    }
    deaths
}

/// Threads stop where the fault met them, with their calls open; the next process goes on with what is left
/// of them, and what that left is what was heard of them.
#[test]
fn threads_stop_at_a_fault_and_others_go_on() {
    let mut open = [0; 4];
    for seed in 0..16 {
        for (kind, (medium, fault)) in [
            (Medium::Pmem, Fault::Kill(40 + 10 * seed as u32)),
            (Medium::File, Fault::Kill(4 + seed as u32)),
            (Medium::File, Fault::Sync(4 + seed as u32)),
            (Medium::File, Fault::Room(20_000 * seed)),
        ]
        .into_iter()
        .enumerate()
        {
            let mut plan = Plan::draw(EngineKind::Viper, medium, Profile::Threads, seed, 30);
            plan.fault = fault;
            let environment = Environment::new(EngineKind::Viper, Profile::Threads, medium);
            let what = format!("seed {seed}, {fault:?} on {medium}");
            let run =
                run(&plan, &environment, false).unwrap_or_else(|defect| panic!("{what}: {defect}"));
            agree(&run, &environment, &what);
            let entries = &run.record.history.entries;
            open[kind] += entries
                .iter()
                .filter(|entry| entry.outcome.is_none())
                .count();
        }
    }
    let [memory, file, sync, room] = open;
    assert!(memory > 8 && file > 8 && sync > 8, "{open:?}");
    assert_eq!(room, 0, "a full disk is an answer");
}
