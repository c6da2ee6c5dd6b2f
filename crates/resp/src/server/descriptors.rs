//! The limit of open files and sockets of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything but clients: the pool, event loops, logs.
const RESERVE: u64 = 128;

/// Raises the process' limit so that `clients` can connect, as far as the system permits. Beyond the limit,
/// connections wait to be accepted.
pub(crate) fn allow(clients: usize) {
    let wanted = (clients as u64).saturating_add(RESERVE);
    let limit = getrlimit(Resource::Nofile);
    // `None` means no limit.
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let granted = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let raised = Rlimit {
        current: Some(granted),
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, wanted, "cannot raise the limit on open files");
    } else if granted < wanted {
        tracing::warn!(
            granted,
            wanted,
            "the limit on open files is too low for maxclients; raise it with `ulimit -n`"
        );
    }
}
