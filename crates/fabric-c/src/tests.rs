//! The functions as C calls them, over a network of this process: no libfabric is needed.

use crate::*;
use everdram::{Medium, MediumChoice, Options, Store};
use everdram_fabric::{ClientOptions, Cluster, Door, Network, Settings};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use tempfile::TempDir;

struct Fixture {
    client: u64,
    hosts: Vec<(Store, Door, TempDir)>,
}

impl Fixture {
    fn new(servers: usize) -> Fixture {
        let (mut hosts, mut networks) = (Vec::new(), Vec::new());
        for _ in 0..servers {
            let directory = tempfile::tempdir().unwrap();
            let mut options = Options::default();
            options.medium = MediumChoice::Only(Medium::Emulated);
            options.max_bytes = 256 << 20;
            let store = Store::open(directory.path().join("pool"), &options).unwrap();
            let network = Network::new();
            let door = Door::start_inside(&store, &network, Settings::default()).unwrap();
            hosts.push((store, door, directory));
            networks.push(network);
        }
        let cluster = Cluster::inside(&networks, &ClientOptions::default()).unwrap();
        let client = clients::add(cluster.client());
        Fixture { client, hosts }
    }

    fn put(&self, key: &[u8], value: &[u8]) -> i32 {
        let (at, bytes) = (value.as_ptr().cast(), value.len());
        // SAFETY: both slices live.
        unsafe { everdram_put(self.client, key.as_ptr().cast(), key.len(), at, bytes, 0, 0) }
    }

    /// With so much room: code, length, and what is in the room.
    fn get(&self, key: &[u8], room: usize) -> (i32, usize, Vec<u8>) {
        let (mut into, mut bytes) = (vec![0xee; room + 1], usize::MAX);
        let at = into.as_mut_ptr().cast();
        let (key, key_bytes) = (key.as_ptr().cast(), key.len());
        // SAFETY: there is as much room.
        let code = unsafe { everdram_get(self.client, key, key_bytes, at, room, &raw mut bytes) };
        assert_eq!(into.pop(), Some(0xee), "a byte behind the room was written");
        (code, bytes, into)
    }

    fn submit_get(&self, key: &[u8]) -> u64 {
        let mut ticket = 0;
        // SAFETY: the key lives.
        let code = unsafe {
            everdram_submit_get(self.client, key.as_ptr().cast(), key.len(), &raw mut ticket)
        };
        assert_eq!(code, code::OK);
        ticket
    }

    fn poll(&self, room: usize) -> Vec<Done> {
        let nothing = Done {
            ticket: 0,
            code: 99,
            way: 99,
            value_bytes: 99,
            expires_at_ms: 99,
        };
        let (mut into, mut count) = (vec![nothing; room], usize::MAX);
        // SAFETY: there is as much room.
        let code =
            unsafe { everdram_poll(self.client, 10_000, into.as_mut_ptr(), room, &raw mut count) };
        assert_eq!(code, code::OK);
        into.truncate(count);
        into
    }

    fn take(&self, ticket: u64, room: usize) -> (i32, usize, Vec<u8>) {
        let (mut into, mut bytes) = (vec![0xee; room], usize::MAX);
        let at = into.as_mut_ptr().cast();
        // SAFETY: there is as much room.
        let code = unsafe { everdram_take(self.client, ticket, at, room, &raw mut bytes) };
        (code, bytes, into)
    }
}

fn error() -> String {
    let mut into = vec![0x7f as c_char; 500];
    // SAFETY: there is as much room.
    let bytes = unsafe { everdram_error(into.as_mut_ptr(), into.len()) };
    // SAFETY: it ends with a zero.
    let text = unsafe { CStr::from_ptr(into.as_ptr()) };
    let text = text.to_str().unwrap().to_owned();
    assert_eq!(text.len(), bytes);
    text
}

#[test]
fn values_come_and_go_and_never_overflow() {
    let fixture = Fixture::new(1);
    let value: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    for bytes in [0, 1, 200, 16_384, 100_000] {
        let value = &value[..bytes];
        assert_eq!(fixture.put(b"key", value), code::OK);
        assert_eq!(
            fixture.get(b"key", bytes),
            (code::OK, bytes, value.to_vec())
        );
        let (code, length, into) = fixture.get(b"key", bytes + 3);
        assert_eq!((code, length), (code::OK, bytes));
        assert_eq!(into, [value, &[0xee; 3]].concat());
        if bytes > 0 {
            let (code, length, into) = fixture.get(b"key", bytes - 1);
            assert_eq!((code, length), (code::ROOM, bytes));
            assert_eq!(into, vec![0xee; bytes - 1], "nothing is copied");
            assert!(error().contains("room for"), "{}", error());
        }
    }
    let delete = || {
        // SAFETY: the key lives.
        unsafe { everdram_delete(fixture.client, b"key".as_ptr().cast(), 3) }
    };
    assert_eq!(delete(), code::OK);
    assert_eq!(delete(), code::ABSENT);
    assert_eq!(fixture.get(b"key", 5), (code::ABSENT, 0, vec![0xee; 5]));
    assert_eq!(fixture.put(&[7; 1025], b""), code::KEY_LENGTH);
    assert_eq!(fixture.put(b"", b""), code::KEY_LENGTH);
    assert_eq!(
        fixture.put(b"key", &vec![0; (1 << 20) + 1]),
        code::VALUE_LENGTH
    );
    assert_eq!(everdram_close(fixture.client), code::OK);
}

#[test]
fn submitted_calls_end_once_and_their_values_wait_for_one_poll() {
    let fixture = Fixture::new(3);
    let mut puts = Vec::new();
    for number in 0..60_u8 {
        let (key, value) = ([b'k', number], vec![number; usize::from(number) * 500]);
        let mut ticket = 0;
        // SAFETY: key and value live.
        let code = unsafe {
            everdram_submit_put(
                fixture.client,
                key.as_ptr().cast(),
                2,
                value.as_ptr().cast(),
                value.len(),
                0,
                0,
                &raw mut ticket,
            )
        };
        assert_eq!(code, code::OK);
        puts.push(ticket);
    }
    while !puts.is_empty() {
        let told = fixture.poll(7);
        assert!((1..=7).contains(&told.len()), "{}", told.len());
        for done in told {
            assert!((1..=2).contains(&done.way), "{done:?}");
            assert_eq!((done.code, done.value_bytes), (code::OK, 0));
            let place = puts.iter().position(|&ticket| ticket == done.ticket);
            puts.swap_remove(place.expect("each call ends once"));
        }
    }
    let (there, absent) = (fixture.submit_get(b"k\x05"), fixture.submit_get(b"nothing"));
    let mut told = Vec::new();
    while told.len() < 2 {
        for done in fixture.poll(1) {
            if done.ticket == there {
                assert_eq!((done.code, done.value_bytes), (code::OK, 2500));
                let value = vec![5; 2500];
                assert_eq!(fixture.take(there, 2499).0, code::ROOM);
                // It may be taken more than once.
                assert_eq!(fixture.take(there, 2500), (code::OK, 2500, value.clone()));
                assert_eq!(fixture.take(there, 2500), (code::OK, 2500, value));
            } else {
                assert_eq!((done.ticket, done.code), (absent, code::ABSENT));
                assert_eq!(fixture.take(absent, 1).0, code::NO_VALUE);
            }
            told.push(done.ticket);
        }
    }
    assert!(fixture.poll(1).is_empty());
    assert_eq!(
        fixture.take(there, 2500).0,
        code::NO_VALUE,
        "the next poll has freed it"
    );
    // A server that goes: what was under way says so, with a text.
    let (put, get) = (fixture.submit_get(b"k\x05"), fixture.client);
    let Fixture { hosts, client } = fixture;
    hosts.into_iter().for_each(|(_, door, _)| door.stop());
    let fixture = Fixture {
        client,
        hosts: Vec::new(),
    };
    let told = fixture.poll(1);
    assert_eq!(told[0].ticket, put);
    if told[0].code == code::UNKNOWN {
        let (code, bytes, text) = fixture.take(put, 500);
        assert_eq!((code, bytes as u64), (code::OK, told[0].value_bytes));
        assert!(String::from_utf8_lossy(&text[..bytes]).contains("of this process: "));
    }
    assert_eq!(everdram_close(get), code::OK);
}

#[test]
fn hello_says_what_servers_are() {
    let fixture = Fixture::new(3);
    let mut count = 0;
    // SAFETY: a local.
    let code = unsafe { everdram_servers(fixture.client, &raw mut count) };
    assert_eq!((code, count), (code::OK, 3));
    let mut slots = 0;
    for place in 0..=3 {
        let mut server = Server {
            address: [1; ADDRESS_BYTES],
            pool: [0; 16],
            slots: 0,
            takes_client_centric: 9,
        };
        let (mut text, mut bytes) = (vec![0 as c_char; 300], 0);
        let client = fixture.client;
        let mut hello = |room| {
            let (server, bytes) = (&raw mut server, &raw mut bytes);
            // SAFETY: there is as much room.
            unsafe { everdram_hello(client, place, server, text.as_mut_ptr(), room, bytes) }
        };
        if place == 3 {
            assert_eq!(hello(300), code::ARGUMENT);
            continue;
        }
        assert_eq!(hello(3), code::ROOM);
        assert_eq!(hello(300), code::OK);
        let text: Vec<u8> = text.iter().take(bytes).map(|&byte| byte as u8).collect();
        assert!(String::from_utf8(text).unwrap().contains("survives"));
        let address = CStr::from_bytes_until_nul(&server.address).unwrap();
        assert!(address.to_str().unwrap().ends_with("of this process"));
        let uuids = fixture.hosts.iter().map(|(store, ..)| store.report().uuid);
        assert!(uuids.into_iter().any(|uuid| uuid == server.pool));
        assert_eq!(server.takes_client_centric, 0);
        slots += server.slots;
    }
    assert_eq!(slots, 16384);
    assert_eq!(fixture.put(b"key", b"value"), code::OK);
    let mut place = 9;
    // SAFETY: key and place live.
    let code =
        unsafe { everdram_server_of(fixture.client, b"key".as_ptr().cast(), 3, &raw mut place) };
    assert_eq!((code, place < 3), (code::OK, true));
    assert_eq!(everdram_close(fixture.client), code::OK);
}

#[test]
fn bad_arguments_are_codes() {
    let fixture = Fixture::new(1);
    let client = fixture.client;
    let key: *const c_void = b"key".as_ptr().cast();
    let mut bytes = 0;
    let mut ticket = 0;
    macro_rules! codes {
        ($($call:expr),* $(,)?) => {[$({
            // SAFETY: what is not null lives, and is as long as it says, or longer than memory can be, which
            // is judged before it is touched.
            unsafe { $call }
        }),*]};
    }
    let codes = codes![
        everdram_put(client, null(), 3, key, 3, 0, 0),
        everdram_put(client, key, usize::MAX, key, 3, 0, 0),
        everdram_put(client, key, 3, null(), 1, 0, 0),
        everdram_put(client, key, 3, key, usize::MAX, 0, 0),
        everdram_put(client, key, 3, key, 3, 0, WAYS.len() as i32),
        everdram_put(client, key, 3, key, 3, 0, -1),
        everdram_get(client, key, 3, null_mut(), 1, &raw mut bytes),
        everdram_get(client, key, 3, null_mut(), usize::MAX, &raw mut bytes),
        everdram_get(client, key, 3, null_mut(), 0, null_mut()),
        everdram_get(client, null(), 3, null_mut(), 0, &raw mut bytes),
        everdram_delete(client, null(), 3),
        everdram_submit_put(client, key, 3, key, 3, 0, 0, null_mut()),
        everdram_submit_put(client, key, 3, null(), 3, 0, 0, &raw mut ticket),
        everdram_submit_get(client, key, 3, null_mut()),
        everdram_submit_delete(client, null(), 3, &raw mut ticket),
        everdram_poll(client, 0, null_mut(), 1, &raw mut bytes),
        everdram_poll(client, 0, null_mut(), 0, &raw mut bytes),
        everdram_poll(client, 0, null_mut(), usize::MAX, &raw mut bytes),
        everdram_servers(client, null_mut()),
        everdram_server_of(client, key, 3, null_mut()),
        everdram_connect(null(), 1, null(), 0, &raw mut ticket),
        everdram_connect(null(), 0, null(), 0, &raw mut ticket),
        everdram_connect([key.cast()].as_ptr(), 1, null(), 0, null_mut()),
        everdram_connect([null()].as_ptr(), 1, null(), 0, &raw mut ticket),
        everdram_connect([c"\xff".as_ptr()].as_ptr(), 1, null(), 0, &raw mut ticket),
    ];
    for (place, code) in codes.into_iter().enumerate() {
        assert_eq!(code, code::ARGUMENT, "{place}");
    }
    assert_eq!(ticket, 0, "outputs are left alone");
    let misaligned = (&raw mut bytes)
        .cast::<u8>()
        .wrapping_add(1)
        .cast::<usize>();
    // SAFETY: misaligned, which is judged before it is touched.
    let code = unsafe { everdram_servers(client, misaligned) };
    assert_eq!(code, code::ARGUMENT);
    // None of them has changed anything, or was submitted.
    assert_eq!(fixture.hosts[0].0.len(), 0);
    assert!(fixture.poll(1).is_empty());
    for (address, code) in [
        ("nothing", code::ADDRESS),
        ("tcp://127.0.0.1:1#12", code::ADDRESS),
    ] {
        let address = CString::new(address).unwrap();
        // SAFETY: the address lives.
        let found =
            unsafe { everdram_connect([address.as_ptr()].as_ptr(), 1, null(), 0, &raw mut ticket) };
        assert_eq!(found, code, "{}", error());
        assert!(error().contains(address.to_str().unwrap()), "{}", error());
    }
    // A text is cut to its room, with a zero.
    let mut into = [0x7f as c_char; 4];
    // SAFETY: there is as much room.
    let whole = unsafe { everdram_error(into.as_mut_ptr(), 3) };
    assert!(whole > 3 && into[2] == 0 && into[1] != 0 && into[3] == 0x7f);
    // SAFETY: nothing is written.
    assert_eq!(unsafe { everdram_error(null_mut(), 0) }, whole);
    assert_eq!(everdram_close(client), code::OK);
}

#[test]
fn closed_and_busy_clients_and_panics_are_codes() {
    let fixture = Fixture::new(1);
    let client = fixture.client;
    let busy = clients::with(client, |_| Ok(fixture.put(b"key", b"value")));
    assert_eq!(busy.unwrap(), code::IN_USE);
    // A thread that is in a call keeps the client until its end.
    let during = clients::with(client, |one| {
        assert_eq!(everdram_close(client), code::OK);
        Ok(one.client.get(b"key")?)
    });
    assert_eq!(during.unwrap(), None);
    assert_eq!(fixture.put(b"key", b"value"), code::CLOSED);
    assert!(error().contains("closed"));
    assert_eq!(everdram_close(client), code::CLOSED);
    assert_eq!(everdram_close(0), code::CLOSED);
    let other = Fixture::new(1);
    assert_ne!(other.client, client, "no number is used twice");
    let code = boundary::guarded(|| {
        clients::with(other.client, |one| {
            let gone: Option<u32> = one.held.get(&0).map(|_| 1);
            gone.expect("a panic on purpose");
            Ok(code::OK)
        })
    });
    assert_eq!(code, code::BUG);
    assert!(error().contains("bug"));
    assert_eq!(other.put(b"key", b"value"), code::BUG);
    assert_eq!(everdram_close(other.client), code::OK);
}
