//! The commands as a script sees them: output, exit codes, files that come back byte for byte.

#[path = "support/program.rs"]
mod program;

use everdram::{EngineKind, Medium, MediumChoice, Options, Store, test_each_engine};
use program::{everdram, run};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

test_each_engine!(
    pools_come_back_byte_for_byte_in_both_formats,
    servers_come_back_byte_for_byte_in_both_formats,
    a_server_ends_in_order_and_keeps_its_data,
    check_finds_one_damaged_byte,
    inspect_and_doctor_say_what_there_is,
);

type Contents = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

/// Long after any run of this test.
const EXPIRES_AT_MS: u64 = 9_999_999_999_999;

fn run_well(arguments: &[&str]) -> String {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server in a process of its own, ready.
struct Server {
    process: Child,
    port: u16,
    /// The address of its fabric door, if it has one.
    fabric: Option<String>,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let mut process = everdram()
            .args(["serve", "--port", "0", "--json"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        Server {
            process,
            port: ready["port"].as_u64().unwrap().try_into().unwrap(),
            fabric: ready["fabric"].as_str().map(str::to_owned),
        }
    }

    fn connect(&self, password: Option<&str>) -> redis::RedisResult<redis::Connection> {
        let login = password
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        redis::Client::open(format!("redis://{login}127.0.0.1:{}", self.port))?.get_connection()
    }

    fn end_with(mut self, signal: &str) -> Option<i32> {
        let process = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &process])
                .status()
                .unwrap()
                .success()
        );
        self.process.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn random_contents() -> Contents {
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    (0..300)
        .map(|number| {
            let mut key = vec![0; random.random_range(1..40)];
            let longest = if number % 50 == 0 { 200_000 } else { 300 };
            let mut value = vec![0; random.random_range(0..longest)];
            random.fill(&mut key[..]);
            random.fill(&mut value[..]);
            (
                key,
                (value, if number % 3 == 0 { EXPIRES_AT_MS } else { 0 }),
            )
        })
        .collect()
}

fn store_contents(pool: &Path, engine: EngineKind, contents: &Contents) {
    let mut options = everdram::Options::default();
    options.engine = Some(engine);
    let store = everdram::Store::open(pool, &options).unwrap();
    let mut session = store.session().unwrap();
    for (key, (value, expires_at_ms)) in contents {
        session.put_expiring(key, value, *expires_at_ms).unwrap();
    }
    drop(session);
    store.close().unwrap();
}

fn read_contents(pool: &Path) -> Contents {
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
    drop(session);
    store.close().unwrap();
    contents
}

fn pools_come_back_byte_for_byte_in_both_formats(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let contents = random_contents();
    let from = directory.path().join("from");
    store_contents(&from, engine, &contents);
    for format in ["tsv", "resp"] {
        let file = directory.path().join(format!("file.{format}"));
        let to = directory.path().join(format);
        run_well(&["export", text(&from), text(&file)]);
        run_well(&["import", "--engine", engine.name(), text(&to), text(&file)]);
        assert!(read_contents(&to) == contents, "{format}");
    }
}

fn servers_come_back_byte_for_byte_in_both_formats(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let contents = random_contents();
    let from = directory.path().join("from");
    let to = directory.path().join("to");
    store_contents(&from, engine, &contents);
    for format in ["tsv", "resp"] {
        let source = Server::start(&["--pool", text(&from)]);
        let target = Server::start(&["--pool", text(&to), "--engine", engine.name()]);
        let (source_at, target_at) = (
            format!("127.0.0.1:{}", source.port),
            format!("127.0.0.1:{}", target.port),
        );
        let mut connection = target.connect(None).unwrap();
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        let exported = run(&["export", "--server", &source_at, "--format", format]);
        assert_eq!(exported.status.code(), Some(0));
        let mut import = everdram()
            .args(["import", "--server", &target_at, "-", "--format", format])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        import
            .stdin
            .take()
            .unwrap()
            .write_all(&exported.stdout)
            .unwrap();
        assert_eq!(import.wait().unwrap().code(), Some(0));
        drop(connection);
        assert_eq!(source.end_with("-TERM"), Some(0));
        assert_eq!(target.end_with("-INT"), Some(0));
        assert!(read_contents(&to) == contents, "{format}");
    }
}

#[test]
fn remote_spreads_keys_over_a_list_of_servers() {
    if let Err(reason) = everdram_fabric::version() {
        println!("skipped: {reason}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let serve = |name: &str| {
        let pool = directory.path().join(name);
        Server::start(&["--pool", text(&pool), "--fabric", "tcp://127.0.0.1:0"])
    };
    let (one, other) = (serve("one"), serve("other"));
    let [first, second] = [&one, &other].map(|server| server.fabric.clone().unwrap());
    let (list, turned) = (format!("{first},{second}"), format!("{second},{first}"));
    let mut at_one = Vec::new();
    // Until both have a key.
    while !(at_one.contains(&true) && at_one.contains(&false)) {
        assert!(at_one.len() < 50, "all keys are at one of two servers");
        let key = format!("key:{}", at_one.len());
        let said = run_well(&["remote", &list, "where", &key]);
        let is_at_one = said.contains(&format!(", {first}#"));
        assert!(
            is_at_one || said.contains(&format!(", {second}#")),
            "{said}"
        );
        let put = run_well(&["remote", &list, "put", &key, "value"]);
        let address = if is_at_one { &first } else { &second };
        assert!(put.ends_with(&format!(", at {address}\n")), "{put}");
        assert_eq!(run_well(&["remote", &turned, "get", &key]), "value");
        // The server has it, and the Redis door of the server shows it.
        let server = if is_at_one { &one } else { &other };
        let mut connection = server.connect(None).unwrap();
        let value: String = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
        assert_eq!(value, "value");
        at_one.push(is_at_one);
    }
    let hello = run_well(&["remote", &list, "hello"]);
    let named: Vec<&str> = hello
        .lines()
        .filter_map(|line| line.strip_prefix("tcp://")?.split_once(": "))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(named.len(), 2, "{hello}");

    // With one of them gone, a list must name its pool, and its keys alone are missing.
    drop(other);
    let key = |is_at_one: bool| {
        let place = at_one.iter().position(|&at| at == is_at_one);
        format!("key:{}", place.unwrap())
    };
    let named = format!("tcp://{},tcp://{}", named[0], named[1]);
    assert_eq!(run_well(&["remote", &named, "get", &key(true)]), "value");
    for (list, key) in [(&named, key(false)), (&list, key(true))] {
        let output = run(&["remote", list, "get", &key]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches(&second).count(), 1, "{said}");
        assert_eq!(said.matches("no door").count(), 1, "{said}");
    }
    // A library of libfabric's once took the signal, and ended the server on the spot.
    assert_eq!(one.end_with("-TERM"), Some(0));
}

fn a_server_ends_in_order_and_keeps_its_data(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let port_file = directory.path().join("port");
    let server = Server::start(&[
        "--pool",
        text(&pool),
        "--engine",
        engine.name(),
        "--port-file",
        text(&port_file),
    ]);
    let written = std::fs::read_to_string(&port_file);
    let mut connection = server.connect(None).unwrap();
    redis::cmd("SET")
        .arg("key")
        .arg("value")
        .exec(&mut connection)
        .unwrap();
    assert_eq!(written.unwrap().trim(), server.port.to_string());
    assert_eq!(server.end_with("-TERM"), Some(0));

    let server = Server::start(&["--pool", text(&pool)]);
    let mut connection = server.connect(None).unwrap();
    let value: String = redis::cmd("GET").arg("key").query(&mut connection).unwrap();
    assert_eq!(value, "value");
    let _ = redis::cmd("SHUTDOWN").exec(&mut connection);
    let mut server = server;
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
}

/// Libraries that libfabric brings along may take the signals of a process.
#[test]
fn a_server_with_a_fabric_door_ends_in_order() {
    if let Err(reason) = everdram_fabric::version() {
        println!("skipped: {reason}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let door = ["--fabric", "tcp://127.0.0.1:0"];
    for signal in ["-TERM", "-INT"] {
        let server = Server::start(&[&["--pool", text(&pool)], &door[..]].concat());
        assert_eq!(server.end_with(signal), Some(0), "{signal}");
    }
}

#[test]
fn settings_come_from_the_file_and_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let file = directory.path().join("everdram.toml");
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "open sesame\n").unwrap();
    std::fs::write(
        &file,
        format!("password-file = {:?}\nmax-clients = 7\n", text(&secret)),
    )
    .unwrap();
    let server = Server::start(&["--pool", text(&pool), "--config", text(&file)]);
    assert!(
        redis::cmd("GET")
            .arg("k")
            .exec(&mut server.connect(None).unwrap())
            .is_err()
    );
    let mut connection = server.connect(Some("open%20sesame")).unwrap();
    let (_, clients): (String, String) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("maxclients")
        .query(&mut connection)
        .unwrap();
    assert_eq!(clients, "7");
}

#[test]
fn what_cannot_be_is_refused_as_usage() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let file = directory.path().join("everdram.toml");
    std::fs::write(&file, "prot = 1\n").unwrap();
    for arguments in [
        &["serve", "--medium", "tape"][..],
        &["serve", "--engine", "steam"],
        &["demo", "--engine", "steam"],
        &["import", "--engine", "steam", "pool", "file.tsv"],
        &["serve", "--bind", "0.0.0.0"],
        &["serve", "--config", text(&file)],
        &["serve", "--no-such-flag"],
        &["import", "only-one-place"],
        &["export"],
        &["demo", "--medium", "pmem"],
        &["frobnicate"],
    ] {
        let mut command = everdram();
        command.args(arguments).stdin(Stdio::null());
        if arguments[0] == "serve" {
            command.args(["--pool", text(&pool)]);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
    assert!(!pool.exists(), "nothing was made on the way");
}

fn check_finds_one_damaged_byte(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let value = b"everdram-test-needle-in-the-image".repeat(4);
    store_contents(
        &pool,
        engine,
        &Contents::from([(b"key".to_vec(), (value.clone(), 0))]),
    );
    let sound: serde_json::Value =
        serde_json::from_str(&run_well(&["check", text(&pool), "--json"])).unwrap();
    assert_eq!((&sound["sound"], &sound["live"]), (&true.into(), &1.into()));

    let image = pool.join("image");
    let mut bytes = std::fs::read(&image).unwrap();
    // An engine may have left another copy behind, where nothing needs it any more.
    let places: Vec<usize> = (0..bytes.len() - value.len())
        .filter(|&at| bytes[at] == value[0] && bytes[at..].starts_with(&value))
        .collect();
    assert!(!places.is_empty(), "the value in the image");
    for at in places {
        bytes[at + 50] ^= 1;
    }
    std::fs::write(&image, bytes).unwrap();
    let output = run(&["check", text(&pool)]);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("byte "), "{said}");
}

/// A map that a program keeps in a journal.
#[derive(Default)]
struct Map(std::sync::Mutex<BTreeMap<Vec<u8>, u64>>);

impl everdram::crl::Volatile for Map {
    fn show(&self, key: &[u8], version: u64, value: Option<&[u8]>) {
        let mut map = self.0.lock().unwrap();
        match value {
            Some(_) => map.insert(key.to_vec(), version),
            None => map.remove(key),
        };
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        self.0.lock().unwrap().get(key).copied()
    }
}

/// A pool that is no store's can be looked at, and only that.
#[test]
fn a_journal_is_checked_and_inspected() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let mut options = everdram::Options::default();
    (options.bullet.logs, options.bullet.log_bytes) = (2, 16 << 10);
    let journal = everdram::crl::Journal::open(&pool, &options, Map::default()).unwrap();
    let mut writer = journal.writer();
    for round in 0..3 {
        writer
            .put(b"key", format!("value {round}").as_bytes())
            .unwrap();
    }
    drop(writer);
    journal.close().unwrap();

    let said = run_well(&["check", text(&pool)]);
    assert!(said.contains("journal") && said.contains("sound"), "{said}");
    let told: serde_json::Value =
        serde_json::from_str(&run_well(&["check", text(&pool), "--json"])).unwrap();
    let found = ["engine", "sound", "records", "live"].map(|name| told[name].to_string());
    assert_eq!(found, ["\"journal\"", "true", "3", "1"]);
    let said = run_well(&["inspect", text(&pool)]);
    for word in ["journal (number 64)", "entries in the logs", "occupancy"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
    let output = run(&[
        "export",
        text(&pool),
        text(&directory.path().join("file.tsv")),
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("everdram inspect"), "{said}");

    let image = pool.join("image");
    let mut bytes = std::fs::read(&image).unwrap();
    let place = bytes.windows(7).position(|bytes| bytes == b"value 1");
    bytes[place.unwrap()] ^= 1;
    std::fs::write(&image, bytes).unwrap();
    let output = run(&["check", text(&pool)]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("damaged") && said.contains("byte "), "{said}");
    assert_eq!(run(&["inspect", text(&pool)]).status.code(), Some(1));
}

/// A reader that goes away early (`| head`) is no failure and no panic; what the command found still decides.
#[test]
fn nobody_has_to_read_the_output() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    store_contents(&pool, EngineKind::default(), &random_contents());
    let run_unread = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = everdram();
        command.args(arguments).env("TMPDIR", directory.path());
        let output = command.stdout(writer).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!error.contains("panicked"), "{arguments:?}: {error}");
        (output.status.code(), error)
    };
    for command in ["inspect", "check", "export"] {
        let (code, error) = run_unread(&[command, text(&pool)]);
        assert_eq!(code, Some(0), "{command}: {error}");
    }
    let (killed, expected) = (
        directory.path().join("killed"),
        directory.path().join("expected"),
    );
    let campaign = |kills| {
        let files = ["--pool", text(&killed), "--expected", text(&expected)];
        run_unread(&[&["crashtest", "--kill", kills][..], &files].concat())
    };
    let (code, error) = campaign("1");
    assert_eq!(code, Some(0), "{error}");
    std::fs::remove_dir_all(&killed).unwrap();
    let (code, error) = campaign("0");
    assert_eq!(code, Some(1), "{error}");
}

fn inspect_and_doctor_say_what_there_is(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let before: serde_json::Value =
        serde_json::from_str(&run_well(&["doctor", text(directory.path()), "--json"])).unwrap();
    assert_eq!(before["existing_pool"], false);
    assert!(before["put"]["p50_ns"].as_u64().unwrap() > 0);
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        0,
        "doctor leaves nothing behind"
    );

    let pool = directory.path().join("pool");
    store_contents(
        &pool,
        engine,
        &Contents::from([(b"key".to_vec(), (b"value".to_vec(), 0))]),
    );
    let after: serde_json::Value =
        serde_json::from_str(&run_well(&["doctor", text(&pool), "--json"])).unwrap();
    assert_eq!(after["existing_pool"], true);
    assert_eq!(after["medium"], before["medium"]);
    let inspected: serde_json::Value =
        serde_json::from_str(&run_well(&["inspect", text(&pool), "--json"])).unwrap();
    assert_eq!(inspected["fields"]["keys"], "1");
    let told = format!("{engine} (number {})", engine.number());
    assert_eq!(inspected["fields"]["engine"], told);
    assert_eq!(
        run(&["inspect", text(directory.path())]).status.code(),
        Some(1)
    );
    let has_log = run_well(&["inspect", text(&pool)]).contains("everdram.aof.1.incr.aof");
    assert_eq!(has_log, engine == EngineKind::Tiered);
}

/// Linux collapses pages of tmpfs since 6.1, unless somebody forbade it.
fn kernel_collapses_pages() -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let setting = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    version >= (6, 1) && !setting.is_empty() && !setting.contains("[deny]")
}

#[test]
fn a_pool_that_is_touched_at_open_has_huge_pages() {
    const BYTES: u64 = 16 << 20;
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    let pool = directory.path().join("pool");
    let mut options = Options::default();
    options.medium = MediumChoice::Only(Medium::Emulated);
    options.initial_bytes = BYTES;
    let pages = |prefault: bool| -> (u64, u64) {
        let mut options = options.clone();
        options.prefault = prefault;
        Store::open(&pool, &options).unwrap().close().unwrap();
        let said = run_well(&["doctor", text(&pool), "--medium", "emulated", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let number = |name: &str| said[name].as_u64().unwrap();
        (number("huge_bytes"), number("image_bytes"))
    };
    let (before, all) = pages(false);
    assert!(all >= BYTES && before <= all);
    let (after, _) = pages(true);
    assert!(before <= after && after <= all, "{before} {after} {all}");
    // A machine may be short of huge pages, but hardly of every one.
    assert!(after > 0 || !kernel_collapses_pages());
    let row = run_well(&["doctor", text(&pool), "--medium", "emulated"]);
    assert!(
        row.contains("pages") && row.contains("of 2 MiB for"),
        "{row}"
    );
}

/// Records that have left the pool, and what of them is not live.
#[test]
fn inspect_shows_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let mut options = everdram::Options::default();
    options.engine = Some(EngineKind::Tiered);
    options.max_bytes = 2 << 20;
    (options.initial_bytes, options.chunk_bytes) = (1 << 20, 256 << 10);
    let store = everdram::Store::open(&pool, &options).unwrap();
    let mut session = store.session().unwrap();
    for number in 0..24_000_u32 {
        let key = format!("key-{:05}", number % 12_000);
        session.put(key.as_bytes(), &[7; 400]).unwrap();
    }
    drop(session);
    store.close().unwrap();
    let inspected: serde_json::Value =
        serde_json::from_str(&run_well(&["inspect", text(&pool), "--json"])).unwrap();
    let file = &inspected["log"][0];
    let of = |name: &str| file[name].as_u64().unwrap();
    assert!(of("bytes") > 1 << 20, "{file}");
    assert!((1..=of("bytes")).contains(&of("stale_bytes")), "{file}");
    let said = run_well(&["inspect", text(&pool)]);
    assert!(
        said.contains("log below") && said.contains("not live"),
        "{said}"
    );
}

/// What `--help` says of engines is what the library knows of them.
#[test]
fn help_lists_the_engines() {
    for command in [
        "serve",
        "demo",
        "crashtest",
        "import",
        "bench run",
        "bench servers",
        "bench compare",
    ] {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = run_well(&words);
        // Wherever its lines end.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for engine in EngineKind::ALL {
            let said = format!("- {engine}: {}", engine.about());
            assert!(help.contains(&said), "{command}: {help}");
        }
        assert!(!help.contains("- model:"), "{command}: it keeps nothing");
    }
}
