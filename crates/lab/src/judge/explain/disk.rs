//! What a crash lost of files: sectors, lengths and names, with the writes and syncs of each.

use super::{Loss, event};
use crate::explore::crash::Crash;
use crate::medium::directory::is_in;
use crate::medium::lines::{Mute, Muted, key};
use crate::medium::sectors::{Part, SECTOR, Sectors, part};
use crate::medium::unit::{FILES, Unit};
use crate::run::trace::{DiskStep, Step, StepId};

/// Neighbouring sectors that lost the same writes.
struct Stretch {
    file: u32,
    part: Part,
    sectors: u64,
    steps: Vec<StepId>,
}

/// What each file lost, and why it could be lost.
pub(crate) fn losses(
    crash: &Crash,
    trace: &[Step],
    sectors: &Sectors,
    units: &[Unit],
    mute: Option<Mute>,
) -> Vec<Loss> {
    let mut losses = Vec::new();
    for stretch in stretches(crash, units) {
        let file = sectors.name(stretch.file).unwrap_or("a file");
        let mut sites: Vec<String> = stretch
            .steps
            .iter()
            .map(|&step| format!("without {} (step {step})", event(&trace[step as usize])))
            .collect();
        sites.push(sync(crash, trace, (&stretch, file), mute));
        losses.push(Loss {
            place: place(file, &stretch),
            sites,
        });
    }
    losses
}

fn stretches(crash: &Crash, units: &[Unit]) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for (place, held) in crash.held.iter().filter(|(place, _)| *place >= FILES) {
        let Some(unit) = units.iter().find(|unit| unit.place == *place) else {
            continue;
        };
        let steps = missing(unit, held);
        if steps.is_empty() {
            continue;
        }
        let (file, part) = part(*place);
        if let (Some(last), Part::Sector(sector)) = (stretches.last_mut(), part)
            && let Part::Sector(first) = last.part
            && (last.file, first + last.sectors, &last.steps) == (file, sector, &steps)
        {
            last.sectors += 1;
            continue;
        }
        stretches.push(Stretch {
            file,
            part,
            sectors: 1,
            steps,
        });
    }
    stretches
}

/// The steps after the newest one whose contents survived.
fn missing(unit: &Unit, held: &[u8]) -> Vec<StepId> {
    let newer = unit
        .prefixes
        .iter()
        .rev()
        .take_while(|(_, choice)| *unit.choices[*choice].bytes != *held);
    let mut steps: Vec<StepId> = newer.map(|&(step, _)| step).collect();
    steps.reverse();
    steps
}

fn place(file: &str, stretch: &Stretch) -> String {
    match stretch.part {
        Part::Length => format!("{file}: its length"),
        Part::Entry => format!("{file}: its entry in the directory"),
        Part::Sector(first) => {
            let (from, to) = (first, first + stretch.sectors);
            let bytes = SECTOR as u64;
            let (from, to) = (from * bytes, to * bytes);
            format!("{file}: bytes {from}..{to} (sectors: {})", stretch.sectors)
        }
    }
}

/// The sync that would have made it certain.
fn sync(
    crash: &Crash,
    trace: &[Step],
    (stretch, file): (&Stretch, &str),
    mute: Option<Mute>,
) -> String {
    let newest = stretch.steps.last().copied().unwrap_or_default();
    let mut failed = None;
    for (id, step) in trace.iter().enumerate().skip(newest as usize + 1) {
        let Step::Disk { step: call, site } = step else {
            continue;
        };
        let (covers, ok) = match call {
            DiskStep::Sync { file: synced, ok } => {
                (*synced == stretch.file && stretch.part != Part::Entry, *ok)
            }
            DiskStep::SyncDirectory { folder, ok } => {
                (stretch.part == Part::Entry && is_in(folder, file), *ok)
            }
            _ => continue,
        };
        let is_muted = mute.is_some_and(|mute| mute.what == Muted::Sync && mute.site == key(site));
        if !covers || is_muted {
            continue;
        }
        if !ok {
            failed.get_or_insert(id);
            continue;
        }
        return match failed {
            Some(failed) => format!("given up by {} (step {failed})", event(&trace[failed])),
            None if id == crash.step as usize => {
                format!("certain only at {}, which did not come", event(step))
            }
            None => format!("certain only at {} (step {id})", event(step)),
        };
    }
    match failed {
        Some(failed) => format!("given up by {} (step {failed})", event(&trace[failed])),
        None => "never synced afterwards".into(),
    }
}
