//! Replies and durability, over an engine that makes nothing durable until the test permits it.

use super::*;
use crate::model;
use everdram::engine::{BatchOp, EngineSession, Modify, Scope, TransactionBody, Visit};
use everdram::stats::CheckReport;
use everdram::{Durability, Error, Found, Medium, Stats, Ticket};
use parking_lot::Condvar;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

/// What the test and the engine's sessions share.
#[derive(Default)]
struct Progress {
    committed: u64,
    durable: u64,
    /// The largest ticket that a loop requested.
    requested: u64,
    failed: bool,
    syncs_asked: u64,
    syncs_done: u64,
}

/// The model engine with tickets.
struct Held {
    model: Arc<dyn Engine>,
    progress: Mutex<Progress>,
    changed: Condvar,
    subscribers: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
}

struct HeldSession {
    model: Box<dyn EngineSession>,
    engine: Arc<Held>,
    /// Whether there is something to commit.
    submitted: bool,
    committed: Ticket,
}

impl Held {
    fn new() -> Arc<Self> {
        let store = model::store(Arc::new(|| 1_000_000));
        Arc::new(Held {
            model: Arc::clone(store.engine()),
            progress: Mutex::default(),
            changed: Condvar::new(),
            subscribers: Mutex::default(),
        })
    }

    /// Changes the progress and notifies all waiters.
    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock());
        self.changed.notify_all();
        self.subscribers
            .lock()
            .iter()
            .for_each(|advanced| advanced());
    }

    /// Waits until the progress satisfies `holds`.
    #[track_caller]
    fn wait_until(&self, what: &str, holds: impl Fn(&Progress) -> bool) {
        let mut progress = self.progress.lock();
        let timeout =
            self.changed
                .wait_while_for(&mut progress, |progress| !holds(progress), TIMEOUT);
        assert!(!timeout.timed_out(), "not within {TIMEOUT:?}: {what}");
    }

    fn next_ticket(&self) -> Result<Ticket, Error> {
        let mut progress = self.progress.lock();
        if progress.failed {
            return Err(Error::Options("the disk is gone".into()));
        }
        progress.committed += 1;
        Ok(Ticket(progress.committed))
    }
}

impl EngineSession for HeldSession {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        self.model.get(key, into)
    }
    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        self.model.probe(key)
    }
    fn last_read(&self) -> Ticket {
        Ticket(self.engine.progress.lock().committed)
    }
    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        self.model.get_many(keys, into, found)
    }
    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.submitted = true;
        self.model.put(key, value, expires_at_ms)
    }
    fn put_now(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<(bool, Ticket), Error> {
        self.put(key, value, expires_at_ms)?;
        Ok((false, self.commit()?))
    }
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.submitted = true;
        self.model.delete(key)
    }
    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        self.submitted = true;
        self.model.modify(key, decide)
    }
    fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        self.submitted = true;
        self.model.update_word(key, at, change)
    }
    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        let _ = self.model.batch(ops)?;
        self.engine.next_ticket()
    }
    fn transaction(
        &mut self,
        scope: Scope<'_>,
        body: TransactionBody<'_>,
    ) -> Result<Ticket, Error> {
        let _ = self.model.transaction(scope, body)?;
        self.engine.next_ticket()
    }
    fn clear(&mut self) -> Result<Ticket, Error> {
        let _ = self.model.clear()?;
        self.engine.next_ticket()
    }
    fn commit(&mut self) -> Result<Ticket, Error> {
        if std::mem::take(&mut self.submitted) || self.engine.progress.lock().failed {
            self.committed = self.engine.next_ticket()?;
        }
        Ok(self.committed)
    }
    fn wait(&mut self, _ticket: Ticket) -> Result<(), Error> {
        panic!("an event loop must not wait");
    }
    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        self.model.scan(cursor, count, visit)
    }
    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        self.model.random_key(into)
    }
    fn watch(&mut self, key: &[u8]) -> u64 {
        self.model.watch(key)
    }
}

impl Engine for Held {
    fn name(&self) -> &'static str {
        "held"
    }
    fn session(self: Arc<Self>) -> Result<Box<dyn EngineSession>, Error> {
        let model = Arc::clone(&self.model).session()?;
        Ok(Box::new(HeldSession {
            model,
            engine: self,
            submitted: false,
            committed: Ticket::NONE,
        }))
    }
    fn durable(&self) -> Ticket {
        Ticket(self.progress.lock().durable)
    }
    fn request(&self, ticket: Ticket) {
        let mut progress = self.progress.lock();
        progress.requested = progress.requested.max(ticket.0);
        self.changed.notify_all();
    }
    fn subscribe(&self, advanced: Arc<dyn Fn() + Send + Sync>) {
        self.subscribers.lock().push(advanced);
    }
    fn committed(&self) -> Ticket {
        Ticket(self.progress.lock().committed)
    }
    fn len(&self) -> u64 {
        self.model.len()
    }
    fn sync(&self) -> Result<(), Error> {
        let mut progress = self.progress.lock();
        progress.syncs_asked += 1;
        let number = progress.syncs_asked;
        self.changed.notify_all();
        self.changed
            .wait_while(&mut progress, |progress| progress.syncs_done < number);
        Ok(())
    }
    fn stats(&self) -> Stats {
        self.model.stats()
    }
    fn check(&self) -> Result<CheckReport, Error> {
        self.model.check()
    }
    fn reclaim(&self) -> Result<u64, Error> {
        Ok(0)
    }
    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// A server on the held engine, with one loop, so that connections share a session.
struct Bench {
    engine: Arc<Held>,
    server: Option<Server>,
}

impl Bench {
    fn new(durability: Durability) -> Self {
        let engine = Held::new();
        let report = Report {
            uuid: [0; 16],
            medium: Medium::File,
            why: "a test".into(),
            persist: "nothing".into(),
            durability,
            latency: Duration::ZERO,
            acknowledgement: "what the test says".into(),
            delay: None,
            data: None,
            data_delay: None,
        };
        let settings = Settings {
            port: 0,
            threads: 1,
            ..Settings::default()
        };
        let server = Server::start_on(Arc::clone(&engine) as Arc<dyn Engine>, report, settings);
        Bench {
            engine,
            server: Some(server.expect("the server starts")),
        }
    }

    fn connect(&self) -> TcpStream {
        let address = self.server.as_ref().expect("it runs").local_addrs()[0];
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.engine.change(|progress| {
            progress.durable = u64::MAX;
            progress.syncs_done = u64::MAX;
        });
        if let Some(server) = self.server.take() {
            server.shutdown_handle().shutdown();
            server.wait().expect("the server stops cleanly");
        }
    }
}

fn send(client: &mut TcpStream, text: &str) {
    client
        .write_all(text.as_bytes())
        .expect("the server takes it");
}

#[track_caller]
fn expect(client: &mut TcpStream, expected: &str) {
    let mut found = vec![0; expected.len()];
    client.read_exact(&mut found).expect("a reply");
    assert_eq!(String::from_utf8_lossy(&found), expected);
}

/// Checks that the client got nothing; call it when the server has settled its turn.
#[track_caller]
fn expect_silence(client: &mut TcpStream) {
    client.set_nonblocking(true).expect("nonblocking");
    let mut byte = [0];
    let read = client.read(&mut byte);
    assert_eq!(
        read.map_err(|error| error.kind()),
        Err(ErrorKind::WouldBlock),
        "{byte:?}"
    );
    client.set_nonblocking(false).expect("blocking");
}

#[test]
fn a_write_is_acknowledged_when_it_is_durable() {
    let bench = Bench::new(Durability::Always);
    let mut client = bench.connect();
    send(&mut client, "PING\r\n");
    expect(&mut client, "+PONG\r\n");
    send(&mut client, "SET k 1\r\nGET k\r\nPING\r\n");
    bench
        .engine
        .wait_until("the write's ticket is asked for", |progress| {
            progress.requested == 1
        });
    expect_silence(&mut client);
    // A later write waits for its own ticket, and the earlier replies do not wait for it.
    send(&mut client, "SET k 2\r\n");
    bench
        .engine
        .wait_until("the second ticket is asked for", |progress| {
            progress.requested == 2
        });
    bench.engine.change(|progress| progress.durable = 1);
    expect(&mut client, "+OK\r\n$1\r\n1\r\n+PONG\r\n");
    bench.engine.change(|progress| progress.durable = 2);
    expect(&mut client, "+OK\r\n");
}

#[test]
fn that_nothing_is_there_is_shown_when_it_is_durable() {
    for question in ["RANDOMKEY", "DBSIZE"] {
        let bench = Bench::new(Durability::Always);
        let (mut writer, mut reader) = (bench.connect(), bench.connect());
        send(&mut writer, "FLUSHALL\r\n");
        let is_asked_for = |ticket| move |progress: &Progress| progress.requested == ticket;
        let engine = &bench.engine;
        engine.wait_until("the removal is committed", is_asked_for(1));
        send(&mut reader, &format!("{question}\r\n"));
        // The only loop reaches this write after it has processed the question.
        send(&mut writer, "ECHO 1\r\nSET other 1\r\nDEL other\r\n");
        engine.wait_until("the later write is committed", is_asked_for(2));
        expect_silence(&mut reader);
        engine.change(|progress| progress.durable = 2);
        let answer = if question == "DBSIZE" { ":0" } else { "$-1" };
        expect(&mut reader, &format!("{answer}\r\n"));
        expect(&mut writer, "+OK\r\n$1\r\n1\r\n+OK\r\n:1\r\n");
    }
}

#[test]
fn nobody_is_shown_what_a_crash_could_undo() {
    let bench = Bench::new(Durability::Always);
    let (mut writer, mut reader) = (bench.connect(), bench.connect());
    send(&mut writer, "SET k 1\r\n");
    bench
        .engine
        .wait_until("the write is committed", |progress| progress.requested == 1);
    send(&mut reader, "PING\r\n");
    expect(&mut reader, "+PONG\r\n");
    send(&mut reader, "GET k\r\n");
    send(&mut writer, "SET other 1\r\n");
    bench
        .engine
        .wait_until("the later write is committed", |progress| {
            progress.requested == 2
        });
    expect_silence(&mut reader);
    bench.engine.change(|progress| progress.durable = 2);
    expect(&mut reader, "$1\r\n1\r\n");
    expect(&mut writer, "+OK\r\n+OK\r\n");
}

#[test]
fn a_transaction_is_acknowledged_when_it_is_durable() {
    let bench = Bench::new(Durability::Always);
    let mut client = bench.connect();
    send(&mut client, "MULTI\r\nSET k 1\r\n");
    expect(&mut client, "+OK\r\n+QUEUED\r\n");
    send(&mut client, "EXEC\r\n");
    bench
        .engine
        .wait_until("the transaction is committed", |progress| {
            progress.requested > 0
        });
    expect_silence(&mut client);
    bench
        .engine
        .change(|progress| progress.durable = progress.committed);
    expect(&mut client, "*1\r\n+OK\r\n");
}

#[test]
fn replies_that_never_become_durable_are_refused_one_for_one() {
    let bench = Bench::new(Durability::Always);
    let mut client = bench.connect();
    let refusal = "-MISCONF the write is not durable: the disk is gone\r\n";
    send(&mut client, "SET k 1\r\nGET k\r\n");
    bench
        .engine
        .wait_until("the write is committed", |progress| progress.requested == 1);
    bench.engine.change(|progress| progress.failed = true);
    expect(&mut client, &refusal.repeat(2));
    // The connection stays open; a write fails at its commit.
    send(&mut client, "PING\r\nSET k 2\r\n");
    expect(&mut client, &refusal.repeat(2));
    send(&mut client, "PING\r\n");
    expect(&mut client, "+PONG\r\n");
}

/// A refused turn that had also read something undurable was counted as waiting, and refused again when the
/// failure became known: the client got more replies than it had sent requests.
#[test]
fn a_refused_write_is_refused_once() {
    let bench = Bench::new(Durability::Always);
    let (mut first, mut second) = (bench.connect(), bench.connect());
    let refusal = "-MISCONF the write is not durable: the disk is gone\r\n";
    send(&mut first, "SET k 1\r\n");
    bench
        .engine
        .wait_until("the write is committed", |progress| progress.requested == 1);
    // The engine fails, but has not told its subscribers yet.
    bench.engine.progress.lock().failed = true;
    send(&mut second, "INCR k\r\n");
    expect(&mut second, refusal);
    bench.engine.change(|_| {});
    expect(&mut first, refusal);
    send(&mut second, "PING\r\n");
    expect(&mut second, "+PONG\r\n");
}

#[test]
fn waitaof_waits_for_a_sync_where_an_acknowledgement_does_not() {
    let bench = Bench::new(Durability::EverySec);
    let mut client = bench.connect();
    bench.engine.change(|progress| progress.durable = u64::MAX);
    send(&mut client, "SET k 1\r\nWAITAOF 1 0 0\r\nPING\r\n");
    expect(&mut client, "+OK\r\n");
    bench
        .engine
        .wait_until("a sync is asked for", |progress| progress.syncs_asked == 1);
    expect_silence(&mut client);
    bench.engine.change(|progress| progress.syncs_done = 1);
    expect(&mut client, "*2\r\n:1\r\n:0\r\n+PONG\r\n");
    send(&mut client, "WAITAOF 1 0 150\r\nPING\r\n");
    expect(&mut client, "*2\r\n:0\r\n:0\r\n+PONG\r\n");
}

#[test]
fn shutdown_sends_replies_that_become_durable_meanwhile() {
    let mut bench = Bench::new(Durability::Always);
    let mut client = bench.connect();
    send(&mut client, "SET k 1\r\n");
    bench
        .engine
        .wait_until("the write is committed", |progress| progress.requested == 1);
    let server = bench.server.take().expect("it runs");
    server.shutdown_handle().shutdown();
    expect_silence(&mut client);
    bench.engine.change(|progress| {
        progress.durable = 1;
        progress.syncs_done = u64::MAX;
    });
    expect(&mut client, "+OK\r\n");
    server.wait().expect("the server stops cleanly");
    assert_eq!(
        bench.engine.progress.lock().syncs_asked,
        1,
        "the store is synced at the end"
    );
}
