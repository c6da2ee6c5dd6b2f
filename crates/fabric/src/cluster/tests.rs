//! Clusters of three servers within the process.

use super::*;
use crate::door::{Door, Settings};
use everdram::{Medium, MediumChoice, Options, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, HashMap, HashSet};
use tempfile::TempDir;

/// How long a test waits for something that must come.
const LONG: Duration = Duration::from_secs(60);

/// A server, until it dies, and its pool and network, which remain.
struct Host {
    network: Network,
    directory: TempDir,
    running: Option<(Store, Door)>,
}

impl Host {
    fn new() -> Host {
        let mut host = Host {
            network: Network::new(),
            directory: tempfile::tempdir().unwrap(),
            running: None,
        };
        host.start();
        host
    }

    fn start(&mut self) {
        let mut options = Options::default();
        options.medium = MediumChoice::Only(Medium::Emulated);
        options.max_bytes = 256 << 20;
        let store = Store::open(self.directory.path().join("pool"), &options).unwrap();
        let door = Door::start_inside(&store, &self.network, Settings::default()).unwrap();
        self.running = Some((store, door));
    }

    /// The pool is not closed, which counts as a crash.
    fn die(&mut self) {
        if let Some((_store, door)) = self.running.take() {
            door.stop();
        }
    }

    fn keys(&self) -> u64 {
        self.running.as_ref().map_or(0, |(store, _)| store.len())
    }
}

struct Fixture {
    hosts: Vec<Host>,
    cluster: Cluster,
}

impl Fixture {
    fn new(count: usize) -> Fixture {
        Fixture::with(count, &ClientOptions::default())
    }

    fn with(count: usize, options: &ClientOptions) -> Fixture {
        let hosts: Vec<Host> = (0..count).map(|_| Host::new()).collect();
        let cluster = Cluster::inside(&networks(&hosts), options).unwrap();
        Fixture { hosts, cluster }
    }

    /// The host behind a server of the cluster.
    fn host(&mut self, server: usize) -> &mut Host {
        let pool = self.cluster.servers()[server].pool();
        let serves = |host: &&mut Host| match &host.running {
            Some((store, _)) => store.report().uuid == pool.0,
            None => false,
        };
        self.hosts.iter_mut().find(serves).unwrap()
    }
}

fn networks(hosts: &[Host]) -> Vec<Network> {
    hosts.iter().map(|host| host.network.clone()).collect()
}

fn options() -> ClientOptions {
    ClientOptions::default()
}

fn key(number: u64) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

#[test]
fn each_key_is_at_its_server_alone() {
    const KEYS: u64 = 3000;
    let mut fixture = Fixture::new(3);
    let cluster = fixture.cluster.clone();
    let mut client = cluster.client();
    let mut counts = [0; 3];
    for number in 0..KEYS {
        client.put(&key(number), &key(number + 1)).unwrap();
        counts[cluster.server_of(&key(number))] += 1;
    }
    for server in 0..3 {
        assert_eq!(fixture.host(server).keys(), counts[server]);
        // Pools are drawn anew in each run: a server has a third of the slots, and of these keys. Both
        // bounds are beyond six standard deviations.
        let slots = cluster.slots_of(server);
        assert!((5000..5920).contains(&slots), "{slots}");
        assert!((800..1200).contains(&counts[server]), "{counts:?}");
    }
    // Another client hears of them in another order, and finds all.
    let mut networks = networks(&fixture.hosts);
    networks.rotate_left(1);
    let mut other = Cluster::inside(&networks, &options()).unwrap().client();
    for number in 0..KEYS {
        let found = other.get(&key(number)).unwrap();
        assert_eq!(found, Some(key(number + 1)));
        assert_eq!(other.probe(&key(number)).unwrap().unwrap().expires_at_ms, 0);
    }
    assert!(other.delete(&key(7)).unwrap());
    assert_eq!(client.get(&key(7)).unwrap(), None);
    let tagged = |name: u64| cluster.server_of(format!("{{user}}:{name}").as_bytes());
    assert!((0..100).all(|name| tagged(name) == tagged(100)));
}

/// What one client does with keys of its own, against a map.
fn act(cluster: &Cluster, thread: u64, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut client = cluster.client();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    // What each call under way must come to.
    let mut expected: HashMap<Ticket, Option<Vec<u8>>> = HashMap::new();
    let mut puts = HashMap::new();
    for turn in 0..600_u64 {
        let key = format!("{thread}:{}", random.random_range(0..40)).into_bytes();
        match random.random_range(0..10) {
            0..5 => {
                let bytes = [0, 10, 300, 20_000][random.random_range(0..4)];
                let mut value = vec![turn as u8; bytes];
                value.extend(turn.to_le_bytes());
                let ticket = client.submit_put(&key, &value, 0, Way::Auto).unwrap();
                assert!(puts.insert(ticket, ()).is_none(), "seed {seed}");
                model.insert(key, value);
            }
            5..7 => {
                let ticket = client.submit_delete(&key).unwrap();
                let was = model.remove(&key);
                expected.insert(ticket, was.map(|_| Vec::new()));
            }
            _ => {
                // A call that waits, among those that are under way: they end first, since puts of a key that
                // are under way have no place among gets.
                settle(&mut client, &mut expected, &mut puts, seed);
                assert_eq!(
                    client.get(&key).unwrap().as_ref(),
                    model.get(&key),
                    "seed {seed}"
                );
            }
        }
        if client.calls_under_way() > 20 {
            settle(&mut client, &mut expected, &mut puts, seed);
        }
    }
    settle(&mut client, &mut expected, &mut puts, seed);
    for number in 0..40 {
        let key = format!("{thread}:{number}").into_bytes();
        let ticket = client.submit_get(&key).unwrap();
        expected.insert(ticket, model.get(&key).cloned());
    }
    settle(&mut client, &mut expected, &mut puts, seed);
}

/// Takes in all that is under way.
fn settle(
    client: &mut ClusterClient,
    expected: &mut HashMap<Ticket, Option<Vec<u8>>>,
    puts: &mut HashMap<Ticket, ()>,
    seed: u64,
) {
    while !(expected.is_empty() && puts.is_empty()) {
        let done = client.poll(LONG);
        assert!(!done.is_empty(), "seed {seed}: nothing ends");
        for done in done {
            match done.outcome.unwrap() {
                Outcome::Stored(_) => assert!(puts.remove(&done.ticket).is_some(), "seed {seed}"),
                Outcome::Found(value, _) => {
                    assert_eq!(
                        expected.remove(&done.ticket),
                        Some(Some(value)),
                        "seed {seed}"
                    );
                }
                Outcome::Removed => {
                    assert_eq!(
                        expected.remove(&done.ticket),
                        Some(Some(Vec::new())),
                        "seed {seed}"
                    );
                }
                Outcome::Absent => {
                    assert_eq!(expected.remove(&done.ticket), Some(None), "seed {seed}");
                }
                Outcome::Probed(_) => panic!("seed {seed}: nobody probes"),
            }
        }
    }
    assert_eq!(client.calls_under_way(), 0);
}

#[test]
fn eight_clients_of_three_servers_see_what_a_map_says() {
    let seed = rand::random::<u64>() >> 8;
    println!("seed {seed}");
    let fixture = Fixture::new(3);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let cluster = &fixture.cluster;
            scope.spawn(move || act(cluster, thread, seed + thread));
        }
    });
    assert!(fixture.hosts.iter().all(|host| host.keys() > 0));
}

/// A server dies over and over while calls are under way.
#[test]
fn a_server_that_dies_takes_its_keys_with_it_until_it_is_back() {
    // Nobody answers where a server is gone.
    let options = ClientOptions {
        connect_timeout: Duration::from_millis(300),
        ..ClientOptions::default()
    };
    let mut fixture = Fixture::with(3, &options);
    let cluster = fixture.cluster.clone();
    let mut client = cluster.client();
    // By key: the last acknowledged value, and values that may be there or not.
    let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
    let mut perhaps: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let (mut value, mut unknown, mut tickets) = (0, 0, HashSet::new());
    for round in 0..6 {
        let victim = round % 3;
        // Pools are drawn anew in each run: none of twelve keys may be at this server.
        let at_victim = |number: &u64| cluster.server_of(&key(*number)) == victim;
        let at_least_one = (1000..).find(at_victim).unwrap();
        value += 1;
        client
            .put(&key(at_least_one), &u64::to_le_bytes(value))
            .unwrap();
        acknowledged.insert(at_least_one, value);
        let mut under_way = HashMap::new();
        for number in 0..12 {
            value += 1;
            let bytes = [&u64::to_le_bytes(value)[..], &[0; 40_000]].concat();
            let ticket = client.submit_put(&key(number), &bytes, 0, Way::Auto);
            let ticket = ticket.unwrap();
            assert!(tickets.insert(ticket), "a ticket is used twice");
            under_way.insert(ticket, (number, value));
        }
        let host = fixture.host(victim);
        host.die();
        if round >= 3 {
            // A call that opens a connection again loses nothing of what ended with the last one.
            let number = (0..).find(at_victim).unwrap();
            assert!(client.get(&key(number)).is_err());
            assert!(client.get(&key(number)).is_err());
        }
        while !under_way.is_empty() {
            let done = client.poll(LONG);
            assert!(!done.is_empty());
            for done in done {
                let (number, value) = under_way.remove(&done.ticket).unwrap();
                match done.outcome {
                    Ok(outcome) => {
                        assert_eq!(outcome, Outcome::Stored(Way::ServerAssisted));
                        acknowledged.insert(number, value);
                        perhaps.remove(&number);
                    }
                    Err(ClusterError::Server { server, error }) => {
                        assert_eq!(server, cluster.servers()[victim].address());
                        assert!(matches!(error, ClientError::Unknown), "{error}");
                        perhaps.entry(number).or_default().push(value);
                        unknown += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        // It is gone, the error names it, and the others go on.
        let mut is_gone = false;
        for number in 100..200 {
            let server = cluster.server_of(&key(number));
            match client.put(&key(number), b"1") {
                Ok(_) => assert_ne!(server, victim),
                Err(error) => {
                    assert_eq!(server, victim, "{error}");
                    let name = cluster.servers()[victim].address();
                    assert!(error.to_string().starts_with(name), "{error}");
                    is_gone |= matches!(error, ClusterError::Gone { .. });
                }
            }
        }
        assert!(is_gone, "attempts never became rarer");
        host.start();
        // Nothing acknowledged is lost. The next attempt is made when it is time for it.
        for (number, last) in &acknowledged {
            let until = Instant::now() + LONG;
            let found = loop {
                match client.get(&key(*number)) {
                    Ok(found) => break found.unwrap(),
                    Err(error) => assert!(Instant::now() < until, "{error}"),
                }
                std::thread::yield_now();
            };
            let found = u64::from_le_bytes(*found.first_chunk().unwrap());
            let may = perhaps
                .get(number)
                .is_some_and(|values| values.contains(&found));
            assert!(found == *last || may, "key {number}: {found}, not {last}");
            // Known from here on.
            perhaps.remove(number);
        }
        for (number, _) in acknowledged.clone() {
            let found = client.get(&key(number)).unwrap().unwrap();
            acknowledged.insert(number, u64::from_le_bytes(*found.first_chunk().unwrap()));
        }
        assert!(fixture.host(victim).keys() > 0);
    }
    assert!(unknown > 0, "nothing was under way when a server died");
}

#[test]
fn a_list_of_servers_is_judged() {
    let mut fixture = Fixture::new(2);
    let [one, two] = [&fixture.hosts[0], &fixture.hosts[1]].map(|host| host.network.clone());
    let connect = |networks: &[Network]| Cluster::inside(networks, &options()).err();
    assert!(matches!(connect(&[]), Some(ClusterError::Empty)));
    let many = vec![one.clone(); SERVERS_MAX + 1];
    assert!(matches!(connect(&many), Some(ClusterError::TooMany(_))));
    let twice = connect(&[one.clone(), two, one.clone()]).unwrap();
    assert!(matches!(twice, ClusterError::SamePool { .. }), "{twice}");
    for bad in ["tcp://127.0.0.1:1#", "tcp://127.0.0.1:1#12"] {
        let refused = Cluster::connect(&[bad], &options()).err();
        assert!(
            matches!(refused, Some(ClusterError::Identity(_))),
            "{refused:?}"
        );
    }
    // One that names its pool need not be there, and the others are used meanwhile.
    let named = format!("nothing#{}", PoolId([1; 16]));
    let cluster = Cluster::connect(&[&named], &options()).unwrap();
    assert_eq!(cluster.servers()[0].pool(), PoolId([1; 16]));
    assert_eq!(cluster.slots_of(0), usize::from(SLOTS));
    let error = cluster.client().put(b"key", b"1").unwrap_err();
    let is_address = matches!(&error, ClusterError::Server { server, error: ClientError::Address(_) } if server == "nothing");
    assert!(is_address, "{error}");

    // Another pool at the same place is refused: its keys are not those of the map.
    let cluster = fixture.cluster.clone();
    let mut client = cluster.client();
    let victim = cluster.server_of(b"key");
    client.put(b"key", b"1").unwrap();
    let host = fixture.host(victim);
    host.die();
    host.directory = tempfile::tempdir().unwrap();
    host.start();
    let until = Instant::now() + LONG;
    let error = loop {
        match client.get(b"key") {
            Err(error @ ClusterError::OtherPool { .. }) => break error,
            Err(error) => assert!(Instant::now() < until, "{error}"),
            Ok(found) => panic!("{found:?}"),
        }
        std::thread::yield_now();
    };
    assert!(error.to_string().contains("serves the pool"), "{error}");
}
