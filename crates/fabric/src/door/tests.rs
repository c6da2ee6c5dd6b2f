//! The door over a link within the process.

use super::*;
use crate::client::{Client, ClientError, ClientOptions, Outcome, Way};
use crate::inside;
use crate::link::{Conn, Event};
use crate::wire::{self, Head, INLINE_BYTES, Kind, Status, VALUE_BYTES_MAX};
use everdram::password::Password;
use everdram::{EngineKind, Medium, MediumChoice, Options};
use std::collections::{BTreeMap, VecDeque};
use tempfile::TempDir;

mod in_place;
mod landing;
mod lending;

struct Fixture {
    store: Store,
    network: Network,
    door: Door,
    _directory: TempDir,
}

impl Fixture {
    fn new(settings: Settings) -> Fixture {
        Fixture::on(Medium::Emulated, settings)
    }

    fn on(medium: Medium, settings: Settings) -> Fixture {
        Fixture::with(medium, settings, 0)
    }

    /// With a landing area of so many bytes.
    fn landing(bytes: u64) -> Fixture {
        Fixture::with(Medium::Emulated, Settings::default(), bytes)
    }

    fn with(medium: Medium, settings: Settings, landing_bytes: u64) -> Fixture {
        Fixture::of(settings, |options| {
            options.medium = MediumChoice::Only(medium);
            options.landing_bytes = landing_bytes;
        })
    }

    fn of(settings: Settings, choose: impl FnOnce(&mut Options)) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::default();
        options.medium = MediumChoice::Only(Medium::Emulated);
        options.max_bytes = 256 << 20;
        options.keep_room = settings.read_lease.is_some();
        choose(&mut options);
        let store = Store::open(directory.path().join("pool"), &options).unwrap();
        let network = Network::new();
        let door = Door::start_inside(&store, &network, settings).unwrap();
        Fixture {
            store,
            network,
            door,
            _directory: directory,
        }
    }

    fn client(&self) -> Client {
        Client::inside(&self.network, &ClientOptions::default()).unwrap()
    }

    fn raw(&self) -> Raw {
        let mut port = inside::Port::new();
        let conn = port.connect(&self.network, 16);
        let mut raw = Raw {
            port,
            conn,
            events: VecDeque::new(),
        };
        assert!(matches!(raw.next(), Event::Opened));
        raw
    }
}

/// A client that sends what it likes.
struct Raw {
    port: inside::Port,
    conn: Conn,
    /// Those that happened and were not looked at.
    events: VecDeque<Event>,
}

impl Raw {
    fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let mut events = Vec::new();
            self.port.wait(None, &mut events).unwrap();
            self.events.extend(events);
        }
    }

    fn send(&mut self, head: Head, key: &[u8], body: &[u8]) {
        let bytes = head.to_bytes(key, body);
        let parts = [&bytes[..], key, wire::zeros(key), body];
        self.port.send(self.conn, &parts).unwrap();
    }

    fn reply(&mut self) -> (Head, Vec<u8>) {
        let Event::Message(_, buffer) = self.next() else {
            panic!("no reply");
        };
        let bytes = self.port.message(&buffer).to_vec();
        self.port.give_back(buffer, true).unwrap();
        let message = wire::read(&bytes).unwrap();
        (message.head, bytes[message.body].to_vec())
    }

    /// Sequence and status of so many replies, in their order.
    fn replies(&mut self, count: usize) -> Vec<(u32, Status)> {
        let mut replies = Vec::new();
        while replies.len() < count {
            let (head, _) = self.reply();
            replies.push((head.sequence, head.status));
        }
        replies
    }

    fn ask(&mut self, head: Head, key: &[u8], body: &[u8]) -> (Head, Vec<u8>) {
        self.send(head, key, body);
        self.reply()
    }

    fn hello(&mut self) {
        let (head, _) = self.ask(Head::request(Kind::Hello, 1), &[], &[]);
        assert_eq!(head.status, Status::Ok);
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let (head, _) = self.ask(Head::request(Kind::Put, 9), key, value);
        assert_eq!(head.status, Status::Ok);
    }

    fn prepare(&mut self, key: &[u8], value_bytes: usize) -> (Head, u64) {
        let head = Head {
            value_bytes: value_bytes as u64,
            ..Head::request(Kind::Prepare, 2)
        };
        let (head, body) = self.ask(head, key, &[]);
        assert_eq!(
            head.status,
            Status::Ok,
            "{}",
            String::from_utf8_lossy(&body)
        );
        (head, wire::first_word(&body).unwrap())
    }

    fn done(&mut self, grant: u64, sum: u64) -> Status {
        let head = Head {
            grant,
            sum,
            ..Head::request(Kind::Done, 3)
        };
        self.ask(head, &[], &[]).0.status
    }
}

fn value(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ seed).collect()
}

#[test]
fn what_is_put_is_there_for_every_door() {
    for medium in [Medium::Emulated, Medium::File] {
        let fixture = Fixture::on(medium, Settings::default());
        let mut client = fixture.client();
        assert!(client.acknowledgement().contains("survives"));
        assert_eq!(client.pool().0, fixture.store.report().uuid);
        assert_ne!(client.pool(), PoolId::default());
        let mut session = fixture.store.session().unwrap();
        for bytes in [
            0,
            1,
            200,
            4096,
            INLINE_BYTES,
            INLINE_BYTES + 1,
            64 << 10,
            VALUE_BYTES_MAX,
        ] {
            let key = format!("key {bytes}");
            let value = value(bytes, 7);
            let way = client.put(key.as_bytes(), &value).unwrap();
            let expected = match bytes <= INLINE_BYTES {
                true => Way::Inline,
                false => Way::ServerAssisted,
            };
            assert_eq!(way, expected);
            assert!(
                client.get(key.as_bytes()).unwrap().unwrap() == value,
                "{bytes}"
            );
            assert!(
                session.get(key.as_bytes()).unwrap().unwrap() == value,
                "{bytes}"
            );
            let probed = client.probe(key.as_bytes()).unwrap().unwrap();
            assert_eq!(probed.value_bytes, bytes as u64);
        }
        session.put(b"of another door", b"1").unwrap();
        assert_eq!(client.get(b"of another door").unwrap().unwrap(), b"1");
        assert!(client.delete(b"of another door").unwrap());
        assert!(!client.delete(b"of another door").unwrap());
        assert_eq!(session.get(b"of another door").unwrap(), None);
        assert_eq!(client.get(b"nothing").unwrap(), None);
        assert_eq!(client.probe(b"nothing").unwrap(), None);
    }
}

#[test]
fn either_way_stores_the_same() {
    let fixture = Fixture::new(Settings::default());
    let mut client = fixture.client();
    for (way, seed) in [(Way::ServerAssisted, 1), (Way::Inline, 2)] {
        let value = value(300, seed);
        assert_eq!(client.put_expiring(b"key", &value, 0, way).unwrap(), way);
        assert_eq!(client.get(b"key").unwrap().unwrap(), value);
    }
    assert_eq!(fixture.door.stats().written, 1);
    let expires = 4_000_000_000_000;
    client
        .put_expiring(b"key", b"v", expires, Way::Auto)
        .unwrap();
    assert_eq!(
        client.probe(b"key").unwrap().unwrap().expires_at_ms,
        expires
    );
    client.put_expiring(b"key", b"v", 1, Way::Auto).unwrap();
    assert_eq!(client.get(b"key").unwrap(), None);
}

/// On a modelled network that takes them, values of all lengths travel with their requests, as in HERD.
#[test]
fn long_messages_are_for_modelled_networks_that_take_them() {
    let value = value(VALUE_BYTES_MAX, 3);
    let options = ClientOptions {
        inline_bytes: usize::MAX,
        ..ClientOptions::default()
    };
    let fixture = Fixture::new(Settings::default());
    let mut client = Client::inside(&fixture.network, &options).unwrap();
    let refused = client.put_expiring(b"key", &value, 0, Way::Inline);
    assert!(matches!(refused, Err(ClientError::ValueLength(_))));
    assert_eq!(client.put(b"key", &value).unwrap(), Way::ServerAssisted);
    let network = Network::with_delays(&crate::NETWORK_PRESETS[0], VALUE_BYTES_MAX);
    let _door = Door::start_inside(&fixture.store, &network, Settings::default()).unwrap();
    let mut client = Client::inside(&network, &options).unwrap();
    assert!(client.get(b"key").unwrap().unwrap() == value);
    assert_eq!(client.put(b"other", &value).unwrap(), Way::Inline);
    assert!(client.get(b"other").unwrap().unwrap() == value);
}

/// Puts and removals of one key keep their order, long values and short ones mixed; several long values are
/// read at once, and more memory is asked for than a connection may have.
#[test]
fn many_calls_under_way_end_as_if_one_followed_the_other() {
    let fixture = Fixture::new(Settings::default());
    let mut client = fixture.client();
    let (mut expected, mut seen) = (BTreeMap::new(), BTreeMap::new());
    let mut tickets = BTreeMap::new();
    for number in 0..600_usize {
        let key = vec![b'a' + (number % 7) as u8];
        let states: &mut Vec<Option<Vec<u8>>> = seen.entry(key.clone()).or_insert(vec![None]);
        match number % 6 {
            5 => {
                client.submit_delete(&key).unwrap();
                states.push(None);
                expected.remove(&key);
            }
            4 => {
                let from = states.len() - 1;
                tickets.insert(client.submit_get(&key).unwrap(), (key, from));
            }
            way => {
                let bytes = [20, 5000, 40_000, 700_000][way];
                let value = value(bytes, number as u8);
                client.submit_put(&key, &value, 0, Way::Auto).unwrap();
                states.push(Some(value.clone()));
                expected.insert(key, value);
            }
        }
    }
    let mut ended = 0;
    while ended < 600 {
        for done in client.poll(Duration::from_secs(5)).unwrap() {
            ended += 1;
            let found = match done.outcome.unwrap() {
                Outcome::Found(value, _) => Some(value),
                _ => None,
            };
            if let Some((key, from)) = tickets.remove(&done.ticket) {
                assert!(
                    seen[&key][from..].contains(&found),
                    "a state from before the call"
                );
            }
        }
    }
    assert_eq!((client.calls_under_way(), tickets.len()), (0, 0));
    for key in b'a'..b'h' {
        let found = client.get(&[key]).unwrap();
        assert!(found.as_ref() == expected.get(&vec![key]));
    }
}

/// Long values go, one after the other, while others shorten and remove what is to be read.
#[test]
fn gets_that_must_wait_are_not_forgotten() {
    let fixture = Fixture::new(Settings::default());
    let (mut client, mut other) = (fixture.client(), fixture.client());
    // So many requests earn the credits for more than one.
    for key in 0..20_u8 {
        client.put(&[key], &value(100_000, key)).unwrap();
    }
    let tickets: Vec<_> = (0..10_u8)
        .map(|key| client.submit_get(&[key]).unwrap())
        .collect();
    for key in 0..10_u8 {
        match key % 2 {
            0 => assert!(other.delete(&[key]).unwrap()),
            _ => assert!(other.put(&[key], b"short").is_ok()),
        }
    }
    let mut ended = 0;
    let begun = Instant::now();
    while ended < tickets.len() {
        ended += client.poll(Duration::from_secs(5)).unwrap().len();
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{ended} of {}",
            tickets.len()
        );
    }
    assert_eq!(client.calls_under_way(), 0);
}

/// The parts of a value may be shown only when its first part may: before, a crash could take it.
#[test]
fn a_part_is_not_shown_before_the_first() {
    let fixture = Fixture::on(Medium::File, Settings::default());
    let mut raw = fixture.raw();
    raw.hello();
    for number in 0..16 {
        raw.ask(Head::request(Kind::Probe, number), b"key", &[]);
    }
    for number in 1..30_u8 {
        let value = value(30_000, number);
        let (grant, key) = raw.prepare(b"key", value.len());
        let target = (grant.place, key);
        raw.port.write(raw.conn, &value, target).unwrap();
        assert!(matches!(raw.next(), Event::Written(true)));
        let done = Head {
            grant: grant.grant,
            sum: wire::slot_sum(grant.sum, &value),
            ..Head::request(Kind::Done, 6)
        };
        let part = Head {
            grant: u64::from(number),
            place: INLINE_BYTES as u64,
            ..Head::request(Kind::Part, 8)
        };
        raw.send(done, &[], &[]);
        raw.send(Head::request(Kind::Get, 7), b"key", &[]);
        raw.send(part, &[], &[]);
        let replies = raw.replies(3);
        let place = |sequence| replies.iter().position(|&(of, _)| of == sequence).unwrap();
        let (_, status) = replies[place(8)];
        match status {
            Status::Ok => assert!(place(7) < place(8), "{replies:?}"),
            _ => assert_eq!(raw.ask(part, &[], &[]).0.status, Status::Ok),
        }
    }
}

#[test]
fn a_password_is_asked_for() {
    let password = Password::new(Some(b"secret".to_vec()));
    let settings = Settings {
        password: password.clone(),
        ..Settings::default()
    };
    let fixture = Fixture::new(settings);
    let with = |password: Option<&str>| {
        let options = ClientOptions {
            password: password.map(str::to_owned),
            ..ClientOptions::default()
        };
        Client::inside(&fixture.network, &options)
    };
    for wrong in [None, Some(""), Some("secre"), Some("secret1")] {
        let refused = with(wrong).err().unwrap();
        let is_denied = matches!(
            refused,
            ClientError::Refused {
                status: Status::Denied,
                ..
            }
        );
        assert!(is_denied, "{refused}");
    }
    with(Some("secret")).unwrap().put(b"k", b"v").unwrap();
    // Another door may change it.
    password.set(Some(b"other".to_vec()));
    assert!(with(Some("secret")).is_err());
    with(Some("other")).unwrap().put(b"k", b"v").unwrap();
    let mut raw = fixture.raw();
    raw.send(Head::request(Kind::Get, 1), b"k", &[]);
    assert!(
        matches!(raw.next(), Event::Closed(_)),
        "a get without a password"
    );
}

#[test]
fn what_is_no_request_ends_the_connection_and_nothing_else() {
    let fixture = Fixture::new(Settings::default());
    let mut client = fixture.client();
    client.put(b"key", b"value").unwrap();
    let whole = |head: Head, key: &[u8], body: &[u8]| {
        let bytes = head.to_bytes(key, body);
        [&bytes[..], key, wire::zeros(key), body].concat()
    };
    let put = whole(Head::request(Kind::Put, 2), b"key", b"other");
    let mut flipped = put.clone();
    flipped[40] ^= 1;
    let reply = Head {
        is_reply: true,
        ..Head::request(Kind::Put, 2)
    };
    let wrong = [
        Vec::new(),
        vec![0; 64],
        put[..70].to_vec(),
        flipped,
        whole(reply, b"key", b"other"),
        whole(Head::request(Kind::Put, 2), b"", b"other"),
    ];
    let count = wrong.len() as u64;
    for bytes in wrong {
        let mut raw = fixture.raw();
        raw.hello();
        raw.port.send(raw.conn, &[&bytes]).unwrap();
        assert!(matches!(raw.next(), Event::Closed(_)));
    }
    assert_eq!(client.get(b"key").unwrap().unwrap(), b"value");
    assert_eq!(fixture.door.stats().expelled, count);
}

#[test]
fn hole_r1_a_client_that_dies_after_prepare_changes_nothing() {
    let fixture = Fixture::new(Settings::default());
    let mut client = fixture.client();
    client.put(b"key", b"before").unwrap();
    let mut raw = fixture.raw();
    raw.hello();
    let (grant, key) = raw.prepare(b"key", 100_000);
    let half = value(50_000, 1);
    raw.port.write(raw.conn, &half, (grant.place, key)).unwrap();
    drop(raw);
    while fixture.door.stats().connections > 1 {
        std::thread::yield_now();
    }
    assert_eq!(client.get(b"key").unwrap().unwrap(), b"before");
    assert_eq!(fixture.store.len(), 1);
}

#[test]
fn hole_r3_no_torn_write_counts() {
    let fixture = Fixture::new(Settings::default());
    let mut client = fixture.client();
    client.put(b"key", b"before").unwrap();
    let mut raw = fixture.raw();
    raw.hello();
    let whole = value(100_000, 1);
    for cut in [0, 1, 99_999] {
        let (grant, key) = raw.prepare(b"key", whole.len());
        // A memory that is used again has the bytes of an earlier value.
        let zeros = vec![0; whole.len()];
        for bytes in [&zeros[..], &whole[..cut]] {
            raw.port.write(raw.conn, bytes, (grant.place, key)).unwrap();
            assert!(matches!(raw.next(), Event::Written(true)));
        }
        let sum = wire::slot_sum(grant.sum, &whole);
        assert_eq!(raw.done(grant.grant, sum), Status::Torn, "{cut} bytes");
        assert_eq!(client.get(b"key").unwrap().unwrap(), b"before");
    }
    let (grant, key) = raw.prepare(b"key", whole.len());
    raw.port
        .write(raw.conn, &whole, (grant.place, key))
        .unwrap();
    assert!(matches!(raw.next(), Event::Written(true)));
    let sum = wire::slot_sum(grant.sum, &whole);
    assert_eq!(raw.done(grant.grant, sum), Status::Ok);
    assert!(client.get(b"key").unwrap().unwrap() == whole);
}

/// The bytes of a put that ended are still there. A second grant of the same memory, for the same value, is
/// not fulfilled by them.
#[test]
fn hole_r6_what_an_earlier_put_left_does_not_count() {
    let fixture = Fixture::new(Settings::default());
    let mut raw = fixture.raw();
    raw.hello();
    let whole = value(70_000, 1);
    let (first, key) = raw.prepare(b"key", whole.len());
    raw.port
        .write(raw.conn, &whole, (first.place, key))
        .unwrap();
    assert!(matches!(raw.next(), Event::Written(true)));
    let sum = wire::slot_sum(first.sum, &whole);
    assert_eq!(raw.done(first.grant, sum), Status::Ok);
    let (second, again) = raw.prepare(b"other", whole.len());
    assert_eq!((again, second.place), (key, first.place), "the same memory");
    assert_eq!(raw.done(second.grant, sum), Status::Torn);
}

#[test]
fn hole_r7_a_foreign_or_used_grant_is_refused() {
    let fixture = Fixture::new(Settings::default());
    let (mut one, mut other) = (fixture.raw(), fixture.raw());
    one.hello();
    other.hello();
    let value = value(100, 1);
    let (grant, key) = one.prepare(b"key", value.len());
    one.port
        .write(one.conn, &value, (grant.place, key))
        .unwrap();
    assert!(matches!(one.next(), Event::Written(true)));
    let sum = wire::slot_sum(grant.sum, &value);
    assert_eq!(other.done(grant.grant, sum), Status::Refused);
    assert_eq!(one.done(grant.grant + 1, sum), Status::Refused);
    assert_eq!(one.done(grant.grant, sum), Status::Ok);
    assert_eq!(one.done(grant.grant, sum), Status::Refused, "twice");
}

/// R8: the log of the medium is written behind the commit, so what a session has committed is visible before
/// it is durable. No reply shows it until then: of another session's write, nor of the client's own, whatever
/// way it came.
#[test]
fn hole_r8_nothing_is_shown_before_its_log() {
    for engine in [EngineKind::Viper, EngineKind::Bullet] {
        let fixture = Fixture::of(Settings::default(), |options| {
            options.medium = MediumChoice::Only(Medium::File);
            options.engine = Some(engine);
        });
        let shared = Arc::clone(fixture.store.engine());
        let mut session = Arc::clone(&shared).session().unwrap();
        let mut client = fixture.client();
        for turn in 0..30_u8 {
            let key = [turn % 3];
            let bytes = [100, 40_000][usize::from(turn % 2)];
            let (_, ticket) = session.put_now(&key, &value(bytes, turn), 0).unwrap();
            assert!(client.get(&key).unwrap().unwrap() == value(bytes, turn));
            assert!(shared.durable() >= ticket, "{engine:?}: a get, {turn}");
            assert!(session.delete(&key).unwrap());
            let ticket = session.commit().unwrap();
            let absent = match turn % 2 {
                0 => client.get(&key).unwrap().is_none(),
                _ => client.probe(&key).unwrap().is_none(),
            };
            assert!(
                absent && shared.durable() >= ticket,
                "{engine:?}: absence, {turn}"
            );
            let way = [Way::Inline, Way::ServerAssisted][usize::from(turn % 2)];
            client
                .put_expiring(&key, &value(bytes / 10, turn), 0, way)
                .unwrap();
            let found = session.get(&key, &mut Vec::new()).unwrap().unwrap();
            assert!(shared.durable() >= found.ticket, "{engine:?}: {way:?}");
        }
    }
}

#[test]
fn a_write_outside_of_its_memory_ends_the_connection() {
    let fixture = Fixture::new(Settings::default());
    let mut raw = fixture.raw();
    raw.hello();
    let (grant, key) = raw.prepare(b"key", 10);
    let far = (grant.place + VALUE_BYTES_MAX as u64 - 5, key);
    raw.port.write(raw.conn, &[1; 10], far).unwrap();
    assert!(matches!(raw.next(), Event::Written(false)));
    assert!(matches!(raw.next(), Event::Closed(_)));
}

#[test]
fn no_connection_gets_more_than_its_share() {
    let fixture = Fixture::new(Settings::default());
    let mut raw = fixture.raw();
    raw.hello();
    // Grants that are never used: the fifth megabyte is refused, and the connection goes on.
    for _ in 0..4 {
        raw.prepare(b"key", VALUE_BYTES_MAX);
    }
    let head = Head {
        value_bytes: VALUE_BYTES_MAX as u64,
        ..Head::request(Kind::Prepare, 2)
    };
    assert_eq!(raw.ask(head, b"key", &[]).0.status, Status::Busy);
    let head = Head {
        value_bytes: u64::MAX,
        ..head
    };
    assert_eq!(raw.ask(head, b"key", &[]).0.status, Status::Refused);
    assert_eq!(
        raw.ask(Head::request(Kind::Put, 4), b"k", b"v").0.status,
        Status::Ok
    );
}

/// Long enough that nobody who goes on asking is silent for it.
const LEASE: Duration = Duration::from_secs(2);

/// All connections together have what the settings say. Whoever keeps some of it in silence is closed if
/// another one wants it, and nobody else is.
#[test]
fn memory_that_is_wanted_is_taken_from_who_keeps_it_in_silence() {
    const MIB: u64 = VALUE_BYTES_MAX as u64;
    let fixture = Fixture::new(Settings {
        memory_bytes: 4 * MIB,
        lease: LEASE,
        ..Settings::default()
    });
    let [mut silent, mut loud, mut empty, mut wants] = std::array::from_fn(|_| fixture.raw());
    for one in [&mut silent, &mut loud, &mut empty, &mut wants] {
        one.hello();
    }
    silent.prepare(b"key", VALUE_BYTES_MAX);
    silent.prepare(b"key", VALUE_BYTES_MAX);
    let prepare = Head {
        value_bytes: MIB,
        ..Head::request(Kind::Prepare, 2)
    };
    // It has its first MiB and what is spare; the other half is for those that have nothing.
    assert_eq!(silent.ask(prepare, b"key", &[]).0.status, Status::Busy);
    loud.prepare(b"key", VALUE_BYTES_MAX);
    let mut client = fixture.client();
    client.put(b"long", &value(VALUE_BYTES_MAX, 1)).unwrap();
    assert_eq!(fixture.door.stats().memory_bytes, 4 * MIB);
    std::thread::sleep(LEASE + LEASE / 10);
    // Nobody wanted it since `silent` was heard last: all stay.
    loud.put(b"a", b"1");
    client.put(b"b", b"1").unwrap();
    assert_eq!(fixture.door.stats().connections, 5);
    let get = Head::request(Kind::Get, 3);
    let (until, mut tries) = (Instant::now() + Duration::from_secs(30), 0);
    while wants.ask(get, b"long", &[]).0.status == Status::Busy {
        loud.put(b"a", b"2");
        client.put(b"b", b"2").unwrap();
        assert!(Instant::now() < until, "nobody gives up its memory");
        tries += 1;
    }
    assert!(tries > 0, "there was memory left");
    assert!(matches!(silent.next(), Event::Closed(_)));
    assert_eq!(wants.ask(prepare, b"key", &[]).0.status, Status::Ok);
    for one in [&mut loud, &mut empty, &mut wants] {
        one.put(b"k", b"v");
    }
    client.put(b"k", b"v").unwrap();
    assert_eq!(fixture.door.stats().expelled, 1);
    // What connections had comes back with their end.
    drop((silent, loud, empty, wants, client));
    while fixture.door.stats().memory_bytes > 0 {
        assert!(Instant::now() < until, "{:?}", fixture.door.stats());
        std::thread::yield_now();
    }
}

/// Buffers for more than one request are spare, and are taken from who keeps them in silence, too.
#[test]
fn buffers_leave_half_of_the_memory_to_others() {
    let fixture = Fixture::new(Settings {
        memory_bytes: 2 * VALUE_BYTES_MAX as u64,
        lease: LEASE,
        ..Settings::default()
    });
    let mut busy: Vec<Raw> = (0..5).map(|_| fixture.raw()).collect();
    let mut credits = Vec::new();
    for one in &mut busy {
        one.hello();
        for _ in 0..20 {
            one.put(b"k", b"v");
        }
        let (head, _) = one.ask(Head::request(Kind::Put, 9), b"k", b"v");
        credits.push(head.credits);
    }
    // Of 16 KiB each, 15 of them: four times that is not half of the memory yet, five times is more.
    const ALL: u16 = wire::CREDITS_MAX;
    assert_eq!(credits, [ALL, ALL, ALL, ALL, 1]);
    // The other half is for long values.
    let [mut first, mut second] = std::array::from_fn(|_| fixture.client());
    let long = value(VALUE_BYTES_MAX, 1);
    first.put(b"long", &long).unwrap();
    let (until, mut tries) = (Instant::now() + Duration::from_secs(30), 0);
    while second.put(b"long", &long).is_err() {
        first.put(b"long", &long).unwrap();
        assert!(Instant::now() < until, "nobody gives up its buffers");
        std::thread::sleep(Duration::from_millis(10));
        tries += 1;
    }
    assert!(tries > 0, "there was memory left");
    assert_eq!(fixture.door.stats().expelled, 4);
    busy.pop().unwrap().put(b"k", b"v");
}

#[test]
fn a_door_that_stops_ends_its_connections_and_refuses_new_ones() {
    let fixture = Fixture::new(Settings::default());
    let mut client = fixture.client();
    client.put(b"key", b"value").unwrap();
    let Fixture {
        store,
        network,
        door,
        _directory,
    } = fixture;
    door.stop();
    assert!(client.put(b"key", b"other").is_err());
    let options = ClientOptions {
        connect_timeout: Duration::from_millis(50),
        ..ClientOptions::default()
    };
    let refused = Client::inside(&network, &options).err().unwrap();
    assert!(matches!(refused, ClientError::NoDoor), "{refused}");
    let mut session = store.session().unwrap();
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"value");
}

#[test]
fn addresses_that_are_none_are_refused() {
    let fixture = Fixture::new(Settings::default());
    for address in [
        "",
        "tcp",
        "127.0.0.1:1",
        "tcp://",
        "tcp://localhost",
        "t p://127.0.0.1:1",
    ] {
        let refused = Door::start(&fixture.store, address, Settings::default()).err();
        assert!(matches!(refused, Some(StartError::Address(_))), "{address}");
    }
    let refused = Door::start(&fixture.store, "tcp://0.0.0.0:7700", Settings::default()).err();
    assert!(matches!(refused, Some(StartError::Open(_))));
}

#[test]
fn many_clients_at_once_write_and_read() {
    let settings = Settings {
        loops: 2,
        ..Settings::default()
    };
    let fixture = Fixture::new(settings);
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            let mut client = fixture.client();
            scope.spawn(move || {
                for turn in 0..200_u8 {
                    let key = [number, turn % 5];
                    let value = value(if turn % 10 == 0 { 30_000 } else { 100 }, turn);
                    client.put(&key, &value).unwrap();
                    assert!(client.get(&key).unwrap().unwrap() == value);
                }
            });
        }
    });
    assert_eq!(fixture.store.len(), 40);
}
