//! The thread that waits for the medium on behalf of WAITAOF, so that no event loop does.
//!
//! It is needed where an acknowledgement does not imply durability (`everysec`, `none`). Requests that arrive
//! during a sync are answered by the next one.

use super::Shared;
use super::worker::Message;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// The waiting client.
pub(crate) struct SyncRequest {
    pub(crate) worker: usize,
    pub(crate) client: u64,
}

pub(crate) fn queue() -> (Sender<SyncRequest>, Receiver<SyncRequest>) {
    channel()
}

/// Starts the thread; it ends when every sender is dropped.
pub(crate) fn start(
    shared: &Arc<Shared>,
    requests: Receiver<SyncRequest>,
) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("everdram-sync".into())
        .spawn(move || {
            while let Ok(first) = requests.recv() {
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                let mut waiting = vec![first];
                waiting.extend(requests.try_iter());
                let outcome = shared.engine.sync().map_err(|error| error.to_string());
                for request in waiting {
                    let message = Message::Synced {
                        client: request.client,
                        outcome: outcome.clone(),
                    };
                    shared.send(request.worker, message);
                }
            }
        })
}
