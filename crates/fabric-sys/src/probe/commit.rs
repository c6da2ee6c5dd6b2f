//! Whether durable writes complete, and how long they take beside plain ones.
//!
//! The target waits in a thread of its own, as a door does.

use super::{Commit, PATIENCE, Pair, Reason, WriteTimes, text};
use crate::{Completion, Event, Library};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of each write.
const BYTES: usize = 4096;
/// Writes of each kind, if there is time for so many.
const ROUNDS: usize = 300;
/// A word at the end of a write, which a read brings back.
const WORD: usize = 8;

/// See the module text.
pub(super) fn probe(library: &'static Library, provider: &str, at: SocketAddr) -> Commit {
    let pair = match Pair::connect(library, provider, at) {
        Ok(pair) if !pair.initiator.can_commit() || !pair.target.can_commit() => {
            return Commit::NotOffered;
        }
        Ok(pair) => pair,
        Err(reason) => return Commit::Fails(reason),
    };
    match measure(pair) {
        Ok(times) => Commit::Completes(times),
        Err(reason) => Commit::Fails(reason),
    }
}

fn measure(pair: Pair) -> Result<WriteTimes, Reason> {
    let Pair {
        mut target,
        served,
        initiator,
        conn,
    } = pair;
    let area = target.expose(served, BYTES).map_err(text)?;
    let is_over = AtomicBool::new(false);
    let waker = target.waker();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut events = Vec::new();
            while !is_over.load(Ordering::Relaxed) && target.wait(None, &mut events).is_ok() {
                events.clear();
            }
        });
        let mut writer = Writer {
            port: initiator,
            conn,
            place: (area.address, area.key),
        };
        let times = writer.rounds();
        is_over.store(true, Ordering::Relaxed);
        waker.wake();
        times
    })
}

/// The end that writes.
struct Writer {
    port: crate::Port,
    conn: crate::Conn,
    /// Address and key of the target's memory.
    place: (u64, u64),
}

impl Writer {
    /// All kinds in turns, so that what disturbs one disturbs the others.
    fn rounds(&mut self) -> Result<WriteTimes, Reason> {
        let mut times: [Vec<Duration>; 3] = Default::default();
        let begun = Instant::now();
        while times[0].len() < ROUNDS && (begun.elapsed() < PATIENCE || times[0].is_empty()) {
            times[0].push(self.timed(Writer::send)?);
            times[1].push(self.timed(Writer::send_and_look)?);
            times[2].push(self.timed(Writer::commit)?);
        }
        let [sent, arrived, durable] = times.map(median);
        Ok(WriteTimes {
            bytes: BYTES,
            sent,
            arrived,
            durable,
        })
    }

    fn timed(&mut self, call: fn(&mut Writer) -> Result<(), Reason>) -> Result<Duration, Reason> {
        let begun = Instant::now();
        call(self)?;
        Ok(begun.elapsed())
    }

    fn send(&mut self) -> Result<(), Reason> {
        self.write(Completion::Sent)
    }

    fn commit(&mut self) -> Result<(), Reason> {
        self.write(Completion::Durable)
    }

    fn send_and_look(&mut self) -> Result<(), Reason> {
        self.send()?;
        let (address, key) = self.place;
        let last = address + (BYTES - WORD) as u64;
        self.port
            .read(self.conn, WORD, last, key, 0)
            .map_err(text)?;
        self.complete()
    }

    fn write(&mut self, how: Completion) -> Result<(), Reason> {
        let (address, key) = self.place;
        self.port
            .write(self.conn, &[&[1; BYTES]], address, key, 0, how)
            .map_err(text)?;
        self.complete()
    }

    /// Waits for the one operation that is under way.
    fn complete(&mut self) -> Result<(), Reason> {
        let until = Instant::now() + PATIENCE;
        let mut events = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.port.wait(Some(left), &mut events).map_err(text)?;
            match events.drain(..).next() {
                Some(Event::Written(_, _, Ok(())) | Event::Read(_, _, Ok(_))) => return Ok(()),
                Some(Event::Written(_, _, Err(error)) | Event::Read(_, _, Err(error))) => {
                    return Err(text(error));
                }
                Some(Event::Closed(_)) => return Err("the connection ended".to_owned()),
                Some(_) => {}
                None if left.is_zero() => {
                    return Err(format!("a write did not complete within {PATIENCE:?}"));
                }
                None => {}
            }
        }
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
