//! libfabric itself: found by the dynamic linker at run time, once for the process.
//!
//! Symbols are bound by version, so that the structs of [`crate::abi`] are what the library means by them.
//! The library is never unloaded: its providers may leave threads and handlers behind.

use crate::abi::{fi_fabric_attr, fi_info, fid_fabric};
use crate::constants::{FI_ENODATA, FI_ENOSYS, INTERFACE};
use crate::{Error, LoadError};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

// SAFETY: the C library of every Linux system has these four, with these types.
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// Resolve all symbols now: a library that lacks one is refused here, and not in the middle of its work.
const RTLD_NOW: c_int = 2;

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type OpenFabric =
    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> u32;
type Strerror = unsafe extern "C" fn(c_int) -> *const c_char;

/// The loaded library. There is one in a process: [`library`].
#[derive(Debug)]
pub struct Library {
    version: u32,
    pub(crate) getinfo: GetInfo,
    pub(crate) freeinfo: FreeInfo,
    pub(crate) fabric: OpenFabric,
    strerror: Strerror,
}

/// What is set in the environment before the library is loaded.
const ENVIRONMENT: [(&str, &str); 2] =
    [("FI_MR_CACHE_MAX_COUNT", "0"), ("IPATH_NO_BACKTRACE", "1")];

/// Loads libfabric, at the first call; later calls give the same answer.
///
/// Sets `FI_MR_CACHE_MAX_COUNT=0` in the environment before that, unless it is set: without this the library
/// patches `munmap` and `madvise` of the process to watch memory that this crate registers by itself anyway.
///
/// And `IPATH_NO_BACKTRACE=1`: otherwise `libinfinipath`, with which Debian's libfabric is linked, takes
/// signals of the process as soon as it is loaded, and SIGTERM ends a server before it has closed its pool.
///
/// Call it early, before other threads read or change the environment by other means than `std::env`.
///
/// # Errors
///
/// [`LoadError`] if there is no libfabric.so.1, or one older than 1.9.
pub fn library() -> Result<&'static Library, LoadError> {
    static LOADED: OnceLock<Result<Library, LoadError>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(LoadError::clone)
}

fn load() -> Result<Library, LoadError> {
    for (name, value) in ENVIRONMENT {
        if std::env::var_os(name).is_none() {
            // SAFETY: runs once, under the lock of `library`; std serializes it with all of std's own
            // accesses. The library, which reads the environment past std, is not loaded yet. Callers were
            // told to be early.
            unsafe { std::env::set_var(name, value) };
        }
    }
    // SAFETY: the name is a C string; the library's initializers are those of a system library.
    let handle = unsafe { dlopen(c"libfabric.so.1".as_ptr(), RTLD_NOW) };
    let handle = NonNull::new(handle).ok_or_else(|| LoadError {
        reason: last_error(),
    })?;
    let fi_version = symbol(handle, c"fi_version", None)?;
    let getinfo = symbol(handle, c"fi_getinfo", Some(c"FABRIC_1.3"))?;
    let freeinfo = symbol(handle, c"fi_freeinfo", Some(c"FABRIC_1.3"))?;
    let fabric = symbol(handle, c"fi_fabric", Some(c"FABRIC_1.1"))?;
    let strerror = symbol(handle, c"fi_strerror", None)?;
    // SAFETY: `fi_version` has had this type since version 1.0.
    let fi_version = unsafe { core::mem::transmute::<NonNull<c_void>, Version>(fi_version) };
    // SAFETY: it takes nothing and returns a number.
    let version = unsafe { fi_version() };
    Ok(Library {
        version,
        // SAFETY: the symbol was found with the version that has this type.
        getinfo: unsafe { core::mem::transmute::<NonNull<c_void>, GetInfo>(getinfo) },
        // SAFETY: as above.
        freeinfo: unsafe { core::mem::transmute::<NonNull<c_void>, FreeInfo>(freeinfo) },
        // SAFETY: as above.
        fabric: unsafe { core::mem::transmute::<NonNull<c_void>, OpenFabric>(fabric) },
        // SAFETY: `fi_strerror` has had this type since version 1.0.
        strerror: unsafe { core::mem::transmute::<NonNull<c_void>, Strerror>(strerror) },
    })
}

fn symbol(
    handle: NonNull<c_void>,
    name: &CStr,
    version: Option<&CStr>,
) -> Result<NonNull<c_void>, LoadError> {
    let found = match version {
        // SAFETY: the handle is open and is never closed; both names are C strings.
        Some(version) => unsafe { dlvsym(handle.as_ptr(), name.as_ptr(), version.as_ptr()) },
        // SAFETY: the handle is open and is never closed; the name is a C string.
        None => unsafe { dlsym(handle.as_ptr(), name.as_ptr()) },
    };
    NonNull::new(found).ok_or_else(|| LoadError {
        reason: last_error(),
    })
}

fn last_error() -> String {
    // SAFETY: returns this thread's last message, or null.
    let text = unsafe { dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: a C string that is valid until this thread's next call of the linker.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

impl Library {
    /// The library's version, major and minor.
    pub fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// The interface to ask for: ours, or the library's if it is older.
    pub(crate) fn interface(&self) -> u32 {
        INTERFACE.min(self.version)
    }

    /// What the library says about a code.
    pub(crate) fn text(&self, code: i32) -> String {
        // SAFETY: takes any number; returns a C string, or null for numbers it does not know.
        let text = unsafe { (self.strerror)(code) };
        if text.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: not null; a constant, or valid until this thread's next call.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }

    /// The error for a code, positive or negative, that `call` returned.
    pub(crate) fn error(&self, call: &'static str, code: isize) -> Error {
        let code = i32::try_from(code.unsigned_abs()).unwrap_or(FI_ENOSYS);
        let mut text = self.text(code);
        if call == "fi_getinfo" && code == FI_ENODATA {
            text.push_str(
                "; name a provider that `fi_info -t FI_EP_MSG` lists, and an address it can have",
            );
        }
        Error::Call { call, code, text }
    }

    /// Nothing, or the error that a negative return value of `call` stands for.
    pub(crate) fn check(&self, call: &'static str, returned: c_int) -> Result<(), Error> {
        if returned < 0 {
            Err(self.error(call, returned as isize))
        } else {
            Ok(())
        }
    }

    /// The error for a call whose function an object's table does not have.
    pub(crate) fn missing(&self, call: &'static str) -> Error {
        self.error(call, FI_ENOSYS as isize)
    }
}
