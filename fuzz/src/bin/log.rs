//! Fuzzing target: recovery of the redo log from arbitrary segment files. It cuts logs that the log wrote,
//! copies parts of them over others, forges them, and also tries files of any bytes. Recovery returns a typed
//! error or an image. Inspection and opening agree, and opening again gives the same.
#![no_main]

use cap::Cap;
use everdram_fuzz::MEMORY_BYTES_MAX;
use everdram_fuzz::choices::Choices;
use everdram_pm::Error;
use everdram_pm::fuzzing::{self, Frames, Shape};
use everdram_pm::lab::Disk;
use libfuzzer_sys::fuzz_target;
use std::alloc::System;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

const SEGMENT: usize = 8 << 10;
const IMAGE: u64 = 32 << 10;
/// Where the image's lines that the log may change begin.
const ROOT_AT: u64 = 8192;
/// Most files of one log.
const FILES: usize = 4;

static BASES: LazyLock<Vec<Vec<Vec<u8>>>> = LazyLock::new(|| (0..3).map(base).collect());

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let mut files = match choices.below(BASES.len() + 1) {
        number if number < BASES.len() => BASES[number].clone(),
        _ => any_files(&mut choices),
    };
    let checkpoint_lsn = match choices.byte() % 8 {
        0..=4 => 0,
        5 | 6 => 4096 * u64::from(choices.byte() % 8),
        _ => choices.number().min(1 << 62),
    };
    let shape = Shape {
        image_bytes: IMAGE,
        segment_bytes: SEGMENT as u64,
        checkpoint_lsn,
    };
    let go_on = choices.byte() % 4 == 3;
    change(&mut files, &mut choices);
    judge(&files, shape, go_on);
});

/// A log: groups of lines, some in one batch, some each by itself.
fn base(number: u64) -> Vec<Vec<u8>> {
    let disk = Arc::new(Disk::new(BTreeMap::new(), None));
    let steps: Vec<(bool, Vec<(u64, u8)>)> = (0..6)
        .map(|step: u64| {
            let lines = (0..=(step + number) % 3)
                .map(|line| (ROOT_AT + 64 * (step * 5 + line), step as u8 + 1));
            (step.is_multiple_of(number + 1), lines.collect())
        })
        .collect();
    let shape = Shape {
        image_bytes: IMAGE,
        segment_bytes: SEGMENT as u64,
        checkpoint_lsn: 0,
    };
    fuzzing::write(&disk, shape, &steps).expect("a new log takes writes");
    let mut files = disk.files();
    (0..FILES)
        .map_while(|number| files.remove(&name(number)))
        .collect()
}

/// Files taken from the input alone.
fn any_files(choices: &mut Choices<'_>) -> Vec<Vec<u8>> {
    let count = choices.byte() as usize % FILES;
    (0..count).map(|_| choices.string().to_vec()).collect()
}

fn change(files: &mut Vec<Vec<u8>>, choices: &mut Choices<'_>) {
    let mut unchained = Vec::new();
    let mut sealed = false;
    for _ in 0..32 {
        if choices.is_empty() || files.is_empty() {
            break;
        }
        let file = choices.below(files.len());
        match choices.byte() % 8 {
            0 => flip(&mut files[file], choices),
            1 => {
                let length = choices.number().min(2 * SEGMENT as u64);
                files[file].resize(length as usize, 0);
            }
            2 => copy(files, file, choices),
            3 if files.len() > 1 => drop(files.remove(file)),
            4 => unchained.push(choices.below(12)),
            5 => {
                let bytes = choices.string();
                let at = 4096 * choices.below(SEGMENT / 4096);
                if let Some(into) = files[file].get_mut(at..at + bytes.len()) {
                    into.copy_from_slice(bytes);
                }
            }
            _ => {
                sealed = true;
                forge(files, choices);
            }
        }
    }
    if sealed || !unchained.is_empty() {
        Frames::find(files).seal(files, &unchained);
    }
}

fn flip(file: &mut [u8], choices: &mut Choices<'_>) {
    let at = choices.below(file.len());
    let mask = choices.byte();
    if let Some(byte) = file.get_mut(at) {
        *byte ^= mask;
    }
}

/// Copies a block over another one, as after a lost or misdirected write.
fn copy(files: &mut [Vec<u8>], to: usize, choices: &mut Choices<'_>) {
    let blocks = SEGMENT / 4096;
    let from = choices.below(files.len());
    let (source, target) = (4096 * choices.below(blocks), 4096 * choices.below(blocks));
    let Some(block) = files[from].get(source..source + 4096).map(<[u8]>::to_vec) else {
        return;
    };
    if let Some(into) = files[to].get_mut(target..target + 4096) {
        into.copy_from_slice(&block);
    }
}

/// A word of a frame's header, or of its first entry.
fn forge(files: &mut [Vec<u8>], choices: &mut Choices<'_>) {
    let frames = Frames::find(files);
    if frames.is_empty() {
        return;
    }
    let (file, at) = frames.place(choices.below(frames.len()));
    let at = at + 8 * choices.below(12);
    let Some(into) = files[file].get_mut(at..at + 8) else {
        return;
    };
    let before = into
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let after = match choices.byte() % 4 {
        0 => before.wrapping_add_signed(64 * i64::from(choices.byte() as i8)),
        1 => before.wrapping_add_signed(4096 * i64::from(choices.byte() as i8)),
        _ => choices.number(),
    };
    into.copy_from_slice(&after.to_le_bytes());
}

fn judge(files: &[Vec<u8>], shape: Shape, go_on: bool) {
    let named = (0..).map(name).zip(files.iter().cloned());
    let disk = Arc::new(Disk::new(named.collect(), None));
    let looked = fuzzing::recover(&disk, shape, false);
    let mut after = disk.files();
    let unchanged =
        |(number, file): (usize, &Vec<u8>)| after.remove(&name(number)).as_ref() == Some(file);
    assert!(
        files.iter().enumerate().all(unchanged),
        "looking has changed a file"
    );
    let opened = fuzzing::recover(&disk, shape, true);
    match (looked, opened) {
        (Ok(looked), Ok(opened)) => {
            assert!(looked.image == opened.image, "looking and opening disagree");
            let again = fuzzing::recover(&disk, shape, true);
            let again = again.expect("a log that was recovered is refused");
            assert!(again == opened, "recovering again gives something else");
            if go_on {
                continues(&disk, shape, &opened.image);
            }
        }
        (Err(looked), Err(opened)) => {
            is_damage(&looked);
            is_damage(&opened);
        }
        (looked, opened) => panic!("looking: {looked:?}; opening: {:?}", opened.map(|_| ())),
    }
}

fn is_damage(error: &Error) {
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

/// A recovered log accepts more, and what it accepts is there together with all earlier data.
fn continues(disk: &Arc<Disk>, shape: Shape, before: &[u8]) {
    let (at, byte) = (ROOT_AT + 4096, 0x5a);
    match fuzzing::write(disk, shape, &[(true, vec![(at, byte)])]) {
        Ok(()) => {
            let after = fuzzing::recover(disk, shape, false).expect("its own log is refused");
            let mut expected = before.to_vec();
            expected[at as usize..at as usize + 64].fill(byte);
            assert!(
                after.image == expected,
                "what was acknowledged is not there"
            );
        }
        // The only other result: more segments are in use than the log may have.
        Err(error) => assert!(matches!(error, Error::NoSpace { .. }), "{error}"),
    }
}

fn name(number: usize) -> String {
    format!("log-{number:06}")
}
