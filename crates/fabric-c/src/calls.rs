//! The functions of the header, which says what each does.
//!
//! Each judges its outputs before anything is sent, so that no change is made whose outcome has no place.

use crate::boundary::{bytes, copy, give, guarded, input, judge, last_text, text};
use crate::clients::{self, Client};
use crate::code::{ABSENT, ARGUMENT, Failure, NO_VALUE, OK};
use everdram_fabric::{ClientOptions, Cluster, ClusterClient, ClusterError, Outcome, Ticket, Way};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// See the header.
pub const VERSION: u32 = 1;
/// Bytes of an address, with its zero.
pub const ADDRESS_BYTES: usize = 96;
/// The ways, as the header numbers them.
pub const WAYS: [(&str, Way); 6] = [
    ("AUTO", Way::Auto),
    ("INLINE", Way::Inline),
    ("SERVER_ASSISTED", Way::ServerAssisted),
    ("CLIENT_CENTRIC", Way::ClientCentric),
    ("CLIENT_CENTRIC_ASKED", Way::ClientCentricAsked),
    ("CLIENT_CENTRIC_IMMEDIATE", Way::ClientCentricImmediate),
];

/// See the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Done {
    /// The call.
    pub ticket: u64,
    /// What became of it.
    pub code: i32,
    /// How its value travelled.
    pub way: i32,
    /// What [`everdram_take`] copies.
    pub value_bytes: u64,
    /// Unix ms; 0 = never.
    pub expires_at_ms: u64,
}

/// See the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Server {
    /// With a zero behind it.
    pub address: [u8; ADDRESS_BYTES],
    /// The uuid of its pool.
    pub pool: [u8; 16],
    /// Slots of keys.
    pub slots: u32,
    /// 1 or 0.
    pub takes_client_centric: u32,
}

fn way(number: i32) -> Result<Way, Failure> {
    let place = usize::try_from(number).ok();
    let named = place.and_then(|place| WAYS.get(place));
    let no_way = || Failure::new(ARGUMENT, "way: none of EVERDRAM_WAY_...");
    named.map(|(_, way)| *way).ok_or_else(no_way)
}

fn number(way: Way) -> i32 {
    let place = WAYS.iter().position(|(_, known)| *known == way);
    place.unwrap_or_default() as i32
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn everdram_version() -> u32 {
    VERSION
}

/// See the header.
///
/// # Safety
/// `addresses` has `count` texts, `password` is a text or null, `client` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_connect(
    addresses: *const *const c_char,
    count: usize,
    password: *const c_char,
    timeout_ms: u32,
    client: *mut u64,
) -> i32 {
    guarded(|| {
        judge(client, 1, "client")?;
        // SAFETY: this function's condition.
        let pointers = unsafe { input(addresses, count, "addresses") }?;
        let mut addresses = Vec::new();
        for &address in pointers {
            // SAFETY: this function's condition.
            addresses.push(unsafe { text(address, "an address") }?);
        }
        let mut options = ClientOptions::default();
        if !password.is_null() {
            // SAFETY: this function's condition.
            let password = unsafe { text(password, "password") }?;
            options.password = Some(password.to_owned());
        }
        if timeout_ms > 0 {
            options.connect_timeout = Duration::from_millis(timeout_ms.into());
        }
        let cluster = Cluster::connect(&addresses, &options)?;
        let number = clients::add(cluster.client());
        // SAFETY: this function's condition.
        unsafe { give(client, number, "client") }?;
        Ok(OK)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn everdram_close(client: u64) -> i32 {
    guarded(|| clients::close(client).map(|()| OK))
}

/// See the header.
///
/// # Safety
/// `count` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_servers(client: u64, count: *mut usize) -> i32 {
    guarded(|| {
        let servers = clients::with(client, |one| Ok(one.client.cluster().servers().len()))?;
        // SAFETY: this function's condition.
        unsafe { give(count, servers, "count") }?;
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// `key` has `key_bytes` bytes; `place` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_server_of(
    client: u64,
    key: *const c_void,
    key_bytes: usize,
    place: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: this function's condition.
        let key = unsafe { bytes(key, key_bytes, "key") }?;
        let server = clients::with(client, |one| Ok(one.client.cluster().server_of(key)))?;
        // SAFETY: this function's condition.
        unsafe { give(place, server, "place") }?;
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// `server` and `text_bytes` may be written, and `room` bytes at `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_hello(
    client: u64,
    place: usize,
    server: *mut Server,
    text: *mut c_char,
    room: usize,
    text_bytes: *mut usize,
) -> i32 {
    guarded(|| {
        judge(server, 1, "server")?;
        judge(text_bytes, 1, "text_bytes")?;
        judge(text, room, "text")?;
        let (found, said) = clients::with(client, |one| hello(&mut one.client, place))?;
        // SAFETY: this function's condition.
        unsafe { give(server, found, "server") }?;
        // SAFETY: this function's condition.
        unsafe { copy(said.as_bytes(), text.cast(), room, text_bytes, "text") }?;
        Ok(OK)
    })
}

fn hello(client: &mut ClusterClient, place: usize) -> Result<(Server, String), Failure> {
    let cluster = client.cluster().clone();
    let server = cluster.servers().get(place);
    let server = server.ok_or_else(|| Failure::new(ARGUMENT, "place: there is no such server"))?;
    let connection = client.connection(place)?;
    let mut address = [0; ADDRESS_BYTES];
    // The last byte stays 0.
    let to = address.iter_mut().take(ADDRESS_BYTES - 1);
    to.zip(server.address().bytes())
        .for_each(|(to, from)| *to = from);
    let found = Server {
        address,
        pool: server.pool().0,
        slots: cluster.slots_of(place) as u32,
        takes_client_centric: u32::from(connection.takes_client_centric()),
    };
    Ok((found, connection.acknowledgement().to_owned()))
}

/// See the header.
///
/// # Safety
/// `key` has `key_bytes` bytes, and `value` has `value_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_put(
    client: u64,
    key: *const c_void,
    key_bytes: usize,
    value: *const c_void,
    value_bytes: usize,
    expires_at_ms: u64,
    way: i32,
) -> i32 {
    guarded(|| {
        // SAFETY: this function's condition.
        let key = unsafe { bytes(key, key_bytes, "key") }?;
        // SAFETY: this function's condition.
        let value = unsafe { bytes(value, value_bytes, "value") }?;
        let way = self::way(way)?;
        clients::with(client, |one| {
            one.client.put_expiring(key, value, expires_at_ms, way)?;
            Ok(OK)
        })
    })
}

/// See the header.
///
/// # Safety
/// `key` has `key_bytes` bytes; `room` bytes at `into` may be written, and `value_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_get(
    client: u64,
    key: *const c_void,
    key_bytes: usize,
    into: *mut c_void,
    room: usize,
    value_bytes: *mut usize,
) -> i32 {
    guarded(|| {
        judge(value_bytes, 1, "value_bytes")?;
        judge(into.cast::<u8>(), room, "into")?;
        // SAFETY: this function's condition.
        let key = unsafe { bytes(key, key_bytes, "key") }?;
        let found = clients::with(client, |one| Ok(one.client.get(key)?))?;
        let code = if found.is_some() { OK } else { ABSENT };
        let value = found.unwrap_or_default();
        // SAFETY: this function's condition. `key` is not read any more, so they may overlap.
        unsafe { copy(&value, into, room, value_bytes, "value") }?;
        Ok(code)
    })
}

/// See the header.
///
/// # Safety
/// `key` has `key_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_delete(client: u64, key: *const c_void, key_bytes: usize) -> i32 {
    guarded(|| {
        // SAFETY: this function's condition.
        let key = unsafe { bytes(key, key_bytes, "key") }?;
        let was_there = clients::with(client, |one| Ok(one.client.delete(key)?))?;
        Ok(if was_there { OK } else { ABSENT })
    })
}

/// See the header.
///
/// # Safety
/// `key` has `key_bytes` bytes, and `value` has `value_bytes`; `ticket` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_submit_put(
    client: u64,
    key: *const c_void,
    key_bytes: usize,
    value: *const c_void,
    value_bytes: usize,
    expires_at_ms: u64,
    way: i32,
    ticket: *mut u64,
) -> i32 {
    // SAFETY: this function's condition.
    let value = unsafe { bytes(value, value_bytes, "value") };
    let submit = |client: &mut ClusterClient, key: &[u8]| {
        let way = self::way(way)?;
        Ok(client.submit_put(key, value?, expires_at_ms, way)?)
    };
    // SAFETY: this function's condition.
    unsafe { submitted(client, key, key_bytes, ticket, submit) }
}

/// See the header.
///
/// # Safety
/// `key` has `key_bytes` bytes; `ticket` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_submit_get(
    client: u64,
    key: *const c_void,
    key_bytes: usize,
    ticket: *mut u64,
) -> i32 {
    let submit = |client: &mut ClusterClient, key: &[u8]| Ok(client.submit_get(key)?);
    // SAFETY: this function's condition.
    unsafe { submitted(client, key, key_bytes, ticket, submit) }
}

/// See the header.
///
/// # Safety
/// `key` has `key_bytes` bytes; `ticket` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_submit_delete(
    client: u64,
    key: *const c_void,
    key_bytes: usize,
    ticket: *mut u64,
) -> i32 {
    let submit = |client: &mut ClusterClient, key: &[u8]| Ok(client.submit_delete(key)?);
    // SAFETY: this function's condition.
    unsafe { submitted(client, key, key_bytes, ticket, submit) }
}

/// Submits a call about a key.
///
/// # Safety
/// `key` has `key_bytes` bytes; `ticket` may be written.
unsafe fn submitted(
    client: u64,
    key: *const c_void,
    key_bytes: usize,
    ticket: *mut u64,
    submit: impl FnOnce(&mut ClusterClient, &[u8]) -> Result<Ticket, Failure>,
) -> i32 {
    guarded(|| {
        judge(ticket, 1, "ticket")?;
        // SAFETY: this function's condition.
        let key = unsafe { bytes(key, key_bytes, "key") }?;
        let given = clients::with(client, |one| submit(&mut one.client, key))?;
        // SAFETY: this function's condition.
        unsafe { give(ticket, given.number(), "ticket") }?;
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// `room` elements at `into` may be written, and `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_poll(
    client: u64,
    timeout_ms: u32,
    into: *mut Done,
    room: usize,
    count: *mut usize,
) -> i32 {
    guarded(|| {
        judge(count, 1, "count")?;
        judge(into, room, "into")?;
        if room == 0 {
            return Err(Failure::new(ARGUMENT, "room: at least 1"));
        }
        let timeout = Duration::from_millis(timeout_ms.into());
        let told = clients::with(client, |one| Ok(poll(one, timeout, room)))?;
        for (place, done) in told.iter().enumerate() {
            // SAFETY: `into` has `room` elements, and no more were told.
            let at = unsafe { into.add(place) };
            // SAFETY: this function's condition.
            unsafe { give(at, *done, "into") }?;
        }
        // SAFETY: this function's condition.
        unsafe { give(count, told.len(), "count") }?;
        Ok(OK)
    })
}

/// At most so many calls that have ended.
fn poll(client: &mut Client, timeout: Duration, room: usize) -> Vec<Done> {
    client.held.clear();
    if client.ended.is_empty() {
        client.ended.extend(client.client.poll(timeout));
    }
    let count = client.ended.len().min(room);
    let told: Vec<_> = client.ended.drain(..count).collect();
    let told = told.into_iter().map(|done| {
        let ticket = done.ticket.number();
        let (told, held) = tell(ticket, done.outcome);
        client.held.extend(held.map(|held| (ticket, held)));
        told
    });
    told.collect()
}

/// A call that has ended, and what is held of it.
fn tell(ticket: u64, outcome: Result<Outcome, ClusterError>) -> (Done, Option<Vec<u8>>) {
    let mut done = Done {
        ticket,
        code: OK,
        way: 0,
        value_bytes: 0,
        expires_at_ms: 0,
    };
    let held = match outcome {
        Ok(Outcome::Stored(way)) => {
            done.way = number(way);
            None
        }
        Ok(Outcome::Found(value, probed)) => {
            done.expires_at_ms = probed.expires_at_ms;
            Some(value)
        }
        Ok(Outcome::Removed | Outcome::Probed(_)) => None,
        Ok(Outcome::Absent) => {
            done.code = ABSENT;
            None
        }
        Err(error) => {
            let failure = Failure::from(error);
            done.code = failure.code;
            Some(failure.text.into_bytes())
        }
    };
    done.value_bytes = held.as_ref().map_or(0, |held| held.len() as u64);
    (done, held)
}

/// See the header.
///
/// # Safety
/// `room` bytes at `into` may be written, and `value_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_take(
    client: u64,
    ticket: u64,
    into: *mut c_void,
    room: usize,
    value_bytes: *mut usize,
) -> i32 {
    guarded(|| {
        clients::with(client, |one| {
            let held = one.held.get(&ticket);
            let none = || Failure::new(NO_VALUE, "the last poll told no value of this ticket");
            let held = held.ok_or_else(none)?;
            // SAFETY: this function's condition.
            unsafe { copy(held, into, room, value_bytes, "value") }?;
            Ok(OK)
        })
    })
}

/// See the header.
///
/// # Safety
/// `room` bytes at `into` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everdram_error(into: *mut c_char, room: usize) -> usize {
    let text = last_text();
    let cut = text.len().min(room.saturating_sub(1));
    let zeroed = [text.as_bytes().get(..cut).unwrap_or_default(), &[0]].concat();
    let mut count = 0;
    if judge(into, room, "into").is_ok() && room > 0 {
        // SAFETY: `into` is not null and has `room` bytes, which are as many at least.
        let _fits = unsafe { copy(&zeroed, into.cast(), room, &mut count, "into") };
    }
    text.len()
}
