//! One input of a target whose pools have files beside them: pool and files are damaged or forged, opened,
//! used, and opened again after a crash.

use crate::choices::Choices;
use crate::damage;
use crate::pools::Base;
use crate::visit::{Left, same, visit, visit_again};
use everdram::Error;
use everdram_pm::fuzzing::{forge_sums, seal_superblocks};

/// The second of `bases` are those whose sums hold for any bytes.
///
/// # Panics
/// If a pool that was open is refused, or a key of a damaged one reads as something else than before.
pub fn run(bases: &[Vec<Base>; 2], input: &[u8]) {
    let mut choices = Choices::new(input);
    let is_forged = choices.flag();
    let base = choices.of(&bases[usize::from(is_forged)]);
    let mut left = Left::of(base);
    for _ in 0..2 {
        match choices.byte() % 3 {
            0 => {
                for file in left.files.values_mut() {
                    damage::damage_any(file, true, &mut choices);
                }
            }
            _ => damage::damage_any(&mut left.image, false, &mut choices),
        }
    }
    forge_sums(is_forged);
    if is_forged {
        seal_superblocks(&mut left.image);
    }
    live(left, (!is_forged).then_some(base));
    forge_sums(false);
}

/// The pool is opened and used, and once more after a crash. `base`: what may be read.
fn live(left: Left, base: Option<&Base>) {
    let Ok((contents, after)) = visit(left, base) else {
        return;
    };
    match visit_again(after, &contents) {
        Ok(again) if base.is_some() => same(&contents, &again),
        // What is behind a map, or in a log that was not read, is looked at when somebody needs it.
        Ok(_) | Err(Error::Corrupt { .. } | Error::Pool(_)) => {}
        Err(error) => panic!("a pool that was open is refused after a crash: {error}"),
    }
}
