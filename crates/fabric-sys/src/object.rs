//! How functions of an object's tables are found.
//!
//! Every object of the library begins with a `fid`, and holds pointers to tables of functions. The library
//! may change those pointers while it configures an object, so they are copied out for each call and no
//! reference to an object is ever made.

/// The function `$function` of the table `$table` of the live object `$object`, or none.
///
/// The expansion reads through `$object`, which must point to a live object; the owners in `fabric`, `domain`
/// and `endpoint` guarantee that for their own pointers.
macro_rules! entry {
    ($object:expr, $($table:ident).+, $function:ident) => {{
        let object = $object;
        // SAFETY: the caller's object is live, and begins as its struct says.
        let table = unsafe { (*object).$($table).+ };
        if table.is_null() {
            None
        } else {
            // SAFETY: tables live as long as their object, and no release shortens one.
            unsafe { (*table).$function }
        }
    }};
}

/// Closes a live object; evaluates to the library's code, 0 for closed.
macro_rules! close {
    ($object:expr) => {{
        let object = $object;
        match entry!(object, fid.ops, close) {
            // SAFETY: the object is live and its owner gives it up; a `fid` is its first field.
            Some(close) => unsafe { close(object.cast()) },
            None => 0,
        }
    }};
}

pub(crate) use close;
pub(crate) use entry;
