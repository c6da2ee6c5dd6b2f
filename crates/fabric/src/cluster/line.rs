//! A client's connection to one server: open, or to be opened when enough time has passed.

use super::{ClusterError, Server};
use crate::client::{Client, ClientOptions, Done};
use rand::RngExt;
use std::time::{Duration, Instant};

/// The pause after the first attempt that failed; later ones are twice as long each.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The longest pause, unless an attempt takes longer.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// See the module text.
#[derive(Default)]
pub(super) struct Line {
    /// The last connection. It may have ended.
    client: Option<Client>,
    /// Attempts that failed since the last connection.
    failures: u32,
    /// When the next attempt may be, if the last one failed.
    again_at: Option<Instant>,
}

impl Line {
    pub(super) fn is_open(&self) -> bool {
        self.client.as_ref().is_some_and(Client::is_open)
    }

    pub(super) fn calls_under_way(&self) -> usize {
        self.client.as_ref().map_or(0, Client::calls_under_way)
    }

    /// Calls that have ended. Those of a connection that ends are among them, so its failure is not told.
    pub(super) fn poll(&mut self, timeout: Duration) -> Vec<Done> {
        let Some(client) = &mut self.client else {
            return Vec::new();
        };
        let polled = client
            .poll(timeout)
            .or_else(|_| client.poll(Duration::ZERO));
        polled.unwrap_or_default()
    }

    /// The connection; a new one if the last has ended, whose ended calls are lost then.
    pub(super) fn open(
        &mut self,
        server: &Server,
        options: &ClientOptions,
    ) -> Result<&mut Client, ClusterError> {
        if !self.is_open() {
            let client = self.reopen(server, options)?;
            self.client = Some(client);
        }
        self.client
            .as_mut()
            .ok_or_else(|| gone(server, Duration::ZERO))
    }

    fn reopen(&mut self, server: &Server, options: &ClientOptions) -> Result<Client, ClusterError> {
        let begun = Instant::now();
        if let Some(again_at) = self.again_at.filter(|&again_at| begun < again_at) {
            return Err(gone(server, again_at - begun));
        }
        let connected = server.connect(options).and_then(|client| {
            let found = client.pool();
            match found == server.pool {
                true => Ok(client),
                false => Err(ClusterError::OtherPool {
                    server: server.address.clone(),
                    expected: server.pool,
                    found,
                }),
            }
        });
        match connected {
            Ok(mut client) => {
                (self.failures, self.again_at) = (0, None);
                if let Some(earlier) = &self.client {
                    client.number_after(earlier);
                }
                Ok(client)
            }
            Err(error) => {
                let now = Instant::now();
                let pause = pause(self.failures, rand::rng().random_range(0.5..=1.0));
                self.failures = self.failures.saturating_add(1);
                self.again_at = now.checked_add(pause.max(now - begun));
                Err(error)
            }
        }
    }
}

/// The pause after so many failures and one more, in part by chance so that clients do not come all at once.
fn pause(failures: u32, share: f64) -> Duration {
    let doubled = PAUSE_FIRST.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
    doubled.min(PAUSE_MAX).mul_f64(share)
}

fn gone(server: &Server, again_in: Duration) -> ClusterError {
    ClusterError::Gone {
        server: server.address.clone(),
        again_in,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let all = [0, 1, 2, 6, 7, 31, 32, u32::MAX].map(|failures| pause(failures, 1.0));
        let ms = [50, 100, 200, 3200, 5000, 5000, 5000, 5000];
        assert_eq!(all, ms.map(Duration::from_millis));
        assert_eq!(pause(0, 0.5), Duration::from_millis(25));
    }
}
