//! What to do with a damaged pool, as an operator does it: `check` says what is wrong, `export --salvage` and
//! `serve --salvage` give what verifies and say what is missing.

#[path = "support/program.rs"]
mod program;

use everdram::{EngineKind, test_each_engine};
use program::{everdram, run};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

test_each_engine!(
    an_export_saves_all_but_the_damaged_key,
    a_server_serves_all_but_the_damaged_key,
    check_names_all_damage,
    nothing_is_missing_from_a_sound_pool,
);

const KEYS: u32 = 60;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn key(number: u32) -> String {
    format!("key-{number:04}")
}

fn value(number: u32) -> String {
    format!("value-{number:04}-").repeat(20)
}

/// A closed pool.
fn pool(directory: &Path, engine: EngineKind) -> PathBuf {
    let pool = directory.join("pool");
    let mut options = everdram::Options::default();
    options.engine = Some(engine);
    let store = everdram::Store::open(&pool, &options).unwrap();
    let mut session = store.session().unwrap();
    for number in 0..KEYS {
        let value = value(number);
        session
            .put(key(number).as_bytes(), value.as_bytes())
            .unwrap();
    }
    drop(session);
    store.close().unwrap();
    pool
}

/// Damages the values of these keys, wherever they lie in the image.
fn damage(pool: &Path, numbers: &[u32]) {
    let image = pool.join("image");
    let mut bytes = fs::read(&image).unwrap();
    for &number in numbers {
        let value = value(number);
        let places: Vec<usize> = bytes
            .windows(value.len())
            .enumerate()
            .filter(|(_, window)| *window == value.as_bytes())
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at + 100] ^= 1;
        }
    }
    fs::write(&image, bytes).unwrap();
}

/// The files of a pool, and of what is below it.
fn files(pool: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(pool).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => _ = files.insert(path.clone(), fs::read(&path).unwrap()),
        }
    }
    files
}

fn an_export_saves_all_but_the_damaged_key(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool(directory.path(), engine);
    damage(&pool, &[7, 31]);
    let before = files(&pool);
    let (file, new) = (
        directory.path().join("saved.tsv"),
        directory.path().join("new"),
    );

    let plain = run(&["export", text(&pool), text(&file)]);
    assert_eq!(plain.status.code(), Some(1));
    let said = String::from_utf8(plain.stderr).unwrap();
    assert!(said.contains("export --salvage"), "{said}");

    let saved = run(&["export", "--salvage", text(&pool), text(&file)]);
    let said = String::from_utf8(saved.stderr).unwrap();
    assert_eq!(saved.status.code(), Some(3), "{said}");
    for number in [7, 31] {
        assert!(said.contains(&key(number)), "{said}");
    }
    assert!(said.contains("2 records are missing"), "{said}");
    let lines = fs::read_to_string(&file).unwrap();
    assert_eq!(lines.lines().count() as u32, KEYS - 2);
    assert!(files(&pool) == before, "the pool has changed");

    let again = ["export", "--salvage", "--json", text(&pool), text(&file)];
    let said = run(&again).stderr;
    let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
    assert_eq!((&said["keys"], &said["missing"]), (&58.into(), &2.into()));

    let imported = run(&["import", text(&new), text(&file)]);
    assert_eq!(imported.status.code(), Some(0));
    let store = everdram::Store::open(&new, &everdram::Options::default()).unwrap();
    let mut session = store.session().unwrap();
    for number in 0..KEYS {
        let found = session.get(key(number).as_bytes()).unwrap();
        let wanted = (![7, 31].contains(&number)).then(|| value(number).into_bytes());
        assert_eq!(found, wanted, "{number}");
    }
}

/// A server in a process of its own.
struct Server {
    process: Child,
    ready: serde_json::Value,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let mut process = everdram()
            .args(["serve", "--port", "0", "--json"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        Server { process, ready }
    }

    /// Ends it; returns its log.
    fn end(mut self) -> String {
        let process = self.process.id().to_string();
        let signalled = Command::new("kill").args(["-TERM", &process]).status();
        assert!(signalled.unwrap().success());
        let mut said = String::new();
        let log = self.process.stderr.as_mut().unwrap();
        log.read_to_string(&mut said).unwrap();
        assert_eq!(self.process.wait().unwrap().code(), Some(0), "{said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn a_server_serves_all_but_the_damaged_key(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool(directory.path(), engine);
    damage(&pool, &[7]);
    let before = files(&pool);
    let server = Server::start(&["--salvage", "--pool", text(&pool)]);
    assert_eq!(server.ready["salvage"]["missing_records"], 1);
    let url = format!("redis://127.0.0.1:{}", server.ready["port"]);
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    for number in 0..KEYS {
        let found: redis::RedisResult<Option<String>> =
            redis::cmd("GET").arg(key(number)).query(&mut connection);
        match number {
            7 => {
                let error = found.unwrap_err().to_string();
                assert!(error.contains("damaged"), "{error}");
            }
            _ => assert_eq!(found.unwrap(), Some(value(number))),
        }
    }
    let absent: Option<String> = redis::cmd("GET")
        .arg("no such key")
        .query(&mut connection)
        .unwrap();
    assert_eq!(absent, None);
    for write in [
        vec!["SET", "key", "value"],
        vec!["DEL", "key-0001"],
        vec!["INCR", "number"],
        vec!["FLUSHALL"],
    ] {
        let mut command = redis::cmd(write[0]);
        let refused = command.arg(&write[1..]).exec(&mut connection).unwrap_err();
        assert_eq!(refused.code(), Some("READONLY"), "{write:?}: {refused}");
    }
    let info: String = redis::cmd("INFO").query(&mut connection).unwrap();
    for line in ["salvage:1\r\n", "salvage_missing_records:1\r\n"] {
        assert!(info.contains(line), "{info}");
    }
    let log = server.end();
    assert!(log.contains(&key(7)), "{log}");
    assert!(files(&pool) == before, "the pool has changed");
}

fn check_names_all_damage(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool(directory.path(), engine);
    damage(&pool, &[3, 4, 50]);
    let checked = run(&["check", text(&pool)]);
    let said = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    for number in [3, 4, 50] {
        assert!(said.contains(&key(number)), "{said}");
    }
    assert!(said.contains("3 findings"), "{said}");
    assert!(said.contains("--salvage"), "{said}");
    let checked = run(&["check", "--json", text(&pool)]);
    let said: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let findings = said["findings"].as_array().unwrap();
    let mut keys: Vec<&str> = findings
        .iter()
        .filter_map(|one| one["key"].as_str())
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, [3, 4, 50].map(key));
}

fn nothing_is_missing_from_a_sound_pool(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool(directory.path(), engine);
    let file = directory.path().join("saved.tsv");
    let saved = run(&["export", "--salvage", text(&pool), text(&file)]);
    let said = String::from_utf8(saved.stderr).unwrap();
    assert_eq!(saved.status.code(), Some(0), "{said}");
    assert!(
        said.contains("60 keys") && !said.contains("damaged"),
        "{said}"
    );
    let server = Server::start(&["--salvage", "--pool", text(&pool)]);
    assert_eq!(server.ready["salvage"]["damaged_places"], 0);
    let log = server.end();
    assert!(!log.contains("damaged"), "{log}");
}

/// Keys of a pool of `tiered` that has room for a few of them: the others are in the log.
const MANY: u32 = 2000;

fn pool_with_log(directory: &Path) -> PathBuf {
    let pool = directory.join("pool");
    let mut options = everdram::Options::default();
    options.engine = Some(EngineKind::Tiered);
    options.initial_bytes = 1 << 20;
    options.max_bytes = 2 << 20;
    options.tiered.segment_bytes = 1 << 20;
    let store = everdram::Store::open(&pool, &options).unwrap();
    let mut session = store.session().unwrap();
    for number in 0..MANY {
        let value = value(number).repeat(8);
        session
            .put(key(number).as_bytes(), value.as_bytes())
            .unwrap();
    }
    drop(session);
    store.close().unwrap();
    pool
}

/// What the log alone has is saved but for the damaged key, and the file is named.
#[test]
fn a_damaged_log_costs_the_damaged_key() {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool_with_log(directory.path());
    let segment = pool.join("tier2/everdram.aof.1.incr.aof");
    let mut bytes = fs::read(&segment).unwrap();
    let wanted = value(0).into_bytes();
    let at = bytes.windows(wanted.len()).position(|some| some == wanted);
    bytes[at.unwrap() + 100] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let before = files(&pool);
    let file = directory.path().join("saved.tsv");

    let checked = run(&["check", text(&pool)]);
    let said = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    let names = said.contains("everdram.aof.1.incr.aof at byte") && said.contains(&key(0));
    assert!(names && said.contains("1 finding"), "{said}");

    let plain = run(&["export", text(&pool), text(&file)]);
    assert_eq!(plain.status.code(), Some(1));
    let said = String::from_utf8(plain.stderr).unwrap();
    assert!(said.contains("export --salvage"), "{said}");

    let saved = run(&["export", "--salvage", text(&pool), text(&file)]);
    let said = String::from_utf8(saved.stderr).unwrap();
    assert_eq!(saved.status.code(), Some(3), "{said}");
    assert!(said.contains("at least 1 records are missing"), "{said}");
    let lines = fs::read_to_string(&file).unwrap();
    assert_eq!(lines.lines().count() as u32, MANY - 1);
    assert!(!lines.contains(&key(0)));

    let server = Server::start(&["--salvage", "--pool", text(&pool)]);
    let url = format!("redis://127.0.0.1:{}", server.ready["port"]);
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut get = |number| -> redis::RedisResult<Option<String>> {
        redis::cmd("GET").arg(key(number)).query(&mut connection)
    };
    let error = get(0).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
    assert_eq!(get(1).unwrap(), Some(value(1).repeat(8)));
    server.end();

    // Without a segment and the manifest the others are served all the same.
    fs::remove_file(&segment).unwrap();
    fs::remove_file(pool.join("tier2/everdram.aof.manifest")).unwrap();
    let saved = run(&["export", "--salvage", text(&pool), text(&file)]);
    let said = String::from_utf8(saved.stderr).unwrap();
    assert_eq!(saved.status.code(), Some(3), "{said}");
    let has_both = said.contains("manifest is missing") && files(&pool).len() + 2 == before.len();
    assert!(has_both, "{said}");
    assert!(fs::read_to_string(&file).unwrap().contains(&key(MANY - 1)));
}
