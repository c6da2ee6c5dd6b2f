//! The load generator: one thread that keeps many connections busy.
//!
//! A connection costs one read and one write for each turn, whatever the depth of its pipeline, so that one
//! core of it is enough for a server on another. In a closed loop a connection sends its next requests when
//! all replies of the last have come. In an open loop requests are due at fixed times, go to the connections
//! in turn, wait there if as many as the pipeline is deep are under way, and their latency counts from when
//! they were due: a stall of the server counts for every request that was due meanwhile.

use super::connection::Connection;
use super::connection::Pending;
use super::wire::Wire;
use crate::latency::histogram;
use crate::subject::Error;
use crate::timing::{Sample, Stopwatch};
use crate::workload::{Author, Step};
use anyhow::Context;
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::iter::Take;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Without any reply for so long, the server hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Enough for a pipeline of replies in one read.
const BUFFER_BYTES: usize = 256 << 10;
/// The poll waits in whole milliseconds: what is due earlier is awaited without sleeping.
const SLEEP_AT_LEAST: Duration = Duration::from_millis(2);

/// What a run asks, and when.
pub(super) struct Run {
    pub(super) wire: Wire,
    /// Which keys are asked for.
    pub(super) steps: Take<Author>,
    /// Requests of a connection under way at once.
    pub(super) pipeline: usize,
    /// Requests a second, if they are due at fixed times.
    pub(super) rate: Option<f64>,
    /// Nothing is sent, or due, after this long.
    pub(super) length: Duration,
}

/// What came of it.
pub(super) struct Outcome {
    /// Replies, the time until the last, and the processor time of the load generator.
    pub(super) sample: Sample,
    /// Nanoseconds of each.
    pub(super) latency: Histogram<u64>,
}

/// Connections to a server.
pub(super) struct Driver {
    poll: Poll,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

impl Driver {
    pub(super) fn connect(port: u16, connections: usize) -> Result<Driver, Error> {
        let poll = Poll::new()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let connections = (0..connections)
            .map(|number| {
                let stream = std::net::TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let mut stream = TcpStream::from_std(stream);
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry()
                    .register(&mut stream, Token(number), interest)?;
                Ok(Connection::new(stream))
            })
            .collect::<Result<_, Error>>()
            .with_context(|| format!("connecting to {address}"))?;
        Ok(Driver {
            poll,
            connections,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Asks until the run is over and every reply has come.
    pub(super) fn run(&mut self, run: Run) -> Result<Outcome, Error> {
        let watch = Stopwatch::start();
        let mut turn = Turn::begin(run, self.connections.len());
        let mut events = Events::with_capacity(self.connections.len().max(1));
        for number in 0..self.connections.len() {
            turn.ask(number, &mut self.connections[number])?;
        }
        let mut last_reply = Instant::now();
        while !turn.is_over(&self.connections) {
            self.wait(&mut events, turn.until_due())?;
            let replies = turn.latency.len();
            for event in &events {
                let number = event.token().0;
                let connection = &mut self.connections[number];
                if event.is_writable() {
                    connection.flush()?;
                }
                if event.is_readable() {
                    turn.receive(connection, &mut self.buffer)?;
                    turn.ask(number, connection)?;
                }
            }
            turn.ask_what_is_due(&mut self.connections)?;
            if turn.latency.len() > replies {
                last_reply = turn.now;
            }
            anyhow::ensure!(
                turn.now.saturating_duration_since(last_reply) < PATIENCE,
                "the server has not answered for {PATIENCE:?}"
            );
        }
        Ok(Outcome {
            sample: watch.stop(turn.latency.len()),
            latency: turn.latency,
        })
    }

    fn wait(&mut self, events: &mut Events, until_due: Option<Duration>) -> Result<(), Error> {
        let limit = match until_due {
            Some(time) if time < SLEEP_AT_LEAST => Duration::ZERO,
            Some(time) => time - Duration::from_millis(1),
            None => PATIENCE,
        };
        match self.poll.poll(events, Some(limit)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            outcome => Ok(outcome.context("waiting for replies")?),
        }
    }
}

/// A run under way.
struct Turn {
    run: Run,
    /// The clock, read once for each connection that has something.
    now: Instant,
    end: Instant,
    /// The run's end has passed, or its keys are used up.
    is_ending: bool,
    schedule: Option<Schedule>,
    latency: Histogram<u64>,
}

/// An open loop: when the next request is due, and those that wait for their connection.
struct Schedule {
    begin: Instant,
    rate: f64,
    count: u64,
    waiting: Vec<VecDeque<Instant>>,
}

impl Schedule {
    fn next_due(&self) -> Instant {
        self.begin + Duration::from_secs_f64(self.count as f64 / self.rate)
    }
}

impl Turn {
    fn begin(run: Run, connections: usize) -> Turn {
        let begin = Instant::now();
        Turn {
            now: begin,
            end: begin + run.length,
            is_ending: false,
            schedule: run.rate.map(|rate| Schedule {
                begin,
                rate,
                count: 0,
                waiting: vec![VecDeque::new(); connections],
            }),
            latency: histogram(),
            run,
        }
    }

    fn is_over(&self, connections: &[Connection]) -> bool {
        let is_idle = |connection: &Connection| connection.under_way() == 0;
        self.is_ending
            && connections.iter().all(is_idle)
            && self
                .schedule
                .iter()
                .all(|schedule| schedule.waiting.iter().all(VecDeque::is_empty))
    }

    /// Time until the next request is due, in an open loop that goes on.
    fn until_due(&self) -> Option<Duration> {
        let schedule = self.schedule.as_ref().filter(|_| !self.is_ending)?;
        Some(
            schedule
                .next_due()
                .saturating_duration_since(Instant::now()),
        )
    }

    fn receive(&mut self, connection: &mut Connection, buffer: &mut [u8]) -> Result<(), Error> {
        self.now = Instant::now();
        connection.receive(&mut self.run.wire, buffer, |request| {
            let time = self.now.saturating_duration_since(request.begun);
            self.latency
                .saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        })
    }

    /// Gives a connection its next requests, if it is its turn.
    fn ask(&mut self, number: usize, connection: &mut Connection) -> Result<(), Error> {
        self.is_ending |= self.now >= self.end;
        match &mut self.schedule {
            None if self.is_ending || connection.under_way() > 0 => return Ok(()),
            None => {
                for _ in 0..self.run.pipeline {
                    let Some(key) = self.run.steps.next().map(Step::number) else {
                        self.is_ending = true;
                        break;
                    };
                    let begun = self.now;
                    connection.ask(&mut self.run.wire, Pending { key, begun });
                }
            }
            Some(schedule) => {
                let waiting = &mut schedule.waiting[number];
                while connection.under_way() < self.run.pipeline {
                    let Some(begun) = waiting.pop_front() else {
                        break;
                    };
                    let Some(key) = self.run.steps.next().map(Step::number) else {
                        break;
                    };
                    connection.ask(&mut self.run.wire, Pending { key, begun });
                }
            }
        }
        connection.flush()
    }

    /// Hands out the requests of an open loop that are due by now.
    fn ask_what_is_due(&mut self, connections: &mut [Connection]) -> Result<(), Error> {
        self.now = Instant::now();
        self.is_ending |= self.now >= self.end;
        while let Some(schedule) = &mut self.schedule {
            let due = schedule.next_due();
            if due > self.now.min(self.end) {
                break;
            }
            let number = (schedule.count % connections.len() as u64) as usize;
            schedule.count += 1;
            schedule.waiting[number].push_back(due);
            self.ask(number, &mut connections[number])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::{Command, Data};
    use super::*;
    use crate::workload::Workload;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    const DATA: Data = Data {
        keys: 1000,
        value_bytes: 40,
    };

    fn run(command: Command, pipeline: usize, rate: Option<f64>, milliseconds: u64) -> Run {
        Run {
            wire: Wire::of(command, DATA),
            steps: Author::new(Workload::Get, DATA.keys, 0, 1, 7).take(usize::MAX),
            pipeline,
            rate,
            length: Duration::from_millis(milliseconds),
        }
    }

    /// A server that answers each request, all of `request_bytes`, with what `reply` makes of it; the first
    /// of a connection after a `delay`.
    fn serve(
        connections: usize,
        request_bytes: usize,
        delay: Duration,
        reply: fn(&[u8]) -> Vec<u8>,
    ) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().take(connections) {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut request = vec![0; request_bytes];
                    let mut delay = Some(delay);
                    while stream.read_exact(&mut request).is_ok() {
                        delay.take().into_iter().for_each(thread::sleep);
                        if stream.write_all(&reply(&request)).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        port
    }

    fn request_bytes(command: Command) -> usize {
        Wire::of(command, DATA).request.bytes().len()
    }

    fn value_of(request: &[u8]) -> Vec<u8> {
        let key = &request[request.len() - 18..request.len() - 2];
        [b"$40\r\n", key, &[b'v'; 24], b"\r\n"].concat()
    }

    #[test]
    fn a_closed_loop_counts_every_reply_of_every_connection() {
        let ok: fn(&[u8]) -> Vec<u8> = |_| b"+OK\r\n".to_vec();
        for (command, reply) in [(Command::Set, ok), (Command::Get, value_of)] {
            let port = serve(3, request_bytes(command), Duration::ZERO, reply);
            let mut driver = Driver::connect(port, 3).unwrap();
            let outcome = driver.run(run(command, 4, None, 20)).unwrap();
            assert!(outcome.sample.operations >= 12 && outcome.sample.operations.is_multiple_of(4));
            assert_eq!(outcome.latency.len(), outcome.sample.operations);
        }
    }

    #[test]
    fn keys_in_order_are_each_asked_for_once() {
        let port = serve(2, request_bytes(Command::Set), Duration::ZERO, |_| {
            b"+OK\r\n".to_vec()
        });
        let mut driver = Driver::connect(port, 2).unwrap();
        let outcome = driver
            .run(Run {
                steps: Author::new(Workload::Put, 101, 0, 1, 7).take(101),
                ..run(Command::Set, 8, None, 60_000)
            })
            .unwrap();
        assert_eq!(outcome.sample.operations, 101);
    }

    #[test]
    fn an_open_loop_charges_a_stall_to_all_that_were_due_meanwhile() {
        let stall = Duration::from_millis(100);
        let port = serve(1, request_bytes(Command::Get), stall, value_of);
        let mut driver = Driver::connect(port, 1).unwrap();
        let outcome = driver.run(run(Command::Get, 1, Some(990.0), 50)).unwrap();
        // From 0 to 50 ms, every 1.01 ms, though the first reply came after 100.
        assert_eq!(outcome.sample.operations, 50);
        assert!(
            outcome.latency.min() >= 49_000_000,
            "{}",
            outcome.latency.min()
        );
    }

    #[test]
    fn wrong_replies_and_closed_connections_end_a_run() {
        let port = serve(1, request_bytes(Command::Get), Duration::ZERO, |_| {
            b"$-1\r\n".to_vec()
        });
        let mut driver = Driver::connect(port, 1).unwrap();
        let error = driver.run(run(Command::Get, 1, None, 1000)).err().unwrap();
        assert!(error.to_string().contains("$-1"), "{error:#}");

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || drop(listener.accept()));
        let mut driver = Driver::connect(port, 1).unwrap();
        assert!(driver.run(run(Command::Get, 1, None, 1000)).is_err());
    }
}
