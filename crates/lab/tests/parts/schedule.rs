//! The scheduler: one thread at a time, the same way for the same seed, and never for good.
//!
//! A thread that a busy machine keeps from running looks to the scheduler like one that blocks on a lock, and
//! loses its turn. So what holds of a run is asked of several, and has to be seen in one.

use everdram_lab::plan::Stops;
use everdram_lab::profile;
use everdram_lab::schedule::Scheduler;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

const THREADS: usize = 3;
const EVENTS: usize = 60;
/// No session stops twice.
const ONCE: [u32; 3] = [0; 3];
/// Runs that may be disturbed.
const TRIES: usize = 20;
/// When a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `body` on each thread, under a scheduler; `false` if it does not come to its end.
fn scheduled(seed: u64, body: impl Fn(&Scheduler, usize) + Send + Sync + 'static) -> bool {
    run_by(Scheduler::new(THREADS, profile::random(seed, 3)), body)
}

/// As [`scheduled`].
fn run_by(
    scheduler: Arc<Scheduler>,
    body: impl Fn(&Scheduler, usize) + Send + Sync + 'static,
) -> bool {
    let body = Arc::new(body);
    let together = Arc::new(Barrier::new(THREADS));
    let (done, all_done) = mpsc::channel();
    for me in 0..THREADS {
        let (scheduler, body) = (Arc::clone(&scheduler), Arc::clone(&body));
        let (done, together) = (done.clone(), Arc::clone(&together));
        std::thread::spawn(move || {
            together.wait();
            scheduler.begin(me);
            body(&scheduler, me);
            scheduler.end(me);
            let _ = done.send(());
        });
    }
    (0..THREADS).all(|_| all_done.recv_timeout(PATIENCE).is_ok())
}

/// Who ran, event by event, and whether two ever ran at once.
fn course(seed: u64) -> (Vec<usize>, bool) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let running = Arc::new(AtomicUsize::new(0));
    let both = Arc::new(AtomicBool::new(false));
    let (kept, met) = (Arc::clone(&log), Arc::clone(&both));
    let ended = scheduled(seed, move |scheduler, me| {
        for _ in 0..EVENTS {
            if running.fetch_add(1, Ordering::SeqCst) > 0 {
                both.store(true, Ordering::SeqCst);
            }
            log.lock().unwrap().push(me);
            // Long enough for another thread to get in the way, if it may.
            for turn in 0..2_000 {
                std::hint::black_box(turn);
            }
            running.fetch_sub(1, Ordering::SeqCst);
            scheduler.event(me);
        }
    });
    assert!(ended, "seed {seed}: threads hang");
    let course = std::mem::take(&mut *kept.lock().unwrap());
    (course, met.load(Ordering::SeqCst))
}

#[test]
fn one_thread_runs_at_a_time() {
    for seed in 0..8 {
        let alone = (0..TRIES).any(|_| !course(seed).1);
        assert!(alone, "seed {seed}: two threads run at once, each time");
    }
}

/// The first two stop in the middle; the third comes to its end first, and each of the others then in one go.
#[test]
fn who_stops_goes_on_when_the_others_have_come_to_their_ends() {
    let course = |first: [u32; 3], again: [u32; 3]| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        let stops = Stops { first, again };
        let scheduler = Scheduler::with_stops(THREADS, stops, profile::random(1, 3));
        let ended = run_by(scheduler, move |scheduler, me| {
            for _ in 0..4 {
                log.lock().unwrap().push(me);
                scheduler.event(me);
            }
        });
        assert!(ended, "threads hang");
        let mut course = std::mem::take(&mut *kept.lock().unwrap());
        course.dedup();
        course
    };
    let tries: Vec<Vec<usize>> = (0..TRIES).map(|_| course([2, 1, 0], ONCE)).collect();
    let expected = [vec![0, 1, 2, 0, 1], vec![0, 1, 2, 1, 0]];
    assert!(
        tries.iter().any(|course| expected.contains(course)),
        "{tries:?}"
    );
    assert!((0..TRIES).any(|_| course([0, 0, 0], ONCE) == [0, 1, 2]));
    // The session that goes on first stops again, and then the two may go on in either order.
    let tries: Vec<Vec<usize>> = (0..TRIES).map(|_| course([1, 1, 0], [1, 1, 0])).collect();
    let is_right = |course: &Vec<usize>| {
        let Some(rest) = course.strip_prefix(&[0, 1, 2]) else {
            return false;
        };
        let count = |thread| rest.iter().filter(|&&other| other == thread).count();
        (count(0) == 2 || count(1) == 2) && count(2) == 0
    };
    assert!(tries.iter().any(is_right), "{tries:?}");
}

/// A thread that waits for a stopped one lets it go on.
#[test]
fn nobody_waits_for_ever_for_one_who_has_stopped() {
    let is_free = Arc::new(AtomicBool::new(false));
    let scheduler = {
        let first = [1, 0, 2];
        let stops = Stops {
            first,
            ..Stops::default()
        };
        Scheduler::with_stops(THREADS, stops, profile::random(1, 3))
    };
    let ended = run_by(scheduler, move |scheduler, me| {
        if me == 0 {
            (0..8).for_each(|_| scheduler.event(me));
            is_free.store(true, Ordering::SeqCst);
        }
        while !is_free.load(Ordering::SeqCst) {
            scheduler.event(me);
            scheduler.wait(me);
        }
    });
    assert!(ended, "threads hang");
}

#[test]
fn the_same_seed_is_the_same_schedule() {
    let mut courses = Vec::new();
    for seed in 0..8 {
        let (first, _) = course(seed);
        assert_eq!(first.len(), THREADS * EVENTS);
        let again = (0..TRIES).any(|_| course(seed).0 == first);
        let again = again || {
            // The first one may have been the one that was disturbed.
            let (second, _) = course(seed);
            (0..TRIES).any(|_| course(seed).0 == second)
        };
        assert!(again, "seed {seed}: no schedule came twice");
        courses.push(first);
    }
    let switches =
        |course: &Vec<usize>| course.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(
        courses.iter().map(switches).max() > Some(20),
        "some switch often"
    );
    courses.sort();
    courses.dedup();
    assert!(courses.len() > 4, "other seeds, other schedules");
}

/// A thread waits for a lock whose holder does not have the turn, and the scheduler does not know.
#[test]
fn a_thread_that_blocks_does_not_stop_the_others() {
    for seed in 0..8 {
        let lock = Arc::new(Mutex::new(()));
        let ended = scheduled(seed, move |scheduler, me| {
            for _ in 0..4 {
                scheduler.event(me);
                let held = lock.lock();
                scheduler.event(me);
                drop(held);
            }
        });
        assert!(ended, "seed {seed}: threads hang");
    }
}

/// A thread that says that it waits gives the turn to one that may do what it waits for.
#[test]
fn a_thread_that_waits_lets_others_run() {
    for seed in 0..8 {
        let finished = Arc::new(AtomicUsize::new(0));
        let ended = scheduled(seed, move |scheduler, me| {
            if me == 0 {
                while finished.load(Ordering::SeqCst) < THREADS - 1 {
                    scheduler.wait(me);
                }
                return;
            }
            for _ in 0..EVENTS {
                scheduler.event(me);
            }
            finished.fetch_add(1, Ordering::SeqCst);
        });
        assert!(ended, "seed {seed}: threads hang");
    }
}

#[test]
fn who_sleeps_through_a_turn_gets_another_one() {
    let late = 2 * Duration::from_millis(100);
    for seed in 0..4 {
        let scheduler = Scheduler::new(2, profile::random(seed, 3));
        let is_done = Arc::new(AtomicBool::new(false));
        let (sleeper, done) = (Arc::clone(&scheduler), Arc::clone(&is_done));
        let sleeps = std::thread::spawn(move || {
            // As if the machine had no time for this thread: it is given the turn, and loses it again.
            std::thread::sleep(late);
            sleeper.begin(1);
            done.store(true, Ordering::SeqCst);
            sleeper.end(1);
        });
        scheduler.begin(0);
        while !is_done.load(Ordering::SeqCst) {
            // Says that all wait for each other, in the end.
            scheduler.wait(0);
        }
        scheduler.end(0);
        sleeps.join().expect("a thread that comes late");
    }
}
