//! Long values that clients read where they lie.

use super::*;
use std::sync::atomic::AtomicBool;

/// No test takes as long.
const LONG: Duration = Duration::from_secs(10);

fn settings(lease: Duration) -> Settings {
    Settings {
        read_lease: Some(lease),
        ..Settings::default()
    }
}

fn fixture(lease: Duration) -> Fixture {
    Fixture::new(settings(lease))
}

/// Pieces of a value, as a raw client is told them, and the reply.
fn ask(raw: &mut Raw, key: &[u8]) -> (Head, Vec<wire::Piece>) {
    let head = Head {
        place: wire::IN_PLACE,
        ..Head::request(Kind::Get, 5)
    };
    let (head, body) = raw.ask(head, key, &[]);
    assert_eq!((head.status, head.grant), (Status::Ok, 0));
    let pieces: Vec<_> = wire::Piece::all_of(&body).collect();
    assert_eq!(body.len(), pieces.len() * 32);
    (head, pieces)
}

/// Reads pieces as an adapter does; the value, if all of them verify.
fn read(raw: &mut Raw, seed: u64, pieces: &[wire::Piece]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    for piece in pieces {
        let source = (piece.address, piece.key);
        let bytes = piece.bytes as usize;
        raw.port.read(raw.conn, bytes, source, 1).unwrap();
        let Event::Read(1, Some(bytes)) = raw.next() else {
            panic!("the piece is not read");
        };
        if !piece.is_of(&bytes, seed) {
            return None;
        }
        value.extend(bytes);
    }
    Some(value)
}

/// No thread of the server takes part in the data phase: a value of any length is one request.
#[test]
fn long_values_are_read_without_the_door() {
    let fixture = fixture(LONG);
    let mut client = fixture.client();
    assert!(client.reads_in_place());
    let options = ClientOptions {
        reads_in_place: false,
        ..ClientOptions::default()
    };
    let mut other = Client::inside(&fixture.network, &options).unwrap();
    assert!(!other.reads_in_place());
    for bytes in [0, 200, INLINE_BYTES, 30_000, 100_000, VALUE_BYTES_MAX] {
        let whole = value(bytes, 7);
        client.put(b"key", &whole).unwrap();
        for (reader, is_in_place) in [(&mut client, true), (&mut other, false)] {
            let before = fixture.door.stats();
            assert!(reader.get(b"key").unwrap().unwrap() == whole, "{bytes}");
            let after = fixture.door.stats();
            let is_placed = is_in_place && bytes > INLINE_BYTES;
            assert_eq!(
                after.placed - before.placed,
                u64::from(is_placed),
                "{bytes}"
            );
            let parts = match is_in_place {
                true => 1,
                false => bytes.div_ceil(INLINE_BYTES).max(1),
            };
            assert_eq!(after.requests - before.requests, parts as u64, "{bytes}");
        }
    }
    assert_eq!(client.get(b"nothing").unwrap(), None);
    let expires = 4_000_000_000_000;
    client
        .put_expiring(b"key", &value(100_000, 1), expires, Way::Auto)
        .unwrap();
    let ticket = client.submit_get(b"key").unwrap();
    let done = client.poll(Duration::from_secs(5)).unwrap().remove(0);
    assert_eq!(done.ticket, ticket);
    let Ok(Outcome::Found(_, probed)) = done.outcome else {
        panic!("{done:?}");
    };
    assert_eq!(
        (probed.value_bytes, probed.expires_at_ms),
        (100_000, expires)
    );
}

/// A pool that grows has new extents, and a connection is told of them when it needs them.
#[test]
fn values_in_a_grown_pool_are_read_in_place() {
    let fixture = fixture(LONG);
    let mut client = fixture.client();
    let before = fixture.store.stats().pool_bytes;
    for key in 0..150_u8 {
        client.put(&[key], &value(VALUE_BYTES_MAX, key)).unwrap();
        if key % 10 == 0 {
            client.get(&[key]).unwrap();
        }
    }
    assert!(fixture.store.stats().pool_bytes > 2 * before);
    let placed = fixture.door.stats().placed;
    let tickets: Vec<_> = (0..150_u8)
        .map(|key| client.submit_get(&[key]).unwrap())
        .collect();
    let mut ended = 0;
    while ended < tickets.len() {
        for done in client.poll(Duration::from_secs(5)).unwrap() {
            let key = tickets.iter().position(|&ticket| ticket == done.ticket);
            let Ok(Outcome::Found(found, _)) = done.outcome else {
                panic!("{done:?}");
            };
            assert!(found == value(VALUE_BYTES_MAX, key.unwrap() as u8));
            ended += 1;
        }
    }
    assert!(fixture.door.stats().placed >= placed + 150);
}

/// With a pool that is soon full.
fn small(lease: Duration) -> Fixture {
    Fixture::of(settings(lease), |options| {
        options.initial_bytes = 1 << 20;
        options.max_bytes = 4 << 20;
    })
}

/// A reader that stalls until its blocks were freed and used again reads other bytes, and notices by the
/// checks. As long as its lease lasts, they stay; a write that finds no other room waits for them.
#[test]
fn hole_r5_a_read_over_a_reused_block_is_noticed() {
    let whole = value(100_000, 0);
    let fixture = small(Duration::from_millis(500));
    let mut client = fixture.client();
    client.put(b"key", &whole).unwrap();
    let mut raw = fixture.raw();
    raw.hello();
    let begun = Instant::now();
    let (head, pieces) = ask(&mut raw, b"key");
    assert_eq!(head.place, 500);
    let mut seed = 0_u8;
    loop {
        seed = seed.wrapping_add(1).max(1);
        client.put(b"key", &value(100_000, seed)).unwrap();
        let read = read(&mut raw, head.sum, &pieces);
        match read {
            Some(read) => assert!(read == whole, "what verifies is what was there"),
            None => break,
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no block is reused"
        );
    }
    let lease = Duration::from_millis(head.place);
    assert!(
        begun.elapsed() > lease,
        "a block was reused under its lease"
    );
    // Whoever asks again reads what is there now.
    let (head, pieces) = ask(&mut raw, b"key");
    assert!(read(&mut raw, head.sum, &pieces).unwrap() == value(100_000, seed));
}

/// With no time to read anything, a client has its value all the same: part by part, after three attempts.
#[test]
fn a_client_that_is_always_late_reads_part_by_part() {
    let fixture = fixture(Duration::ZERO);
    let mut client = fixture.client();
    let whole = value(100_000, 3);
    client.put(b"key", &whole).unwrap();
    let before = fixture.door.stats();
    assert!(client.get(b"key").unwrap().unwrap() == whole);
    let after = fixture.door.stats();
    assert_eq!(after.placed - before.placed, 3);
    let parts = 100_000_usize.div_ceil(INLINE_BYTES) as u64;
    assert_eq!(after.requests - before.requests, 3 + parts);
}

/// Damage is an error for its key, whether the client or the server meets it first, and never a wrong value.
#[test]
fn a_damaged_piece_is_an_error_for_its_key() {
    let fixture = fixture(LONG);
    let mut client = fixture.client();
    client.put(b"other", &value(100_000, 1)).unwrap();
    let pool = fixture.store.engine().readable().unwrap();
    for is_known in [true, false] {
        client.put(b"key", &value(100_000, 2)).unwrap();
        let mut raw = fixture.raw();
        raw.hello();
        // Its check is made when it is asked for the first time, by either.
        if is_known {
            ask(&mut raw, b"key");
        }
        // A word of the third piece.
        let secret = value(100_000, 2)[60_000..60_008].to_vec();
        let word = u64::from_le_bytes(secret.try_into().unwrap());
        let extents = pool.extent_at(pool.region().len() - 1).unwrap();
        let mut lane = pool.lane();
        let mut count = 0;
        for at in (extents.at..extents.end()).step_by(8) {
            if pool.region().load_word(at) == word {
                let _ = lane.store_word(at, word ^ 1);
                count += 1;
            }
        }
        assert!(count > 0);
        let refused = client.get(b"key").err().unwrap();
        let is_failed = matches!(
            refused,
            ClientError::Refused {
                status: Status::Failed,
                ..
            }
        );
        assert!(is_failed, "{refused}");
        assert!(client.get(b"other").unwrap().unwrap() == value(100_000, 1));
    }
}

/// What may be read may not be written, and nothing beside it is read.
#[test]
fn whoever_writes_to_a_value_in_place_is_closed() {
    let fixture = fixture(LONG);
    let mut client = fixture.client();
    let whole = value(100_000, 3);
    client.put(b"key", &whole).unwrap();
    for is_write in [true, false] {
        let mut raw = fixture.raw();
        raw.hello();
        let (_, pieces) = ask(&mut raw, b"key");
        let (at, key) = (pieces[0].address, pieces[0].key);
        if is_write {
            raw.port.write(raw.conn, &[1; 64], (at, key)).unwrap();
            assert!(matches!(raw.next(), Event::Written(false)));
        } else {
            let far = (1 << 40, key);
            raw.port.read(raw.conn, 64, far, 1).unwrap();
            assert!(matches!(raw.next(), Event::Read(1, None)));
        }
        assert!(matches!(raw.next(), Event::Closed(_)));
        assert!(client.get(b"key").unwrap().unwrap() == whole);
    }
}

/// Readers in place and writers at once: what is read is a value that was there.
#[test]
fn readers_in_place_see_whole_values_of_their_time() {
    let settings = Settings {
        loops: 2,
        ..settings(Duration::from_millis(2))
    };
    let fixture = Fixture::new(settings);
    let bytes = |turn: u8| 30_000 + usize::from(turn) * 997;
    fixture.client().put(b"key", &value(bytes(0), 0)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (is_over, mut client) = (&is_over, fixture.client());
            scope.spawn(move || {
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let found = client.get(b"key").unwrap().unwrap();
                    let turn = ((found.len() - 30_000) / 997) as u8;
                    assert!(found == value(bytes(turn), turn), "{turn}");
                    assert!(turn >= last, "{turn} after {last}");
                    last = turn;
                }
            });
        }
        let mut client = fixture.client();
        for turn in 1..=200_u8 {
            client.put(b"key", &value(bytes(turn), turn)).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(fixture.door.stats().placed > 0);
}

#[test]
fn a_store_that_cannot_show_its_memory_says_so() {
    let start = |medium: Medium, engine: EngineKind, keeps: bool| {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::default();
        options.medium = MediumChoice::Only(medium);
        options.engine = Some(engine);
        options.keep_room = keeps;
        options.max_bytes = 256 << 20;
        let store = Store::open(directory.path().join("pool"), &options).unwrap();
        Door::start_inside(&store, &Network::new(), settings(LONG)).err()
    };
    assert!(start(Medium::Emulated, EngineKind::Viper, true).is_none());
    for (medium, engine, keeps) in [
        (Medium::Emulated, EngineKind::Viper, false),
        (Medium::Emulated, EngineKind::Bullet, true),
        (Medium::File, EngineKind::Viper, true),
    ] {
        let refused = start(medium, engine, keeps);
        assert!(
            matches!(refused, Some(StartError::NotReadable(_))),
            "{refused:?}"
        );
    }
    // Whoever is not trusted may not read what others may.
    let fixture = fixture(LONG);
    let refused = Door::start(&fixture.store, "tcp://127.0.0.1:0", settings(LONG)).err();
    assert!(
        matches!(refused, Some(StartError::NotReadable(_))),
        "{refused:?}"
    );
}
