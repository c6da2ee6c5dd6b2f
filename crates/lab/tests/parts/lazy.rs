//! The oracle: what recovery reads decides, and nothing else does.

use everdram::EngineKind;
use everdram_lab::image::Medium;
use everdram_lab::lazy::{Oracle, Script};
use everdram_lab::process::{Environment, Observers, Process};
use everdram_lab::profile::Profile;
use everdram_lab::unit::Unit;
use everdram_pm::lab::Tap;
use everdram_pm::{LINE, Pool};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What each word of a line may be.
const WORDS: [u64; 3] = [0, 11, 22];

/// The image of an empty store, and two lines of its last block, which is free.
fn memory() -> (Vec<u8>, [u64; 2]) {
    let environment = Environment::new(EngineKind::Viper, Profile::Variable, Medium::Pmem);
    let start = environment.create(1).unwrap();
    let process = Process::open(&environment, start, &Observers::default()).unwrap();
    let bytes = process.killed().memory.expect("memory leaves memory");
    let lines = bytes.len() as u64 / LINE;
    assert!(bytes[bytes.len() - 1024..].iter().all(|&byte| byte == 0));
    (bytes, [lines - 2, lines - 5])
}

fn unit(line: u64) -> Unit {
    let content = |word: u64| word.to_le_bytes().repeat(8);
    let mut unit = Unit::new(line, content(WORDS[0]).into());
    for &word in &WORDS[1..] {
        unit.add(&content(word));
    }
    unit
}

/// A pool whose last lines are open, and who decides about them.
fn opened(script: Script) -> (Arc<Pool>, Arc<Oracle>, [u64; 2]) {
    let (bytes, lines) = memory();
    let oracle = Arc::new(Oracle::new(&lines.map(unit), script));
    let capacity = bytes.len() as u64;
    let tap = Arc::clone(&oracle) as Arc<dyn Tap>;
    let pool = everdram_pm::lab::open(&bytes, capacity, Some(tap)).unwrap();
    assert!(oracle.chosen().is_empty(), "nobody has read these lines");
    (pool, oracle, lines)
}

/// What `read` reads, under every script that there is for it.
fn all_of(read: impl Fn(&Pool, [u64; 2]) -> Vec<u64>) -> Vec<Vec<u64>> {
    let (mut found, mut script) = (Vec::new(), Some(Script::new()));
    while let Some(tried) = script {
        let (pool, oracle, lines) = opened(tried);
        found.push(read(&pool, lines));
        script = oracle.next();
        assert!(found.len() < 100, "scripts have no end");
    }
    let different: BTreeSet<_> = found.iter().collect();
    assert_eq!(different.len(), found.len(), "no leaf comes twice");
    found
}

#[test]
fn every_choice_of_a_line_that_is_read_is_tried() {
    let one = all_of(|pool, [line, _]| vec![pool.region().load_word(line * LINE + 16)]);
    assert_eq!(one, WORDS.map(|word| vec![word]));
    let both = all_of(|pool, lines| {
        lines
            .map(|line| pool.region().load_word(line * LINE))
            .into()
    });
    assert_eq!(both.len(), 9);
    let neither = all_of(|pool, lines| {
        let beside = (lines[0] + 1) * LINE;
        vec![pool.region().load_word(beside)]
    });
    assert_eq!(neither, [[0]]);
}

/// A line that is read only because of what another one held multiplies only that choice.
#[test]
fn what_was_read_decides_what_is_read() {
    let leaves = all_of(|pool, [first, second]| {
        let word = pool.region().load_word(first * LINE);
        let next = (word == 11).then(|| pool.region().load_word(second * LINE));
        [word].into_iter().chain(next).collect()
    });
    assert_eq!(leaves, [&[0][..], &[11, 0], &[11, 11], &[11, 22], &[22]]);
}

/// Several lines at once, of which some are open.
#[test]
fn a_long_read_decides_all_that_it_covers() {
    let (pool, oracle, [high, low]) = opened(vec![1, 2]);
    let mut bytes = vec![0; ((high - low + 1) * LINE) as usize];
    pool.region().load(low * LINE, &mut bytes);
    assert_eq!((bytes[0], bytes[((high - low) * LINE) as usize]), (11, 22));
    assert_eq!(oracle.chosen().len(), 2);
}

/// Who stores a word of a line has not read the others; they are there all the same.
#[test]
fn a_store_decides_what_is_beside_it() {
    let (pool, oracle, [line, _]) = opened(vec![2]);
    let _ = pool.lane().store_word(line * LINE, 7);
    assert_eq!(oracle.chosen().len(), 1);
    let words = [0, 8].map(|at| pool.region().load_word(line * LINE + at));
    assert_eq!(words, [7, 22]);
}

#[test]
fn only_what_nobody_read_is_left_to_be_decided() {
    let (pool, oracle, [read, unread]) = opened(vec![1]);
    assert_eq!(pool.region().load_word(read * LINE), 11);
    let mut asked = Vec::new();
    oracle.decide_rest(pool.region(), |unit| {
        asked.push(unit.place);
        2
    });
    assert_eq!(asked, [unread]);
    let words = [read, unread].map(|line| pool.region().load_word(line * LINE));
    assert_eq!(words, [11, 22]);
    let chosen: Vec<_> = oracle
        .chosen()
        .into_iter()
        .map(|(at, bytes)| (at, bytes[0]))
        .collect();
    assert_eq!(chosen, [(unread, 22), (read, 11)]);
    assert_eq!(oracle.next(), Some(vec![2]), "the rest is not the script's");
}

/// Whatever numbers a script is drawn from, they mean all choices, not mostly the last.
#[test]
fn a_random_script_means_every_choice() {
    let mut found = [0; WORDS.len()];
    for drawn in 0..60 {
        let (pool, _, [line, _]) = opened(vec![drawn]);
        let word = pool.region().load_word(line * LINE);
        found[WORDS.iter().position(|&known| known == word).unwrap()] += 1;
    }
    assert_eq!(found, [20; 3]);
}
