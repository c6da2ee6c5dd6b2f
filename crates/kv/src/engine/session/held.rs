//! A key that a call holds, from its lock to the change that releases it.

use crate::concurrency::stripes::StripeId;
use crate::engine::backend::{Backend, Change, Seen, Taken, with_room_for};
use crate::engine::session::SCRATCH_KEEP;
use crate::engine::{Ticket, check_value};
use crate::error::Error;

/// Releases a stripe if a caller's closure panics; forgotten once the closure has returned.
struct OnPanic<'s, B: Backend>(&'s mut B, StripeId);

impl<B: Backend> Drop for OnPanic<'_, B> {
    fn drop(&mut self) {
        self.0.give_back(self.1);
    }
}

/// Runs a caller's closure while a stripe is held.
pub(super) fn ask<B: Backend, T>(
    session: &mut B,
    stripe: StripeId,
    closure: impl FnOnce() -> T,
) -> T {
    let on_panic = OnPanic(session, stripe);
    let said = closure();
    std::mem::forget(on_panic);
    said
}

/// Takes the stripe of a key. From here on no other session changes the key.
#[inline(always)]
pub(super) fn take_key<B: Backend>(session: &mut B, key: &[u8]) -> Result<Taken, Error> {
    session.await_known(Some(&[key]))?;
    let hash = session.hash(key);
    let stripe = session.stripe(hash);
    session.prefetch(hash);
    session.acquire(stripe)?;
    let stamp = session.engine().stripes.stamp(stripe);
    session.core_mut().last_read = Ticket(stamp);
    Ok(Taken { hash, stripe })
}

/// Releases the stripe if the look at the key failed.
#[inline(always)]
pub(super) fn or_give_back<B: Backend>(
    session: &mut B,
    taken: Taken,
    seen: Result<Seen<B::At>, Error>,
) -> Result<Seen<B::At>, Error> {
    seen.map_err(|error| {
        session.give_back(taken.stripe);
        session.engine().at_path(error)
    })
}

/// Submits the decided change of a held key, if its value is valid. Notes in `room` how many bytes it takes.
#[inline]
pub(super) fn submit<B: Backend>(
    session: &mut B,
    taken: Taken,
    key: &[u8],
    seen: &Seen<B::At>,
    change: Change<'_>,
    room: &mut usize,
) -> Result<(), Error> {
    let possible = session.engine().healthy();
    if let Err(error) = possible.and_then(|()| check_value(change.value())) {
        session.give_back(taken.stripe);
        return Err(error);
    }
    *room = key.len() + change.value().len();
    session.submit(taken, key, seen, change)
}

/// Takes a key and runs `work` with two empty buffers, which are reused; again, if there was no room.
pub(super) fn with_values<B: Backend, T>(
    session: &mut B,
    key: &[u8],
    mut work: impl FnMut(&mut B, Taken, [&mut Vec<u8>; 2], &mut usize) -> Result<T, Error>,
) -> Result<T, Error> {
    let done = with_room_for(session, |session, room| {
        let taken = take_key(session, key)?;
        with_buffers(session, |session, buffers| {
            work(session, taken, buffers, room)
        })
    });
    done.map_err(|error| session.engine().at_path(error))
}

/// Runs `work` with two empty buffers, which are reused.
pub(super) fn with_buffers<B: Backend, T>(
    session: &mut B,
    work: impl FnOnce(&mut B, [&mut Vec<u8>; 2]) -> Result<T, Error>,
) -> Result<T, Error> {
    let core = session.core_mut();
    let mut buffers = [&mut core.current, &mut core.value].map(std::mem::take);
    let result = work(session, buffers.each_mut());
    for buffer in &mut buffers {
        buffer.clear();
        buffer.shrink_to(SCRATCH_KEEP);
    }
    let core = session.core_mut();
    [core.current, core.value] = buffers;
    session.trim();
    result
}
