//! Long values that stay where their clients write them.

use super::*;
use crate::wire::{BY_CLIENT, INLINE_BYTES, LENT};

/// No loan is made for values of so many bytes: they fit a page.
const SHORT: usize = 24_000;

fn settings() -> Settings {
    Settings {
        lends: true,
        ..Settings::default()
    }
}

fn fixture() -> Fixture {
    Fixture::of(settings(), |options| {
        options.keep_room = true;
        options.lend_bytes = 16 << 20;
        options.landing_bytes = 8 << 20;
        options.initial_bytes = 64 << 20;
    })
}

fn free(fixture: &Fixture) -> u64 {
    fixture.store.engine().stats().blocks_free
}

fn await_connections(fixture: &Fixture, count: u64) {
    while fixture.door.stats().connections != count {
        std::thread::yield_now();
    }
}

/// A grant of a raw client, and its pieces; none if it is to write elsewhere.
fn borrow(raw: &mut Raw, key: &[u8], bytes: usize, place: u64) -> (Head, Vec<wire::Piece>) {
    let head = Head {
        value_bytes: bytes as u64,
        place,
        ..Head::request(Kind::Prepare, 2)
    };
    let (head, body) = raw.ask(head, key, &[]);
    assert_eq!(
        head.status,
        Status::Ok,
        "{}",
        String::from_utf8_lossy(&body)
    );
    let pieces = match body.len() {
        8 => Vec::new(),
        _ => wire::Piece::all_of(&body).collect(),
    };
    assert_eq!(body.len(), (pieces.len() * 32).max(8));
    (head, pieces)
}

fn write(raw: &mut Raw, pieces: &[wire::Piece], value: &[u8]) {
    let mut rest = value;
    for piece in pieces {
        let (bytes, behind) = rest.split_at(piece.bytes as usize);
        let target = (piece.address, piece.key);
        raw.port.write(raw.conn, bytes, target).unwrap();
        assert!(matches!(raw.next(), Event::Written(true)));
        rest = behind;
    }
    assert!(rest.is_empty());
}

/// The checks of the pieces of a value, as a Done has them.
fn checks(head: &Head, pieces: &[wire::Piece], value: &[u8]) -> Vec<u8> {
    let mut rest = value;
    let parts = pieces.iter().map(|piece| {
        let (part, behind) = rest.split_at(piece.bytes as usize);
        rest = behind;
        part
    });
    wire::checks_of(head.sum, parts)
}

fn done_with(raw: &mut Raw, grant: u64, checks: &[u8]) -> Status {
    let done = Head {
        grant,
        ..Head::request(Kind::Done, 3)
    };
    raw.ask(done, &[], checks).0.status
}

/// What the door says to a client that has written this value.
fn done(raw: &mut Raw, head: &Head, pieces: &[wire::Piece], value: &[u8]) -> Status {
    let checks = checks(head, pieces, value);
    done_with(raw, head.grant, &checks)
}

#[test]
fn long_values_stay_where_they_were_written() {
    let fixture = fixture();
    let mut client = fixture.client();
    let ways = [Way::Auto, Way::ServerAssisted, Way::ClientCentricAsked];
    for (turn, bytes) in [SHORT, 30_000, 100_000, VALUE_BYTES_MAX, 24_513, 65_536]
        .into_iter()
        .cycle()
        .take(60)
        .enumerate()
    {
        let (way, whole) = (ways[turn % 3], value(bytes, turn as u8));
        let before = fixture.door.stats();
        let key = [turn as u8 % 7];
        let went = client.put_expiring(&key, &whole, 0, way).unwrap();
        assert_eq!(
            went,
            if way == Way::Auto {
                Way::ServerAssisted
            } else {
                way
            }
        );
        let after = fixture.door.stats();
        assert_eq!(
            after.adopted - before.adopted,
            u64::from(bytes > SHORT),
            "{bytes}"
        );
        assert_eq!(after.written - before.written, 1);
        assert!(client.get(&key).unwrap().unwrap() == whole, "{bytes}");
        let mut session = fixture.store.session().unwrap();
        assert!(session.get(&key).unwrap().unwrap() == whole);
    }
    // What nobody tells the door of goes into the landing area.
    client
        .put_expiring(b"slot", &value(100_000, 1), 0, Way::ClientCentric)
        .unwrap();
    assert!(client.get(b"slot").unwrap().unwrap() == value(100_000, 1));
    assert_eq!(fixture.door.stats().adopted, 50);
    let report = fixture.store.engine().check().unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Many at once, of the same keys, by all ways: as if one followed the other.
#[test]
fn loans_do_not_overtake_other_puts() {
    let fixture = fixture();
    let mut client = fixture.client();
    let ways = [
        Way::ClientCentricAsked,
        Way::Auto,
        Way::ClientCentric,
        Way::ServerAssisted,
        Way::ClientCentricImmediate,
    ];
    for turn in 0..150_usize {
        let key = [turn as u8 % 3];
        let bytes = [100, 40_000, 70_000, 200_000][turn * 7 % 11 % 4];
        let (way, whole) = (ways[turn * 5 % 13 % 5], value(bytes, turn as u8));
        client.submit_put(&key, &whole, 0, way).unwrap();
        if turn % 3 == 2 {
            let ticket = client.submit_get(&key).unwrap();
            let mut found = None;
            while found.is_none() {
                for done in client.poll(Duration::from_secs(1)).unwrap() {
                    let outcome = done.outcome.unwrap();
                    if done.ticket == ticket {
                        found = Some(outcome);
                    }
                }
            }
            let Some(Outcome::Found(found, _)) = found else {
                panic!("{found:?}")
            };
            assert!(found == whole, "put {turn}");
        }
    }
    assert!(fixture.door.stats().adopted > 10);
}

/// R6: what comes after the client has said that it is done is refused, and the value is what it was.
#[test]
fn hole_r6_whoever_writes_to_an_adopted_value_is_closed() {
    let fixture = fixture();
    for is_durable in [false, true] {
        let mut raw = fixture.raw();
        raw.hello();
        let whole = value(100_000, 3);
        let place = LENT | if is_durable { BY_CLIENT } else { 0 };
        let (head, pieces) = borrow(&mut raw, b"key", whole.len(), place);
        assert_eq!(pieces.len(), 5);
        write(&mut raw, &pieces, &whole);
        assert_eq!(done(&mut raw, &head, &pieces, &whole), Status::Ok);
        // Also with the key of another loan, which names other memory.
        let (_, others) = borrow(&mut raw, b"other", 30_000, LENT);
        let targets = [
            (pieces[0].address, pieces[0].key),
            (pieces[0].address, others[0].key ^ 1),
        ];
        let target = targets[usize::from(is_durable)];
        raw.port.write(raw.conn, &[9; 64], target).unwrap();
        assert!(matches!(raw.next(), Event::Written(false)));
        assert!(matches!(raw.next(), Event::Closed(_)));
        let mut session = fixture.store.session().unwrap();
        assert!(session.get(b"key").unwrap().unwrap() == whole);
        assert_eq!(session.get(b"other").unwrap(), None);
        await_connections(&fixture, 0);
    }
}

/// Nothing is reached beside a piece: neither the head of its block nor the block behind it.
#[test]
fn whoever_writes_beside_a_loan_is_closed() {
    let fixture = fixture();
    let free = free(&fixture);
    for behind in [24_512 - 56, 24_512, u64::MAX - 7, u64::MAX - 63] {
        let mut raw = fixture.raw();
        raw.hello();
        let (_, pieces) = borrow(&mut raw, b"key", 100_000, LENT);
        let at = pieces[1].address.wrapping_add(behind);
        raw.port
            .write(raw.conn, &[9; 64], (at, pieces[1].key))
            .unwrap();
        assert!(matches!(raw.next(), Event::Written(false)), "{behind}");
        assert!(matches!(raw.next(), Event::Closed(_)), "{behind}");
        await_connections(&fixture, 0);
    }
    let report = fixture.store.engine().check().unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(self::free(&fixture), free);
}

/// R1, R3, R7: a grant is of one connection and for one put, of what sums up.
#[test]
fn a_loan_counts_once_and_only_as_what_was_said() {
    let fixture = fixture();
    // So that the loop's session has a block for records.
    fixture.client().put(b"first", b"value").unwrap();
    await_connections(&fixture, 0);
    let (mut raw, mut other) = (fixture.raw(), fixture.raw());
    raw.hello();
    other.hello();
    let whole = value(60_000, 3);
    let (head, pieces) = borrow(&mut raw, b"key", whole.len(), LENT);
    // R7: another's.
    assert_eq!(done(&mut other, &head, &pieces, &whole), Status::Refused);
    // R3: a part is missing.
    write(&mut raw, &pieces[..2], &whole[..2 * 24_512]);
    assert_eq!(done(&mut raw, &head, &pieces, &whole), Status::Torn);
    assert_eq!(done(&mut raw, &head, &pieces, &whole), Status::Refused);
    let mut session = fixture.store.session().unwrap();
    assert_eq!(session.get(b"key").unwrap(), None);
    // Its blocks stay its connection's.
    let before = free(&fixture);
    let (head, again) = borrow(&mut raw, b"key", whole.len(), LENT);
    assert!(again.iter().all(|piece| !pieces.contains(piece)));
    write(&mut raw, &again, &whole);
    assert_eq!(done(&mut raw, &head, &again, &whole), Status::Ok);
    assert!(session.get(b"key").unwrap().unwrap() == whole);
    assert_eq!(free(&fixture), before - 3);
    raw.port.close(raw.conn);
    await_connections(&fixture, 1);
    assert_eq!(free(&fixture), before);
}

/// Where adapters check what they carry, the door takes the checks as they are. Whoever lies has damaged a
/// value of his own, and gets no other into the store.
#[test]
fn what_adapters_have_checked_is_not_read_again() {
    let mut fixture = fixture();
    let network = Network::with_delays(&crate::NETWORK_PRESETS[0], INLINE_BYTES);
    let _door = Door::start_inside(&fixture.store, &network, settings()).unwrap();
    fixture.network = network;
    let mut client = fixture.client();
    let whole = value(60_000, 3);
    for way in [Way::ServerAssisted, Way::ClientCentricAsked] {
        client.put_expiring(b"key", &whole, 0, way).unwrap();
        assert!(client.get(b"key").unwrap().unwrap() == whole);
    }
    let mut raw = fixture.raw();
    raw.hello();
    let (head, pieces) = borrow(&mut raw, b"other", whole.len(), LENT);
    write(&mut raw, &pieces, &whole);
    assert_eq!(
        done(&mut raw, &head, &pieces, &value(60_000, 4)),
        Status::Ok
    );
    let refused = client.get(b"other");
    let is_damaged = matches!(
        refused,
        Err(ClientError::Refused {
            status: Status::Failed,
            ..
        })
    );
    assert!(is_damaged, "{refused:?}");
    assert!(client.get(b"key").unwrap().unwrap() == whole);
    client.put(b"other", &whole).unwrap();
    assert!(client.get(b"other").unwrap().unwrap() == whole);
}

/// The number of the checks must be right, wherever they come from.
#[test]
fn a_done_without_a_check_for_each_piece_is_refused() {
    let fixture = fixture();
    let mut raw = fixture.raw();
    raw.hello();
    let whole = value(60_000, 3);
    for wrong in [0, 1, 8, 16, 23, 25, 32, INLINE_BYTES] {
        let (head, pieces) = borrow(&mut raw, b"key", whole.len(), LENT);
        write(&mut raw, &pieces, &whole);
        let mut checks = checks(&head, &pieces, &whole);
        checks.resize(wrong, 0);
        assert_eq!(
            done_with(&mut raw, head.grant, &checks),
            Status::Torn,
            "{wrong}"
        );
    }
    assert_eq!(fixture.store.session().unwrap().get(b"key").unwrap(), None);
}

/// R1, R10: what a client has borrowed is free once its connection is closed, and not before. It has a limit,
/// and behind that other memory.
#[test]
fn hole_r10_a_client_that_dies_leaves_no_loan() {
    let fixture = fixture();
    fixture.client().put(b"key", b"before").unwrap();
    let before = free(&fixture);
    let mut raw = fixture.raw();
    raw.hello();
    let mut borrowed = 0;
    loop {
        let (_, pieces) = borrow(&mut raw, b"key", 512 << 10, LENT);
        if pieces.is_empty() {
            break;
        }
        borrowed += pieces.len() as u64;
        write(&mut raw, &pieces[..1], &value(24_512, 1));
    }
    // 4 MiB, in pieces of 24,512 bytes.
    assert_eq!(borrowed, 8 * 22);
    assert_eq!(free(&fixture), before - borrowed);
    let mut session = fixture.store.session().unwrap();
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"before");
    raw.port.close(raw.conn);
    await_connections(&fixture, 0);
    assert_eq!(free(&fixture), before);
    // A door that ends takes everything back.
    let mut raw = fixture.raw();
    raw.hello();
    borrow(&mut raw, b"key", 100_000, LENT);
    let Fixture { store, door, .. } = fixture;
    door.stop();
    assert_eq!(store.engine().stats().blocks_free, before);
}

#[test]
fn a_door_that_lends_nothing_gives_other_memory() {
    for fixture in [
        Fixture::new(Settings::default()),
        Fixture::of(Settings::default(), |options| {
            (options.keep_room, options.lend_bytes) = (true, 8 << 20);
        }),
    ] {
        let mut raw = fixture.raw();
        raw.hello();
        let (head, pieces) = borrow(&mut raw, b"key", 100_000, LENT);
        assert!(pieces.is_empty() && head.grant != 0);
        let mut client = fixture.client();
        client.put(b"key", &value(100_000, 1)).unwrap();
        assert!(client.get(b"key").unwrap().unwrap() == value(100_000, 1));
        assert_eq!(fixture.door.stats().adopted, 0);
    }
}

#[test]
fn a_store_that_cannot_lend_says_so() {
    let start = |medium: Medium, engine: EngineKind, lend_bytes: u64| {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::default();
        options.medium = MediumChoice::Only(medium);
        options.engine = Some(engine);
        (options.keep_room, options.lend_bytes) = (true, lend_bytes);
        options.max_bytes = 256 << 20;
        let store = Store::open(directory.path().join("pool"), &options).unwrap();
        Door::start_inside(&store, &Network::new(), settings()).err()
    };
    assert!(start(Medium::Emulated, EngineKind::Viper, 1 << 20).is_none());
    for (medium, engine, lend_bytes) in [
        (Medium::Emulated, EngineKind::Viper, 0),
        (Medium::Emulated, EngineKind::Bullet, 1 << 20),
        (Medium::File, EngineKind::Viper, 1 << 20),
    ] {
        let refused = start(medium, engine, lend_bytes);
        assert!(
            matches!(refused, Some(StartError::NotLent(_))),
            "{refused:?}"
        );
    }
    // Whoever is not trusted writes nowhere that stays.
    let fixture = fixture();
    let refused = Door::start(&fixture.store, "tcp://127.0.0.1:0", settings()).err();
    assert!(
        matches!(refused, Some(StartError::NotLent(_))),
        "{refused:?}"
    );
}

/// A full pool: what cannot be lent goes the other way, and is refused there.
#[test]
fn a_full_store_lends_nothing() {
    let fixture = Fixture::of(settings(), |options| {
        (options.keep_room, options.lend_bytes) = (true, 8 << 20);
        options.initial_bytes = 4 << 20;
        options.max_bytes = 12 << 20;
        options.chunk_bytes = 1 << 20;
    });
    let mut client = fixture.client();
    let mut refused = None;
    for number in 0..200_u32 {
        let put = client.put(&number.to_le_bytes(), &value(100_000, 1));
        refused = refused.or(put.err());
    }
    let is_full = matches!(
        refused,
        Some(ClientError::Refused {
            status: Status::Full,
            ..
        })
    );
    assert!(is_full, "{refused:?}");
    assert!(fixture.door.stats().adopted > 0);
    // Removals make room again, for loans as well.
    for number in 0..200_u32 {
        client.delete(&number.to_le_bytes()).unwrap();
    }
    fixture.store.engine().reclaim().unwrap();
    let before = fixture.door.stats().adopted;
    client.put(b"key", &value(100_000, 2)).unwrap();
    assert_eq!(fixture.door.stats().adopted, before + 1);
}
