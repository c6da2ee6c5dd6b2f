//! The two servers: redis-server as a child process on a free port, and ours inside this process.

use crate::bed::Bed;
use everdram::{EngineKind, Medium, Store};
use everdram_resp::{Server, Settings};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often to try another free port if another process takes it first.
const ATTEMPTS: u32 = 5;
const START_TIME: Duration = Duration::from_secs(20);

struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Servers {
    pub(crate) redis: SocketAddr,
    pub(crate) ours: SocketAddr,
    server: Server,
    store: Store,
    _redis: Redis,
    _bed: Bed,
    _directory: tempfile::TempDir,
}

impl Servers {
    /// Starts both; `None`, with a message, if redis-server is not installed.
    pub(crate) fn start(engine: EngineKind, medium: Medium) -> Option<Servers> {
        let bed = Bed::new(engine, medium);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (redis, address) = start_redis(directory.path())?;
        let store = bed.open();
        let settings = Settings {
            port: 0,
            threads: 2,
            ..Settings::default()
        };
        let server = Server::start(store.clone(), settings).expect("our server starts");
        let ours = *server
            .local_addrs()
            .first()
            .expect("our server has an address");
        Some(Servers {
            redis: address,
            ours,
            server,
            store,
            _redis: redis,
            _bed: bed,
            _directory: directory,
        })
    }

    /// Stops both and closes the pool. A failing test leaves that to the end of the process.
    pub(crate) fn stop(self) {
        self.server.shutdown_handle().shutdown();
        self.server.wait().expect("our server drains");
        self.store.close().expect("the pool closes");
    }
}

fn start_redis(directory: &Path) -> Option<(Redis, SocketAddr)> {
    for _ in 0..ATTEMPTS {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = free.local_addr().expect("its address");
        drop(free);
        let child = Command::new("redis-server")
            .args([
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--databases",
                "1",
            ])
            .args(["--port", &address.port().to_string()])
            .current_dir(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            println!("SKIPPED: redis-server is not installed, so there is nothing to compare with");
            return None;
        };
        let mut redis = Redis(child);
        if answers(&mut redis, address) {
            return Some((redis, address));
        }
    }
    panic!("redis-server did not start");
}

/// Waits for the child to answer. If another process took its port, the answer may come from that one.
fn answers(redis: &mut Redis, address: SocketAddr) -> bool {
    let own = format!("\r\nprocess_id:{}\r\n", redis.0.id());
    let deadline = Instant::now() + START_TIME;
    while Instant::now() < deadline {
        if introduction(address).is_ok_and(|text| text.contains(&own)) {
            return true;
        }
        if matches!(redis.0.try_wait(), Ok(Some(_))) {
            return false;
        }
        std::thread::yield_now();
    }
    false
}

/// INFO of the server at `address`.
fn introduction(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(START_TIME))?;
    stream.write_all(b"INFO server\r\nQUIT\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
