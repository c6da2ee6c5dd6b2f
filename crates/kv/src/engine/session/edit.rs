//! Changes of a part of a value.

use super::held::{ask, or_give_back, submit, take_key, with_buffers, with_values};
use crate::engine::backend::{Backend, Change, Edit, Seen, Taken, with_room, with_room_for};
use crate::engine::check_key;
use crate::engine::part::Part;
use crate::error::Error;

/// Changes a part of a value. Returns its length before and after; `None`: the key is absent, and was not
/// given a length.
pub(super) fn edit_part<B: Backend>(
    session: &mut B,
    key: &[u8],
    part: Part<'_>,
) -> Result<Option<[u64; 2]>, Error> {
    check_key(key)?;
    session.engine().healthy()?;
    session.room_for(None)?;
    let is_cut = matches!(part, Part::Length(_));
    if B::HAS_PARTS {
        let (_, bytes) = part.bytes(0);
        let edited = with_room(session, key.len() + bytes.len(), |session| {
            let taken = take_key(session, key)?;
            let located = session.locate(taken, key);
            let seen = or_give_back(session, taken, located)?;
            if is_cut && !seen.is_live {
                session.give_back(taken.stripe);
                return Ok(None);
            }
            session.submit_part(taken, key, &seen, part).map(Some)
        });
        session.trim();
        return edited.map_err(|error| session.engine().at_path(error));
    }
    with_values(session, key, |session, taken, [_, value], room| {
        let looked = session.see(taken, key, value);
        let seen = or_give_back(session, taken, looked)?;
        if is_cut && !seen.is_live {
            session.give_back(taken.stripe);
            return Ok(None);
        }
        let before = value.len() as u64;
        if let Err(error) = part.apply(value) {
            session.give_back(taken.stripe);
            return Err(error);
        }
        let after = value.len() as u64;
        let change = Change::Put {
            value,
            expires_at_ms: if seen.is_live { seen.expires_at_ms } else { 0 },
        };
        submit(session, taken, key, &seen, change, room)?;
        Ok(Some([before, after]))
    })
}

/// Changes an 8-byte word of a value. Returns the words before and after, or `None` if the key is absent.
#[inline]
pub(super) fn edit_word<'e, B: Backend>(
    session: &mut B,
    key: &[u8],
    at: usize,
    edit: impl Fn(u64, [u64; 2]) -> Edit<'e>,
    change: &mut dyn FnMut(u64) -> u64,
) -> Result<Option<[u64; 2]>, Error> {
    check_key(key)?;
    session.engine().healthy()?;
    session.room_for(None)?;
    let edited = with_room_for(session, |session, room| {
        let taken = take_key(session, key)?;
        let changed = session.change_in_place(taken, key, at, change);
        if changed.is_err() {
            session.give_back(taken.stripe);
        }
        match changed? {
            None => edit_word_of_copy(session, taken, (key, at), room, &edit, change),
            words => {
                session.trim();
                Ok(words)
            }
        }
    });
    edited.map_err(|error| session.engine().at_path(error))
}

/// As [`edit_word`], on a held stripe, where the word cannot be changed in place.
#[inline(never)]
fn edit_word_of_copy<'e, B: Backend>(
    session: &mut B,
    taken: Taken,
    (key, at): (&[u8], usize),
    room: &mut usize,
    edit: &impl Fn(u64, [u64; 2]) -> Edit<'e>,
    change: &mut dyn FnMut(u64) -> u64,
) -> Result<Option<[u64; 2]>, Error> {
    with_buffers(session, |session, [_, value]| {
        let looked = match B::HAS_PARTS {
            true => session.locate(taken, key),
            false => session.see(taken, key, value),
        };
        let seen = or_give_back(session, taken, looked)?;
        if !seen.is_live {
            session.give_back(taken.stripe);
            return Ok(None);
        }
        if B::HAS_PARTS {
            *room = key.len();
            return edit_word_of_part(session, (taken, key, seen), at, value, change);
        }
        let len = value.len();
        let word = value
            .get_mut(at..)
            .and_then(|rest| rest.first_chunk_mut::<8>())
            .filter(|_| at.is_multiple_of(8));
        let Some(word) = word else {
            session.give_back(taken.stripe);
            return Err(Error::WordOutside { at, len });
        };
        let before = u64::from_le_bytes(*word);
        let after = ask(session, taken.stripe, || change(before));
        *word = after.to_le_bytes();
        let edited = Change::Edit {
            value,
            expires_at_ms: seen.expires_at_ms,
            edit: edit(at as u64, [before, after]),
        };
        submit(session, taken, key, &seen, edited, room)?;
        Ok(Some([before, after]))
    })
}

/// As [`edit_word_of_copy`], of an engine that need not read the rest of the value.
fn edit_word_of_part<B: Backend>(
    session: &mut B,
    (taken, key, seen): (Taken, &[u8], Seen<B::At>),
    at: usize,
    buffer: &mut Vec<u8>,
    change: &mut dyn FnMut(u64) -> u64,
) -> Result<Option<[u64; 2]>, Error> {
    let from = at as u64;
    let length = session.see_part(&seen, from..from.saturating_add(8), buffer);
    let length = length.map_err(|error| {
        session.give_back(taken.stripe);
        session.engine().at_path(error)
    })?;
    let word = buffer.first_chunk::<8>().filter(|_| at.is_multiple_of(8));
    let Some(word) = word.map(|word| u64::from_le_bytes(*word)) else {
        session.give_back(taken.stripe);
        let len = length as usize;
        return Err(Error::WordOutside { at, len });
    };
    let after = ask(session, taken.stripe, || change(word));
    let bytes = &after.to_le_bytes();
    let part = Part::Write { at: from, bytes };
    session.submit_part(taken, key, &seen, part)?;
    Ok(Some([word, after]))
}
