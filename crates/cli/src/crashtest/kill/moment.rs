//! What a SIGKILL interrupted, as far as an observer can tell: compaction, growth, a write of the image.
//!
//! The observer asks for INFO every few milliseconds during the load. If a counter changed between its last
//! two answers, that work took place at most [`NEAR`] before the kill. On files, only checkpoints and growth
//! write the image, so its modification time says the same of them. These observations only describe the
//! kills. The verdict does not depend on them, except that a server under load must answer.

use crate::client::{Client, Reply};
use crate::killing::process::misconduct;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Work this shortly before the kill counts as interrupted.
const NEAR: Duration = Duration::from_millis(25);
/// Time between two requests of INFO.
pub(crate) const EVERY: Duration = Duration::from_millis(10);

/// Counters of the server that rise while it does the work of that name.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    blocks_reclaimed: u64,
    bytes_moved: u64,
    pool_bytes: u64,
}

/// Watches one server.
pub(crate) struct Observer {
    client: Client,
    before: Sample,
    last: Sample,
    last_at: Instant,
}

/// What the kill most likely interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Landing {
    pub(crate) compaction: bool,
    pub(crate) growth: bool,
    pub(crate) image_write: bool,
}

impl Observer {
    /// # Errors
    /// As [`Observer::look`].
    pub(crate) fn start(port: u16) -> anyhow::Result<Observer> {
        let client = Client::connect(("127.0.0.1", port)).map_err(is_silent)?;
        let mut observer = Observer {
            client,
            before: Sample::default(),
            last: Sample::default(),
            last_at: Instant::now(),
        };
        observer.look()?;
        observer.before = observer.last;
        Ok(observer)
    }

    /// Asks the server for its counters.
    ///
    /// # Errors
    /// [`Misconduct`](crate::killing::process::Misconduct) if it does not answer: it hangs, or has ended.
    pub(crate) fn look(&mut self) -> anyhow::Result<()> {
        let reply = self.client.call(&[b"INFO", b"everdram"]);
        let Reply::Bulk(text) = reply.map_err(is_silent)? else {
            return Err(misconduct("INFO was not answered with text"));
        };
        self.before = self.last;
        self.last = Sample::read(&String::from_utf8_lossy(&text));
        self.last_at = Instant::now();
        Ok(())
    }

    /// What the kill at `killed_at` interrupted. Call it right after the kill.
    pub(crate) fn landing(&self, killed_at: (Instant, SystemTime), pool: &Path) -> Landing {
        let is_near = killed_at.0.saturating_duration_since(self.last_at) < NEAR;
        let moved = |of: fn(&Sample) -> u64| is_near && of(&self.last) > of(&self.before);
        Landing {
            compaction: moved(|sample| sample.blocks_reclaimed) || moved(|s| s.bytes_moved),
            growth: moved(|sample| sample.pool_bytes),
            image_write: is_written(&pool.join("image"), killed_at.1),
        }
    }

    /// Blocks that compaction freed since the server started.
    pub(crate) fn blocks_reclaimed(&self) -> u64 {
        self.last.blocks_reclaimed
    }

    pub(crate) fn pool_bytes(&self) -> u64 {
        self.last.pool_bytes
    }
}

fn is_silent(error: io::Error) -> anyhow::Error {
    misconduct(format_args!("INFO was not answered under load: {error}"))
}

/// Whether the file was written shortly before `killed_at`.
fn is_written(image: &Path, killed_at: SystemTime) -> bool {
    let modified = image.metadata().and_then(|metadata| metadata.modified());
    modified.is_ok_and(|modified| {
        let before = killed_at.duration_since(modified);
        before.map_or(true, |before| before < NEAR)
    })
}

impl Sample {
    fn read(text: &str) -> Sample {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .and_then(|number| number.trim().parse().ok())
                .unwrap_or(0)
        };
        Sample {
            blocks_reclaimed: field("blocks_reclaimed"),
            bytes_moved: field("reclaim_bytes_moved"),
            pool_bytes: field("pool_bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_in_info() {
        let text =
            "# Everdram\r\npool_bytes:4096\r\nblocks_reclaimed:7\r\nreclaim_bytes_moved:9\r\n";
        let sample = Sample::read(text);
        assert_eq!(
            (
                sample.pool_bytes,
                sample.blocks_reclaimed,
                sample.bytes_moved
            ),
            (4096, 7, 9)
        );
    }

    #[test]
    fn only_what_moved_shortly_before_the_kill_counts() {
        let now = Instant::now();
        let last = Sample {
            blocks_reclaimed: 1,
            ..Sample::default()
        };
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::connect(server.local_addr().unwrap()).unwrap();
        let observer = Observer {
            client,
            before: Sample::default(),
            last,
            last_at: now,
        };
        let nowhere = Path::new("no such pool");
        let landing = |after| observer.landing((now + after, SystemTime::now()), nowhere);
        let at_once = Landing {
            compaction: true,
            ..Landing::default()
        };
        assert_eq!(landing(Duration::from_millis(1)), at_once);
        assert_eq!(landing(2 * NEAR), Landing::default());
    }
}
