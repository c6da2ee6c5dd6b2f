//! Clients by their numbers. No number is used twice, so a client that is closed is recognised as such.

use crate::code::{BUG, CLOSED, Failure, IN_USE};
use everdram_fabric::{ClusterClient, ClusterDone};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A client, and what it holds for its caller.
pub(crate) struct Client {
    pub(crate) client: ClusterClient,
    /// Ended calls for which the last poll had no room.
    pub(crate) ended: VecDeque<ClusterDone>,
    /// Values and texts of the last poll, by ticket.
    pub(crate) held: HashMap<u64, Vec<u8>>,
}

struct Clients {
    last: u64,
    open: BTreeMap<u64, Arc<Mutex<Client>>>,
}

static CLIENTS: Mutex<Clients> = Mutex::new(Clients {
    last: 0,
    open: BTreeMap::new(),
});

/// Nothing panics while it has the lock.
fn clients() -> MutexGuard<'static, Clients> {
    CLIENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a client a number.
pub(crate) fn add(client: ClusterClient) -> u64 {
    let client = Client {
        client,
        ended: VecDeque::new(),
        held: HashMap::new(),
    };
    let mut clients = clients();
    clients.last += 1;
    let number = clients.last;
    clients.open.insert(number, Arc::new(Mutex::new(client)));
    number
}

/// Does something with a client.
///
/// # Errors
/// There is no such client, another thread is using it, a panic has broken it, or what `call` says.
pub(crate) fn with<T>(
    number: u64,
    call: impl FnOnce(&mut Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let client = clients().open.get(&number).cloned();
    let client = client.ok_or_else(closed)?;
    match client.try_lock() {
        Ok(mut client) => call(&mut client),
        Err(TryLockError::WouldBlock) => {
            let text = "another thread is in a call of this client: make one for each thread";
            Err(Failure::new(IN_USE, text))
        }
        Err(TryLockError::Poisoned(_)) => {
            let text = "this client has panicked, which is a bug; close it";
            Err(Failure::new(BUG, text))
        }
    }
}

/// Closes a client, once nobody uses it.
///
/// # Errors
/// There is no such client.
pub(crate) fn close(number: u64) -> Result<(), Failure> {
    let client = clients().open.remove(&number);
    // Closing takes its time, so the lock is free by now.
    client.map(drop).ok_or_else(closed)
}

fn closed() -> Failure {
    Failure::new(
        CLOSED,
        "there is no such client: it was closed, or never was",
    )
}
