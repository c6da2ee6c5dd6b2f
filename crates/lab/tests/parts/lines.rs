//! The model of persistent memory: each rule of its module text by itself.

use everdram_lab::image::Image;
use everdram_lab::lines::{Lines, Mute, Muted, Waste, key};
use everdram_lab::model::Model;
use everdram_lab::profile;
use everdram_lab::trace::{Step, StepId};
use everdram_lab::unit::Unit;
use everdram_pm::LINE;
use everdram_pm::lab::{Actor, Site, StoreKind};
use rand::RngExt;
use std::collections::{BTreeSet, HashMap};
use std::panic::Location;

/// Lines of the memory.
const LINES: u64 = 4;

/// A memory of zeros, and how many steps it has taken.
struct Memory {
    model: Model,
    steps: StepId,
    /// Whether the last step was a fence.
    is_fenced: bool,
}

impl Memory {
    fn new() -> Memory {
        Memory::muted(None)
    }

    fn muted(mute: Option<Mute>) -> Memory {
        let bytes = vec![0; (LINES * LINE) as usize];
        Memory {
            model: Model::new(&Image::of_memory(bytes), LINES * LINE, mute),
            steps: 0,
            is_fenced: false,
        }
    }

    fn lines(&self) -> &Lines {
        self.model.lines().unwrap()
    }

    fn image(&self, units: &[Unit], pick: &[usize]) -> Vec<u8> {
        let image = self.model.image(units, pick);
        image.memory.expect("a memory has an image of memory")
    }

    fn step(&mut self, step: &Step) -> Option<Waste> {
        self.steps += 1;
        self.is_fenced = matches!(step, Step::Fence { .. });
        self.model.step(self.steps - 1, step)
    }

    /// Stores words from word `word` of the memory on.
    #[track_caller]
    fn store(&mut self, actor: Actor, kind: StoreKind, word: u64, words: &[u64]) {
        self.step(&store(actor, kind, word, words, Location::caller()));
    }

    #[track_caller]
    fn word(&mut self, actor: Actor, word: u64, value: u64) {
        self.store(actor, StoreKind::Word, word, &[value]);
    }

    #[track_caller]
    fn flush(&mut self, actor: Actor, word: u64) -> Option<Waste> {
        self.step(&flush(actor, word, Location::caller()))
    }

    #[track_caller]
    fn fence(&mut self, actor: Actor) -> Option<Waste> {
        let site = Location::caller();
        self.step(&Step::Fence { actor, site })
    }

    /// What the first `words` words of a line may hold after a crash.
    fn after_crash(&self, line: u64, words: usize) -> BTreeSet<Vec<u64>> {
        let units = self.model.units(&mut profile::random(1, 1));
        match units.iter().find(|unit| unit.place == line) {
            Some(unit) => {
                let choices = unit.choices.iter();
                choices.map(|choice| first(&choice.bytes, words)).collect()
            }
            None => {
                let at = (line * LINE) as usize;
                BTreeSet::from([first(&self.lines().base()[at..], words)])
            }
        }
    }

    #[track_caller]
    fn expect<const N: usize>(&self, line: u64, allowed: &[[u64; N]]) {
        let allowed = allowed.iter().map(|words| words.to_vec()).collect();
        assert_eq!(self.after_crash(line, N), allowed);
    }
}

fn first(bytes: &[u8], words: usize) -> Vec<u64> {
    let words = bytes.as_chunks().0.iter().take(words);
    words.map(|word| u64::from_le_bytes(*word)).collect()
}

fn store(actor: Actor, kind: StoreKind, word: u64, words: &[u64], site: Site) -> Step {
    Step::Store {
        actor,
        at: 8 * word,
        bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        kind,
        site,
    }
}

fn flush(actor: Actor, word: u64, site: Site) -> Step {
    Step::Flush {
        actor,
        at: 8 * word,
        bytes: 8,
        site,
    }
}

#[test]
fn words_of_a_line_persist_in_their_order() {
    let mut memory = Memory::new();
    memory.word(1, 0, 10);
    memory.word(2, 1, 20);
    memory.word(1, 0, 30);
    memory.expect(0, &[[0, 0], [10, 0], [10, 20], [30, 20]]);
    let seen = memory.lines().seen(0);
    assert_eq!(first(&seen, 2), [30, 20], "what the program sees");
}

#[test]
fn words_of_a_bulk_store_persist_in_any_order() {
    let mut memory = Memory::new();
    memory.store(1, StoreKind::Bulk, 0, &[1, 2]);
    memory.expect(0, &[[0, 0], [1, 0], [0, 2], [1, 2]]);
    // A word that is there says that the bulk before it is.
    memory.word(1, 2, 3);
    memory.expect(0, &[[0, 0, 0], [1, 0, 0], [0, 2, 0], [1, 2, 0], [1, 2, 3]]);
    // And a bulk behind a word says that the word is.
    memory.store(1, StoreKind::Bulk, 0, &[7]);
    let before = [[0, 0, 0], [1, 0, 0], [0, 2, 0], [1, 2, 0], [1, 2, 3]];
    memory.expect(0, &[&before[..], &[[7, 2, 3]]].concat());
}

#[test]
fn a_long_bulk_store_may_be_there_in_any_part() {
    let mut memory = Memory::new();
    memory.store(1, StoreKind::Bulk, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let found = memory.after_crash(0, 8);
    let full: Vec<u64> = (1..=8).collect();
    let with = |takes: &dyn Fn(u64) -> bool| -> Vec<u64> {
        let words = full.iter();
        words
            .map(|&word| if takes(word) { word } else { 0 })
            .collect()
    };
    assert!(found.contains(&full) && found.contains(&vec![0; 8]));
    for word in 1..=8 {
        assert!(
            found.contains(&with(&|other| other == word)),
            "{word} by itself"
        );
        assert!(
            found.contains(&with(&|other| other != word)),
            "without {word}"
        );
        assert!(
            found.contains(&with(&|other| other <= word)),
            "up to {word}"
        );
    }
    for words in found {
        assert_eq!(
            words,
            with(&|word| words.contains(&word)),
            "only what was stored"
        );
    }
}

#[test]
fn a_flush_covers_what_was_there_whoever_stored_it() {
    let mut memory = Memory::new();
    memory.word(1, 0, 1);
    assert_eq!(memory.flush(2, 0), None);
    memory.word(1, 1, 2);
    assert_eq!(memory.fence(2), None);
    memory.expect(0, &[[1, 0], [1, 2]]);
}

#[test]
fn a_fence_covers_nothing_but_its_own_flushes() {
    let mut memory = Memory::new();
    memory.word(1, 0, 1);
    memory.flush(1, 0);
    memory.fence(2);
    memory.expect(0, &[[0], [1]]);
    memory.fence(1);
    memory.expect(0, &[[1]]);
}

#[test]
fn nothing_is_certain_without_a_flush() {
    let mut memory = Memory::new();
    memory.word(1, 0, 1);
    memory.fence(1);
    memory.expect(0, &[[0], [1]]);
    // A flush of another line does not help.
    memory.word(1, 8, 1);
    memory.flush(1, 8);
    memory.fence(1);
    memory.expect(0, &[[0], [1]]);
    memory.expect(1, &[[1]]);
}

/// The second actor flushed what the first one's fence has made certain meanwhile; what was stored to the
/// line since is not covered by its fence.
#[test]
fn a_fence_covers_what_was_there_when_its_flush_was_made() {
    let mut memory = Memory::new();
    memory.word(1, 0, 1);
    memory.flush(1, 0);
    memory.flush(2, 0);
    memory.fence(1);
    memory.word(1, 0, 2);
    memory.fence(2);
    memory.expect(0, &[[1], [2]]);
}

#[test]
fn streams_wait_for_their_own_fence() {
    let mut memory = Memory::new();
    memory.store(1, StoreKind::Stream, 0, &[1, 2]);
    let open = [[0, 0], [1, 0], [0, 2], [1, 2]];
    memory.expect(0, &open);
    memory.flush(2, 0);
    memory.fence(2);
    memory.expect(0, &open);
    memory.fence(1);
    memory.expect(0, &[[1, 2]]);
    // Two actors on one line: each waits for its own fence.
    memory.store(1, StoreKind::Stream, 0, &[3]);
    memory.store(2, StoreKind::Stream, 1, &[4]);
    memory.fence(2);
    memory.expect(0, &[[1, 4], [3, 4]]);
}

#[test]
fn streams_have_no_order_with_words() {
    let mut memory = Memory::new();
    memory.store(1, StoreKind::Stream, 0, &[1]);
    memory.word(1, 1, 2);
    memory.expect(0, &[[0, 0], [1, 0], [0, 2], [1, 2]]);
    // Certain, although the word before it is not.
    let mut memory = Memory::new();
    memory.word(1, 1, 2);
    memory.store(1, StoreKind::Stream, 0, &[1]);
    memory.fence(1);
    memory.expect(0, &[[1, 0], [1, 2]]);
}

#[test]
fn lines_are_evicted_without_regard_to_each_other() {
    let mut memory = Memory::new();
    memory.word(1, 0, 1);
    memory.flush(1, 0);
    memory.word(1, 8, 2);
    let units = memory.model.units(&mut profile::random(1, 1));
    let mut images = BTreeSet::new();
    for first_choice in 0..units[0].choices.len() {
        for second in 0..units[1].choices.len() {
            let bytes = memory.image(&units, &[first_choice, second]);
            images.insert((bytes[0], bytes[64]));
        }
    }
    assert_eq!(images, BTreeSet::from([(0, 0), (1, 0), (0, 2), (1, 2)]));
}

#[test]
fn what_nobody_waits_for_says_so() {
    let mut memory = Memory::new();
    memory.store(1, StoreKind::Late, 0, &[1]);
    let loose = |memory: &Memory| -> Vec<(u64, bool, bool)> {
        let atoms = memory.lines().loose();
        atoms
            .map(|(line, atom)| (atom.at(line), atom.is_flushed(), atom.is_late()))
            .collect()
    };
    assert_eq!(loose(&memory), [(0, false, true)]);
    memory.flush(1, 0);
    assert_eq!(loose(&memory), [(0, true, true)]);
    memory.expect(0, &[[0], [1]]);
    // Late is late, but once it is flushed the next fence of its actor covers it.
    memory.fence(1);
    assert_eq!(loose(&memory), []);
    memory.expect(0, &[[1]]);
    // What is certain already does not get loose by being stored once more.
    memory.word(1, 0, 1);
    assert_eq!(loose(&memory), []);
}

#[test]
fn flushes_and_fences_of_no_use_are_told() {
    let mut memory = Memory::new();
    assert_eq!(memory.fence(1), Some(Waste::Fence));
    assert_eq!(memory.flush(1, 0), Some(Waste::Flush));
    memory.word(1, 0, 1);
    assert_eq!(memory.flush(1, 0), None);
    assert_eq!(memory.flush(1, 0), Some(Waste::Flush));
    assert_eq!(memory.fence(1), None);
    assert_eq!(memory.fence(1), Some(Waste::Fence));
}

#[test]
fn what_is_muted_has_no_effect() {
    let here: Site = Location::caller();
    let elsewhere = |what| Mute {
        what,
        site: ("elsewhere", 1, 1),
    };
    let mute = |what| Mute {
        what,
        site: key(here),
    };
    let run = |mute| {
        let mut memory = Memory::muted(Some(mute));
        memory.step(&store(1, StoreKind::Stream, 0, &[1], here));
        memory.step(&store(1, StoreKind::Word, 8, &[1], here));
        memory.step(&flush(1, 8, here));
        memory.step(&Step::Fence {
            actor: 1,
            site: here,
        });
        (
            memory.after_crash(0, 1).len(),
            memory.after_crash(1, 1).len(),
        )
    };
    assert_eq!(run(mute(Muted::Flush)), (1, 2));
    assert_eq!(run(mute(Muted::Fence)), (2, 2));
    assert_eq!(run(mute(Muted::Stream)), (2, 1));
    assert_eq!(run(mute(Muted::Sync)), (1, 1));
    for what in [Muted::Flush, Muted::Fence, Muted::Stream] {
        assert_eq!(run(elsewhere(what)), (1, 1));
    }
}

/// Equal images have equal hashes, on whichever way they were reached, and no others.
#[test]
fn an_image_has_one_hash() {
    random_steps(|memory, hashes: &mut HashMap<Vec<u8>, u64>, back| {
        let mut random = profile::random(7, 7);
        let units = memory.model.units(&mut random);
        for _ in 0..8 {
            let pick: Vec<usize> = units
                .iter()
                .map(|unit| random.random_range(0..unit.choices.len()))
                .collect();
            let hash = memory.model.hash(&units, &pick);
            let bytes = memory.image(&units, &pick);
            assert_eq!(*back.entry(hash).or_insert_with(|| bytes.clone()), bytes);
            assert_eq!(*hashes.entry(bytes.clone()).or_insert(hash), hash);
            // A model that begins with this image, whatever room it has behind it, calls it the same.
            let image = Image::of_memory(bytes);
            for capacity in [LINES * LINE, 3 * LINES * LINE] {
                let other = Model::new(&image, capacity, None);
                assert_eq!(other.hash(&[], &[]), hash);
            }
        }
    });
}

/// Images get fewer by fences alone, so that it is enough to look just before each.
#[test]
fn nothing_but_a_fence_rules_images_out() {
    let mut ruled_out = 0;
    random_steps(|memory, before: &mut HashMap<Vec<u8>, u64>, _| {
        let open = memory.lines().dirty().map(|(_, line)| line);
        let is_bulk = |kind: StoreKind| !kind.is_word();
        // Of more than a few words that come in any order not all subsets are drawn.
        if open
            .map(|line| {
                line.atoms()
                    .iter()
                    .filter(|atom| is_bulk(atom.kind()))
                    .count()
            })
            .any(|count| count > 3)
        {
            before.clear();
            return;
        }
        let contents: Vec<BTreeSet<Vec<u64>>> =
            (0..LINES).map(|line| memory.after_crash(line, 8)).collect();
        for (key, _) in before.drain() {
            let (line, words) = (key[0], first(&key[1..], 8));
            let is_there = contents[usize::from(line)].contains(&words);
            assert!(
                is_there || memory.is_fenced,
                "{words:?} of line {line} is gone"
            );
            ruled_out += u64::from(!is_there);
        }
        for (line, choices) in contents.into_iter().enumerate() {
            before.extend(choices.into_iter().map(|words| {
                let bytes = words.iter().flat_map(|word| word.to_le_bytes());
                (std::iter::once(line as u8).chain(bytes).collect(), 0)
            }));
        }
    });
    assert!(ruled_out > 100, "{ruled_out}");
}

/// Random steps of three actors on few words, so that they meet; `look` is called after each, with room for
/// what it wants to remember of the run.
fn random_steps(
    mut look: impl FnMut(&Memory, &mut HashMap<Vec<u8>, u64>, &mut HashMap<u64, Vec<u8>>),
) {
    for seed in 0..60 {
        let mut random = profile::random(seed, 11);
        let mut memory = Memory::new();
        let (mut there, mut back) = (HashMap::new(), HashMap::new());
        for _ in 0..60 {
            let actor = random.random_range(0..3);
            let word = 8 * random.random_range(0..LINES) + random.random_range(0..3);
            let value = random.random_range(0..3);
            match random.random_range(0..10) {
                0..3 => memory.word(actor, word, value),
                3 => memory.store(actor, StoreKind::Bulk, word, &[value, value + 1]),
                4 => memory.store(actor, StoreKind::Stream, word, &[value]),
                5..8 => drop(memory.flush(actor, word)),
                _ => drop(memory.fence(actor)),
            }
            look(&memory, &mut there, &mut back);
        }
    }
}
