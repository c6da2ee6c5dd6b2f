//! Windows over every kind of link: within a process, with and without a seed, and over libfabric's `tcp`,
//! where there is one.

use super::*;
use crate::inside::Network;
use crate::libfabric::{self, Place};
use everdram_pm::Pool;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);

/// Both ends of a connection, in one thread.
struct Ends {
    door: Box<dyn Link>,
    door_conn: Conn,
    client: Box<dyn Link>,
    conn: Conn,
    _ear: Box<dyn Listen>,
}

fn ends(
    mut ear: Box<dyn Listen>,
    mut door: Box<dyn Link>,
    mut client: Box<dyn Link>,
    conn: Conn,
) -> Ends {
    let until = Instant::now() + PATIENCE;
    let (mut events, mut door_conn) = (Vec::new(), None);
    let soon = Duration::from_millis(1);
    while !events.iter().any(|event| matches!(event, Event::Opened)) {
        assert!(Instant::now() < until, "no connection");
        if let Some(request) = ear.wait(soon).unwrap() {
            door_conn = Some(door.accept(request, 4).unwrap());
        }
        door.wait(Some(soon), &mut Vec::new()).unwrap();
        client.wait(Some(soon), &mut events).unwrap();
    }
    Ends {
        door,
        door_conn: door_conn.unwrap(),
        client,
        conn,
        _ear: ear,
    }
}

fn within(network: &Network) -> Ends {
    let mut client = network.port();
    let conn = client.connect(network, 4);
    let (ear, door) = (Box::new(network.listen()), Box::new(network.port()));
    ends(ear, door, Box::new(client), conn)
}

/// A connection over each kind of link.
fn each() -> Vec<(&'static str, Ends)> {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut each = vec![
        ("inside", within(&Network::new())),
        ("inside, seeded", within(&Network::seeded(seed))),
    ];
    match libfabric::Ear::bind(&Place::parse("tcp://127.0.0.1:0").unwrap()) {
        Err(reason) => println!("without libfabric: {reason}"),
        Ok(ear) => {
            let ear = ear.unwrap();
            let door = ear.port().unwrap();
            let place = Place::parse(&ear.address()).unwrap();
            let (client, conn) = libfabric::Port::to(&place, 4).unwrap().unwrap();
            let ends = ends(Box::new(ear), Box::new(door), Box::new(client), conn);
            each.push(("tcp", ends));
        }
    }
    each
}

impl Ends {
    /// What the client is told next, while both ends move.
    fn next(&mut self) -> Event {
        let until = Instant::now() + PATIENCE;
        let mut events = Vec::new();
        while events.is_empty() {
            assert!(Instant::now() < until, "nothing happens");
            let soon = Some(Duration::from_millis(1));
            self.door.wait(soon, &mut Vec::new()).unwrap();
            self.client.wait(soon, &mut events).unwrap();
        }
        assert!(
            events.len() == 1 || matches!(events.last(), Some(Event::Closed(_))),
            "{events:?}"
        );
        events.remove(0)
    }

    fn committed(&mut self, bytes: &[u8], target: (u64, u64), token: u64) {
        self.client
            .write_durably(self.conn, bytes, target, token)
            .unwrap();
        let event = self.next();
        assert!(
            matches!(event, Event::Committed(ended, true) if ended == token),
            "{event:?}"
        );
    }

    fn expose(&mut self, window: &Arc<Window>, access: Access) -> Area {
        let area = self.door.expose_window(self.door_conn, window, access);
        area.unwrap()
    }
}

/// A window of 64 KiB between two of the same pool that nobody exposes.
fn window() -> Arc<Window> {
    let pool = Pool::heap(1 << 20, 0, [0; 8]);
    let at = pool.allocate(100, 3 << 16, 4096).unwrap().at;
    Arc::new(pool.window(at + (1 << 16), 1 << 16).unwrap())
}

fn shown(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len()];
    window.pool().region().load(window.at(), &mut bytes);
    bytes
}

/// The pool beside the window.
fn beside(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; 2 << 16];
    let (before, behind) = bytes.split_at_mut(1 << 16);
    let region = window.pool().region();
    region.load(window.at() - (1 << 16), before);
    region.load(window.at() + (1 << 16), behind);
    bytes
}

#[test]
fn durable_writes_are_in_the_pool_and_are_read_back() {
    for (name, mut ends) in each() {
        assert!(ends.door.can_commit() && ends.client.can_commit(), "{name}");
        let window = window();
        let area = ends.expose(&window, Access::ReadWrite);
        let mut expected = vec![0; 1 << 16];
        let ranges = [
            (0, 1 << 16),
            (8, 64),
            (3, 2),
            (5, 13),
            (65_529, 7),
            (65_535, 1),
        ];
        for (token, (at, bytes)) in (1..).zip(ranges) {
            let fill = vec![token as u8; bytes];
            ends.committed(&fill, (area.address + at as u64, area.key), token);
            expected[at..at + bytes].copy_from_slice(&fill);
            assert!(shown(&window) == expected, "{name}: {bytes} bytes at {at}");
            let (from, most) = (area.address + at as u64, bytes.min(1000));
            ends.client
                .read(ends.conn, most, (from, area.key), token)
                .unwrap();
            let event = ends.next();
            let Event::Read(ended, Some(read)) = event else {
                panic!("{name}: {event:?}")
            };
            assert!(ended == token && read == fill[..most], "{name}: {read:?}");
            let mut looked = vec![0; bytes];
            ends.door.read_area(&area, at, &mut looked).unwrap();
            assert!(looked == fill, "{name}");
        }
        assert_eq!(beside(&window), vec![0; 2 << 16], "{name}");
    }
}

#[test]
fn a_message_behind_a_write_finds_its_bytes_in_the_window() {
    for (name, mut ends) in each() {
        let window = window();
        let area = ends.expose(&window, Access::Write);
        for round in 1..20_u8 {
            let fill = vec![round; 1 << 16];
            let target = (area.address, area.key);
            ends.client.write(ends.conn, &fill, target).unwrap();
            ends.client.send(ends.conn, &[b"behind"]).unwrap();
            let until = Instant::now() + PATIENCE;
            let soon = Some(Duration::from_millis(1));
            let mut arrived = Vec::new();
            while arrived.is_empty() {
                assert!(Instant::now() < until, "{name}");
                ends.client.wait(soon, &mut Vec::new()).unwrap();
                ends.door.wait(soon, &mut arrived).unwrap();
                arrived.retain(|event| matches!(event, Event::Message(..)));
            }
            assert!(shown(&window) == fill, "{name}, round {round}");
            for event in arrived {
                if let Event::Message(_, buffer) = event {
                    ends.door.give_back(buffer, true).unwrap();
                }
            }
        }
    }
}

#[test]
fn who_goes_where_it_may_not_loses_its_connection() {
    type Attempt = fn(&mut dyn Link, Conn, (u64, u64)) -> Result<(), LinkError>;
    let write: Attempt = |link, conn, target| link.write(conn, &[1; 64], target);
    let durably: Attempt = |link, conn, target| link.write_durably(conn, &[1; 64], target, 5);
    let read: Attempt = |link, conn, source| link.read(conn, 64, source, 6);
    let attempts = [
        (Access::Read, 0, write),
        (Access::Read, 0, durably),
        (Access::Write, 0, read),
        (Access::ReadWrite, (1 << 16) - 63, write),
        (Access::ReadWrite, (1 << 16) - 63, durably),
        (Access::ReadWrite, (1 << 16) - 63, read),
        (Access::ReadWrite, u64::MAX - 31, durably),
    ];
    for (number, (access, behind, attempt)) in attempts.into_iter().enumerate() {
        for (name, mut ends) in each() {
            let window = window();
            let area = ends.expose(&window, access);
            let target = (area.address.wrapping_add(behind), area.key);
            attempt(&mut *ends.client, ends.conn, target).unwrap();
            let mut told = ends.next();
            // On a network a write can have been sent.
            while !matches!(told, Event::Closed(_)) {
                assert!(
                    matches!(
                        told,
                        Event::Written(_) | Event::Committed(5, false) | Event::Read(6, None)
                    ),
                    "{name}, {number}: {told:?}"
                );
                if ends.client.send(ends.conn, &[b"x"]).is_err() {
                    break;
                }
                told = ends.next();
            }
            assert_eq!(shown(&window), vec![0; 1 << 16], "{name}, {number}");
            assert_eq!(beside(&window), vec![0; 2 << 16], "{name}, {number}");
        }
    }
}

/// R6: what is closed changes nothing more, whoever still knows the key.
#[test]
fn a_closed_connection_writes_nothing_more() {
    for (name, mut ends) in each() {
        let window = window();
        let area = ends.expose(&window, Access::ReadWrite);
        let target = (area.address, area.key);
        ends.committed(&[1; 64], target, 1);
        ends.door.close(ends.door_conn);
        // This end has not heard of it.
        let _closed = ends.client.write(ends.conn, &[2; 64], target);
        let _closed = ends.client.write_durably(ends.conn, &[2; 64], target, 2);
        loop {
            match ends.next() {
                Event::Closed(_) => break,
                Event::Committed(2, true) => panic!("{name}: durable where it is closed"),
                _ if ends.client.send(ends.conn, &[]).is_err() => break,
                _ => {}
            }
        }
        assert_eq!(shown(&window)[..64], [1; 64], "{name}");
    }
}

#[test]
fn a_link_lets_a_window_go_when_nobody_reaches_it() {
    for (name, mut ends) in each() {
        let window = window();
        let area = ends.expose(&window, Access::ReadWrite);
        assert!(Arc::strong_count(&window) > 1, "{name}");
        ends.door.close(ends.door_conn);
        ends.door.unexpose(area);
        let until = Instant::now() + PATIENCE;
        while Arc::strong_count(&window) > 1 {
            assert!(Instant::now() < until, "{name}");
            ends.door
                .wait(Some(Duration::from_millis(1)), &mut Vec::new())
                .unwrap();
        }
        let area = ends.expose(&window, Access::Read);
        assert_eq!(area.bytes, 1 << 16, "{name}");
        let Ends { door, client, .. } = ends;
        drop(door);
        assert_eq!(Arc::strong_count(&window), 1, "{name}");
        drop(client);
    }
}
