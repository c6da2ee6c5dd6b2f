//! The clock of one end of a modelled network, and how long things take on it.
//!
//! An end's time goes on while its thread works, by the clock of the machine, and it jumps to the time at
//! which something is there when the end waits for that. What an adapter does is no work of its end. So a
//! network has no need of cores: its ends may take turns on one thread, and each finds the same times as if
//! it had a core of its own. (A thread cannot be woken within a microsecond, nor do two that spin find two
//! cores on a machine that others use.)

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// What a network adds to the work of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPreset {
    /// Its name.
    pub name: &'static str,
    /// Where the figures come from.
    pub source: &'static str,
    /// Nanoseconds of the way in one direction, whatever is sent.
    pub way_ns: u64,
    /// Bytes a second that an end sends, all its connections together.
    pub bytes_per_second: u64,
    /// Nanoseconds until whoever wrote or read learns that it has ended.
    pub completion_ns: u64,
    /// Whether a durable write takes as long as the medium takes to make it durable, as an adapter that
    /// commits would; else as long as a read behind it, which is how RDMP-KV's authors emulate a commit.
    pub has_commits: bool,
}

const EDR: NetworkPreset = NetworkPreset {
    name: "edr",
    source: "typical of adapters of RDMP-KV's link, InfiniBand EDR; the paper names no latency",
    way_ns: 850,
    bytes_per_second: 11_000_000_000,
    completion_ns: 300,
    has_commits: true,
};

/// All presets.
pub const NETWORK_PRESETS: [NetworkPreset; 2] = [
    EDR,
    NetworkPreset {
        name: "edr-read",
        source: "the same; commits as RDMP-KV's authors emulate them",
        has_commits: false,
        ..EDR
    },
];

/// See the module text.
pub(super) struct Time {
    preset: &'static NetworkPreset,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    /// Up to [`Now::since`].
    at_ns: u64,
    /// Of that, work.
    #[cfg_attr(
        not(feature = "modelled"),
        allow(dead_code, reason = "who measures asks")
    )]
    busy_ns: u64,
    /// Since when the end has been working.
    since: Option<Instant>,
    /// When all that was sent has left.
    sent_ns: u64,
}

impl Now {
    /// Counts the work so far.
    fn count(&mut self) {
        if let Some(since) = self.since {
            let now = Instant::now();
            let worked_ns = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            self.at_ns += worked_ns;
            self.busy_ns += worked_ns;
            self.since = Some(now);
        }
    }
}

/// An end that does not work until this is dropped.
pub(super) struct Idle<'a>(&'a Time, bool);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.run();
        }
    }
}

impl Time {
    pub(super) fn new(preset: &'static NetworkPreset) -> Time {
        Time {
            preset,
            now: Mutex::default(),
        }
    }

    /// The end works from now on.
    pub(super) fn run(&self) {
        self.now.lock().since = Some(Instant::now());
    }

    /// It does not, from now on.
    pub(super) fn pause(&self) {
        let mut now = self.now.lock();
        now.count();
        now.since = None;
    }

    /// It does not as long as this lives.
    pub(super) fn idle(&self) -> Idle<'_> {
        let was_working = self.now.lock().since.is_some();
        self.pause();
        Idle(self, was_working)
    }

    #[cfg(any(test, feature = "modelled"))]
    pub(super) fn now_ns(&self) -> u64 {
        let mut now = self.now.lock();
        now.count();
        now.at_ns
    }

    #[cfg(any(test, feature = "modelled"))]
    pub(super) fn busy_ns(&self) -> u64 {
        let mut now = self.now.lock();
        now.count();
        now.busy_ns
    }

    /// Waits until a time, at most for so long; returns what time it is then.
    pub(super) fn wait_for(&self, due_ns: u64, most: Option<Duration>) -> u64 {
        let mut now = self.now.lock();
        now.count();
        let most_ns = most.map_or(u64::MAX, |most| {
            u64::try_from(most.as_nanos()).unwrap_or(u64::MAX)
        });
        now.at_ns = now.at_ns.max(due_ns.min(now.at_ns.saturating_add(most_ns)));
        now.at_ns
    }

    /// When a message that leaves now is there. What an end sends leaves in order.
    pub(super) fn message(&self, bytes: usize) -> u64 {
        let mut now = self.now.lock();
        now.count();
        now.sent_ns = now.sent_ns.max(now.at_ns) + self.transfer_ns(bytes);
        now.sent_ns + self.preset.way_ns
    }

    /// When the end learns that a write has ended that leaves now, and takes so long to become durable.
    pub(super) fn write(&self, bytes: usize, commit_ns: u64) -> u64 {
        let commit_ns = if self.preset.has_commits {
            commit_ns
        } else {
            0
        };
        self.message(bytes) + commit_ns + self.preset.way_ns + self.preset.completion_ns
    }

    /// When the end has the bytes of a read that it asks for now.
    pub(super) fn read(&self, bytes: usize) -> u64 {
        let preset = self.preset;
        self.message(0) + self.transfer_ns(bytes) + preset.way_ns + preset.completion_ns
    }

    fn transfer_ns(&self, bytes: usize) -> u64 {
        let ns = bytes as u128 * 1_000_000_000 / u128::from(self.preset.bytes_per_second);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Network, Port};
    use super::*;
    use crate::link::{Access, Area, Conn, Event, Link, Listen};
    use crate::wire::INLINE_BYTES;
    use everdram_pm::Pool;
    use std::sync::Arc;

    /// Bytes that take a microsecond on their way.
    const MICROSECOND: usize = 11_000;

    struct Ends {
        door: Port,
        door_conn: Conn,
        client: Port,
        conn: Conn,
    }

    fn ends() -> Ends {
        let network = Network::with_delays(&NETWORK_PRESETS[0], INLINE_BYTES);
        let (mut door, mut client) = (network.port(), network.own_port());
        let conn = client.connect(&network, 4);
        let request = network.listen().wait(Duration::ZERO).unwrap().unwrap();
        let door_conn = door.accept(request, 4).unwrap();
        assert!(matches!(events(&mut client, 1)[..], [Event::Opened]));
        Ends {
            door,
            door_conn,
            client,
            conn,
        }
    }

    fn events(port: &mut Port, most_s: u64) -> Vec<Event> {
        let mut events = Vec::new();
        port.wait(Some(Duration::from_secs(most_s)), &mut events)
            .unwrap();
        events
    }

    fn now_ns(port: &Port) -> u64 {
        port.mailbox.time.as_ref().unwrap().now_ns()
    }

    #[test]
    fn a_message_is_there_when_its_time_has_come() {
        let mut ends = ends();
        let long = [7; MICROSECOND];
        ends.client.send(ends.conn, &[&long]).unwrap();
        ends.client.send(ends.conn, &[&long, &long]).unwrap();
        // Not before, and whoever does not wait for it gets none.
        assert!(events(&mut ends.door, 0).is_empty());
        assert_eq!(now_ns(&ends.door), 0);
        for at_ns in [1850, 3850] {
            assert!(matches!(
                events(&mut ends.door, 1)[..],
                [Event::Message(..)]
            ));
            assert_eq!(now_ns(&ends.door), at_ns, "one behind the other");
        }
        assert_eq!(now_ns(&ends.client), 0, "another clock");
    }

    #[test]
    fn a_write_ends_when_it_is_durable_and_a_message_behind_it_comes_later() {
        let mut ends = ends();
        let pool = Pool::heap(1 << 20, 0, [0; 8]);
        let at = pool.allocate(100, 1 << 16, 4096).unwrap().at;
        let window = Arc::new(pool.window(at, 1 << 16).unwrap());
        let Ends {
            door,
            door_conn,
            client,
            conn,
        } = &mut ends;
        let Area { address, key, .. } = door
            .expose_window(*door_conn, &window, Access::Write)
            .unwrap();
        let bytes = [7; MICROSECOND];
        let target = (address, key);
        client.write_durably(*conn, &bytes, target, 3).unwrap();
        client.send(*conn, &[b"behind"]).unwrap();
        assert!(matches!(events(door, 1)[..], [Event::Message(..)]));
        assert_eq!(now_ns(door), 1850);
        assert!(matches!(events(client, 1)[..], [Event::Committed(3, true)]));
        let least_ns = 1000 + 2 * EDR.way_ns + EDR.completion_ns;
        let flush_ns = door.mailbox.state.lock().adapter.last_commit_ns();
        assert!(flush_ns > 0);
        assert_eq!(now_ns(client), least_ns + flush_ns);
    }

    #[test]
    fn only_the_time_in_which_an_end_works_counts() {
        let ends = ends();
        let time = ends.client.mailbox.time.as_ref().unwrap();
        const SPIN: Duration = Duration::from_millis(50);
        let spin = || {
            let begun = Instant::now();
            while begun.elapsed() < SPIN {}
        };
        spin();
        assert_eq!(now_ns(&ends.client), 0);
        time.run();
        spin();
        time.pause();
        let worked_ns = now_ns(&ends.client);
        assert!(u128::from(worked_ns) >= SPIN.as_nanos());
        time.wait_for(worked_ns + 5, None);
        spin();
        assert_eq!(now_ns(&ends.client), worked_ns + 5);
        assert_eq!(time.busy_ns(), worked_ns);
        // An end that sleeps, or whose adapter works, works on when that is over.
        time.run();
        let idle = time.idle();
        (0..4).for_each(|_| spin());
        drop(idle);
        spin();
        time.pause();
        let more = u128::from(time.busy_ns() - worked_ns);
        assert!(
            (SPIN.as_nanos()..4 * SPIN.as_nanos()).contains(&more),
            "{more}"
        );
    }
}
