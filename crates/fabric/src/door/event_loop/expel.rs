//! Connections that are closed although nothing of them came: those that do not say who they are, and those
//! that keep what others want.

use super::{EventLoop, TICK};
use crate::door::memory::Kind as Wanting;
use std::time::Duration;

/// A connection that has not said the password for so long is closed.
const STRANGER_MAX: Duration = Duration::from_secs(10);

impl EventLoop {
    /// Closes connections that have not said the password in time.
    pub(super) fn expel_strangers(&mut self) {
        while let Some(&(conn, since)) = self.strangers.front() {
            let is_stranger = self.connections.get(&conn).is_some_and(|one| !one.is_known);
            if is_stranger && since.elapsed() < STRANGER_MAX {
                return;
            }
            self.strangers.pop_front();
            if is_stranger {
                self.mailbox().counters.expelled.add(1);
                self.close(conn);
            }
        }
    }

    /// Closes connections that keep in silence what was wanting since the last look: those that were silent
    /// for long at two looks. Who waits for this door is not silent.
    pub(super) fn expel_silent(&mut self) {
        let shortages = self.shared.memory.shortages();
        let is_due = shortages != self.shortages || self.has_suspects;
        if !is_due || self.now < self.look_at {
            return;
        }
        if shortages != self.shortages {
            // Other loops' connections may have it.
            let others = self.shared.mailboxes.iter().enumerate();
            for (_, mailbox) in others.filter(|(number, _)| *number != self.number) {
                mailbox.wake();
            }
        }
        let before = std::mem::replace(&mut self.shortages, shortages);
        (self.look_at, self.has_suspects) = (self.now + TICK, false);
        let lease = self.shared.settings.lease;
        let is_wanting = |kind: Wanting| before[kind as usize] != shortages[kind as usize];
        let mut expelled = Vec::new();
        for (conn, connection) in &mut self.connections {
            let is_silent =
                connection.under_way == 0 && self.now.duration_since(connection.heard) >= lease;
            if is_silent && connection.is_suspect {
                expelled.push(*conn);
            } else if is_silent {
                let mut kinds = Wanting::ALL.into_iter();
                connection.is_suspect = kinds.any(|kind| is_wanting(kind) && connection.has(kind));
                self.has_suspects |= connection.is_suspect;
            }
        }
        for conn in expelled {
            self.mailbox().counters.expelled.add(1);
            self.close(conn);
        }
    }
}
