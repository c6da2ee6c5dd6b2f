//! The kernel of the test machine: Debian's own, unpacked into the cache. The kernel of this machine is
//! neither used nor changed.
//!
//! The cache keeps only the kernel and the modules in [`WANTED`], with their dependencies, as
//! `kernel/vmlinuz` and `kernel/modules/NN-name.ko`, numbered in the order of loading.

use super::host;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that depends on Debian's newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// Modules by purpose: NVDIMMs and DAX (virtio-pmem, which must not be taken for persistent memory), ext4 and
/// its checksums, the channel `door`, the network; soft-RoCE and its checksum, the doors of programs to it, a
/// network for it that leads nowhere. A module that is built into the kernel is skipped.
const WANTED: [&str; 17] = [
    "nfit",
    "nd_pmem",
    "dax_pmem",
    "device_dax",
    "crc32c_generic",
    "crc32c_intel",
    "ext4",
    "virtio_pci",
    "virtio_rng",
    "virtio_console",
    "virtio_net",
    "virtio_pmem",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "dummy",
];

/// A kernel in the cache.
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    /// In the order of loading.
    pub(crate) modules: Vec<PathBuf>,
}

impl Kernel {
    /// The cached kernel; without one, downloads Debian's newest.
    pub(crate) fn get() -> Result<Kernel, String> {
        let folder = host::cache()?.join("kernel");
        let contents = folder.join("contents");
        let wanted = WANTED.join(" ");
        if fs::read_to_string(&contents).is_ok_and(|text| text == wanted) {
            return Kernel::in_folder(&folder);
        }
        let _absent = fs::remove_dir_all(&folder);
        create(&folder)?;
        let unpacked = folder.join("unpacked");
        download(&folder, &unpacked)?;
        pick(&unpacked, &folder)?;
        let _removed = fs::remove_dir_all(&unpacked);
        // Last, so that an interrupted download is not taken for a kernel.
        host::write(&contents, wanted.as_bytes())?;
        Kernel::in_folder(&folder)
    }

    fn in_folder(folder: &Path) -> Result<Kernel, String> {
        let mut modules = files(&folder.join("modules"))?;
        modules.sort();
        Ok(Kernel {
            image: folder.join("vmlinuz"),
            modules,
        })
    }
}

fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn download(folder: &Path, unpacked: &Path) -> Result<(), String> {
    let depends = host::output_of(Command::new("apt-cache").args(["depends", NEWEST]))?;
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
        .ok_or_else(|| format!("apt knows no {NEWEST}; try apt-get update"))?;
    let package = format!("linux-image-{package}");
    println!("downloading {package}");
    let mut download = Command::new("apt-get");
    download
        .args(["download", "-qq", &package])
        .current_dir(folder);
    host::output_of(&mut download)?;
    let archive = files(folder)?
        .into_iter()
        .find(|file| file.extension().is_some_and(|end| end == "deb"))
        .ok_or_else(|| format!("apt-get downloaded no {package}"))?;
    host::output_of(
        Command::new("dpkg-deb")
            .arg("-x")
            .arg(&archive)
            .arg(unpacked),
    )?;
    fs::remove_file(&archive).map_err(|error| format!("{}: {error}", archive.display()))
}

/// Copies the kernel and the wanted modules out of an unpacked package.
fn pick(unpacked: &Path, folder: &Path) -> Result<(), String> {
    let (boot, libraries) = (
        files(&unpacked.join("boot"))?,
        files(&unpacked.join("lib/modules"))?,
    );
    let image = boot
        .iter()
        .find(|file| {
            file.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
        })
        .ok_or("the kernel package has no kernel")?;
    copy(image, &folder.join("vmlinuz"))?;
    let tree = libraries
        .first()
        .ok_or("the kernel package has no modules")?;
    let release = tree.file_name().ok_or("the modules have no release")?;
    host::output_of(
        Command::new(host::find("depmod")?)
            .arg("-b")
            .arg(unpacked)
            .arg(release),
    )?;
    let list = tree.join("modules.dep");
    let list = fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let modules = folder.join("modules");
    create(&modules)?;
    for (index, module) in in_order(&list, &WANTED).into_iter().enumerate() {
        let name = module.rsplit('/').next().unwrap_or(module);
        let copied = modules.join(format!("{index:02}-{name}"));
        copy(&tree.join(module), &copied)?;
        decompress(&copied)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to)
        .map(|_| ())
        .map_err(|error| format!("copying {}: {error}", from.display()))
}

/// Newer packages have compressed modules.
fn decompress(module: &Path) -> Result<(), String> {
    let (program, package) = match module.extension().and_then(|end| end.to_str()) {
        Some("xz") => ("unxz", "xz-utils"),
        Some("zst") => ("unzstd", "zstd"),
        Some("gz") => ("gunzip", "gzip"),
        _ => return Ok(()),
    };
    let program = host::find(program).map_err(|missing| {
        format!("{missing}; apt-get install --no-install-recommends {package}")
    })?;
    host::output_of(Command::new(program).arg("-q").arg(module))?;
    let _kept_by_some = fs::remove_file(module);
    Ok(())
}

/// The files of the wanted modules and of their dependencies, each after its own. `list` is a `modules.dep`.
fn in_order<'a>(list: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let needs: BTreeMap<&str, Vec<&str>> = list
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(module, needs)| (module, needs.split_whitespace().collect()))
        .collect();
    let mut order = Vec::new();
    for name in wanted {
        if let Some(module) = needs.keys().find(|file| module_name(file) == *name) {
            visit(module, &needs, &mut order);
        }
    }
    order
}

fn visit<'a>(module: &'a str, needs: &BTreeMap<&'a str, Vec<&'a str>>, order: &mut Vec<&'a str>) {
    if order.contains(&module) {
        return;
    }
    for needed in needs.get(module).into_iter().flatten() {
        visit(needed, needs, order);
    }
    order.push(module);
}

/// `kernel/drivers/acpi/nfit/nfit.ko.xz` is `nfit`; dashes in file names are underscores in module names.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split('.').next().unwrap_or(name).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let list = "k/a-b.ko.xz: k/c.ko k/d.ko\nk/c.ko: k/d.ko\nk/d.ko:\nk/e.ko:\n";
        assert_eq!(
            in_order(list, &["a_b", "gone"]),
            ["k/d.ko", "k/c.ko", "k/a-b.ko.xz"]
        );
        assert_eq!(
            in_order(list, &["d", "a_b", "e"]),
            ["k/d.ko", "k/c.ko", "k/a-b.ko.xz", "k/e.ko"]
        );
    }
}
