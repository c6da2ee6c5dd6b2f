//! Power cuts: a machine that serves a pool on persistent memory is ended under load, and started again.
//!
//! The judge is the program's test `power`. It runs here, outside the machine, and so does its ledger of
//! acknowledged writes. A script that looks like `everdram serve` becomes QEMU, so the judge cuts the
//! machine's power when it kills that process. Everything in the guest's memory is lost then, including the
//! unwritten part of its file system's journal. The NVDIMMs are files in this machine's page cache, so they
//! keep every byte that the guest's stores reached.

use super::host;
use super::machine::{Machine, follow};
use super::steps::{Item, UP, Verdict, keep_better};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The guest's channel `door` is standard input and output, its console standard error. A network follows.
const DOOR: &str = "-chardev stdio,id=door,signal=off -device virtio-serial-pci \
                    -device virtserialport,chardev=door,name=door \
                    -chardev file,id=console,path=/dev/stderr,append=on -serial chardev:console \
                    -device virtio-net-pci,netdev=net -netdev";

/// The pool to cut, and the number of cuts.
pub(crate) struct Campaign {
    pub(crate) name: &'static str,
    /// The engine, by its name for `everdram serve`.
    pub(crate) engine: &'static str,
    /// The pool's path in the guest.
    pub(crate) pool: &'static str,
    pub(crate) cuts: u64,
    /// The load is that of writers in the machine, over soft-RoCE, which tell on its console what was
    /// acknowledged. Otherwise it comes from the judge, over RESP.
    pub(crate) over_fabric: bool,
    /// Makes the NVDIMMs anew at each start, so that everything is lost. The judge must report that.
    pub(crate) forgets: bool,
    pub(crate) limit: Duration,
}

impl Campaign {
    /// Runs `judge` against `machine`, whose NVDIMMs are blank.
    pub(crate) fn run(&self, machine: &Machine, judge: &Path) -> Item {
        let begun = Instant::now();
        let mut remark = String::new();
        let result = self.judge(machine, judge, &mut remark);
        let (verdict, remark) = match result {
            Ok(()) => (Verdict::Passed, remark),
            Err(error) => (Verdict::Failed, format!("{error}; {remark}")),
        };
        Item::new(self.name, verdict, remark, begun.elapsed().as_secs())
    }

    fn judge(&self, machine: &Machine, judge: &Path, remark: &mut String) -> Result<(), String> {
        let switch = self.write_switch(machine)?;
        let mut command = Command::new(judge);
        command
            .args(["--nocapture", "--exact", self.test()])
            .env("EVERDRAM_POWER_SWITCH", &switch)
            .env("EVERDRAM_POWER_CUTS", self.cuts.to_string())
            .env(
                "EVERDRAM_POWER_FORGETS",
                if self.forgets { "yes" } else { "no" },
            );
        let mut starts = 0;
        let ended = follow(&mut command, self.limit, &mut |line| {
            starts += u64::from(line.contains(&format!("@@ {UP}")));
            println!("  | {line}");
            keep_better(remark, line);
        });
        ended.map_err(|failure| format!("the judge {failure}"))?;
        // One start at the beginning, and one after each cut. Without a machine, the judge has judged
        // nothing.
        if starts <= self.cuts {
            let cuts = self.cuts;
            return Err(format!(
                "the machine's log tells of {starts} starts, and of {cuts} cuts the judge"
            ));
        }
        Ok(())
    }

    /// The judge's test.
    fn test(&self) -> &'static str {
        match self.over_fabric {
            true => "power_cuts_under_remote_writers_lose_nothing",
            false => "power_cuts_lose_nothing",
        }
    }

    /// The script in place of `everdram serve`: standard input and output are the guest's channel `door`, and
    /// the console goes to standard error. The first start makes the NVDIMMs' namespaces, later ones find
    /// them.
    fn write_switch(&self, machine: &Machine) -> Result<PathBuf, String> {
        let file = host::cache()?.join("switch.sh");
        let used = file.with_extension("used");
        let _absent = std::fs::remove_file(&used);
        let port = free_port()?;
        let (pool, engine) = (self.pool, self.engine);
        let fabric = if self.over_fabric { "yes" } else { "no" };
        let orders = format!(
            "everdram.do=serve everdram.pool={pool} everdram.engine={engine} everdram.port={port} \
             everdram.fabric={fabric} everdram.fresh="
        );
        let mut arguments = machine.arguments(&orders);
        arguments.extend(DOOR.split_whitespace().map(str::to_owned));
        arguments.push(format!(
            "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:{port}"
        ));
        let quoted: Vec<String> = arguments.iter().map(|argument| quote(argument)).collect();
        let command = quoted
            .join(" ")
            .replace("everdram.fresh='", "everdram.fresh='$fresh");
        let used = quote(&used.display().to_string());
        let later = if self.forgets { "yes" } else { "no" };
        let text = format!(
            "#!/bin/sh\n# Becomes a machine that serves a pool; to kill it is to cut its power.\n\
             fresh=yes\n[ -e {used} ] && fresh={later}\n: >{used}\n\
             exec setpriv --pdeathsig KILL qemu-system-x86_64 {command}\n"
        );
        host::write(&file, text.as_bytes())?;
        std::fs::set_permissions(&file, Permissions::from_mode(0o755))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(file)
    }
}

/// A word for the shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A port that was free a moment ago. The guest listens on the same number, so the port that it announces is
/// valid here.
fn free_port() -> Result<u16, String> {
    std::net::TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("looking for a free port: {error}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(super::quote("a b"), "'a b'");
        assert_eq!(super::quote("it's"), "'it'\\''s'");
    }
}
