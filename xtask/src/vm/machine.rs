//! One test machine: QEMU with two NVDIMMs, which are files on this machine and keep their bytes after QEMU's
//! end.
//!
//! Invariant: no machine outlives its time. The process that starts one waits with a limit, and the kernel
//! ends QEMU when that process ends.

use super::host;
use super::kernel::Kernel;
use crate::child::{self, Lines, Trouble};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Bytes of each NVDIMM.
const NVDIMM_BYTES: u64 = 256 << 20;
/// Arguments of every machine. A byte written to the port of `isa-debug-exit` ends QEMU with an exit code
/// that is not 0.
const ALWAYS: &str = "-cpu max -smp 2 -m 2G,slots=4,maxmem=4G -nodefaults -no-user-config -display none -no-reboot \
                      -device virtio-rng-pci -device isa-debug-exit,iobase=0xf4,iosize=0x01";

/// What executes the machine's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// This processor.
    Kvm,
    /// QEMU, about twenty times slower.
    Software,
}

impl Accelerator {
    fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Software => "tcg",
        }
    }

    /// KVM, if a machine on it starts and prints its greeting. The presence of `/dev/kvm` is no proof: in
    /// some virtual machines it opens, and then hangs or crashes QEMU.
    pub(crate) fn find(kernel: &Kernel, archive: &Path) -> Result<Accelerator, String> {
        let kvm = File::options().read(true).write(true).open("/dev/kvm");
        if kvm.is_err() {
            return Ok(Accelerator::Software);
        }
        let machine = Machine::new("hello", kernel, archive, Accelerator::Kvm)?;
        let mut greeted = false;
        let ended = machine.run("everdram.do=hello", HELLO_MAX, |line| {
            greeted |= line.contains("@@ hello")
        });
        machine.discard(false);
        Ok(if greeted && ended.is_ok() {
            Accelerator::Kvm
        } else {
            Accelerator::Software
        })
    }
}

/// With KVM the first process starts within a second or two.
const HELLO_MAX: Duration = Duration::from_secs(8);

/// The parts of a machine.
pub(crate) struct Machine {
    kernel: PathBuf,
    archive: PathBuf,
    accelerator: Accelerator,
    /// The firmware reports that the processor's caches persist, too.
    pub(crate) caches_persist: bool,
    /// The first becomes fsdax, the second devdax; the third is virtio-pmem, which is no persistent memory.
    nvdimms: [PathBuf; 3],
}

impl Machine {
    /// A machine with blank NVDIMMs. `name` distinguishes its files from those of other machines.
    pub(crate) fn new(
        name: &str,
        kernel: &Kernel,
        archive: &Path,
        accelerator: Accelerator,
    ) -> Result<Machine, String> {
        let cache = host::cache()?;
        let nvdimms = [0, 1, 2].map(|number| cache.join(format!("{name}-{number}.nvdimm")));
        for nvdimm in &nvdimms {
            File::create(nvdimm)
                .and_then(|file| file.set_len(NVDIMM_BYTES))
                .map_err(|error| format!("{}: {error}", nvdimm.display()))?;
        }
        Ok(Machine {
            kernel: kernel.image.clone(),
            archive: archive.to_path_buf(),
            accelerator,
            caches_persist: false,
            nvdimms,
        })
    }

    /// Removes the NVDIMMs, unless they are `evidence`: those stay until the next run.
    pub(crate) fn discard(self, evidence: bool) {
        for nvdimm in &self.nvdimms {
            if evidence {
                println!("kept: {}", nvdimm.display());
            } else {
                let _gone_already = std::fs::remove_file(nvdimm);
            }
        }
    }

    /// QEMU's arguments. `orders` go to the guest on the kernel's command line.
    pub(crate) fn arguments(&self, orders: &str) -> Vec<String> {
        let mut all: Vec<String> = ALWAYS.split_whitespace().map(str::to_owned).collect();
        let mut board = "q35,nvdimm=on".to_owned();
        if self.caches_persist {
            board.push_str(",nvdimm-persistence=cpu");
        }
        all.extend(["-machine".into(), board]);
        all.extend(["-accel".into(), self.accelerator.name().into()]);
        // Caches count as persistent only if every region says so, and that of virtio-pmem never does.
        let count = if self.caches_persist { 2 } else { 3 };
        for (number, nvdimm) in self.nvdimms.iter().take(count).enumerate() {
            let device = if number < 2 {
                "nvdimm"
            } else {
                "virtio-pmem-pci"
            };
            all.push("-object".into());
            all.push(format!(
                "memory-backend-file,id=memory{number},share=on,mem-path={},size={NVDIMM_BYTES}",
                nvdimm.display()
            ));
            all.push("-device".into());
            all.push(format!("{device},id=nvdimm{number},memdev=memory{number}"));
        }
        all.extend(["-kernel".into(), self.kernel.display().to_string()]);
        all.extend(["-initrd".into(), self.archive.display().to_string()]);
        let command_line =
            format!("console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable {orders}");
        all.extend(["-append".into(), command_line]);
        all
    }

    /// Runs the machine until it turns itself off, passes its output on, and ends it after `limit`.
    pub(crate) fn run(
        &self,
        orders: &str,
        limit: Duration,
        mut line: impl FnMut(&str),
    ) -> Result<(), Failure> {
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        qemu.args(self.arguments(orders)).args(["-serial", "stdio"]);
        follow(&mut qemu, limit, &mut line)
    }
}

/// Why a machine did not end normally.
#[derive(Debug)]
pub(crate) enum Failure {
    Trouble(Trouble),
    Status(ExitStatus),
}

impl Failure {
    pub(crate) fn is_out_of_time(&self) -> bool {
        matches!(self, Failure::Trouble(Trouble::OutOfTime(_)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Trouble(trouble) => trouble.fmt(to),
            Failure::Status(status) => write!(to, "ended with {status}"),
        }
    }
}

/// Runs a command until it succeeds, and passes on the lines of its standard output. Ends it after `limit`.
pub(crate) fn follow(
    command: &mut Command,
    limit: Duration,
    line: &mut dyn FnMut(&str),
) -> Result<(), Failure> {
    let mut lines = Lines::default();
    let ended = child::follow(command, Some(limit), &mut |bytes| lines.take(bytes, line));
    lines.finish(line);
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Status(status)),
        Err(trouble) => Err(Failure::Trouble(trouble)),
    }
}
