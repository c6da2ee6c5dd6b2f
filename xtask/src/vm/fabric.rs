//! What the test machine needs for libfabric's provider `verbs` over soft-RoCE, beside its modules.
//!
//! All of it is loaded at run time, so nothing that goes into the machine is linked with it: libfabric, and
//! the driver that libibverbs finds by its own means. It keeps its paths, of which libibverbs has one built
//! in.

use super::host;
use super::image::Image;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What tells libibverbs of the driver.
const DRIVER_NAME: &str = "/etc/libibverbs.d/rxe.driver";
/// The address of the machine's soft-RoCE device, as `init.sh` gives it.
pub(crate) const ADDRESS: &str = "10.77.0.1";

/// Libraries of this machine, and the tool that makes a soft-RoCE device.
pub(crate) struct Fabric {
    libfabric: PathBuf,
    driver: PathBuf,
    rdma: PathBuf,
}

impl Fabric {
    /// What this machine has, or what it lacks.
    pub(crate) fn find() -> Result<Fabric, String> {
        let listed = host::output_of(Command::new(host::find("ldconfig")?).arg("-p"))?;
        let libfabric = listed_at(&listed, "libfabric.so.1").ok_or("no libfabric1")?;
        let verbs = listed_at(&listed, "libibverbs.so.1").ok_or("no libibverbs1")?;
        let driver = driver(&verbs).filter(|_| Path::new(DRIVER_NAME).is_file());
        Ok(Fabric {
            libfabric,
            driver: driver.ok_or("no driver for soft-RoCE: ibverbs-providers")?,
            rdma: host::find("rdma").map_err(|_| "no tool `rdma`: iproute2")?,
        })
    }

    /// Adds all of it to an archive.
    pub(crate) fn add_to(&self, image: &mut Image) -> Result<(), String> {
        for library in [&self.libfabric, &self.driver] {
            image.program(&library.to_string_lossy(), library)?;
        }
        image.program("/usr/bin/rdma", &self.rdma)?;
        image.file(DRIVER_NAME, &host::read(Path::new(DRIVER_NAME))?);
        Ok(())
    }
}

/// The path of a library in the list of `ldconfig -p`: `name (libc6,x86-64) => /lib/path`.
fn listed_at(list: &str, name: &str) -> Option<PathBuf> {
    let mut lines = list.lines().filter_map(|line| line.split_once(" => "));
    let (_, path) = lines.find(|(library, _)| {
        library.split_whitespace().next() == Some(name) && library.contains("x86-64")
    })?;
    Some(path.into())
}

/// The driver for soft-RoCE, whose name ends with a version of libibverbs's interface.
fn driver(verbs: &Path) -> Option<PathBuf> {
    let folder = verbs.canonicalize().ok()?.parent()?.join("libibverbs");
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("librxe-rdmav") && name.ends_with(".so")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_the_linkers_list() {
        let list = "2 libs found\n\tlibfabric.so.1 (libc6) => /lib32/libfabric.so.1\n\
                    \tlibfabric.so.1 (libc6,x86-64) => /lib/a/libfabric.so.1\n\
                    \tlibfabric.so.10 (libc6,x86-64) => /lib/a/libfabric.so.10\n";
        let found = listed_at(list, "libfabric.so.1");
        assert_eq!(found.as_deref(), Some(Path::new("/lib/a/libfabric.so.1")));
        assert_eq!(listed_at(list, "libfabric.so"), None);
    }

    #[test]
    fn the_guest_gives_its_device_the_address_of_the_steps() {
        let init = include_str!("../../vm/init.sh");
        assert!(init.contains(&format!("ip addr add {ADDRESS}/24 dev dum0")));
    }
}
