//! The door over libfabric's provider `tcp`, on loopback. Without libfabric nothing is tested, and the tests
//! say so.

use everdram::password::Password;
use everdram::{Medium, MediumChoice, Options, Store};
use everdram_fabric::{
    Client, ClientError, ClientOptions, Door, INLINE_BYTES, Outcome, Settings, Status,
    VALUE_BYTES_MAX, Way,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Fixture {
    store: Store,
    door: Door,
    _directory: TempDir,
}

impl Fixture {
    /// `None`: there is no libfabric.
    fn new(medium: Medium, settings: Settings) -> Option<Fixture> {
        if let Err(reason) = everdram_fabric::version() {
            println!("skipped: {reason}");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::default();
        options.medium = MediumChoice::Only(medium);
        options.max_bytes = 256 << 20;
        let store = Store::open(directory.path().join("pool"), &options).unwrap();
        let door = Door::start(&store, "tcp://127.0.0.1:0", settings).unwrap();
        Some(Fixture {
            store,
            door,
            _directory: directory,
        })
    }

    fn client(&self) -> Client {
        Client::connect(self.door.address(), &ClientOptions::default()).unwrap()
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
        password: Password::new(Some(b"secret".to_vec())),
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
        password: Some("secret".into()),
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
