//! Seeded random commands over few keys, so that they meet each other's results: mostly well-formed, some
//! with an argument dropped, doubled or replaced by nonsense.
//!
//! They avoid everything that a clock decides (expiries are long or past), cursors, encodings and counts that
//! depend on history (Redis counts an expired key until it finds it), and huge results.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Commands of one run.
pub(crate) const COMMANDS: usize = 6_000;

const KEYS: [&[u8]; 9] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"key:1",
    b"key:2",
    b"key:3",
    b"bin\x00\xff\r\n",
    b"n",
];
const VALUES: [&[u8]; 14] = [
    b"",
    b"0",
    b"1",
    b"-1",
    b"10",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"3.25",
    b"1e3",
    b"abc",
    b"hello world",
    b"\x00\r\n\xff",
    b"  7",
    b"0123456789012345678901234567890123456789012345678901234567890123",
];
const INTEGERS: [&[u8]; 12] = [
    b"0",
    b"1",
    b"-1",
    b"2",
    b"-2",
    b"5",
    b"100",
    b"-100",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"x",
    b"1.5",
];
const OFFSETS: [&[u8]; 8] = [
    b"0",
    b"1",
    b"3",
    b"20",
    b"-1",
    b"536870912",
    b"9223372036854775807",
    b"x",
];
const FLOATS: [&[u8]; 17] = [
    b"0",
    b"1",
    b"0.1",
    b"-0.1",
    b"3.0e3",
    b"1e-5",
    b"1e17",
    b"-1e17",
    b"123456789.987654321",
    b"0.3333333333333333333333",
    b"1e4000",
    b"1e5000",
    b"inf",
    b"nan",
    b"x",
    b"0x1.8p1",
    b"",
];
/// Past or invalid.
const SECONDS: [&[u8]; 6] = [
    b"-1",
    b"0",
    b"x",
    b"9223372036854775807",
    b"9223372036854775",
    b"-9223372036854776",
];
const MILLISECONDS: [&[u8]; 4] = [b"-1", b"0", b"9223372036854775807", b"-9223372036854775808"];
const AT_SECONDS: [&[u8]; 7] = [
    b"1",
    b"0",
    b"-5",
    b"4102444800",
    b"5102444800",
    b"x",
    b"9223372036854775807",
];
const AT_MILLISECONDS: [&[u8]; 6] = [b"1", b"0", b"-5", b"4102444800000", b"5102444800000", b"x"];
const PATTERNS: [&[u8]; 10] = [
    b"*", b"key:*", b"key:?", b"[ab]", b"[^ab]", b"[a-c]*", b"?", b"k*[2-9]", b"bin*", b"\\a",
];
const NONSENSE: [&[u8]; 5] = [b"NX", b"foo", b"GET", b"-1", b"\xff"];

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    match std::env::var("EVERDRAM_TEST_SEED") {
        Ok(text) => text.parse().expect("EVERDRAM_TEST_SEED is a number"),
        Err(_) => rand::random(),
    }
}

pub(crate) struct Generator {
    random: StdRng,
    /// Commands that must follow, with the number of their connection.
    pending: Vec<(usize, Vec<Vec<u8>>)>,
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Generator {
        Generator {
            random: StdRng::seed_from_u64(seed),
            pending: Vec::new(),
        }
    }

    /// A connection, and a command for it.
    pub(crate) fn next_command(&mut self) -> (usize, Vec<Vec<u8>>) {
        if let Some(next) = self.pending.pop() {
            return next;
        }
        let connection = usize::from(self.chance(5));
        if self.chance(25) {
            self.plan_transaction(connection);
            return self.next_command();
        }
        let command = self.command();
        (connection, self.spoiled(command))
    }

    /// A transaction, sometimes with a watched key, which the other connection sometimes writes.
    fn plan_transaction(&mut self, connection: usize) {
        let mut plan = Vec::new();
        let watched = self.one(&KEYS);
        let watches = self.chance(2);
        if watches {
            // A watched key exists: for an absent one, an engine may report a write too often.
            plan.push((
                connection,
                vec![b"SET".to_vec(), watched.clone(), self.one(&VALUES)],
            ));
            plan.push((connection, vec![b"WATCH".to_vec(), watched.clone()]));
        }
        if watches && self.chance(2) {
            plan.push((
                1 - connection,
                vec![b"APPEND".to_vec(), watched, b"!".to_vec()],
            ));
        }
        plan.push((connection, vec![b"MULTI".to_vec()]));
        for _ in 0..self.random.random_range(0..6) {
            let command = self.command();
            let command = if self.chance(10) {
                self.spoiled(command)
            } else {
                command
            };
            plan.push((connection, command));
        }
        let end: &[u8] = if self.chance(10) { b"DISCARD" } else { b"EXEC" };
        plan.push((connection, vec![end.to_vec()]));
        plan.reverse();
        self.pending = plan;
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    fn one(&mut self, words: &[&[u8]]) -> Vec<u8> {
        words[self.random.random_range(0..words.len())].to_vec()
    }

    fn spoiled(&mut self, mut command: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        if self.chance(4) {
            let upper = self.chance(2);
            let name = &mut command[0];
            if upper {
                name.make_ascii_uppercase()
            } else {
                name.make_ascii_lowercase()
            }
        }
        // Redis cuts an unknown subcommand at a zero byte; ours shows all of it.
        if command.len() < 2 || command[0].eq_ignore_ascii_case(b"object") || !self.chance(12) {
            return command;
        }
        let index = self.random.random_range(1..command.len());
        let as_it_was = command.clone();
        match self.random.random_range(0..3) {
            0 => {
                command.remove(index);
            }
            1 => command.insert(index, command[index].clone()),
            _ => command[index] = self.one(&NONSENSE),
        }
        // A moved argument may have become a key, and Redis allows an empty key where ours does not.
        if command.iter().any(Vec::is_empty) {
            as_it_was
        } else {
            command
        }
    }

    fn command(&mut self) -> Vec<Vec<u8>> {
        const SHAPES: [&str; 57] = [
            "GET k",
            "GET k",
            "SET k v",
            "SET k v",
            "SET k v +",
            "SET k v + +",
            "SET k v + + +",
            "SETNX k v",
            "SETEX k s v",
            "PSETEX k m v",
            "GETSET k v",
            "GETDEL k",
            "GETEX k",
            "GETEX k +",
            "MGET k k k",
            "MSET k v k v",
            "MSETNX k v k v",
            "APPEND k v",
            "STRLEN k",
            "GETRANGE k i i",
            "SUBSTR k i i",
            "SETRANGE k o v",
            "INCR k",
            "DECR k",
            "INCRBY k i",
            "DECRBY k i",
            "INCRBYFLOAT k f",
            "INCRBYFLOAT n f",
            "DEL k",
            "DEL k k",
            "UNLINK k k",
            "EXISTS k k k",
            "TYPE k",
            "TOUCH k k",
            "RENAME k k",
            "RENAMENX k k",
            "COPY k k",
            "COPY k k REPLACE",
            "COPY k k DB 0",
            "RANDOMKEY",
            "KEYS p",
            "SCAN 0 COUNT 10000",
            "SCAN 0 MATCH p COUNT 10000",
            "EXPIRE k s",
            "EXPIRE k s c",
            "EXPIRE k s c c",
            "PEXPIRE k m",
            "PEXPIRE k m c",
            "EXPIREAT k S",
            "EXPIREAT k S c",
            "PEXPIREAT k M",
            "TTL k",
            "PTTL k",
            "EXPIRETIME k",
            "PEXPIRETIME k",
            "PERSIST k",
            "OBJECT FREQ k",
        ];
        if self.chance(400) {
            return vec![b"FLUSHALL".to_vec()];
        }
        let shape = SHAPES[self.random.random_range(0..SHAPES.len())];
        shape
            .split(' ')
            .flat_map(|place| self.fill(place))
            .collect()
    }

    fn fill(&mut self, place: &str) -> Vec<Vec<u8>> {
        let word = match place {
            "k" => self.one(&KEYS),
            "v" => self.one(&VALUES),
            "i" => self.one(&INTEGERS),
            "o" => self.one(&OFFSETS),
            "f" => self.float(),
            "s" => self.duration("", &SECONDS),
            "m" => self.duration("000", &MILLISECONDS),
            "S" => self.one(&AT_SECONDS),
            "M" => self.one(&AT_MILLISECONDS),
            "p" => self.one(&PATTERNS),
            "c" => self.one(&[b"NX", b"XX", b"GT", b"lt", b"gt", b"foo"]),
            "+" => return self.option(),
            literal => literal.as_bytes().to_vec(),
        };
        vec![word]
    }

    /// A long duration that hardly ever repeats: comparing two expiries must not depend on the millisecond in
    /// which each server read its clock.
    fn duration(&mut self, zeros: &str, others: &[&[u8]]) -> Vec<u8> {
        if self.chance(3) {
            return self.one(others);
        }
        format!("{}{zeros}", self.random.random_range(1_000..10_000_000)).into_bytes()
    }

    /// A float of any length and size; often of a size that leaves digits in a sum.
    fn float(&mut self) -> Vec<u8> {
        if self.chance(3) {
            return self.one(&FLOATS);
        }
        let mut text = String::from(if self.chance(2) { "-" } else { "" });
        let (digits, point) = (
            self.random.random_range(1..30),
            self.random.random_range(0..30),
        );
        for index in 0..digits {
            if index == point {
                text.push('.');
            }
            text.push(char::from(b'0' + self.random.random_range(0..10_u8)));
        }
        match self.random.random_range(0..8) {
            0 => text.push_str(&format!("e{}", self.random.random_range(-40..40))),
            1 => text.push_str(&format!("E{}", self.random.random_range(-5000..5000))),
            _ => {}
        }
        text.into_bytes()
    }

    fn option(&mut self) -> Vec<Vec<u8>> {
        let name = self.one(&[
            b"NX", b"xx", b"GET", b"KEEPTTL", b"PERSIST", b"EX", b"PX", b"EXAT", b"pxat", b"EX",
        ]);
        let number = match name.as_slice() {
            b"EX" => self.duration("", &SECONDS),
            b"PX" => self.duration("000", &MILLISECONDS),
            b"EXAT" => self.one(&AT_SECONDS),
            b"pxat" => self.one(&AT_MILLISECONDS),
            _ => return vec![name],
        };
        vec![name, number]
    }
}
