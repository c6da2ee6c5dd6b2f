//! Structs of libfabric's interface, as they lie in memory on a 64-bit machine.
//!
//! The layouts are those of the symbol versions that [`crate::Library`] binds, which every release since 1.9
//! serves. A table of functions is cut off behind the last function that this crate calls: the library owns
//! all tables, and says in their first word how long they are. `tests/abi.rs` compares sizes and offsets with
//! the library's own headers.
#![allow(missing_docs, reason = "the names and meanings are the library's")]
#![allow(non_camel_case_types, reason = "the names are the library's")]

use core::ffi::{c_char, c_int, c_void};

/// A value that the library reads, with zeros behind it: a newer library may know more fields than we do.
#[repr(C)]
pub(crate) struct Padded<T> {
    pub(crate) value: T,
    spare: [u64; 16],
}

impl<T> Padded<T> {
    pub(crate) fn new(value: T) -> Padded<T> {
        Padded {
            value,
            spare: [0; 16],
        }
    }
}

/// Declares structs of the interface and collects their layouts in one list.
macro_rules! structs {
    ($($(#[$meta:meta])* $c:literal $name:ident { $($field:ident : $type:ty),+ $(,)? })+) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name { $(pub(crate) $field: $type),+ }
        )+

        /// Size and offsets of every struct used, for `tests/abi.rs`.
        pub fn layouts() -> Vec<Layout> {
            vec![$(Layout {
                name: $c,
                bytes: size_of::<$name>(),
                fields: vec![$((stringify!($field), core::mem::offset_of!($name, $field))),+],
            }),+]
        }
    };
}

/// One struct of the interface.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its name in C.
    pub name: &'static str,
    /// Its size; of a table of functions, which is cut off, at most the size in C.
    pub bytes: usize,
    /// Its fields and their byte offsets. A field of Rust's `kind` is `type` in C.
    pub fields: Vec<(&'static str, usize)>,
}

/// `close`, and other calls that take any object.
type Close = unsafe extern "C" fn(*mut fid) -> c_int;
type Bind = unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int;
type Control = unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int;

structs! {
    "fi_tx_attr" fi_tx_attr {
        caps: u64, mode: u64, op_flags: u64, msg_order: u64, comp_order: u64,
        inject_size: usize, size: usize, iov_limit: usize, rma_iov_limit: usize, tclass: u32,
    }
    "fi_rx_attr" fi_rx_attr {
        caps: u64, mode: u64, op_flags: u64, msg_order: u64, comp_order: u64,
        total_buffered_recv: usize, size: usize, iov_limit: usize,
    }
    "fi_ep_attr" fi_ep_attr {
        kind: u32, protocol: u32, protocol_version: u32, max_msg_size: usize, msg_prefix_size: usize,
        max_order_raw_size: usize, max_order_war_size: usize, max_order_waw_size: usize,
        mem_tag_format: u64, tx_ctx_cnt: usize, rx_ctx_cnt: usize, auth_key_size: usize, auth_key: *mut u8,
    }
    "fi_domain_attr" fi_domain_attr {
        domain: *mut fid_domain, name: *mut c_char, threading: u32, control_progress: u32,
        data_progress: u32, resource_mgmt: u32, av_type: u32, mr_mode: c_int, mr_key_size: usize,
        cq_data_size: usize, cq_cnt: usize, ep_cnt: usize, tx_ctx_cnt: usize, rx_ctx_cnt: usize,
        max_ep_tx_ctx: usize, max_ep_rx_ctx: usize, max_ep_stx_ctx: usize, max_ep_srx_ctx: usize,
        cntr_cnt: usize, mr_iov_limit: usize, caps: u64, mode: u64, auth_key: *mut u8,
        auth_key_size: usize, max_err_data: usize, mr_cnt: usize, tclass: u32,
    }
    "fi_fabric_attr" fi_fabric_attr {
        fabric: *mut fid_fabric, name: *mut c_char, prov_name: *mut c_char, prov_version: u32,
        api_version: u32,
    }
    "fi_info" fi_info {
        next: *mut fi_info, caps: u64, mode: u64, addr_format: u32, src_addrlen: usize,
        dest_addrlen: usize, src_addr: *mut c_void, dest_addr: *mut c_void, handle: *mut fid,
        tx_attr: *mut fi_tx_attr, rx_attr: *mut fi_rx_attr, ep_attr: *mut fi_ep_attr,
        domain_attr: *mut fi_domain_attr, fabric_attr: *mut fi_fabric_attr, nic: *mut c_void,
    }
    "fi_ops" fi_ops {
        size: usize, close: Option<Close>, bind: Option<Bind>, control: Option<Control>,
    }
    "fid" fid { fclass: usize, context: *mut c_void, ops: *mut fi_ops }
    "fi_ops_fabric" fi_ops_fabric {
        size: usize,
        domain: Option<unsafe extern "C" fn(
            *mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int>,
        passive_ep: Option<unsafe extern "C" fn(
            *mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int>,
        eq_open: Option<unsafe extern "C" fn(
            *mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int>,
    }
    "fid_fabric" fid_fabric { fid: fid, ops: *mut fi_ops_fabric, api_version: u32 }
    "fi_ops_domain" fi_ops_domain {
        size: usize,
        av_open: *mut c_void,
        cq_open: Option<unsafe extern "C" fn(
            *mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int>,
        endpoint: Option<unsafe extern "C" fn(
            *mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int>,
    }
    "fi_ops_mr" fi_ops_mr {
        size: usize,
        reg: Option<unsafe extern "C" fn(
            *mut fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void) -> c_int>,
    }
    "fid_domain" fid_domain { fid: fid, ops: *mut fi_ops_domain, mr: *mut fi_ops_mr }
    "fid_mr" fid_mr { fid: fid, mem_desc: *mut c_void, key: u64 }
    "fi_eq_attr" fi_eq_attr {
        size: usize, flags: u64, wait_obj: u32, signaling_vector: c_int, wait_set: *mut c_void,
    }
    "fi_eq_cm_entry" fi_eq_cm_entry { fid: *mut fid, info: *mut fi_info }
    "fi_eq_err_entry" fi_eq_err_entry {
        fid: *mut fid, context: *mut c_void, data: u64, err: c_int, prov_errno: c_int,
        err_data: *mut c_void, err_data_size: usize,
    }
    "fi_ops_eq" fi_ops_eq {
        size: usize,
        read: Option<unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize>,
        readerr: Option<unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize>,
        write: *mut c_void,
        sread: Option<unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> isize>,
    }
    "fid_eq" fid_eq { fid: fid, ops: *mut fi_ops_eq }
    "fi_cq_attr" fi_cq_attr {
        size: usize, flags: u64, format: u32, wait_obj: u32, signaling_vector: c_int, wait_cond: u32,
        wait_set: *mut c_void,
    }
    "fi_cq_data_entry" fi_cq_data_entry {
        op_context: *mut c_void, flags: u64, len: usize, buf: *mut c_void, data: u64,
    }
    "fi_cq_err_entry" fi_cq_err_entry {
        op_context: *mut c_void, flags: u64, len: usize, buf: *mut c_void, data: u64, tag: u64,
        olen: usize, err: c_int, prov_errno: c_int, err_data: *mut c_void, err_data_size: usize,
    }
    "fi_ops_cq" fi_ops_cq {
        size: usize,
        read: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize>,
        readfrom: *mut c_void,
        readerr: Option<unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize>,
        sread: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize>,
        sreadfrom: *mut c_void,
        signal: Option<unsafe extern "C" fn(*mut fid_cq) -> c_int>,
    }
    "fid_cq" fid_cq { fid: fid, ops: *mut fi_ops_cq }
    "fi_ops_cm" fi_ops_cm {
        size: usize,
        setname: *mut c_void,
        getname: Option<unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int>,
        getpeer: *mut c_void,
        connect: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int>,
        listen: Option<unsafe extern "C" fn(*mut fid_pep) -> c_int>,
        accept: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize) -> c_int>,
        reject: Option<unsafe extern "C" fn(*mut fid_pep, *mut fid, *const c_void, usize) -> c_int>,
        shutdown: Option<unsafe extern "C" fn(*mut fid_ep, u64) -> c_int>,
    }
    "fi_ops_msg" fi_ops_msg {
        size: usize,
        recv: Option<unsafe extern "C" fn(
            *mut fid_ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize>,
        recvv: *mut c_void,
        recvmsg: *mut c_void,
        send: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize>,
    }
    "fi_ops_rma" fi_ops_rma {
        size: usize,
        read: Option<unsafe extern "C" fn(
            *mut fid_ep, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize>,
        readv: *mut c_void,
        readmsg: *mut c_void,
        write: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize>,
        writev: *mut c_void,
        writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize>,
    }
    "iovec" iovec { iov_base: *mut c_void, iov_len: usize }
    "fi_rma_iov" fi_rma_iov { addr: u64, len: usize, key: u64 }
    "fi_msg_rma" fi_msg_rma {
        msg_iov: *const iovec, desc: *mut *mut c_void, iov_count: usize, addr: u64,
        rma_iov: *const fi_rma_iov, rma_iov_count: usize, context: *mut c_void, data: u64,
    }
    "fid_ep" fid_ep {
        fid: fid, ops: *mut c_void, cm: *mut fi_ops_cm, msg: *mut fi_ops_msg, rma: *mut fi_ops_rma,
    }
    "fid_pep" fid_pep { fid: fid, ops: *mut c_void, cm: *mut fi_ops_cm }
    "fi_context2" fi_context2 { internal: [*mut c_void; 8] }
}
