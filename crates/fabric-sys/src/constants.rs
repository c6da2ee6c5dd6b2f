//! Flags and codes of libfabric's interface that this crate uses, with the library's own names.
//!
//! These are facts of the interface of version 1: no release changes them. What is not used is not here.
#![allow(missing_docs, reason = "the names and meanings are the library's")]

// capabilities, also operation and access flags
pub(crate) const FI_MSG: u64 = 1 << 1;
pub(crate) const FI_RMA: u64 = 1 << 2;
pub(crate) const FI_READ: u64 = 1 << 8;
pub(crate) const FI_WRITE: u64 = 1 << 9;
pub(crate) const FI_RECV: u64 = 1 << 10;
pub(crate) const FI_SEND: u64 = 1 << 11;
pub(crate) const FI_REMOTE_READ: u64 = 1 << 12;
pub(crate) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const FI_COMPLETION: u64 = 1 << 24;
pub(crate) const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub(crate) const FI_RMA_PMEM: u64 = 1 << 49;
pub(crate) const FI_NUMERICHOST: u64 = 1 << 55;
pub(crate) const FI_SOURCE: u64 = 1 << 57;

// modes: what a provider may ask of its user
pub(crate) const FI_CONTEXT: u64 = 1 << 59;
pub(crate) const FI_CONTEXT2: u64 = 1 << 52;

// registration modes
pub(crate) const FI_MR_LOCAL: i32 = 1 << 2;
pub(crate) const FI_MR_VIRT_ADDR: i32 = 1 << 4;
pub(crate) const FI_MR_ALLOCATED: i32 = 1 << 5;
pub(crate) const FI_MR_PROV_KEY: i32 = 1 << 6;

// orders: what is sent or written stays behind what was sent or written
pub(crate) const FI_ORDER_WAW: u64 = 1 << 4;
pub(crate) const FI_ORDER_SAW: u64 = 1 << 7;
pub(crate) const FI_ORDER_SAS: u64 = 1 << 8;

// enums, as the C integers they are
pub(crate) const FI_EP_MSG: u32 = 1;
pub(crate) const FI_PROGRESS_MANUAL: u32 = 2;
pub(crate) const FI_THREAD_DOMAIN: u32 = 3;
pub(crate) const FI_WAIT_UNSPEC: u32 = 1;
pub(crate) const FI_CQ_FORMAT_DATA: u32 = 3;

// commands of `control`
pub(crate) const FI_ENABLE: i32 = 6;

// events of an event queue
pub(crate) const FI_CONNREQ: u32 = 1;
pub(crate) const FI_CONNECTED: u32 = 2;
pub(crate) const FI_SHUTDOWN: u32 = 3;

// codes, returned with a minus
pub(crate) const FI_EINTR: i32 = 4;
pub(crate) const FI_EIO: i32 = 5;
pub(crate) const FI_EAGAIN: i32 = 11;
pub(crate) const FI_EBUSY: i32 = 16;
pub(crate) const FI_ENOSYS: i32 = 38;
pub(crate) const FI_ENODATA: i32 = 61;
pub(crate) const FI_ETIMEDOUT: i32 = 110;
pub(crate) const FI_ECANCELED: i32 = 125;
pub(crate) const FI_EAVAIL: i32 = 259;
pub(crate) const FI_ENOKEY: i32 = 266;

/// The newest interface this crate was written for; an older library is asked for its own.
pub(crate) const INTERFACE: u32 = version(1, 17);

/// A version as the library packs it.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}
