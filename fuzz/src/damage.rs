//! Changes a pool before it is opened, as the input chooses.
//!
//! *Damage* flips bits, loses ranges and copies some over others, as a broken medium does. Afterwards a key
//! has one of its values or none, and no key exists that was never written. *Forgery* makes checks pass for
//! chosen bytes, as an attacker with the pool's key can. Afterwards any answer is correct, but there must be
//! one.

use crate::choices::Choices;
use crate::pools::{Base, KEYS, NOW_MS, key};
use everdram::fuzzing::{Forged, Forger, Place};
use everdram_pm::fuzzing::{seal_superblocks, secret};

/// Offsets of the superblock's numbers, from medium to the first extents.
const FIELDS: [usize; 22] = [
    8, 12, 64, 68, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 176, 1688, 1696, 1704, 1712, 1720,
    1728, 4088,
];
/// Most changes of one pool.
const STEPS_MAX: usize = 40;
/// Most bits flipped by damage: few enough that no check passes by accident.
const FLIPS_MAX: usize = 4;

/// Damages `image`. A block begins with zeros only if it did before, since zeros mark a block that was never
/// used.
pub fn damage(image: &mut [u8], base: &Base, choices: &mut Choices<'_>) {
    hurt(image, base, choices);
    for block in &base.survey.blocks {
        let head = block.at..block.at + 16;
        if word_at(image, block.at) == 0 {
            image[head.clone()].copy_from_slice(&base.image[head]);
        }
    }
}

fn hurt(image: &mut [u8], base: &Base, choices: &mut Choices<'_>) {
    let mut flips = 0;
    for _ in 0..STEPS_MAX {
        if choices.is_empty() {
            return;
        }
        let at = spot(base, choices);
        match choices.byte() % 4 {
            0 | 1 if flips < FLIPS_MAX => {
                flips += 1;
                let bit = choices.byte() % 8;
                if let Some(byte) = image.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            2 => {
                let length = 8 << (choices.byte() % 11);
                let at = at / 8 * 8;
                let end = (at + length).min(image.len());
                image.get_mut(at..end).unwrap_or_default().fill(0);
            }
            _ => copy(image, at, spot(base, choices), choices),
        }
    }
}

/// Damages bytes of any kind: flips bits, loses ranges, copies lines over others, writes numbers, and cuts
/// the end off if it may. Mostly where something is.
pub fn damage_any(bytes: &mut Vec<u8>, may_cut: bool, choices: &mut Choices<'_>) {
    let lines = bytes.chunks(64).enumerate();
    let used = lines.filter(|(_, line)| line.iter().any(|byte| *byte != 0));
    let used: Vec<usize> = used.map(|(number, _)| number * 64).collect();
    if used.is_empty() {
        return;
    }
    for _ in 0..1 + choices.byte() % 8 {
        let mut spot = || choices.of(&used) + choices.below(64);
        let (at, other) = (spot(), spot());
        let aligned = at / 8 * 8;
        match choices.byte() % 8 {
            0 | 1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (choices.byte() % 8);
                }
            }
            2 => {
                let end = (aligned + (8 << (choices.byte() % 11))).min(bytes.len());
                bytes.get_mut(aligned..end).unwrap_or_default().fill(0);
            }
            3 => copy(bytes, at, other, choices),
            4 if may_cut && choices.byte().is_multiple_of(8) => bytes.truncate(at),
            _ => {
                let number = choices.number().to_le_bytes();
                if let Some(word) = bytes.get_mut(aligned..aligned + 8) {
                    word.copy_from_slice(&number);
                }
            }
        }
    }
}

/// Lines or pages copied to another place.
fn copy(image: &mut [u8], from: usize, to: usize, choices: &mut Choices<'_>) {
    let unit = if choices.flag() { 4096 } else { 64 };
    let (from, to) = (from / unit * unit, to / unit * unit);
    if from.max(to) + unit <= image.len() {
        image.copy_within(from..from + unit, to);
    }
}

/// A byte of the image, mostly one with a meaning.
fn spot(base: &Base, choices: &mut Choices<'_>) -> usize {
    let survey = &base.survey;
    let places = match choices.byte() % 6 {
        0 => &survey.records,
        1 => &survey.blocks,
        2 => &survey.pieces,
        3 => &survey.open_ends,
        4 => return choices.below(8200),
        _ => return choices.below(base.image.len()),
    };
    if places.is_empty() {
        return choices.below(base.image.len());
    }
    choices.of(places).at + choices.below(72)
}

/// Forges parts of `image`. Returns whether the lives of its blocks are unchanged. An attacker who sets lives
/// back, or moves bytes, makes records of an earlier life count in the next one; the order of values is then
/// undefined.
pub fn forge(image: &mut [u8], base: &Base, choices: &mut Choices<'_>) -> bool {
    let mut lives = true;
    let Some(forger) = Forger::new(secret(image), base.geometry) else {
        return lives;
    };
    for _ in 0..STEPS_MAX {
        if choices.is_empty() {
            break;
        }
        let step = choices.byte() % 10;
        lives &= !matches!(step, 0 | 1 | 8 | 9);
        match step {
            0 => superblock(image, choices),
            1 => forge_page(&forger, image, base, choices),
            2 => forge_marks(&forger, image, base, choices),
            3 => forger.floor(image, choices.number()),
            4 => forge_piece(&forger, image, base, choices),
            5 => edit_record(&forger, image, base, choices),
            6 | 7 => forge_record(&forger, image, base, choices),
            8 => copy(image, spot(base, choices), spot(base, choices), choices),
            _ => {
                let at = spot(base, choices);
                let bytes = choices.take(8);
                if let Some(into) = image.get_mut(at..at + bytes.len()) {
                    into.copy_from_slice(bytes);
                }
            }
        }
    }
    lives
}

fn superblock(image: &mut [u8], choices: &mut Choices<'_>) {
    let at = *choices.of(&FIELDS);
    let value = choices.number().to_le_bytes();
    for copy in [0, 4096] {
        // The two copies may differ, since one is written before the other.
        if choices.byte() % 4 != 3 {
            image[copy + at..copy + at + 8].copy_from_slice(&value);
        }
    }
    seal_superblocks(image);
}

/// Page and tail word of a page.
fn forge_page(forger: &Forger, image: &mut [u8], base: &Base, choices: &mut Choices<'_>) {
    let at = spot(base, choices) / 4096 * 4096;
    let kind = choices.byte() % 8;
    let before = forger.epoch_of(image, at);
    let epoch = match choices.byte() % 4 {
        0 => before.wrapping_add(1),
        1 => choices.word() as u32,
        _ => before,
    };
    match choices.byte() % 4 {
        0 => forger.page(image, at, kind, epoch),
        1 => {
            forger.page(image, at, kind, epoch);
            forger.tail(image, at, epoch, choices.number() as u32);
        }
        _ => forger.tail(image, at, epoch, choices.number() as u32),
    }
}

fn forge_marks(forger: &Forger, image: &mut [u8], base: &Base, choices: &mut Choices<'_>) {
    let page = forger.page_of(image, spot(base, choices));
    let at = page + 16 + 8 * choices.below(8);
    let bits = match choices.byte() % 3 {
        0 => 0,
        1 => u64::MAX,
        _ => choices.word(),
    };
    forger.marks(image, at, forger.epoch_of(image, page), bits);
}

/// A piece that leads anywhere, also to itself.
fn forge_piece(forger: &Forger, image: &mut [u8], base: &Base, choices: &mut Choices<'_>) {
    let Some(place) = pick(&base.survey.pieces, choices) else {
        return;
    };
    let mut words = [16, 24, 32, 56].map(|word| word_at(image, place.at + word));
    let index = choices.below(words.len());
    words[index] = match choices.byte() % 3 {
        0 => words[index].wrapping_add_signed(i64::from(choices.byte() as i8)),
        1 => (place.at / forger.block_bytes()) as u64,
        _ => choices.number(),
    };
    forger.piece(image, place.at, place.epoch, words);
}

/// Some bytes of a record, including its head and the place of its value.
fn edit_record(forger: &Forger, image: &mut [u8], base: &Base, choices: &mut Choices<'_>) {
    let Some(place) = pick(&base.survey.records, choices) else {
        return;
    };
    for _ in 0..choices.byte() % 4 {
        let at = place.at + choices.below(place.bytes.min(128));
        let byte = choices.byte();
        if let Some(into) = image.get_mut(at) {
            *into = byte;
        }
    }
    forger.seal(image, place.at, place.epoch);
}

/// A whole record made from the input, at the open end of a page or over another record.
fn forge_record(forger: &Forger, image: &mut [u8], base: &Base, choices: &mut Choices<'_>) {
    let over = choices.byte().is_multiple_of(3);
    let places = if over {
        &base.survey.records
    } else {
        &base.survey.open_ends
    };
    let Some(place) = pick(places, choices) else {
        return;
    };
    let mut at = place.at;
    for _ in 0..=choices.byte() % 3 {
        let kind = choices.byte() % 6;
        let key = key(choices.below(KEYS));
        let key = if kind == 5 {
            &key[..key.len().min(64)]
        } else {
            &key[..key.len().min(2000)]
        };
        let value = match kind {
            2 | 4 | 5 => chain(base, choices),
            3 => journal(choices),
            _ => choices.string().to_vec(),
        };
        let forged = Forged {
            kind,
            key,
            value: &value,
            expires_at_ms: *choices.of(&[0, 0, 1, NOW_MS, NOW_MS + 1, u64::MAX]),
            version: choices.number(),
            moves: if choices.flag() { choices.short() } else { 0 },
            first: choices.flag(),
        };
        at += forger.record(image, at, place.epoch, &forged);
    }
}

/// The place of a chained value: bytes, first block and pieces, bytes of key, name.
fn chain(base: &Base, choices: &mut Choices<'_>) -> Vec<u8> {
    let block_bytes = base.geometry[0] * base.geometry[1];
    let piece = pick(&base.survey.pieces, choices);
    let (first, name) = piece.map_or((0, 0), |place| {
        (
            place.at as u64 / block_bytes,
            word_at(&base.image, place.at + 56),
        )
    });
    let first = if choices.flag() {
        choices.number()
    } else {
        first
    };
    let pieces = choices.number();
    let bytes = if choices.flag() {
        choices.number()
    } else {
        pieces.wrapping_mul(block_bytes - 64)
    };
    let words = [
        bytes,
        first & 0xffff_ffff | pieces << 32,
        choices.number(),
        name,
    ];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Operations of a batch, mostly valid.
fn journal(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..=choices.byte() % 4 {
        let operation = u64::from(choices.byte() % 5);
        let key = if operation == 3 {
            Vec::new()
        } else {
            key(choices.below(KEYS))
        };
        let value = if operation == 1 {
            choices.string()
        } else {
            &[]
        };
        let key_bytes = if choices.byte() == 255 {
            choices.number()
        } else {
            key.len() as u64
        };
        let words = [
            operation | key_bytes << 8,
            value.len() as u64,
            choices.number(),
            0,
        ];
        payload.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        payload.extend_from_slice(&key);
        payload.extend_from_slice(value);
    }
    payload
}

fn pick(places: &[Place], choices: &mut Choices<'_>) -> Option<Place> {
    (!places.is_empty()).then(|| *choices.of(places))
}

fn word_at(image: &[u8], at: usize) -> u64 {
    let bytes = image.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
