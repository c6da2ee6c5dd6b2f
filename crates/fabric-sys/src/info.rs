//! What providers offer: the library's `fi_info`, asked for with hints and owned here.

use crate::abi::{
    Padded, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr,
};
use crate::address::Name;
use crate::constants::*;
use crate::{Error, Library};
use core::ffi::{CStr, c_char, c_int};
use std::ffi::{CString, OsStr};
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, NonNull};

/// A provider of connected endpoints on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name, as [`crate::Listener::bind`] takes it.
    pub name: String,
    /// The fabric, in the provider's words.
    pub fabric: String,
    /// The domain: a device or an interface of the network.
    pub domain: String,
    /// An internet address of this machine that it serves, if it says: one of its own for a device, loopback
    /// where that is among them.
    pub address: Option<IpAddr>,
    /// Whether a durable write can be had: [`crate::Completion::Durable`].
    pub can_commit: bool,
}

/// Whether a provider that offers `FI_RMA_PMEM` is known, by its source, to make a write durable at its
/// target before it completes. Others accept what they are asked for and ignore it (shm, rxm, verbs), so a
/// return code is no answer. `tcp` flushes the cache lines of a write with the instructions of x86; on other
/// processors it has none and completes all the same.
fn is_known_to_commit(provider: &str) -> bool {
    provider == "tcp" && cfg!(target_arch = "x86_64")
}

/// All providers of connected endpoints with messages and one-sided access, one for each domain.
///
/// # Errors
///
/// [`Error::Call`] if the library cannot say; a machine without any gives an empty list.
pub fn providers(library: &'static Library) -> Result<Vec<Provider>, Error> {
    let mut list: Vec<Provider> = Vec::new();
    for offer in offers(library, Wish::Access)? {
        match list.iter_mut().find(|known| known.is(&offer)) {
            Some(known) => {
                let is_loopback = |address: IpAddr| address.is_loopback();
                if known.address.is_none() || offer.address.is_some_and(is_loopback) {
                    known.address = offer.address;
                }
            }
            None => list.push(offer),
        }
    }
    for offer in offers(library, Wish::Commit)? {
        for known in &mut list {
            let is_same = (&known.name, &known.domain) == (&offer.name, &offer.domain);
            known.can_commit |= is_same && is_known_to_commit(&known.name);
        }
    }
    Ok(list)
}

impl Provider {
    fn is(&self, other: &Provider) -> bool {
        (&self.name, &self.fabric, &self.domain) == (&other.name, &other.fabric, &other.domain)
    }
}

/// What the library offers, address by address; none if no provider fits.
fn offers(library: &'static Library, wish: Wish) -> Result<Vec<Provider>, Error> {
    let offer = |entry: Entry<'_>| {
        let (name, fabric, domain) = entry.names();
        let address = entry.source().map(|address| address.ip());
        Provider {
            name,
            fabric,
            domain,
            address,
            can_commit: false,
        }
    };
    match ask(library, None, None, wish) {
        Ok(info) => Ok(info.entries().map(offer).collect()),
        Err(error) if error.code() == Some(FI_ENODATA) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Which end of a connection an address is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Here(SocketAddr),
    There(SocketAddr),
}

/// What endpoints must be able to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// Messages and one-sided access.
    Access,
    /// The same, and writes that are durable when they complete.
    Commit,
}

/// Has `verbs` register memory without pinning it.
const ON_DEMAND: &str = "FI_VERBS_USE_ODP";

/// Whether the library takes a setting for yes, or for nothing that it knows.
fn is_on(setting: Option<&OsStr>) -> bool {
    let off = ["", "0", "no", "off", "false"];
    setting.is_some_and(|set| !off.iter().any(|off| set.eq_ignore_ascii_case(off)))
}

/// Asks for endpoints of a provider at an address: with durable writes if it offers them, else without.
pub(crate) fn ask_for(library: &'static Library, provider: &str, end: End) -> Result<Info, Error> {
    if provider == "verbs" && is_on(std::env::var_os(ON_DEMAND).as_deref()) {
        let text =
            format!("{ON_DEMAND} is set; with it soft-RoCE writes to wrong places: unset it");
        return Err(Error::Unsupported(text));
    }
    match ask(library, Some(provider), Some(end), Wish::Commit) {
        Err(error) if error.code() == Some(FI_ENODATA) => {
            ask(library, Some(provider), Some(end), Wish::Access)
        }
        Ok(info) => {
            info.forget_defaults();
            Ok(info)
        }
        other => other,
    }
}

/// Asks for endpoints of one provider (or all) at an address (or any).
fn ask(
    library: &'static Library,
    provider: Option<&str>,
    end: Option<End>,
    wish: Wish,
) -> Result<Info, Error> {
    let name = provider.map(c_string).transpose()?;
    let mut tx = Padded::new(zeroed_tx());
    let mut rx = Padded::new(zeroed_rx());
    let mut ep = Padded::new(zeroed_ep());
    let mut domain = Padded::new(zeroed_domain());
    let mut fabric = Padded::new(zeroed_fabric());
    // A message behind a write must find the write's bytes, and nothing overtakes its like.
    let order = FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_WAW;
    tx.value.msg_order = order;
    rx.value.msg_order = order;
    ep.value.kind = FI_EP_MSG;
    domain.value.threading = FI_THREAD_DOMAIN;
    // The least that can be asked for: a provider that moves data by itself fits, too.
    domain.value.control_progress = FI_PROGRESS_MANUAL;
    domain.value.data_progress = FI_PROGRESS_MANUAL;
    domain.value.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    fabric.value.prov_name = name
        .as_ref()
        .map_or(ptr::null_mut(), |name| name.as_ptr().cast_mut());
    let mut caps = FI_MSG | FI_RMA;
    if wish == Wish::Commit {
        caps |= FI_RMA_PMEM;
        tx.value.op_flags = FI_COMMIT_COMPLETE;
    }
    let hints = Padded::new(fi_info {
        next: ptr::null_mut(),
        caps,
        mode: FI_CONTEXT | FI_CONTEXT2,
        addr_format: 0,
        src_addrlen: 0,
        dest_addrlen: 0,
        src_addr: ptr::null_mut(),
        dest_addr: ptr::null_mut(),
        handle: ptr::null_mut(),
        tx_attr: &raw mut tx.value,
        rx_attr: &raw mut rx.value,
        ep_attr: &raw mut ep.value,
        domain_attr: &raw mut domain.value,
        fabric_attr: &raw mut fabric.value,
        nic: ptr::null_mut(),
    });
    let (address, flags) = match end {
        None => (None, 0),
        Some(End::Here(address)) => (Some(address), FI_SOURCE | FI_NUMERICHOST),
        Some(End::There(address)) => (Some(address), FI_NUMERICHOST),
    };
    let node = address
        .map(|address| c_string(&address.ip().to_string()))
        .transpose()?;
    let service = address
        .map(|address| c_string(&address.port().to_string()))
        .transpose()?;
    let text = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    let mut found = ptr::null_mut();
    let (interface, node, service) = (library.interface(), text(&node), text(&service));
    // SAFETY: names are C strings or null; hints and all they point to live past the call, which only reads
    // them.
    let returned = unsafe {
        (library.getinfo)(
            interface,
            node,
            service,
            flags,
            &raw const hints.value,
            &mut found,
        )
    };
    library.check("fi_getinfo", returned)?;
    let raw =
        NonNull::new(found).ok_or_else(|| library.error("fi_getinfo", FI_ENODATA as isize))?;
    Ok(Info { raw, library, wish })
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text)
        .map_err(|_| Error::Unsupported(format!("{text:?} has a zero byte in it; name a provider")))
}

/// An owned list of offers, each with all its parts.
pub(crate) struct Info {
    raw: NonNull<fi_info>,
    library: &'static Library,
    /// What it was asked for. Providers offer more, but not all that belongs to it.
    wish: Wish,
}

// SAFETY: plain memory of the C allocator, which any thread may free; nothing else points to it.
unsafe impl Send for Info {}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the library allocated the list, and this is its only owner.
        unsafe { (self.library.freeinfo)(self.raw.as_ptr()) };
    }
}

impl Info {
    /// Takes a list over from the library.
    ///
    /// # Safety
    ///
    /// `raw` is a list that the library allocated for its user, and nobody else frees it.
    pub(crate) unsafe fn adopt(library: &'static Library, raw: NonNull<fi_info>) -> Info {
        Info {
            raw,
            library,
            wish: Wish::Access,
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut fi_info {
        self.raw.as_ptr()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut next = Some(Entry {
            raw: self.raw,
            owner: self,
        });
        std::iter::from_fn(move || {
            let entry = next?;
            // SAFETY: an entry of a live list.
            let behind = unsafe { (*entry.raw.as_ptr()).next };
            next = NonNull::new(behind).map(|raw| Entry { raw, owner: self });
            Some(entry)
        })
    }

    pub(crate) fn first(&self) -> Entry<'_> {
        Entry {
            raw: self.raw,
            owner: self,
        }
    }

    /// Each write says by itself when it is complete. Without this every operation of an endpoint, messages
    /// too, would wait until the target had committed it.
    fn forget_defaults(&self) {
        for entry in self.entries() {
            // SAFETY: an entry of a live list, which nobody else knows yet; parts live as long as their
            // entry.
            let tx = unsafe { (*entry.raw.as_ptr()).tx_attr };
            if !tx.is_null() {
                // SAFETY: not null, and as above.
                unsafe { (*tx).op_flags &= !FI_COMMIT_COMPLETE };
            }
        }
    }

    /// The provider's name.
    pub(crate) fn provider(&self) -> String {
        self.first().names().0
    }
}

/// One offer of a list.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    raw: NonNull<fi_info>,
    owner: &'a Info,
}

/// Copies a field of one of an entry's parts, or a default if the part is not there.
macro_rules! part {
    ($entry:expr, $part:ident . $field:ident, $default:expr) => {{
        // SAFETY: the entry is one of a live list.
        let part = unsafe { (*$entry.raw.as_ptr()).$part };
        if part.is_null() {
            $default
        } else {
            // SAFETY: parts live as long as their entry.
            unsafe { (*part).$field }
        }
    }};
}

impl Entry<'_> {
    fn names(&self) -> (String, String, String) {
        (
            self.text(part!(self, fabric_attr.prov_name, ptr::null_mut())),
            self.text(part!(self, fabric_attr.name, ptr::null_mut())),
            self.text(part!(self, domain_attr.name, ptr::null_mut())),
        )
    }

    fn text(&self, text: *const c_char) -> String {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: names in an entry are C strings that live as long as it; `owner` keeps it alive.
        let text = unsafe { CStr::from_ptr(text) };
        let _ = self.owner;
        text.to_string_lossy().into_owned()
    }

    pub(crate) fn fabric_attr(&self) -> *mut fi_fabric_attr {
        // SAFETY: the entry is one of a live list.
        unsafe { (*self.raw.as_ptr()).fabric_attr }
    }

    /// The address of this machine that the offer is for, if it has one of the internet.
    fn source(&self) -> Option<SocketAddr> {
        // SAFETY: the entry is one of a live list.
        let at = unsafe { (*self.raw.as_ptr()).src_addr };
        // SAFETY: as above.
        let bytes = unsafe { (*self.raw.as_ptr()).src_addrlen };
        if at.is_null() {
            return None;
        }
        let mut name = Name::room();
        let bytes = bytes.min(size_of::<Name>());
        // SAFETY: an entry's address has as many bytes as it says and lives as long as it; a name has room
        // for them, and is made of numbers, for which any bytes are values.
        unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut name).cast(), bytes) };
        name.address()
    }

    /// What the provider wants of registrations.
    pub(crate) fn mr_mode(&self) -> c_int {
        part!(self, domain_attr.mr_mode, 0)
    }

    /// Whether endpoints of the offer write durably.
    pub(crate) fn can_commit(&self) -> bool {
        // SAFETY: the entry is one of a live list.
        let caps = unsafe { (*self.raw.as_ptr()).caps };
        let is_asked = self.owner.wish == Wish::Commit;
        is_asked && caps & FI_RMA_PMEM != 0 && is_known_to_commit(&self.names().0)
    }

    /// Whether a durable write may tell the peer four bytes. Only where it is known that this takes none of
    /// the peer's receive buffers.
    pub(crate) fn can_tell(&self) -> bool {
        self.can_commit() && part!(self, domain_attr.cq_data_size, 0) >= size_of::<u32>()
    }

    /// Bytes of a registration's key.
    pub(crate) fn key_bytes(&self) -> usize {
        part!(self, domain_attr.mr_key_size, 0)
    }

    /// Bytes of the longest message.
    pub(crate) fn max_message_bytes(&self) -> usize {
        part!(self, ep_attr.max_msg_size, 0)
    }

    /// The request that this offer came with, or null.
    pub(crate) fn handle(&self) -> *mut crate::abi::fid {
        // SAFETY: the entry is one of a live list.
        unsafe { (*self.raw.as_ptr()).handle }
    }
}

fn zeroed_tx() -> fi_tx_attr {
    // SAFETY: integers only, for which zero is a value.
    unsafe { core::mem::zeroed() }
}

fn zeroed_rx() -> fi_rx_attr {
    // SAFETY: integers only, for which zero is a value.
    unsafe { core::mem::zeroed() }
}

fn zeroed_ep() -> fi_ep_attr {
    // SAFETY: integers and raw pointers only, for which zero is a value.
    unsafe { core::mem::zeroed() }
}

fn zeroed_domain() -> fi_domain_attr {
    // SAFETY: integers and raw pointers only, for which zero is a value.
    unsafe { core::mem::zeroed() }
}

fn zeroed_fabric() -> fi_fabric_attr {
    // SAFETY: integers and raw pointers only, for which zero is a value.
    unsafe { core::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library;

    fn op_flags(info: &Info) -> u64 {
        part!(info.first(), tx_attr.op_flags, 0)
    }

    #[test]
    fn a_setting_is_on_unless_it_says_no() {
        assert!(!is_on(None));
        for (setting, expected) in [("0", false), ("No", false), ("1", true), ("yes", true)] {
            assert_eq!(is_on(Some(OsStr::new(setting))), expected, "{setting}");
        }
    }

    #[test]
    fn durable_writes_are_offered_and_are_not_the_default() {
        let library = match library() {
            Ok(library) => library,
            Err(error) => return println!("skipped: {error}"),
        };
        let end = End::Here("127.0.0.1:0".parse().unwrap());
        let asked = ask(library, Some("tcp"), Some(end), Wish::Commit).unwrap();
        assert_ne!(op_flags(&asked) & FI_COMMIT_COMPLETE, 0);
        let info = ask_for(library, "tcp", end).unwrap();
        assert_eq!(op_flags(&info) & FI_COMMIT_COMPLETE, 0);
        assert_eq!(info.first().can_commit(), cfg!(target_arch = "x86_64"));
        let plain = ask(library, Some("tcp"), Some(end), Wish::Access).unwrap();
        assert!(!plain.first().can_commit(), "it was not asked for");
    }
}
