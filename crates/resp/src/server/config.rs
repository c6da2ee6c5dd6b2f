//! Settings that CONFIG SET may change at run time. Paths and addresses are not among them.

use super::settings::{Limits, Settings};
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

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
    password: RwLock<Option<Vec<u8>>>,
    has_password: AtomicBool,
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
            has_password: AtomicBool::new(password.is_some()),
            password: RwLock::new(password),
        }
    }

    pub(crate) fn has_password(&self) -> bool {
        self.has_password.load(Relaxed)
    }

    /// Takes effect for later authentications. `None` = no password.
    pub(crate) fn set_password(&self, password: Option<Vec<u8>>) {
        let mut current = self.password.write();
        self.has_password.store(password.is_some(), Relaxed);
        *current = password;
    }

    /// Whether `offered` is the password; without a password, any is accepted. The time depends only on the
    /// length of `offered`.
    pub(crate) fn accepts(&self, offered: &[u8]) -> bool {
        let password = self.password.read();
        let Some(password) = password.as_deref() else {
            return true;
        };
        everdram::password::is_same(password, offered)
    }
}
