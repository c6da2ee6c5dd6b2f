//! What a crash lost of a memory: words of lines, with the stores, flushes and fences of each.

use super::{Loss, event};
use crate::explore::crash::Crash;
use crate::medium::lines::{Atom, Line, Lines, Mute, Muted, key};
use crate::run::trace::{Step, StepId};
use everdram_pm::LINE;
use everdram_pm::lab::Actor;
use std::collections::BTreeMap;

/// What each line lost, and why it could be lost.
pub(crate) fn losses(
    crash: &Crash,
    trace: &[Step],
    lines: &Lines,
    mute: Option<Mute>,
) -> Vec<Loss> {
    let after = After { crash, trace, mute };
    let mut losses = Vec::new();
    for (place, held) in &crash.held {
        let Some(line) = lines.line(*place) else {
            continue;
        };
        let missing = missing(line, held);
        if missing.is_empty() {
            continue;
        }
        let words: usize = missing.values().map(Vec::len).sum();
        let first = place * LINE;
        let mut sites = Vec::new();
        for (step, atoms) in &missing {
            sites.push(format!(
                "{} bytes of {} (step {step})",
                8 * atoms.len(),
                event(&trace[*step as usize])
            ));
            sites.extend(after.fate(*place, *step, atoms[0]));
        }
        sites.dedup();
        losses.push(Loss {
            place: format!(
                "bytes {first}..{}: {} of {LINE} lost",
                first + LINE,
                8 * words
            ),
            sites,
        });
    }
    losses
}

/// The words that were lost, by the step that stored them. A word was lost if the line holds an older one.
fn missing<'a>(line: &'a Line, held: &[u8]) -> BTreeMap<StepId, Vec<&'a Atom>> {
    let mut missing: BTreeMap<StepId, Vec<&Atom>> = BTreeMap::new();
    for (word, bytes) in held.as_chunks::<8>().0.iter().enumerate() {
        let stored = line.atoms().iter().filter(|atom| atom.word() == word);
        let newer = stored
            .rev()
            .take_while(|atom| atom.value().to_le_bytes() != *bytes && !atom.is_certain());
        for atom in newer {
            missing.entry(atom.step).or_default().push(atom);
        }
    }
    missing
}

/// The trace after a store.
struct After<'a> {
    crash: &'a Crash,
    trace: &'a [Step],
    mute: Option<Mute>,
}

impl After<'_> {
    /// The flush of the store, and the fence that would have made it certain.
    fn fate(&self, line: u64, stored: StepId, atom: &Atom) -> Vec<String> {
        if atom.is_streamed() {
            let way = "past the cache, without a flush".to_owned();
            return vec![way, self.fence(stored, atom.actor())];
        }
        let Some((at, actor)) = self.flush(line, stored) else {
            return vec!["never flushed afterwards".into()];
        };
        let flush = event(&self.trace[at as usize]);
        if at >= self.crash.step {
            return vec![format!("not flushed yet: {flush} came later (step {at})")];
        }
        vec![
            format!("on its way since {flush} (step {at})"),
            self.fence(at, actor),
        ]
    }

    fn steps_after(&self, step: StepId) -> impl Iterator<Item = (StepId, &Step)> {
        let steps = self.trace.iter().enumerate().skip(step as usize + 1);
        steps.map(|(id, step)| (id as StepId, step))
    }

    fn is_muted(&self, what: Muted, step: &Step) -> bool {
        let site = match step {
            Step::Flush { site, .. } | Step::Fence { site, .. } => site,
            _ => return false,
        };
        self.mute
            .is_some_and(|mute| mute.what == what && mute.site == key(site))
    }

    /// The first flush of a line after a step, and its actor.
    fn flush(&self, line: u64, after: StepId) -> Option<(StepId, Actor)> {
        self.steps_after(after).find_map(|(id, step)| match step {
            Step::Flush {
                actor, at, bytes, ..
            } if (at / LINE..(at + bytes).div_ceil(LINE)).contains(&line)
                && !self.is_muted(Muted::Flush, step) =>
            {
                Some((id, *actor))
            }
            _ => None,
        })
    }

    /// The first fence of an actor after a step. It comes after the crash, or nothing would have been lost.
    fn fence(&self, after: StepId, by: Actor) -> String {
        let mut fences = self.steps_after(after).filter(|(_, step)| {
            matches!(step, Step::Fence { actor, .. } if *actor == by)
                && !self.is_muted(Muted::Fence, step)
        });
        match fences.next() {
            Some((id, step)) if id == self.crash.step => {
                format!("certain only at {}, which did not come", event(step))
            }
            Some((id, step)) => format!("certain only at {} (step {id})", event(step)),
            None => "never fenced afterwards".into(),
        }
    }
}
