//! The door over libfabric: provider `tcp` on loopback, or what `EVERDRAM_TEST_FABRIC` names,
//! `verbs://10.77.0.1:0` for example. Without libfabric nothing is tested, and the tests say so.
//!
//! Stores are on emulated memory; those of one server alone are where `EVERDRAM_TEST_PMEM` says, if it does:
//! a directory on a DAX file system, or a devdax device, whose pool is erased. Then tests run one at a time.

use everdram::password::Password;
use everdram::{Medium, MediumChoice, Options, Store};
use everdram_fabric::{
    Client, ClientError, ClientOptions, Cluster, Door, INLINE_BYTES, Outcome, Settings, Status,
    VALUE_BYTES_MAX, Way,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Where doors open.
fn address() -> String {
    std::env::var("EVERDRAM_TEST_FABRIC").unwrap_or_else(|_| "tcp://127.0.0.1:0".to_owned())
}

fn is_tcp() -> bool {
    address().starts_with("tcp:")
}

/// Where persistent memory is, if there is any.
fn pmem() -> Option<PathBuf> {
    std::env::var_os("EVERDRAM_TEST_PMEM").map(PathBuf::from)
}

/// Whether clients may be given memory of a pool: `verbs` pins it, and the kernel lets nobody pin a file of a
/// DAX file system.
fn is_exposed() -> bool {
    is_tcp() || !pmem().is_some_and(|place| place.is_dir())
}

/// Others can reach a door that is not on loopback, so it has a password.
const PASSWORD: &str = "secret";

fn settings(given: Settings) -> Settings {
    if is_tcp() {
        return given;
    }
    let password = match given.password.is_set() {
        true => given.password,
        false => Password::new(Some(PASSWORD.into())),
    };
    Settings {
        trusts_peers: true,
        password,
        ..given
    }
}

fn options() -> ClientOptions {
    ClientOptions {
        password: (!is_tcp()).then(|| PASSWORD.into()),
        ..ClientOptions::default()
    }
}

struct Fixture {
    store: Store,
    door: Door,
    _directory: TempDir,
}

impl Fixture {
    /// `None`: there is no libfabric.
    fn new(medium: Medium, settings: Settings) -> Option<Fixture> {
        Fixture::with(medium, settings, |_| ())
    }

    fn with(
        medium: Medium,
        settings: Settings,
        choose: impl FnOnce(&mut Options),
    ) -> Option<Fixture> {
        let place = pmem().filter(|_| medium == Medium::Emulated);
        Fixture::at(place, medium, settings, choose)
    }

    /// On persistent memory, if there is a place for it.
    fn at(
        place: Option<PathBuf>,
        medium: Medium,
        given: Settings,
        choose: impl FnOnce(&mut Options),
    ) -> Option<Fixture> {
        if let Err(reason) = everdram_fabric::version() {
            println!("skipped: {reason}");
            return None;
        }
        let directory = match &place {
            Some(place) if place.is_dir() => tempfile::tempdir_in(place).unwrap(),
            _ => tempfile::tempdir().unwrap(),
        };
        let mut options = Options::default();
        options.medium = MediumChoice::Only(match place {
            Some(_) => Medium::Pmem,
            None => medium,
        });
        options.max_bytes = 256 << 20;
        choose(&mut options);
        let pool = match place {
            Some(device) if !device.is_dir() => {
                everdram_pm::erase(&device).unwrap();
                device
            }
            _ => directory.path().join("pool"),
        };
        let store = Store::open(pool, &options).unwrap();
        let door = Door::start(&store, &address(), settings(given)).unwrap();
        Some(Fixture {
            store,
            door,
            _directory: directory,
        })
    }

    fn client(&self) -> Client {
        Client::connect(self.door.address(), &options()).unwrap()
    }
}

fn value(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ seed).collect()
}

#[test]
fn values_of_all_lengths_go_both_ways() {
    for medium in [Medium::Emulated, Medium::File] {
        let Some(fixture) = Fixture::new(medium, Settings::default()) else {
            return;
        };
        let mut client = fixture.client();
        let mut session = fixture.store.session().unwrap();
        for bytes in [
            0,
            1,
            200,
            INLINE_BYTES,
            INLINE_BYTES + 1,
            100_000,
            VALUE_BYTES_MAX,
        ] {
            let (key, value) = (format!("key {bytes}"), value(bytes, 7));
            client.put(key.as_bytes(), &value).unwrap();
            assert!(
                client.get(key.as_bytes()).unwrap().unwrap() == value,
                "{bytes}"
            );
            assert!(
                session.get(key.as_bytes()).unwrap().unwrap() == value,
                "{bytes}"
            );
            assert!(client.delete(key.as_bytes()).unwrap());
            assert_eq!(client.get(key.as_bytes()).unwrap(), None);
        }
        let refused = client.put(b"key", &value(VALUE_BYTES_MAX + 1, 0)).err();
        assert!(matches!(refused, Some(ClientError::ValueLength(_))));
    }
}

#[test]
fn calls_under_way_keep_the_order_of_each_key() {
    let Some(fixture) = Fixture::new(Medium::Emulated, Settings::default()) else {
        return;
    };
    let mut client = fixture.client();
    let mut expected = BTreeMap::new();
    for number in 0..1000_usize {
        let key = vec![b'a' + (number % 5) as u8];
        if number % 7 == 6 {
            client.submit_delete(&key).unwrap();
            expected.remove(&key);
        } else {
            let value = value([20, 3000, 40_000][number % 3], number as u8);
            client.submit_put(&key, &value, 0, Way::Auto).unwrap();
            expected.insert(key, value);
        }
    }
    let mut ended = 0;
    while ended < 1000 {
        for done in client.poll(Duration::from_secs(5)).unwrap() {
            assert_ne!(done.outcome.unwrap(), Outcome::Probed(never()));
            ended += 1;
        }
    }
    for key in b'a'..b'f' {
        let found = client.get(&[key]).unwrap();
        assert!(found.as_ref() == expected.get(&vec![key]));
    }
}

/// All ways over a landing area, of a door that trusts its clients. Without an x86 processor `tcp` makes
/// nothing durable, and `verbs` never does: the door says so.
#[test]
fn values_are_made_durable_by_their_clients() {
    let landing = |options: &mut Options| options.landing_bytes = 16 << 20;
    if is_tcp() {
        // Two strangers who work together could spoil what others have written.
        let fixture = Fixture::with(Medium::Emulated, Settings::default(), landing);
        let Some(fixture) = fixture else { return };
        let mut client = fixture.client();
        assert!(!client.takes_client_centric());
        let refused = client.put_expiring(b"key", b"1", 0, Way::ClientCentric);
        assert!(matches!(refused, Err(ClientError::NotOffered)));
    }
    let settings = Settings {
        trusts_peers: true,
        ..Settings::default()
    };
    let fixture = Fixture::with(Medium::Emulated, settings, landing);
    let Some(fixture) = fixture else { return };
    let mut client = fixture.client();
    let offers = is_tcp() && cfg!(target_arch = "x86_64");
    assert_eq!(
        (client.takes_client_centric(), client.takes_immediate()),
        (offers, offers)
    );
    if !offers {
        return;
    }
    let ways = [
        Way::ClientCentric,
        Way::ClientCentricAsked,
        Way::ClientCentricImmediate,
    ];
    let mut session = fixture.store.session().unwrap();
    for way in ways {
        for bytes in [0, 200, 100_000, VALUE_BYTES_MAX] {
            let value = value(bytes, 9);
            client.put_expiring(b"key", &value, 0, way).unwrap();
            assert!(
                session.get(b"key").unwrap().unwrap() == value,
                "{way:?}, {bytes}"
            );
        }
    }
    // Many at once, from two clients whose words the provider does not tell apart.
    let mut clients = [client, fixture.client()];
    for turn in 0..400_u32 {
        let client = &mut clients[turn as usize % 2];
        let key = (turn % 20).to_le_bytes();
        let way = ways[turn as usize % 3];
        client
            .submit_put(&key, &turn.to_le_bytes(), 0, way)
            .unwrap();
    }
    for client in &mut clients {
        while client.calls_under_way() > 0 {
            for done in client.poll(Duration::from_secs(5)).unwrap() {
                assert!(matches!(done.outcome, Ok(Outcome::Stored(_))), "{done:?}");
            }
        }
    }
    for key in 0..20_u32 {
        let value = session.get(&key.to_le_bytes()).unwrap().unwrap();
        assert_eq!(value, (380 + key).to_le_bytes());
    }
    assert_eq!(fixture.door.stats().expelled, 0);
}

/// Long values are read in place: one request for each, however many parts it has; and whoever does not want
/// that, or comes when a value is overwritten all the time, has them all the same.
#[test]
fn long_values_are_read_where_they_lie() {
    let settings = Settings {
        trusts_peers: true,
        read_lease: Some(Duration::from_secs(1)),
        ..Settings::default()
    };
    let keep = |options: &mut Options| options.keep_room = true;
    let Some(fixture) = Fixture::with(Medium::Emulated, settings, keep) else {
        return;
    };
    let mut client = fixture.client();
    assert!(client.reads_in_place());
    for bytes in [200, INLINE_BYTES + 1, 40_000, 100_000, VALUE_BYTES_MAX] {
        client.put(b"key", &value(bytes, 7)).unwrap();
        let before = fixture.door.stats();
        assert!(client.get(b"key").unwrap().unwrap() == value(bytes, 7));
        let after = fixture.door.stats();
        let placed = after.placed - before.placed;
        let requests = after.requests - before.requests;
        // A machine that is busy for a second has the client ask again.
        assert_eq!(placed > 0, is_exposed() && bytes >= 40_000, "{bytes}");
        assert!(placed != 1 || requests == 1, "{bytes}: {requests} requests");
    }
    // More than the pool had at first.
    for key in 0..120_u8 {
        client.put(&[key], &value(VALUE_BYTES_MAX, key)).unwrap();
    }
    let placed = fixture.door.stats().placed;
    let tickets: Vec<_> = (0..120_u8)
        .map(|key| client.submit_get(&[key]).unwrap())
        .collect();
    let mut ended = 0;
    while ended < tickets.len() {
        for done in client.poll(Duration::from_secs(10)).unwrap() {
            let key = tickets.iter().position(|&ticket| ticket == done.ticket);
            let Ok(Outcome::Found(found, _)) = done.outcome else {
                panic!("{done:?}");
            };
            assert!(found == value(VALUE_BYTES_MAX, key.unwrap() as u8));
            ended += 1;
        }
    }
    let more = if is_exposed() { 120 } else { 0 };
    assert!(fixture.door.stats().placed >= placed + more);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = fixture.store.session().unwrap();
            for seed in (0..=255_u8).cycle() {
                session.put(b"key", &value(100_000, seed)).unwrap();
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..200 {
            let found = client.get(b"key").unwrap().unwrap();
            assert!(found == value(found.len(), found[0]));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(fixture.door.stats().expelled, 0);
}

/// Long values stay where they are written, more of them than the pool had room for at first.
#[test]
fn long_values_stay_where_they_are_written() {
    let settings = Settings {
        trusts_peers: true,
        lends: true,
        ..Settings::default()
    };
    let lend = |options: &mut Options| {
        (options.keep_room, options.lend_bytes) = (true, 16 << 20);
        options.landing_bytes = 8 << 20;
    };
    let Some(fixture) = Fixture::with(Medium::Emulated, settings, lend) else {
        return;
    };
    let mut client = fixture.client();
    assert!(client.borrows());
    let ways = match client.takes_client_centric() {
        true => [Way::ServerAssisted, Way::ClientCentricAsked],
        false => [Way::ServerAssisted, Way::Auto],
    };
    let bytes = |key: u8| [30_000, 100_000, VALUE_BYTES_MAX][usize::from(key) % 3];
    let mut tickets = Vec::new();
    for turn in 0..2 {
        for key in 0..120_u8 {
            let way = ways[usize::from(key) % 2];
            let whole = value(bytes(key), key ^ turn);
            tickets.push(client.submit_put(&[key], &whole, 0, way).unwrap());
        }
    }
    let mut ended = 0;
    while ended < tickets.len() {
        for done in client.poll(Duration::from_secs(10)).unwrap() {
            assert!(matches!(done.outcome, Ok(Outcome::Stored(_))), "{done:?}");
            ended += 1;
        }
    }
    let stats = fixture.door.stats();
    // What the pool had no room to lend went the other way, and all where it cannot be exposed.
    assert_eq!(stats.adopted > 100, is_exposed(), "{stats:?}");
    assert!(is_exposed() || stats.adopted == 0, "{stats:?}");
    let mut session = fixture.store.session().unwrap();
    for key in 0..120_u8 {
        let expected = value(bytes(key), key ^ 1);
        assert!(client.get(&[key]).unwrap().unwrap() == expected, "{key}");
        assert!(session.get(&[key]).unwrap().unwrap() == expected, "{key}");
    }
    assert_eq!(fixture.store.engine().check().unwrap().findings, []);
    assert_eq!(stats.expelled, 0);
}

fn never() -> everdram_fabric::Probed {
    everdram_fabric::Probed {
        value_bytes: u64::MAX,
        expires_at_ms: 0,
    }
}

#[test]
fn many_clients_come_and_go() {
    let settings = Settings {
        loops: 2,
        ..Settings::default()
    };
    let Some(fixture) = Fixture::new(Medium::Emulated, settings) else {
        return;
    };
    std::thread::scope(|scope| {
        for number in 0..6_u8 {
            let fixture = &fixture;
            scope.spawn(move || {
                for turn in 0..10_u8 {
                    let mut client = fixture.client();
                    for seed in 0..20_u8 {
                        let key = [number, seed % 3];
                        let value = value(if seed % 10 == 0 { 30_000 } else { 100 }, seed ^ turn);
                        client.put(&key, &value).unwrap();
                        assert!(client.get(&key).unwrap().unwrap() == value);
                    }
                }
            });
        }
    });
    assert_eq!(fixture.store.len(), 18);
    await_connections(&fixture.door, 0);
    assert_eq!(fixture.door.stats().accepted, 60);
    assert_eq!(fixture.door.stats().expelled, 0);
}

fn await_connections(door: &Door, count: u64) {
    let begun = Instant::now();
    while door.stats().connections != count {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            door.stats()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_client_that_vanishes_with_a_value_half_written_changes_nothing() {
    let Some(fixture) = Fixture::new(Medium::Emulated, Settings::default()) else {
        return;
    };
    let mut other = fixture.client();
    other.put(b"key", b"before").unwrap();
    let mut client = fixture.client();
    for _ in 0..3 {
        client
            .submit_put(b"key", &value(VALUE_BYTES_MAX, 1), 0, Way::Auto)
            .unwrap();
        drop(client);
        await_connections(&fixture.door, 1);
        let now = other.get(b"key").unwrap().unwrap();
        assert!(now == b"before" || now.len() == VALUE_BYTES_MAX);
        client = fixture.client();
    }
}

#[test]
fn a_wrong_password_and_no_door_say_so() {
    let settings = Settings {
        password: Password::new(Some(PASSWORD.into())),
        ..Settings::default()
    };
    let Some(fixture) = Fixture::new(Medium::Emulated, settings) else {
        return;
    };
    let refused = Client::connect(fixture.door.address(), &ClientOptions::default()).err();
    let is_denied = matches!(
        refused,
        Some(ClientError::Refused {
            status: Status::Denied,
            ..
        })
    );
    assert!(is_denied, "{refused:?}");
    let address = fixture.door.address().to_owned();
    let options = ClientOptions {
        password: Some(PASSWORD.into()),
        ..ClientOptions::default()
    };
    let mut client = Client::connect(&address, &options).unwrap();
    client.put(b"key", b"value").unwrap();
    let Fixture { door, .. } = fixture;
    door.stop();
    assert!(client.put(b"key", b"value").is_err());
    let refused = Client::connect(&address, &options).err();
    assert!(refused.is_some(), "a door that is closed");
}

#[test]
fn many_idle_clients_are_held_and_let_go() {
    const CLIENTS: u64 = 200;
    let Some(fixture) = Fixture::new(Medium::Emulated, Settings::default()) else {
        return;
    };
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| fixture.client()).collect();
    assert_eq!(fixture.door.stats().connections, CLIENTS);
    // The first is still served.
    clients[0].put(b"key", b"value").unwrap();
    drop(clients);
    await_connections(&fixture.door, 0);
}

/// Servers of a cluster, each with a pool of its own.
fn cluster_of(count: usize) -> Option<(Vec<Fixture>, Cluster)> {
    let fixture = || Fixture::at(None, Medium::Emulated, Settings::default(), |_| ());
    let fixtures: Option<Vec<Fixture>> = (0..count).map(|_| fixture()).collect();
    let fixtures = fixtures?;
    let addresses: Vec<&str> = fixtures.iter().map(|one| one.door.address()).collect();
    let cluster = Cluster::connect(&addresses, &options()).unwrap();
    Some((fixtures, cluster))
}

#[test]
fn many_clients_share_many_servers() {
    let Some((fixtures, cluster)) = cluster_of(3) else {
        return;
    };
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut client = cluster.client();
                let mut expected = BTreeMap::new();
                let mut under_way = 0;
                for turn in 0..200_u8 {
                    let key = vec![thread, turn % 30];
                    let value = value([20, 500, 30_000][usize::from(turn % 3)], turn ^ thread);
                    client.submit_put(&key, &value, 0, Way::Auto).unwrap();
                    expected.insert(key, value);
                    under_way += 1;
                    while under_way > 24 || (turn == 199 && under_way > 0) {
                        for done in client.poll(Duration::from_secs(20)) {
                            assert!(matches!(done.outcome.unwrap(), Outcome::Stored(_)));
                            under_way -= 1;
                        }
                    }
                }
                for (key, value) in &expected {
                    assert!(client.get(key).unwrap().as_ref() == Some(value));
                }
            });
        }
    });
    let keys: Vec<u64> = fixtures.iter().map(|one| one.store.len()).collect();
    assert_eq!(keys.iter().sum::<u64>(), 8 * 30);
    assert!(keys.iter().all(|&keys| keys > 0), "{keys:?}");
    for one in &fixtures {
        // One connection of each client, and the one that asked which pool this is.
        assert_eq!(one.door.stats().accepted, 9);
    }
}

#[test]
fn a_server_of_a_cluster_goes_and_comes_back() {
    let Some((mut fixtures, cluster)) = cluster_of(2) else {
        return;
    };
    let mut client = cluster.client();
    for number in 0..50_u8 {
        client.put(&[number], &[number]).unwrap();
    }
    let Fixture {
        store,
        door,
        _directory,
    } = fixtures.remove(0);
    let address = door.address().to_owned();
    door.stop();
    let gone = |server: usize| cluster.servers()[server].address() == address;
    let mut failed = 0;
    for number in 0..50_u8 {
        match client.put(&[number], &[number + 1]) {
            Ok(_) => assert!(!gone(cluster.server_of(&[number]))),
            Err(error) => {
                assert!(error.to_string().starts_with(&address), "{error}");
                failed += 1;
            }
        }
    }
    assert!((1..50).contains(&failed), "{failed}");
    // It is back at its address. Whoever knows its pool may know it by that alone.
    let door = Door::start(&store, &address, settings(Settings::default())).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    for number in 0..50_u8 {
        let found = loop {
            match client.get(&[number]) {
                Ok(found) => break found.unwrap(),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::yield_now();
        };
        // A put that ended as unknown may have happened.
        let is_at_gone = gone(cluster.server_of(&[number]));
        let may = [number, number + 1];
        assert!(
            may[usize::from(!is_at_gone)..].contains(&found[0]),
            "{found:?}"
        );
    }
    door.stop();
    let named: Vec<String> = (cluster.servers().iter())
        .map(|server| format!("{}#{}", server.address(), server.pool()))
        .collect();
    let unnamed = Cluster::connect(&[address.as_str()], &options()).err();
    assert!(unnamed.is_some(), "nobody is there");
    let mut client = Cluster::connect(&named, &options()).unwrap().client();
    for number in 0..50_u8 {
        let is_gone = gone(cluster.server_of(&[number]));
        assert_eq!(client.get(&[number]).is_err(), is_gone);
    }
}
