//! Whether a peer can write behind the memory that was exposed to it.
//!
//! A scratch area has a canary behind it, in memory of the probe. First an honest peer names a range that
//! goes beyond the area: a provider that lets it has no wall at all. Then hand-made peers forge lengths.

use super::forger::Forger;
use super::{Bounds, PATIENCE, Pair, Reason, SIZES, take, text, within};
use crate::{Area, Completion, Event, Library, Listener, Port};
use std::net::SocketAddr;

/// Bytes of the scratch area.
const AREA_BYTES: usize = 4096;
/// Bytes of the canary behind it. Nobody sends more than both have.
const CANARY_BYTES: usize = 4096;
/// The whole payload of a forger.
const PAYLOAD: [u8; AREA_BYTES + CANARY_BYTES] = [0xee; AREA_BYTES + CANARY_BYTES];

/// See the module text.
pub(super) fn probe(library: &'static Library, provider: &str, at: SocketAddr) -> Bounds {
    let tried = honest(library, provider, at).and_then(|kept| {
        if !kept || provider != "tcp" {
            return Ok(kept);
        }
        for forgery in [Forgery::LongPayload, Forgery::WrappedLength] {
            if !forged(library, at, forgery)? {
                return Ok(false);
            }
        }
        Ok(true)
    });
    match tried {
        Ok(false) => Bounds::Forgeable,
        Ok(true) if provider == "tcp" => Bounds::Kept,
        Ok(true) if provider == "verbs" => Bounds::ByDevice,
        Ok(true) => Bounds::Unknown(format!(
            "honest peers are kept inside; nobody here knows how to forge a message of `{provider}`"
        )),
        Err(reason) => Bounds::Unknown(reason),
    }
}

/// Whether nothing behind an area has changed.
fn is_intact(port: &Port, area: &Area) -> bool {
    let mut canary = [0xff; CANARY_BYTES];
    port.read_behind(area, &mut canary);
    canary == [0; CANARY_BYTES]
}

/// A peer asks the library for a write whose range ends behind the area. True: it is refused.
fn honest(library: &'static Library, provider: &str, at: SocketAddr) -> Result<bool, Reason> {
    let mut pair = Pair::connect(library, provider, at)?;
    let area = pair
        .target
        .expose_before(pair.served, AREA_BYTES, CANARY_BYTES)
        .map_err(text)?;
    let behind = area.address + AREA_BYTES as u64 - 8;
    let bytes = &PAYLOAD[..64];
    pair.initiator
        .write(pair.conn, &[bytes], behind, area.key, 0, Completion::Sent)
        .map_err(text)?;
    let mut events = Vec::new();
    within("a write beyond the end of an area is refused", || {
        take(&mut pair.initiator, &mut events)?;
        let mut is_over = events.iter().any(|event| matches!(event, Event::Closed(_)));
        take(&mut pair.target, &mut events)?;
        is_over |= events.iter().any(|event| matches!(event, Event::Closed(_)));
        Ok(is_over || !is_intact(&pair.target, &area))
    })?;
    Ok(is_intact(&pair.target, &area))
}

/// What a hand-made peer claims.
#[derive(Clone, Copy, Debug)]
enum Forgery {
    /// A range that fits, and a payload that is longer.
    LongPayload,
    /// A range whose end, counted modulo 2^64, lies before its start (libfabric 12826).
    WrappedLength,
}

impl Forgery {
    fn claimed_bytes(self) -> u64 {
        match self {
            Forgery::LongPayload => AREA_BYTES as u64,
            Forgery::WrappedLength => u64::MAX,
        }
    }
}

/// A hand-made peer forges a length. True: it is refused, and had been understood before.
fn forged(library: &'static Library, at: SocketAddr, forgery: Forgery) -> Result<bool, Reason> {
    let mut listener = Listener::bind(library, "tcp", at).map_err(text)?;
    let mut target = Port::of(&listener, SIZES).map_err(text)?;
    let mut forger = Forger::connect(listener.local_address(), PATIENCE)?;
    let incoming = listener.wait(PATIENCE).map_err(text)?;
    let incoming = incoming.ok_or("the provider does not understand a hand-made peer")?;
    let conn = target.accept(incoming, 1).map_err(text)?;
    let mut events = Vec::new();
    within("a connection of a hand-made peer opens", || {
        take(&mut target, &mut events)?;
        Ok(events.iter().any(|event| matches!(event, Event::Opened(_))))
    })?;
    forger.greet()?;
    let area = target
        .expose_before(conn, AREA_BYTES, CANARY_BYTES)
        .map_err(text)?;

    // Without this a provider that speaks another protocol would pass as one that refuses.
    forger.write(area.address, area.key, 8, &[1; 8])?;
    within("an honest write of a hand-made peer arrives", || {
        take(&mut target, &mut events)?;
        let mut word = [0; 8];
        target.read_area(&area, 0, &mut word).map_err(text)?;
        Ok(word == [1; 8])
    })?;

    forger.write(area.address, area.key, forgery.claimed_bytes(), &PAYLOAD)?;
    within("a forged write is refused or arrives", || {
        take(&mut target, &mut events)?;
        let is_closed = events.iter().any(|event| matches!(event, Event::Closed(_)));
        Ok(is_closed || forger.is_over() || !is_intact(&target, &area))
    })?;
    Ok(is_intact(&target, &area))
}
