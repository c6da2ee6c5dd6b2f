//! Settings that CONFIG SET may change at run time. Paths and addresses are not among them.

use super::settings::{Limits, Settings};
use everdram::password::Password;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize};

pub(crate) struct Config {
    pub(crate) maxclients: AtomicUsize,
    /// Idle seconds after which a connection is closed; 0 = never.
    pub(crate) timeout_s: AtomicU64,
    pub(crate) query_buffer_bytes: AtomicUsize,
    pub(crate) proto_max_bulk_len: AtomicU64,
    pub(crate) output_hard_bytes: AtomicUsize,
    pub(crate) output_soft_bytes: AtomicUsize,
    pub(crate) output_soft_s: AtomicU64,
    pub(crate) slowlog_slower_than_us: AtomicI64,
    pub(crate) slowlog_max_len: AtomicUsize,
    /// Shared with the other doors of the store.
    pub(crate) password: Password,
}

impl Config {
    pub(crate) fn new(settings: &Settings) -> Self {
        let Limits {
            query_buffer_bytes,
            proto_max_bulk_len,
            output_hard_bytes,
            ..
        } = settings.limits;
        let password = settings.password.clone().map(String::into_bytes);
        Config {
            maxclients: AtomicUsize::new(settings.maxclients),
            // Round up: zero would mean never.
            timeout_s: AtomicU64::new(settings.timeout.as_millis().div_ceil(1000) as u64),
            query_buffer_bytes: AtomicUsize::new(query_buffer_bytes),
            proto_max_bulk_len: AtomicU64::new(proto_max_bulk_len),
            output_hard_bytes: AtomicUsize::new(output_hard_bytes),
            output_soft_bytes: AtomicUsize::new(settings.limits.output_soft_bytes),
            output_soft_s: AtomicU64::new(settings.limits.output_soft_time.as_secs()),
            slowlog_slower_than_us: AtomicI64::new(settings.slowlog_slower_than_us),
            slowlog_max_len: AtomicUsize::new(settings.slowlog_max_len),
            password: Password::new(password),
        }
    }
}
