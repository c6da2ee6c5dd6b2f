//! The files that a stock Redis persists to: append-only files (AOF), their manifest, and RDB files.

pub(crate) mod aof;
mod crc64;
mod directory;
mod foreign;
mod import;
mod load;
mod lzf;
mod manifest;
pub(crate) mod rdb;
pub(crate) mod source;

pub(crate) use directory::{Directory, parse_name};
pub(crate) use import::import;
