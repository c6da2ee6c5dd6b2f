//! The two ends of a transfer: a pool that this process opens, or a running server.

use crate::client::{Client, Reply};
use crate::pool;
use crate::settings::usage;
use crate::transfer::operation::Operation;
use anyhow::Context;
use everdram::engine::Change;
use everdram::stats::Finding;
use everdram::{Options, Session, Store};
use std::path::{Path, PathBuf};

/// Operations sent before waiting for their answers (or durability).
const WINDOW: usize = 256;
/// Bytes after which a window ends early.
const WINDOW_BYTES: usize = 4 << 20;

/// Where from or where to: exactly one of both.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct EndArguments {
    /// The running server, as HOST:PORT, instead of a pool
    #[arg(long, value_name = "HOST:PORT", global = false)]
    pub(crate) server: Option<String>,
    /// Password of the server
    #[arg(
        long,
        env = "EVERDRAM_PASSWORD",
        hide_env_values = true,
        requires = "server"
    )]
    pub(crate) password: Option<String>,
}

/// Why a pool is opened.
pub(crate) enum Purpose {
    /// To write, with these options; created if missing.
    Write(Box<Options>),
    /// To read.
    Read,
    /// To read everything that verifies.
    Salvage,
}

/// A pool or a server that a transfer reads or writes.
pub(crate) enum End {
    Pool {
        store: Store,
        session: Session,
        submitted: usize,
        submitted_bytes: usize,
    },
    Server {
        client: Client,
        outstanding: usize,
    },
}

impl EndArguments {
    /// With `--server`, the only positional argument is the file; without, the pool comes first, then the
    /// file.
    pub(crate) fn split<'a>(
        &self,
        places: &'a [PathBuf],
    ) -> anyhow::Result<(Option<&'a Path>, Option<&'a Path>)> {
        match (&self.server, places) {
            (Some(_), []) => Ok((None, None)),
            (Some(_), [file]) => Ok((None, Some(file))),
            (Some(_), _) => Err(usage("with --server there is no POOL: give at most a FILE")),
            (None, [pool]) => Ok((Some(pool), None)),
            (None, [pool, file]) => Ok((Some(pool), Some(file))),
            (None, _) => Err(usage(
                "give a POOL and a FILE, or --server HOST:PORT and a FILE",
            )),
        }
    }

    /// Connects to the server if one is given; otherwise opens the pool at `pool`.
    pub(crate) fn open(
        &self,
        pool: Option<&Path>,
        purpose: Purpose,
        quiet: bool,
    ) -> anyhow::Result<End> {
        match (&self.server, pool) {
            (Some(address), _) => {
                let connected = Client::connect(address.as_str());
                let mut client = connected.with_context(|| format!("server {address}"))?;
                if let Some(password) = &self.password {
                    client.call(&[b"AUTH", password.as_bytes()])?;
                }
                Ok(End::Server {
                    client,
                    outstanding: 0,
                })
            }
            (None, Some(path)) => {
                let opened = match purpose {
                    Purpose::Write(options) => pool::open(path, *options, quiet),
                    Purpose::Read => pool::open_existing(path, false, quiet),
                    Purpose::Salvage => pool::open_existing(path, true, quiet),
                };
                let store = opened.with_context(|| format!("pool {}", path.display()))?;
                let session = store.session()?;
                Ok(End::Pool {
                    store,
                    session,
                    submitted: 0,
                    submitted_bytes: 0,
                })
            }
            (None, None) => Err(usage("give a POOL, or --server HOST:PORT")),
        }
    }
}

impl End {
    /// Applies one operation; it is durable once [`End::flush`] has returned.
    pub(crate) fn apply(&mut self, operation: &Operation) -> anyhow::Result<()> {
        let full = match self {
            End::Pool {
                session,
                submitted,
                submitted_bytes,
                ..
            } => {
                *submitted += 1;
                *submitted_bytes += submit(session, operation)?;
                *submitted >= WINDOW || *submitted_bytes >= WINDOW_BYTES
            }
            End::Server {
                client,
                outstanding,
            } => {
                *outstanding += 1;
                queue(client, operation);
                *outstanding >= WINDOW || client.queued_bytes() >= WINDOW_BYTES
            }
        };
        if full { self.flush() } else { Ok(()) }
    }

    /// Waits until all applied operations are durable.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        match self {
            End::Pool {
                session,
                submitted,
                submitted_bytes,
                ..
            } => {
                // A read-only pool has nothing to commit, and refuses a commit.
                if *submitted == 0 {
                    return Ok(());
                }
                (*submitted, *submitted_bytes) = (0, 0);
                let ticket = session.commit()?;
                session.wait(ticket)?;
            }
            End::Server {
                client,
                outstanding,
            } => {
                client.send()?;
                for _ in 0..std::mem::take(outstanding) {
                    client.receive()?.accepted()?;
                }
            }
        }
        Ok(())
    }

    /// What a salvaged pool lacks.
    pub(crate) fn damage(&self) -> Vec<Finding> {
        match self {
            End::Pool { store, .. } => store.damage(),
            End::Server { .. } => Vec::new(),
        }
    }

    /// The approximate number of keys.
    pub(crate) fn len(&mut self) -> anyhow::Result<u64> {
        match self {
            End::Pool { store, .. } => Ok(store.len()),
            End::Server { client, .. } => Ok(client.count_keys()?),
        }
    }

    /// Stores the next keys after `cursor` (0 = the start) in `keys`. Returns the next cursor; 0 = the end.
    pub(crate) fn scan(&mut self, cursor: u64, keys: &mut Vec<Vec<u8>>) -> anyhow::Result<u64> {
        keys.clear();
        match self {
            End::Pool { session, .. } => {
                Ok(session.scan(cursor, WINDOW, &mut |key, _, _| keys.push(key.to_vec()))?)
            }
            End::Server { client, .. } => scan_server(client, cursor, keys),
        }
    }

    /// Calls `visit` with each existing key of `keys`: key, value, expiry (Unix ms, 0 = never). Calls `lose`
    /// with a key of a pool that cannot be read; if `lose` returns `Ok`, reading goes on.
    pub(crate) fn read(
        &mut self,
        keys: &[Vec<u8>],
        mut visit: impl FnMut(&[u8], &[u8], u64) -> anyhow::Result<()>,
        mut lose: impl FnMut(&[u8], everdram::Error) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self {
            End::Pool { session, .. } => {
                let mut value = Vec::new();
                for key in keys {
                    value.clear();
                    match session.get_into(key, &mut value) {
                        Ok(Some(found)) => visit(key, &value, found.expires_at_ms)?,
                        Ok(None) => {}
                        Err(error) => lose(key, error)?,
                    }
                }
            }
            End::Server { client, .. } => {
                for key in keys {
                    client.queue(&[b"GET", key]);
                    client.queue(&[b"PEXPIRETIME", key]);
                }
                client.send()?;
                for key in keys {
                    let value = client.receive()?.accepted()?;
                    let expiry = client.receive()?.accepted()?;
                    let (Reply::Bulk(value), Reply::Integer(expiry)) = (value, expiry) else {
                        continue;
                    };
                    // -2: the key expired between the two requests.
                    if expiry != -2 {
                        visit(key, &value, u64::try_from(expiry).unwrap_or(0))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for durability and closes the pool.
    pub(crate) fn close(mut self) -> anyhow::Result<()> {
        self.flush()?;
        if let End::Pool { store, session, .. } = self {
            drop(session);
            store.close()?;
        }
        Ok(())
    }
}

/// Returns the bytes it submitted.
fn submit(session: &mut Session, operation: &Operation) -> anyhow::Result<usize> {
    match operation {
        Operation::Put {
            key,
            value,
            expires_at_ms,
        } => {
            session.engine().put(key, value, *expires_at_ms)?;
            Ok(key.len() + value.len())
        }
        Operation::Expire { key, expires_at_ms } => {
            session.engine().modify(key, &mut |current, into| {
                let Some(current) = current else {
                    return Change::Keep;
                };
                into.extend_from_slice(current.value);
                Change::Put {
                    expires_at_ms: *expires_at_ms,
                }
            })?;
            Ok(key.len())
        }
        Operation::Delete { key } => {
            session.engine().delete(key)?;
            Ok(key.len())
        }
    }
}

fn queue(client: &mut Client, operation: &Operation) {
    match operation {
        Operation::Put {
            key,
            value,
            expires_at_ms: 0,
        } => client.queue(&[b"SET", key, value]),
        Operation::Put {
            key,
            value,
            expires_at_ms,
        } => {
            client.queue(&[
                b"SET",
                key,
                value,
                b"PXAT",
                expires_at_ms.to_string().as_bytes(),
            ]);
        }
        Operation::Expire { key, expires_at_ms } => {
            client.queue(&[b"PEXPIREAT", key, expires_at_ms.to_string().as_bytes()]);
        }
        Operation::Delete { key } => client.queue(&[b"DEL", key]),
    }
}

fn scan_server(client: &mut Client, cursor: u64, keys: &mut Vec<Vec<u8>>) -> anyhow::Result<u64> {
    let count = WINDOW.to_string();
    let reply = client.call(&[
        b"SCAN",
        cursor.to_string().as_bytes(),
        b"COUNT",
        count.as_bytes(),
    ])?;
    let Reply::Array(parts) = reply else {
        anyhow::bail!("the server gave no array for SCAN")
    };
    let [Reply::Bulk(next), Reply::Array(found)] = parts.as_slice() else {
        anyhow::bail!("the server gave an array for SCAN that is none")
    };
    keys.extend(found.iter().filter_map(|key| match key {
        Reply::Bulk(key) => Some(key.clone()),
        _ => None,
    }));
    let next = std::str::from_utf8(next)
        .ok()
        .and_then(|next| next.parse().ok());
    next.context("the server gave a cursor that is no number")
}
