//! Append-only files, to and from a stock redis-server: what one holds, the other holds after the move, key
//! by key, value by value, expiry by expiry. Skipped, with a message, where redis-server is not installed.

use everdram::{EngineKind, test_each_engine};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{Pipeline, Value, cmd, pipe};
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

test_each_engine!(
    a_stock_redis_starts_from_an_export,
    what_a_stock_redis_wrote_is_imported,
);

/// Value and expiry (Unix milliseconds, 0 = never) of each key.
type Contents = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

const KEYS: usize = 100_000;
/// Requests sent before their answers are read.
const WINDOW: usize = 2000;
/// Long after any run of this test.
const EXPIRES_AT_MS: u64 = 9_000_000_000_000;
const START_TIME: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 5;

fn everdram(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everdram"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("EVERDRAM_")) {
        command.env_remove(name);
    }
    command.args(arguments).output().unwrap()
}

fn run_well(arguments: &[&str]) -> String {
    let output = everdram(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the failing command said.
fn run_badly(arguments: &[&str]) -> String {
    let output = everdram(arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
    assert!(!error.contains("panicked"), "{arguments:?}: {error}");
    error
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A redis-server in a process of its own.
struct Redis {
    process: Child,
    connection: redis::Connection,
}

impl Redis {
    /// Starts what the words of a shell say, with more arguments; `None`, with a message, if there is no
    /// redis-server.
    fn start(words: &str, directory: &Path) -> Option<Redis> {
        if Command::new("redis-server")
            .arg("--version")
            .output()
            .is_err()
        {
            println!(
                "SKIPPED: redis-server is not installed, so nothing can be moved to it or from it"
            );
            return None;
        }
        for _ in 0..ATTEMPTS {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let mut process = Command::new("sh")
                .args([
                    "-c",
                    &format!("exec {words} --bind 127.0.0.1 --port {port} --save ''"),
                ])
                .current_dir(directory)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            if let Some(connection) = connect(&mut process, port) {
                return Some(Redis {
                    process,
                    connection,
                });
            }
            let _ = process.wait();
        }
        panic!("redis-server did not start: {words}");
    }

    /// Starts one with append-only files in `directory`/appendonlydir.
    fn append_only(directory: &Path, rdb: &str) -> Option<Redis> {
        let settings = "--appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0";
        Redis::start(
            &format!("redis-server {settings} --aof-use-rdb-preamble {rdb}"),
            directory,
        )
    }

    fn call(&mut self, words: &str) -> Value {
        let mut words = words.split(' ');
        let mut command = cmd(words.next().unwrap());
        words.for_each(|word| _ = command.arg(word));
        command
            .query(&mut self.connection)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn rewrite(&mut self) {
        self.call("BGREWRITEAOF");
        let deadline = Instant::now() + START_TIME;
        loop {
            let info: String = cmd("INFO")
                .arg("persistence")
                .query(&mut self.connection)
                .unwrap();
            if info.contains("aof_rewrite_in_progress:0")
                && info.contains("aof_rewrite_scheduled:0")
            {
                assert!(info.contains("aof_last_bgrewrite_status:ok"), "{info}");
                return;
            }
            assert!(Instant::now() < deadline, "{info}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// All strings of database 0.
    fn contents(&mut self) -> Contents {
        let keys: Vec<Vec<u8>> = cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        let mut contents = Contents::new();
        for keys in keys.chunks(WINDOW) {
            let mut pipe = pipe();
            for key in keys {
                pipe.cmd("TYPE").arg(key).cmd("PEXPIRETIME").arg(key);
            }
            let states: Vec<(String, i64)> = pairs(&pipe, &mut self.connection);
            let strings = keys
                .iter()
                .zip(states)
                .filter(|(_, (kind, _))| kind == "string");
            let strings: Vec<(&Vec<u8>, u64)> = strings
                .map(|(key, (_, at))| (key, u64::try_from(at).unwrap_or(0)))
                .collect();
            let mut pipe = redis::pipe();
            for (key, _) in &strings {
                pipe.cmd("GET").arg(key);
            }
            let values: Vec<Option<Vec<u8>>> = pipe.query(&mut self.connection).unwrap();
            for ((key, at), value) in strings.into_iter().zip(values) {
                contents.insert(key.clone(), (value.unwrap(), at));
            }
        }
        contents
    }

    /// Ends it with SIGKILL.
    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The answers two by two.
fn pairs<A: redis::FromRedisValue, B: redis::FromRedisValue>(
    pipe: &Pipeline,
    connection: &mut redis::Connection,
) -> Vec<(A, B)> {
    let answers: Vec<Value> = pipe.query(connection).unwrap();
    let pair = |pair: &[Value]| {
        let first = A::from_redis_value(&pair[0]).unwrap();
        (first, B::from_redis_value(&pair[1]).unwrap())
    };
    answers.chunks_exact(2).map(pair).collect()
}

/// Waits until it has loaded its files; `None` if it has ended, or another process answers.
fn connect(process: &mut Child, port: u16) -> Option<redis::Connection> {
    let own = format!("process_id:{}\r\n", process.id());
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let deadline = Instant::now() + START_TIME;
    while Instant::now() < deadline && process.try_wait().unwrap().is_none() {
        if let Ok(mut connection) = client.get_connection() {
            let info: redis::RedisResult<String> = cmd("INFO").query(&mut connection);
            if info.is_ok_and(|info| info.contains(&own) && info.contains("\r\nloading:0\r\n")) {
                return Some(connection);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = process.kill();
    None
}

fn seeded() -> StdRng {
    let seed = rand::rng().random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// Binary, empty, large, packable values, and numbers.
fn random_value(random: &mut StdRng) -> Vec<u8> {
    let mut value = match random.random_range(0..1000) {
        0..100 => Vec::new(),
        100..300 => return random.random_range(-200_i64..200).to_string().into(),
        300..400 => return random.random::<i32>().to_string().into(),
        400..450 => return random.random::<i64>().to_string().into(),
        450..600 => return b"the same again, ".repeat(random.random_range(2..20)),
        999 => vec![0; random.random_range(1000..200_000)],
        _ => vec![0; random.random_range(1..80)],
    };
    random.fill(&mut value[..]);
    value
}

fn random_contents(random: &mut StdRng) -> Contents {
    let mut contents = Contents::new();
    while contents.len() < KEYS {
        let mut key = vec![0; random.random_range(3..40)];
        random.fill(&mut key[..]);
        let expires_at_ms = match random.random_range(0..3) {
            0 => EXPIRES_AT_MS + random.random_range(0..1_000_000),
            _ => 0,
        };
        contents.insert(key, (random_value(random), expires_at_ms));
    }
    contents
}

fn store(pool: &Path, engine: EngineKind, contents: &Contents) {
    let mut options = everdram::Options::default();
    options.engine = Some(engine);
    let store = everdram::Store::open(pool, &options).unwrap();
    let mut session = store.session().unwrap();
    for (number, (key, (value, expires_at_ms))) in contents.iter().enumerate() {
        session.engine().put(key, value, *expires_at_ms).unwrap();
        if number % WINDOW == 0 {
            let _ = session.commit().unwrap();
        }
    }
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    drop(session);
    store.close().unwrap();
}

fn read(pool: &Path) -> Contents {
    let store = everdram::Store::open(pool, &everdram::Options::default()).unwrap();
    let mut session = store.session().unwrap();
    let keys: Vec<Vec<u8>> = session.keys().collect::<Result<_, _>>().unwrap();
    let mut contents = Contents::new();
    for key in keys {
        let mut value = Vec::new();
        if let Some(found) = session.get_into(&key, &mut value).unwrap() {
            contents.insert(key, (value, found.expires_at_ms));
        }
    }
    contents
}

/// Names the first difference; the maps themselves would fill a screen.
fn assert_same(found: &Contents, expected: &Contents) {
    for (key, expected) in expected {
        let shown = key.escape_ascii();
        let found = found
            .get(key)
            .unwrap_or_else(|| panic!("no key {shown}: {expected:?}"));
        assert!(
            found == expected,
            "key {shown}: {found:?} instead of {expected:?}"
        );
    }
    let more = found.keys().find(|key| !expected.contains_key(*key));
    assert_eq!(more, None, "a key that should not be there");
}

fn assert_valid(manifest: &Path) {
    let checked = Command::new("redis-check-aof")
        .arg(manifest)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success() && said.contains("All AOF files and manifest are valid"),
        "{said}"
    );
}

fn a_stock_redis_starts_from_an_export(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let (pool, moved) = (
        directory.path().join("pool"),
        directory.path().join("it's moved"),
    );
    let contents = random_contents(&mut seeded());
    store(&pool, engine, &contents);
    let said = run_well(&[
        "export",
        text(&pool),
        "--aof",
        text(&moved),
        "--aof-name",
        "a-b.aof",
    ]);
    let Some(mut redis) = Redis::start(said.lines().last().unwrap(), directory.path()) else {
        return;
    };
    assert_valid(&moved.join("a-b.aof.manifest"));
    assert_same(&redis.contents(), &contents);
    // It goes on from there.
    redis.call("SET more 1");
    redis.kill();
    let back = directory.path().join("back");
    run_well(&["import", text(&back), "--aof", text(&moved)]);
    let mut contents = contents;
    contents.insert(b"more".to_vec(), (b"1".to_vec(), 0));
    assert_same(&read(&back), &contents);
}

fn what_a_stock_redis_wrote_is_imported(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut redis) = Redis::append_only(directory.path(), "yes") else {
        return;
    };
    let mut random = seeded();
    let contents = random_contents(&mut random);
    let all: Vec<_> = contents.iter().collect();
    for some in all.chunks(WINDOW) {
        let mut pipe = pipe();
        for (key, (value, expires_at_ms)) in some {
            let set = pipe.cmd("SET").arg(*key).arg(value);
            if *expires_at_ms != 0 {
                set.arg("PXAT").arg(*expires_at_ms);
            }
        }
        let _: Vec<Value> = pipe.query(&mut redis.connection).unwrap();
    }
    redis.call("SET base-counter 5 PXAT 9000000000000");
    redis.rewrite();
    let mut first = pipe();
    for words in FIRST {
        let mut words = words.split(' ');
        let command = first.cmd(words.next().unwrap());
        words.for_each(|word| _ = command.arg(word));
    }
    let _: Vec<Value> = first.query(&mut redis.connection).unwrap();
    let keys: Vec<&Vec<u8>> = contents.keys().collect();
    for _ in 0..5 {
        let pipe = random_commands(&mut random, &keys);
        let _: Vec<Value> = pipe.query(&mut redis.connection).unwrap_or_default();
    }
    let mut transaction = pipe();
    transaction.atomic();
    for number in 0..500 {
        transaction.cmd("INCRBY").arg("total").arg(number);
        transaction
            .cmd("SET")
            .arg(format!("in-{number}"))
            .arg(number)
            .arg("PX")
            .arg(9_000_000_000_u64);
    }
    let _: Vec<Value> = transaction.query(&mut redis.connection).unwrap();
    // Their expiries have passed when the files are loaded, and later commands counted on those keys.
    let deadline = Instant::now() + START_TIME;
    while redis.call("EXISTS short") == Value::Int(1) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    let expected = redis.contents();
    redis.kill();
    for (key, value) in [
        ("counter", "6"),
        ("base-counter", "6"),
        ("total", "124750"),
        ("to", "xyz"),
    ] {
        assert_eq!(expected[key.as_bytes()], (value.as_bytes().to_vec(), 0));
    }
    assert!(!expected.contains_key(&b"short"[..]));

    let (pool, files) = (
        directory.path().join("pool"),
        directory.path().join("appendonlydir"),
    );
    let engine = engine.to_string();
    let said = run_well(&[
        "import",
        text(&pool),
        "--aof",
        text(&files),
        "--engine",
        &engine,
        "--json",
    ]);
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told["keys"], expected.len());
    assert_eq!(told["strings"], KEYS + 1);
    assert_same(&read(&pool), &expected);
}

const FIRST: [&str; 16] = [
    "PEXPIRE base-counter 900",
    "INCR base-counter",
    "PERSIST base-counter",
    "SET counter 5 PX 900",
    "INCR counter",
    "PERSIST counter",
    "SET short 1 PX 1000",
    "SET from xyz",
    "RENAME from to",
    "MSET a 1 b 2 c 3",
    "GETEX a EX 9000000000",
    "PEXPIRE a 9000000000000 GT",
    "GETDEL b",
    "SETRANGE c 10 end",
    "INCRBYFLOAT float 1.25",
    "EVAL return{redis.call('SET','scripted','1'),redis.call('APPEND','scripted','23')} 0",
];

/// Commands of all kinds on random keys; some fail.
fn random_commands(random: &mut StdRng, keys: &[&Vec<u8>]) -> Pipeline {
    let mut pipe = pipe();
    for _ in 0..WINDOW {
        let value = random_value(random);
        let number = random.random_range(0..2000_u64);
        let at = EXPIRES_AT_MS + number;
        // Few enough for commands to meet.
        let (key, other) = (
            keys[random.random_range(0..keys.len().min(500))],
            keys[random.random_range(0..keys.len().min(500))],
        );
        let one = |name: &str| cmd(name).arg(key).to_owned();
        let command = match random.random_range(0..26) {
            0 => one("SET").arg(value).to_owned(),
            1 => one("SET").arg(value).arg("KEEPTTL").to_owned(),
            2 => one("SET").arg(value).arg("PXAT").arg(at).to_owned(),
            3 => one("SET")
                .arg(value)
                .arg("XX")
                .arg("EX")
                .arg(number + 90_000)
                .to_owned(),
            4 => one("SETEX").arg(number + 90_000).arg(value).to_owned(),
            5 => one("SET").arg(number).to_owned(),
            6 => one("INCR"),
            7 => one("DECRBY").arg(number).to_owned(),
            8 => one("INCRBYFLOAT").arg("0.5").to_owned(),
            9 => one("APPEND").arg(value).to_owned(),
            10 => one("SETRANGE").arg(number).arg(value).to_owned(),
            11 => one("SETBIT").arg(number).arg(number % 2).to_owned(),
            12 => one("RENAME").arg(other).to_owned(),
            13 => one("RENAMENX").arg(other).to_owned(),
            14 => one("COPY").arg(other).arg("REPLACE").to_owned(),
            15 => one("COPY").arg(other).to_owned(),
            16 => one("GETEX").arg("PERSIST").to_owned(),
            17 => one("GETEX").arg("PX").arg(number + 90_000_000).to_owned(),
            18 => one("GETDEL"),
            19 => one("GETSET").arg(value).to_owned(),
            20 => one("PEXPIREAT").arg(at).arg("GT").to_owned(),
            21 => one("EXPIRE").arg(number + 90_000).arg("NX").to_owned(),
            22 => one("PERSIST"),
            23 => one("DEL").arg(other).to_owned(),
            24 => one("UNLINK"),
            _ => one("MSETNX").arg(value).arg(other).arg(number).to_owned(),
        };
        pipe.add_command(command);
    }
    pipe
}

/// Commands that make keys of every type in every encoding of Redis 7.0.
fn other_types() -> Vec<String> {
    let mut commands: Vec<String> = [
        "SELECT 1",
        "SET elsewhere 1",
        "RPUSH elsewhere-too 1",
        "SELECT 0",
        "RPUSH list a b c",
        "SADD set 1 2 300 70000",
        "SADD words a b c",
        "HSET hash a 1 b 2",
        "ZADD zset 1 a 2.5 b",
        "GEOADD places 13 38 here",
        "XADD stream 1-1 field value",
        "XADD stream 2-1 field value",
        "XADD stream 3-1 field value",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group me COUNT 2 STREAMS stream >",
        "XACK stream group 1-1",
        "XDEL stream 3-1",
        "PEXPIREAT list 9000000000000",
        "SET number 12",
        "SET text some",
    ]
    .map(str::to_owned)
    .into();
    for number in 0..300 {
        for command in [
            format!("RPUSH longlist {number}-{}", "x".repeat(100)),
            format!("SADD longset member-{number}"),
            format!("HSET longhash field-{number} {}", "y".repeat(100)),
            format!("ZADD longzset {number}.5 member-{number}"),
            format!("XADD longstream * field-{number} {}", "z".repeat(60)),
        ] {
            commands.push(command);
        }
    }
    commands.push(format!("RPUSH longlist {}", "q".repeat(9000)));
    commands
}

#[test]
fn other_types_are_refused_by_name_or_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut redis) = Redis::append_only(directory.path(), "yes") else {
        return;
    };
    let files = directory.path().join("appendonlydir");
    let pool = |name: &str| directory.path().join(name);
    for command in other_types() {
        redis.call(&command);
    }
    let library = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    let _: Value = cmd("FUNCTION")
        .arg("LOAD")
        .arg(library)
        .query(&mut redis.connection)
        .unwrap();
    // In the increment first: each of these takes the place of a string.
    for command in [
        "SET s1 1",
        "RENAME list s1",
        "SET s2 1",
        "COPY hash s2 REPLACE",
        "SET s3 1",
        "SUNIONSTORE s3 set",
        "SET s4 1",
        "SORT longlist ALPHA STORE s4",
        "SET s5 1",
        "ZUNIONSTORE s5 1 zset",
        "SET s6 1",
        "DEL set",
        "SET set again",
        "RENAMENX zset zset2",
        "PERSIST words",
        "SET kept 1",
    ] {
        redis.call(command);
    }
    let mut transaction = pipe();
    transaction
        .atomic()
        .cmd("RENAME")
        .arg("places")
        .arg("s6")
        .cmd("INCR")
        .arg("kept");
    let _: Vec<Value> = transaction.query(&mut redis.connection).unwrap();
    let expected = redis.contents();
    assert_eq!(expected.len(), 4, "{expected:?}");

    let error = run_badly(&["import", text(&pool("a")), "--aof", text(&files)]);
    assert!(
        error.contains("`SET`: it is in database 1") && error.contains("byte "),
        "{error}"
    );
    let strings_only = |name: &str, from: &Path| {
        let said = run_well(&[
            "import",
            text(&pool(name)),
            "--aof",
            text(from),
            "--strings-only",
            "--json",
        ]);
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["skipped"].clone()
    };
    let skipped = strings_only("b", &files);
    assert_eq!(skipped["function"], 1);
    assert_eq!(skipped["database 1"], 2);
    assert!(skipped["stream"].as_u64() > Some(304), "{skipped}");
    assert_same(&read(&pool("b")), &expected);

    // The same as an RDB base, of which the increment moves keys.
    redis.rewrite();
    for command in [
        "RPOP s1",
        "SET text more",
        "RENAME longhash number",
        "LPUSH new 1",
    ] {
        redis.call(command);
    }
    let expected = redis.contents();
    assert_eq!(expected.len(), 3, "{expected:?}");
    let dump = directory.path().join("dump.rdb");
    redis.call("SAVE");
    redis.kill();
    let error = run_badly(&["import", text(&pool("c")), "--aof", text(&files)]);
    assert!(
        error.contains("2.base.rdb") && error.contains("it is of type"),
        "{error}"
    );
    let kinds = [
        "list",
        "set",
        "hash",
        "sorted set",
        "stream",
        "function",
        "database 1",
    ];
    let skipped = strings_only("d", &files);
    for (kind, count) in kinds.into_iter().zip([4 + 2, 3, 3, 3, 2, 1, 1]) {
        assert!(skipped[kind].as_u64() >= Some(count), "{kind}: {skipped}");
    }
    assert_same(&read(&pool("d")), &expected);
    // The same as a file of an older version: RDB in front, then commands.
    let parts = ["appendonly.aof.2.base.rdb", "appendonly.aof.2.incr.aof"];
    let whole = parts
        .map(|part| fs::read(files.join(part)).unwrap())
        .concat();
    let old = directory.path().join("appendonly.aof");
    fs::write(&old, whole).unwrap();
    assert_eq!(strings_only("e", &old), skipped);
    assert_same(&read(&pool("e")), &expected);
    // And as a snapshot.
    strings_only("f", &dump);
    assert_same(&read(&pool("f")), &expected);
    // One damaged byte of the base is found.
    let base = files.join(parts[0]);
    let mut bytes = fs::read(&base).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&base, bytes).unwrap();
    let error = run_badly(&[
        "import",
        text(&pool("g")),
        "--aof",
        text(&files),
        "--strings-only",
    ]);
    assert!(
        error.contains("2.base.rdb") && error.contains("byte "),
        "{error}"
    );
}

#[test]
fn flushall_and_a_base_of_commands() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut redis) = Redis::append_only(directory.path(), "no") else {
        return;
    };
    for command in ["SET base 1 PX 9000000000", "SET before 1"] {
        redis.call(command);
    }
    redis.rewrite();
    assert!(
        directory
            .path()
            .join("appendonlydir/appendonly.aof.2.base.aof")
            .exists()
    );
    for command in ["SET late 1", "FLUSHALL", "SETNX after 1", "INCR after"] {
        redis.call(command);
    }
    let expected = redis.contents();
    redis.kill();
    let (pool, files) = (
        directory.path().join("pool"),
        directory.path().join("appendonlydir"),
    );
    run_well(&["import", text(&pool), "--aof", text(&files)]);
    assert_same(&read(&pool), &expected);
    assert_eq!(expected.len(), 1);
}

fn request(words: &str) -> Vec<u8> {
    let words: Vec<&str> = words.split(' ').collect();
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request.into_bytes()
}

/// Writes a directory of these files, the first one its base, and imports it.
fn import_files(files: &[&[u8]]) -> (Output, Contents) {
    let directory = tempfile::tempdir().unwrap();
    let mut manifest = String::new();
    for (index, bytes) in files.iter().enumerate() {
        let kind = if index == 0 { 'b' } else { 'i' };
        manifest += &format!(
            "file part-{index} seq {} type {kind} startoffset 5\n",
            index.max(1)
        );
        fs::write(directory.path().join(format!("part-{index}")), bytes).unwrap();
    }
    fs::write(directory.path().join("x.manifest"), manifest).unwrap();
    let pool = directory.path().join("pool");
    let output = everdram(&[
        "import",
        text(&pool),
        "--aof",
        text(directory.path()),
        "--json",
    ]);
    let contents = if pool.exists() {
        read(&pool)
    } else {
        Contents::new()
    };
    (output, contents)
}

/// A key whose expiry has passed is there for the commands behind it, and removed at the end.
#[test]
fn what_has_expired_goes_at_the_end() {
    let base = [
        request("SET gone 1 PXAT 1000"),
        request("SET back 1 PXAT 1000"),
    ]
    .concat();
    let more = [
        request("INCR gone"),
        request("INCR back"),
        request("PERSIST back"),
    ]
    .concat();
    let (output, contents) = import_files(&[&base, &more]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["expired"], &told["keys"]), (&1.into(), &1.into()));
    assert_same(
        &contents,
        &Contents::from([(b"back".to_vec(), (b"2".to_vec(), 0))]),
    );
}

/// Only the last file may be cut; what is dropped is told.
#[test]
fn a_cut_tail_is_dropped_in_the_last_file_only() {
    let (whole, more) = (request("SET a 1"), request("APPEND a 234"));
    for cut in [1, 4, more.len() - 1] {
        let tail = [&whole[..], &more[..cut]].concat();
        let (output, contents) = import_files(&[&whole, &tail]);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told["dropped"]["offset"], whole.len() as u64);
        assert_eq!(told["dropped"]["bytes"], cut as u64);
        assert_eq!(contents[&b"a"[..]].0, b"1");
        let (output, _) = import_files(&[&tail, &whole]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        let place = format!("byte {}: ", whole.len());
        assert!(
            error.contains("part-0") && error.contains(&place),
            "{error}"
        );
    }
    // Half a transaction goes as a whole.
    let half = [
        request("SET a 2"),
        request("MULTI"),
        request("SET a 3"),
        more[..5].to_vec(),
    ];
    for parts in [3, 4] {
        let (output, contents) = import_files(&[&whole, &half[..parts].concat()]);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told["dropped"]["offset"], half[0].len() as u64);
        assert_eq!(contents[&b"a"[..]].0, b"2");
        let (output, _) = import_files(&[&half[..parts].concat(), &whole]);
        assert_eq!(output.status.code(), Some(1));
    }
    // Bytes that no command begins with are never a tail.
    let (output, contents) = import_files(&[&whole, &[&whole[..], &[0; 64]].concat()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    let place = format!("byte {}: ", whole.len());
    assert!(
        error.contains("part-1") && error.contains(&place),
        "{error}"
    );
    assert_eq!(
        contents[&b"a"[..]].0,
        b"1",
        "what stood before the error is loaded"
    );
}

#[test]
fn what_cannot_be_moved_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let contents = Contents::from([(b"key".to_vec(), (b"value".to_vec(), 0))]);
    store(&at("pool"), EngineKind::default(), &contents);
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/file"), "").unwrap();
    let error = run_badly(&["export", text(&at("pool")), "--aof", text(&at("full"))]);
    assert!(error.contains("not empty"), "{error}");
    run_well(&["export", text(&at("pool")), "--aof", text(&at("moved"))]);
    let error = run_badly(&["import", text(&at("pool")), "--aof", text(&at("moved"))]);
    assert!(error.contains("holds keys"), "{error}");
    let error = run_badly(&["import", text(&at("new")), "--aof", text(&at("full"))]);
    assert!(error.contains("appendonlydir"), "{error}");
    for (words, place, why) in [
        ("BITOP NOT a b", "byte 0, `BITOP`", "no such command"),
        ("RPUSH list 1", "byte 0, `RPUSH`", "of type list"),
        ("SWAPDB 0 1", "byte 0, `SWAPDB`", "no such command"),
        ("EXPIRE key 5", "byte 0, `EXPIRE`", "unknown moment"),
        ("RENAME a b", "byte 0, `RENAME`", "no such key"),
    ] {
        fs::write(at("one.aof"), request(words)).unwrap();
        let _ = fs::remove_dir_all(at("new"));
        let error = run_badly(&["import", text(&at("new")), "--aof", text(&at("one.aof"))]);
        assert!(error.contains(place) && error.contains(why), "{error}");
    }
    for arguments in [
        &["import", "pool", "file", "--aof", "x"][..],
        &["import", "--server", "h:1", "--aof", "x"],
        &["import", "pool", "file", "--strings-only"],
        &["export", "pool", "file", "--aof", "x"],
        &["export", "pool", "--aof", "x", "--aof-name", "a/b"],
    ] {
        assert_eq!(everdram(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
