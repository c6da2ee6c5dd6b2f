//! Crash images: a store killed between any two of its stores to memory, at the granularity of memory.
//!
//! A session runs a few operations on emulated persistent memory. `support/history.rs` lists the images that
//! a crash may have left; a random choice of them is built, and each goes through the real recovery. For
//! every image:
//! - the store holds exactly what was acknowledged; the operation in flight is there whole or not at all, and
//!   it is there if all its stores are;
//! - `check` finds nothing;
//! - a second crash in the middle of recovery's own stores changes nothing of that;
//! - after all keys were then deleted, or overwritten, or cleared, and the store killed again, nothing comes
//!   back.

mod support;

use everdram::engine::BatchOp;
use everdram::{Session, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use support::contents::{Contents, assert_holds, assert_sound, contents, difference};
use support::frozen::{DATA_AT, Frozen, changed_words, word};
use support::history::{Cut, History, Part, Shape, part};
use support::{Bed, seed};

/// Value lengths for every place of a record with blocks of two pages: page, block, chain.
const LENGTHS: [usize; 9] = [0, 5, 16, 90, 700, 3_000, 5_000, 9_000, 20_000];

/// A store whose history is recorded, and the place where its images are opened.
struct Lab {
    bed: Bed,
    trial: Bed,
    random: StdRng,
    fixed: bool,
    block_bytes: usize,
    images: usize,
    /// The key used last.
    recent: Vec<u8>,
}

fn key_of(fixed: bool, number: u32) -> Vec<u8> {
    match number {
        _ if fixed => format!("key-{number:04}").into_bytes(),
        // Does not fit a page: its record holds the beginning.
        0 => [b"huge-".repeat(2_000).as_slice(), b"key"].concat(),
        1 => b"long-".repeat(200),
        _ => format!("key-{number}").into_bytes(),
    }
}

impl Lab {
    fn new(random: StdRng, dimms: u32, fixed: bool) -> Lab {
        let shape = fixed.then_some((8, 16));
        let (bed, trial) = (Bed::shaped(dimms, shape), Bed::shaped(dimms, shape));
        Lab {
            bed,
            trial,
            random,
            fixed,
            block_bytes: dimms as usize * 4096,
            images: 0,
            recent: Vec::new(),
        }
    }

    fn open(bed: &Bed) -> Store {
        bed.open_with(|options| {
            options.initial_bytes = 768 << 10;
            options.chunk_bytes = 64 << 10;
            options.reclaim_background = false;
            options.sessions_max = 8;
            options.recovery_threads = 2;
        })
    }

    /// A key, often the last one: the unfenced stores of an operation matter most to the next one of its key.
    fn key(&mut self) -> Vec<u8> {
        if self.random.random_bool(0.3) && !self.recent.is_empty() {
            return self.recent.clone();
        }
        let keys = if self.fixed { 230 } else { 12 };
        self.recent = key_of(self.fixed, self.random.random_range(0..keys));
        self.recent.clone()
    }

    fn value(&mut self) -> Vec<u8> {
        let length = match self.random.random_range(0..10) {
            _ if self.fixed => 16,
            0..7 => LENGTHS[self.random.random_range(0..5)],
            _ => LENGTHS[self.random.random_range(5..LENGTHS.len())],
        };
        let fill: u8 = self.random.random_range(1..=255);
        (0..length).map(|i| fill.wrapping_add(i as u8)).collect()
    }

    /// One operation on store and model.
    fn step(&mut self, store: &Store, session: &mut Session, model: &mut Contents) -> Shape {
        let key = self.key();
        match self.random.random_range(0..100) {
            0..45 => {
                let value = self.value();
                session.put(&key, &value).unwrap();
                model.insert(key, value);
                Shape::Single
            }
            45..65 => {
                assert_eq!(session.delete(&key).unwrap(), model.remove(&key).is_some());
                Shape::Delete
            }
            65..72 if model.get(&key).is_some_and(|value| value.len() >= 8) => {
                let add: u64 = self.random.random();
                session
                    .update_word(&key, 0, &mut |word| word.wrapping_add(add))
                    .unwrap();
                if let Some(value) = model.get_mut(&key) {
                    let new = word(value, 0).wrapping_add(add);
                    value[..8].copy_from_slice(&new.to_le_bytes());
                }
                Shape::Single
            }
            72..94 => self.batch(session, model),
            94..96 => {
                let ticket = session.engine().clear().unwrap();
                session.wait(ticket).unwrap();
                model.clear();
                Shape::Single
            }
            _ => {
                store.engine().reclaim().unwrap();
                Shape::Whole
            }
        }
    }

    fn batch(&mut self, session: &mut Session, model: &mut Contents) -> Shape {
        let keys: BTreeSet<Vec<u8>> = (0..self.random.random_range(2..5))
            .map(|_| self.key())
            .collect();
        let keys: Vec<Vec<u8>> = keys.into_iter().filter(|key| key.len() < 2_000).collect();
        let mut writes: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for key in keys {
            let delete = self.random.random_bool(0.3) && model.contains_key(&key);
            let fill = self.random.random_range(1..=255);
            let length = if self.fixed {
                16
            } else {
                self.random.random_range(0..300)
            };
            writes.push((key, (!delete).then(|| vec![fill; length])));
        }
        let ops: Vec<BatchOp<'_>> = writes
            .iter()
            .map(|(key, value)| match value {
                Some(value) => BatchOp::Put {
                    key,
                    value,
                    expires_at_ms: 0,
                },
                None => BatchOp::Delete { key },
            })
            .collect();
        session.batch(&ops).unwrap();
        let payload: usize = writes
            .iter()
            .map(|(key, value)| 32 + key.len() + value.as_ref().map_or(0, Vec::len))
            .sum();
        let deletes = writes.iter().any(|(_, value)| value.is_none());
        let shape = match writes.as_slice() {
            // One operation needs no journal.
            [] => Shape::Single,
            [(_, None)] => Shape::Delete,
            [_] => Shape::Single,
            _ => Shape::Batch {
                journal_bytes: (24 + 1 + payload).next_multiple_of(16),
                deletes,
            },
        };
        for (key, value) in writes {
            match value {
                Some(value) => model.insert(key, value),
                None => model.remove(&key),
            };
        }
        shape
    }

    /// A fresh store with some contents, and the effects of a few operations.
    fn history(&mut self) -> History {
        self.bed = Bed::shaped(
            (self.block_bytes / 4096) as u32,
            self.fixed.then_some((8, 16)),
        );
        let store = Lab::open(&self.bed);
        let mut session = store.session().unwrap();
        let mut model = Contents::new();
        let warm = if self.fixed {
            250
        } else {
            self.random.random_range(0..25)
        };
        for number in 0..warm {
            let key = if self.fixed {
                key_of(true, number % 230)
            } else {
                self.key()
            };
            let value = self.value();
            session.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        let image = || Frozen::take(&self.bed.path()).image().to_vec();
        let mut history = History::new(image(), model.clone(), self.block_bytes);
        for _ in 0..8 {
            let shape = self.step(&store, &mut session, &mut model);
            let image = Frozen::take(&self.bed.path()).image().to_vec();
            history.add(shape, image, model.clone());
        }
        history
    }

    fn cut(&mut self) -> Cut {
        match self.random.random_range(0..12) {
            0 => Cut::Nothing,
            1 => Cut::All,
            2 => Cut::One,
            3 => Cut::AllButOne,
            roll => {
                let chance = [0.1, 0.5, 0.5, 0.9][self.random.random_range(0..4)];
                Cut::Some {
                    chance,
                    lines: roll % 2 == 0,
                }
            }
        }
    }

    /// Opens `count` images of a history.
    fn try_history(&mut self, history: &History, count: usize) {
        let files = Frozen::take(&self.bed.path());
        for _ in 0..count {
            let number = self.random.random_range(0..history.stages.len());
            let cut = self.cut();
            let (image, all) = history.image(number, cut, &mut self.random);
            let stage = &history.stages[number];
            let before = &history.contents[stage.operation];
            let after = history.contents.get(stage.operation + 1).unwrap_or(before);
            let when = format!(
                "image {} ({cut:?} of stage {number}, in operation {})",
                self.images, stage.operation
            );
            let mut frozen = files.clone();
            *frozen.image_mut() = image;
            let allowed: &[&Contents] = if all && stage.completes {
                &[after]
            } else {
                &[before, after]
            };
            self.recovers(&frozen, allowed, !stage.journal, &when);
        }
    }

    /// Recovers one image, recovers it again after an interruption, and after later writes.
    fn recovers(&mut self, frozen: &Frozen, allowed: &[&Contents], no_journal: bool, when: &str) {
        self.images += 1;
        let (held, recovered) = self.opens_as(frozen, allowed, when);
        if no_journal
            && self.images.is_multiple_of(4)
            && let Some(cut_short) = self.cut_recovery(frozen, &recovered)
        {
            // A reader may have seen it, so it must stay.
            self.opens_as(&cut_short, &[&held], &format!("{when}, recovery cut short"));
        }
        let store = Lab::open(&self.trial);
        let mut session = store.session().unwrap();
        let mut model = held;
        let what = self.change_everything(&mut session, &mut model);
        drop(session);
        assert_holds(&store, &model, &format!("{when}, {what}"));
        let killed = Frozen::take(&self.trial.path());
        drop(store);
        self.opens_as(&killed, &[&model], &format!("{when}, {what}, killed"));
    }

    /// Opens an image; returns its contents and the image after a kill right after recovery.
    fn opens_as(
        &mut self,
        frozen: &Frozen,
        allowed: &[&Contents],
        when: &str,
    ) -> (Contents, Frozen) {
        frozen.lay(&self.trial.path());
        let store = Lab::open(&self.trial);
        let recovered = Frozen::take(&self.trial.path());
        let mut session = store.session().unwrap();
        let found = contents(&mut session).unwrap_or_else(|error| panic!("{when}: {error}"));
        drop(session);
        if !allowed.contains(&&found) {
            let each: Vec<String> = allowed
                .iter()
                .map(|wanted| difference(&found, wanted))
                .collect();
            panic!("{when}: neither of\n{}", each.join("-- nor\n"));
        }
        assert_eq!(
            store.len(),
            found.len() as u64,
            "{when}: the number of keys"
        );
        assert_sound(&store, when);
        (found, recovered)
    }

    /// Recovery without a journal marks losers, fences, and seals open pages, later ones first: returns an
    /// image with a part of the one or of the other.
    fn cut_recovery(&mut self, before: &Frozen, after: &Frozen) -> Option<Frozen> {
        let (old, new) = (before.image(), after.image());
        let words: Vec<usize> = changed_words(old, new)
            .into_iter()
            .filter(|&at| at >= DATA_AT)
            .collect();
        let part_of = |at: usize| part(self.block_bytes, at, new);
        if words
            .iter()
            .any(|&at| !matches!(part_of(at), Part::Tail | Part::Mark))
        {
            return None;
        }
        let (tails, marks): (Vec<usize>, Vec<usize>) =
            words.into_iter().partition(|&at| part_of(at) == Part::Tail);
        let mut cut = after.clone();
        let image = cut.image_mut();
        let mut take_back = |words: &[usize], random: &mut StdRng, chance: f64| {
            for &at in words {
                if random.random_bool(chance) {
                    image[at..at + 8].copy_from_slice(&old[at..at + 8]);
                }
            }
        };
        // The tails of later pages are fenced before that of the first open page is stored. So of a block
        // with several only the last one may be missing, and this test does not know which that is.
        let block = |at: usize| at / self.block_bytes;
        let is_lone = |at: &usize| {
            tails
                .iter()
                .filter(|&&tail| block(tail) == block(*at))
                .count()
                == 1
        };
        let lone: Vec<usize> = tails.iter().copied().filter(is_lone).collect();
        match self.random.random_range(0..4) {
            0 | 1 => {
                take_back(&tails, &mut self.random, 1.0);
                take_back(&marks, &mut self.random, 0.5);
            }
            2 => take_back(&tails, &mut self.random, 1.0),
            _ => take_back(&lone, &mut self.random, 0.5),
        }
        Some(cut)
    }

    fn change_everything(&mut self, session: &mut Session, model: &mut Contents) -> &'static str {
        let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
        match self.random.random_range(0..5) {
            0 => {
                let ticket = session.engine().clear().unwrap();
                session.wait(ticket).unwrap();
                model.clear();
                "all cleared"
            }
            1 | 2 => {
                for key in &keys {
                    let value = self.value();
                    session.put(key, &value).unwrap();
                    model.insert(key.clone(), value);
                }
                "all overwritten"
            }
            _ => {
                for key in &keys {
                    assert!(session.delete(key).unwrap());
                }
                model.clear();
                "all deleted"
            }
        }
    }
}

fn run(dimms: u32, fixed: bool, histories: usize, images: usize) {
    let mut lab = Lab::new(StdRng::seed_from_u64(seed()), dimms, fixed);
    for _ in 0..histories {
        let history = lab.history();
        if !history.stages.is_empty() {
            lab.try_history(&history, images);
        }
    }
    println!("{} images", lab.images);
}

#[test]
fn blocks_of_two_pages() {
    run(2, false, 24, 50);
}

#[test]
fn blocks_of_six_pages() {
    run(6, false, 10, 50);
}

#[test]
fn blocks_of_one_page() {
    run(1, false, 12, 50);
}

#[test]
fn fixed_size_records_edited_in_place() {
    run(1, true, 16, 40);
}

/// Recovery took the record that begins a page as proof that the page before it was whole. But that page's
/// tail word shares its fence: a crash that lost the word and kept the record made a sound pool "damaged".
#[test]
fn a_record_that_begins_a_page_proves_nothing() {
    let bed = Bed::emulated();
    let store = Lab::open(&bed);
    let mut session = store.session().unwrap();
    session.put(b"acknowledged", &[1; 3_000]).unwrap();
    let before = Frozen::take(&bed.path());
    session.put(b"in flight", &[2; 3_000]).unwrap();
    let mut crashed = Frozen::take(&bed.path());
    let mut tails = 0;
    for at in changed_words(before.image(), crashed.image()) {
        if part(24_576, at, before.image()) == Part::Tail {
            crashed.image_mut()[at..at + 8].copy_from_slice(&before.image()[at..at + 8]);
            tails += 1;
        }
    }
    assert_eq!(tails, 1, "the second record begins a page");
    let trial = Bed::emulated();
    crashed.lay(&trial.path());
    let store = Lab::open(&trial);
    let mut session = store.session().unwrap();
    assert_eq!(session.get(b"acknowledged").unwrap().unwrap(), [1; 3_000]);
    drop(session);
    assert_sound(&store, "without the tail word");
}
