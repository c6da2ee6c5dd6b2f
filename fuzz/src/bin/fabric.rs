//! Fuzzing target: the door for a fabric, over a store with a landing area. A client that sends what it
//! likes, and writes what and where it likes, also to grants that are used or released, gets one reply for
//! each request or is closed. The door takes no more memory than its share, and goes on. Another client's
//! values stay what they were, and so does everything after a kill: the hostile one's keys hold what it put
//! whole, or what was there. Blocks of the store are lent for some values.
#![no_main]

use cap::Cap;
use everdram::password::Password;
use everdram::{EngineKind, Error, Options, lab};
use everdram_fabric::Settings;
use everdram_fabric::fuzzing::{Bench, Guest, LENT, Step};
use everdram_fuzz::MEMORY_BYTES_MAX;
use everdram_fuzz::choices::Choices;
use everdram_fuzz::pools::{Files, NOW_MS, image_of, options as small};
use everdram_fuzz::possible::Possible;
use everdram_pm::lab::{self as pm, Disk, Seed};
use libfuzzer_sys::fuzz_target;
use std::alloc::System;
use std::sync::{Arc, OnceLock};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES_MAX);

/// Most steps of all clients.
const STEPS: usize = 64;
/// Bytes of the landing area: one slot of the second size and some of the first.
const LANDING_BYTES: u64 = 24 << 12;
/// Longest value that a grant is asked for, but for those that are too long for the door.
const GRANTED_MAX: u64 = 20_000;
/// No block is lent for a value of so many bytes.
const SHORT: u64 = 24_300;
/// Bytes of blocks that may be lent.
const LEND_BYTES: u64 = 200_000;
/// Bytes that the image may grow to.
const CAPACITY: u64 = 1 << 20;

/// The hostile client, and the honest one.
const CLIENTS: [Client; 2] = [
    Client {
        number: 0,
        keys: b'h',
    },
    Client {
        number: 1,
        keys: b'g',
    },
];

#[derive(Clone, Copy)]
struct Client {
    number: usize,
    /// What its keys begin with.
    keys: u8,
}

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let pool = opened_pool(base());
    let opened = lab::open(Arc::clone(&pool), &options()).expect("a pool recovers");
    let landing = opened.landing().expect("there is a landing area");
    let settings = Settings {
        password: Password::new(Some(b"1".to_vec())),
        lends: true,
        ..Settings::default()
    };
    let mut place = Place {
        bench: Bench::new(opened.engine(), Some(Arc::clone(&landing)), settings)
            .expect("a session"),
        possible: Possible::new(landing, NOW_MS),
        guests: [None, None],
        count: 0,
    };
    // Mostly the password comes first.
    let is_known = !choices.byte().is_multiple_of(8);
    let ends = choices.flag();
    place.enter(CLIENTS[1], true);
    place.enter(CLIENTS[0], is_known);
    for _ in 0..STEPS {
        if choices.is_empty() {
            break;
        }
        place.step(&mut choices);
    }
    if ends {
        for client in CLIENTS {
            place.leave(client);
        }
        assert_eq!(
            place.bench.connections(),
            0,
            "a connection is not forgotten"
        );
    }
    restart(&image_of(&pool), &mut place.possible);
});

/// A door with its clients.
struct Place {
    bench: Bench,
    possible: Possible,
    /// The connection of each client, and its number.
    guests: [Option<(usize, Guest)>; 2],
    /// Connections so far.
    count: usize,
}

impl Place {
    fn enter(&mut self, client: Client, is_known: bool) {
        self.guests[client.number] = Some((self.count, self.bench.connect()));
        self.count += 1;
        self.hear();
        if is_known {
            let password = Step::Message {
                kind: 0,
                fields: [0; 5],
                key: &[],
                body: b"1",
            };
            self.act(client, &password, true);
        }
    }

    fn leave(&mut self, client: Client) {
        if let Some((name, guest)) = self.guests[client.number].take() {
            let lost = self.bench.hang_up(guest);
            self.possible.lost(&lost);
            self.possible.left(name);
            self.hear();
        }
    }

    fn act(&mut self, client: Client, step: &Step<'_>, turns: bool) {
        if let Some((_, guest)) = &mut self.guests[client.number] {
            guest.act(step);
        }
        self.possible.written();
        if !turns {
            return;
        }
        self.bench.turn();
        self.hear();
    }

    /// Takes in what a turn has told the clients, before any of them does something else.
    fn hear(&mut self) {
        for client in CLIENTS {
            let Some((name, guest)) = &mut self.guests[client.number] else {
                continue;
            };
            let heard = self.bench.listen(guest);
            for answer in &heard.answers {
                self.possible.answered(*name, answer);
            }
            if let Some(lost) = heard.lost {
                self.possible.lost(&lost);
                self.leave(client);
            }
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let kind = choices.byte();
        // Several requests are carried out together.
        let turns = kind & 0x40 == 0;
        let client = CLIENTS[usize::from(kind & 0x80 != 0)];
        if self.guests[client.number].is_none() {
            self.enter(client, true);
        }
        let told = self.guests[client.number].as_ref();
        let told = told.map_or(0, |(_, guest)| guest.told.len());
        // Mostly one of the last.
        let number = |choices: &mut Choices<'_>| {
            let back = usize::from(choices.byte());
            told.saturating_sub(
                1 + if back < 128 {
                    back % 4
                } else {
                    back % told.max(1)
                },
            )
        };
        let is_honest = client.number == 1;
        match kind % 16 {
            0 if !is_honest => {
                let count = choices.below(300);
                self.act(client, &Step::Bytes(choices.take(count)), turns);
            }
            1..3 if !is_honest => {
                let (number, behind) = (number(choices), choices.number());
                let count = choices.below(100);
                let bytes = choices.take(count);
                self.act(client, &Step::Write(number, behind, bytes), turns);
            }
            3..6 => {
                let number = number(choices);
                let range = match choices.byte() {
                    0..160 => [0, usize::MAX],
                    160..200 => [usize::from(choices.byte()), usize::MAX],
                    _ => [choices.number() as usize, choices.number() as usize],
                };
                let count = choices.below(20);
                let text = choices.take(count);
                self.act(client, &Step::Fulfil(number, text, range), turns);
            }
            6..8 => {
                let number = number(choices);
                self.act(client, &Step::Done(number), turns);
            }
            8 => self.leave(client),
            kind => {
                // Prepare, put, delete, get often; the others sometimes, and by the hostile one alone.
                let drawn = choices.byte();
                let kind = match kind {
                    9 | 10 => 4,
                    11 => [1, 2][usize::from(drawn % 2)],
                    12 => 3,
                    13 => 5,
                    _ if is_honest => 1,
                    _ => drawn % 8,
                };
                let mut fields = [(); 5].map(|()| choices.number());
                // Most values stay.
                if fields[1] < 150 {
                    fields[1] = 0;
                }
                if kind == 4 {
                    if drawn & 7 != 0 {
                        fields[4] = u64::from(drawn & 0x80 == 0);
                        fields[4] |= if drawn & 0x40 == 0 { LENT } else { 0 };
                    }
                    if fields[0] <= 1 << 20 {
                        fields[0] %= GRANTED_MAX;
                        fields[0] += if drawn & 0x60 == 0 { SHORT } else { 0 };
                    }
                }
                let (length, size) = (choices.below(4), choices.below(200));
                let mut key = vec![client.keys];
                key.extend_from_slice(choices.take(length));
                if !is_honest && drawn == 255 {
                    key.clear();
                }
                let step = Step::Message {
                    kind,
                    fields,
                    key: &key,
                    body: choices.take(size),
                };
                self.act(client, &step, turns);
            }
        }
    }
}

/// Opens what a kill leaves, and looks at every key.
fn restart(image: &[u8], possible: &mut Possible) {
    possible.restarted();
    let pool = opened_pool(image);
    let opened = lab::open(pool, &options()).expect("what a kill leaves recovers");
    let engine = opened.engine();
    let mut session = Arc::clone(&engine).session().expect("a session");
    let mut is_whole = true;
    for key in possible.keys() {
        let mut value = Vec::new();
        let held = match session.get(&key, &mut value) {
            Ok(found) => found.map(|_| value),
            // What has arrived stays in its slot until there is room for it.
            Err(Error::NoSpace(_)) => {
                is_whole = false;
                continue;
            }
            Err(error) => panic!("a key cannot be read: {error}"),
        };
        assert!(
            possible.of(&key).contains(&held),
            "{} holds {held:?}; possible: {:?}",
            key.escape_ascii(),
            possible.of(&key)
        );
    }
    let stats = opened.landing().expect("the area is kept").stats();
    assert!(
        !is_whole || stats.pages_free == stats.pages,
        "pages leak: {stats:?}"
    );
    let mut cursor = 0;
    while is_whole {
        let mut others = Vec::new();
        cursor = session
            .scan(cursor, 16, &mut |key, _, _| others.push(key.to_vec()))
            .expect("an iteration");
        for key in others {
            let known = possible.of(&key).iter().any(Option::is_some);
            assert!(known, "{} is there", key.escape_ascii());
        }
        is_whole = cursor != 0;
    }
}

/// A pool with a landing area and nothing in it.
fn base() -> &'static [u8] {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    BASE.get_or_init(|| {
        let (number, geometry) = lab::identity(&options()).expect("these options are sound");
        let empty = pm::create(Seed(40), number, geometry).expect("memory does not fail");
        let pool = opened_pool(&empty);
        let opened = lab::open(Arc::clone(&pool), &options()).expect("a new pool recovers");
        opened.engine().close().expect("memory does not fail");
        image_of(&pool)
    })
}

fn opened_pool(image: &[u8]) -> Arc<everdram_pm::Pool> {
    let disk = Arc::new(Disk::new(Files::new(), None));
    pm::open_beside(image, CAPACITY, None, &disk).expect("a pool opens")
}

fn options() -> Options {
    let mut options = small();
    options.engine = Some(EngineKind::Viper);
    options.max_bytes = CAPACITY;
    options.sessions_max = 4;
    options.landing_bytes = LANDING_BYTES;
    options.initial_bytes = 640 << 10;
    (options.keep_room, options.lend_bytes) = (true, LEND_BYTES);
    options
}
