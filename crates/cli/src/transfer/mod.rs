//! Moves data: TSV and the Redis mass-insertion protocol, to and from a pool or a server; the append-only
//! files of a stock Redis, to and from a pool.

mod end;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod mass;
pub(crate) mod operation;
pub(crate) mod redis;
pub(crate) mod tsv;

/// A format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Lines of key, value and (if there is one) expiry in Unix milliseconds, separated by tabs
    Tsv,
    /// Redis commands as `redis-cli --pipe` takes them
    Resp,
}
