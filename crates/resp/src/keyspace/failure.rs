//! Engine errors as replies to a Redis client.
//!
//! Codes follow Redis where clients act on them: `OOM` for a full store, `MISCONF` for a medium that
//! no longer takes writes, `READONLY` for a store that takes none, `LOADING` for keys not known yet.

use crate::context::Context;
use everdram::Error;
use everdram::engine::KEY_BYTES_MAX;
use std::borrow::Cow;

/// Redis' answer to a value that is too large.
pub(crate) const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
/// Redis' answer to a write on a full store.
pub(crate) const NO_SPACE: &str = "OOM command not allowed when used memory > 'maxmemory'.";
/// The answer while keys are unknown: clients for Redis try again.
const LOADING: &str = "LOADING everdram is loading its log: it serves the keys that are in the pool, and this needs others";
/// The answer to a write on a read-only store; clients know the code from Redis' replicas.
pub(crate) const READ_ONLY: &str = "READONLY the store is open read-only (everdram serve --salvage): it takes no writes and no transactions";
/// Why a transaction may lack room although the store has some.
pub(super) const NO_SPACE_INSIDE: &str = "the transaction would write more than 1 GiB";

impl Context<'_> {
    /// Answers a request that the engine refused.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.reply.error(&text(error));
    }
}

fn text(error: &Error) -> Cow<'static, str> {
    match error {
        Error::KeyLength(0) => "ERR key is empty: keys have at least 1 byte".into(),
        Error::KeyLength(_) => {
            format!("ERR key is too long (maximum {KEY_BYTES_MAX} bytes)").into()
        }
        Error::ValueLength(_) => TOO_LONG.into(),
        Error::NoSpace(_) => NO_SPACE.into(),
        Error::ReadOnly => READ_ONLY.into(),
        Error::Loading => LOADING.into(),
        Error::Pool(pool) => format!("MISCONF the pool refuses writes: {pool}").into(),
        other => format!("ERR {other}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_store_answers_as_redis_out_of_memory() {
        let full = Error::NoSpace("64 MiB of 64 MiB used".into());
        assert_eq!(
            text(&full),
            "OOM command not allowed when used memory > 'maxmemory'."
        );
    }

    #[test]
    fn keys_say_what_is_wrong_with_them() {
        assert_eq!(
            text(&Error::KeyLength(0)),
            "ERR key is empty: keys have at least 1 byte"
        );
        assert_eq!(
            text(&Error::KeyLength(70_000)),
            "ERR key is too long (maximum 65536 bytes)"
        );
    }
}
