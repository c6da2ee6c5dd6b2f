//! Remote clients that write into the landing area: what each has been granted, and how far its bytes have
//! come. They outlive the process: what they sent may arrive in the next one.

use crate::judge::history::BESIDE;
use everdram::Error;
use everdram::landing::{Grant, Landing};
use parking_lot::Mutex;

/// Clients that are remembered: their writes may still arrive.
const REMEMBERED: usize = 8;
/// Numbers of calls beside a session: unique among those that are open.
const NUMBERS: u32 = 10_000;

/// All of them.
#[derive(Default)]
pub(crate) struct Clients(Mutex<Known>);

#[derive(Default)]
struct Known {
    all: Vec<Client>,
    count: u32,
}

/// The write of a remote client.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) name: u32,
    pub(super) grant: Grant,
    /// Offset and bytes, in the order in which they arrive.
    pub(super) pieces: Vec<(u64, Vec<u8>)>,
    /// Those that have arrived.
    pub(super) arrived: usize,
    /// The number of its call, until that ends.
    pub(super) call: Option<u32>,
    pub(super) is_connected: bool,
    /// Its connection has ended, and what it was told may lie in its slot yet: the store had no room for it.
    pub(super) is_waiting: bool,
    /// Some thread plays it.
    pub(super) is_busy: bool,
}

impl Clients {
    /// The process has ended.
    pub(crate) fn lose_connections(&self) {
        for client in &mut self.0.lock().all {
            client.is_waiting |= client.is_connected && client.call.is_none();
            (client.call, client.is_connected, client.is_busy) = (None, false, false);
        }
    }

    /// A number for a call beside those of a session, which need not keep its order.
    pub(super) fn name(&self, session: u32) -> u32 {
        let mut known = self.0.lock();
        known.count += 1;
        session + BESIDE * (1 + known.count % NUMBERS)
    }

    /// Enters a client, instead of another one of the same name, if there is one.
    pub(super) fn enter(&self, client: Client) {
        let mut known = self.0.lock();
        known.all.retain(|other| other.name != client.name);
        if known.all.len() >= REMEMBERED
            && let Some(gone) = known
                .all
                .iter()
                .position(|client| !client.is_connected && !client.is_waiting && !client.is_busy)
        {
            known.all.remove(gone);
        }
        known.all.push(client);
    }

    /// Picks a client that nobody plays, to play it.
    pub(super) fn take(&self, pick: u32, wanted: impl Fn(&Client) -> bool) -> Option<Client> {
        let mut known = self.0.lock();
        let free = known.all.iter_mut();
        let mut free: Vec<&mut Client> = free
            .filter(|client| !client.is_busy && wanted(client))
            .collect();
        let count = free.len().max(1);
        let client = free.get_mut(pick as usize % count)?;
        client.is_busy = true;
        Some(client.clone())
    }

    /// Nobody plays it any more.
    pub(super) fn give_back(&self, client: Client) {
        self.enter(Client {
            is_busy: false,
            ..client
        });
    }

    /// Whether another client may rely on what it writes, or has written, into the pages of this one.
    pub(super) fn has_others_in(&self, client: &Client, landing: &Landing) -> bool {
        let pages = |of: &Client| of.grant.offset..of.grant.offset + of.grant.bytes;
        let mine = pages(client);
        let mut known = self.0.lock();
        if landing.stats().grants == 0 {
            known.all.iter_mut().for_each(|one| one.is_waiting = false);
        }
        known.all.iter().any(|other| {
            let theirs = pages(other);
            other.name != client.name
                && (other.is_connected || other.is_waiting)
                && theirs.start < mine.end
                && mine.start < theirs.end
        })
    }
}

impl Client {
    /// The next pieces arrive, up to this one.
    pub(super) fn deliver(&mut self, landing: &Landing, until: usize) -> Result<(), Error> {
        while self.arrived < until.min(self.pieces.len()) {
            let (offset, bytes) = &self.pieces[self.arrived];
            landing.deliver(*offset, bytes)?;
            self.arrived += 1;
        }
        Ok(())
    }

    pub(super) fn persist(&mut self, landing: &Landing) -> Result<(), Error> {
        self.deliver(landing, usize::MAX)?;
        landing.persist(self.grant.offset, self.grant.bytes)
    }
}
