//! Which pages the kernel gives a pool: a look-up in huge ones needs fewer steps of address translation.

use super::Pool;
use super::inspect::open_image;
use crate::error::Error;
use crate::memory::huge::{HUGE_PAGE, huge_within};
use crate::memory::map::{Reservation, Sharing};
use crate::memory::region::Backing;
use crate::pool::superblock::PAGE;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::path::Path;

impl Pool {
    /// How many bytes of the image at `path` lie in huge pages, and how many bytes it has. The pool may be
    /// open, and may even become shorter meanwhile. The call maps the image and looks at a page of every
    /// 2 MiB.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Io`]; the latter also on a device, whose pages are its own.
    pub fn huge_bytes(path: &Path) -> Result<(u64, u64), Error> {
        let (file, bytes, _) = open_image(path)?;
        let bytes = bytes / PAGE * PAGE;
        let io = |what| Error::io(path, what);
        let reservation =
            Reservation::new(bytes, bytes, HUGE_PAGE).map_err(io("reserving address space"))?;
        if bytes == 0 {
            return Ok((0, 0));
        }
        // SAFETY: there is no region yet, and the file has these bytes. The mapping is private, and nothing
        // stores to it.
        unsafe { reservation.map(file.as_fd(), Sharing::Private, 0, bytes) }
            .map_err(io("mapping the pool"))?;
        let base = reservation.base().as_ptr() as u64;
        for at in (0..bytes).step_by(HUGE_PAGE as usize) {
            reservation
                .touch(at)
                .map_err(io("looking at the pool's pages"))?;
        }
        let text = std::fs::read_to_string("/proc/self/smaps");
        let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let text = text.map_err(|error| io("reading /proc/self/smaps")(errno(error)))?;
        Ok((huge_within(&text, base, base + bytes), bytes))
    }
}
