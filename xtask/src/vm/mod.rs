//! `cargo xtask vm`: the `pmem` medium on real DAX, in a machine of QEMU's with emulated NVDIMMs.
//!
//! The machine starts from an archive with a small system, the program and the test binaries. It makes an
//! ext4 with `dax=always` on one NVDIMM and a devdax device of the other, and runs the steps of `plan.rs` on
//! both. Then `power.rs` ends a machine that serves, under load, again and again, and looks for the
//! acknowledged writes. `docs/testing.md` says what this proves and what it does not: an emulated NVDIMM has
//! no caches that lose lines.

mod fabric;
mod host;
mod image;
mod kernel;
mod machine;
mod plan;
mod power;
mod programs;
mod steps;

use fabric::Fabric;
pub(crate) use host::has;
use image::Image;
use kernel::Kernel;
use machine::{Accelerator, Machine};
pub(crate) use plan::Scope;
use programs::Programs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use steps::{Ended, Follower, Item, Step, Verdict};

/// The guest's first process.
const INIT: &str = include_str!("../../vm/init.sh");
/// Limit for a machine's start.
const START_MAX: Duration = Duration::from_secs(60);
/// With less time than this, steps that need a machine are left out.
const LEAST: Duration = Duration::from_secs(120);

/// The result of a run.
pub(crate) enum Outcome {
    /// Items that passed and failed, and items without time, each with its reason.
    Ran {
        passed: u64,
        failed: u64,
        left_out: Vec<(String, String)>,
    },
    /// It cannot run here, for this reason.
    Skipped(String),
}

/// The chore: prints the progress. Fails if an item failed, or none could run.
pub(crate) fn chore(scope: Scope) -> ExitCode {
    match run(scope) {
        Outcome::Ran { failed: 0, .. } => ExitCode::SUCCESS,
        Outcome::Ran { .. } => ExitCode::FAILURE,
        Outcome::Skipped(why) => {
            println!("vm: cannot run here: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Builds, boots and runs, and prints a table of the results.
pub(crate) fn run(scope: Scope) -> Outcome {
    if let Some(why) = host::missing() {
        return Outcome::Skipped(why);
    }
    // Held to the end. Without this, two runs would overwrite each other's files.
    let _alone = match host::alone() {
        Ok(lock) => lock,
        Err(error) => return print(&[Item::new("starting", Verdict::Failed, error, 0)]),
    };
    let kernel = match Kernel::get() {
        Ok(kernel) => kernel,
        Err(why) => return Outcome::Skipped(format!("no kernel for the machine: {why}")),
    };
    let mut items = Vec::new();
    if let Err(error) = run_with(scope, &kernel, &mut items) {
        items.push(Item::new("the rest", Verdict::Failed, error, 0));
    }
    print(&items)
}

/// Prints the table, and counts.
fn print(items: &[Item]) -> Outcome {
    println!("\n== pmem on emulated NVDIMMs");
    for item in items {
        let verdict = match item.verdict {
            Verdict::Passed => "pass",
            Verdict::Failed => "FAIL",
            Verdict::LeftOut => "----",
        };
        let (name, seconds, remark) = (&item.name, item.seconds, &item.remark);
        println!("{verdict}  {name:<36} {seconds:>4} s  {remark}");
    }
    let with = |verdict| items.iter().filter(move |item| item.verdict == verdict);
    let passed = with(Verdict::Passed).count() as u64;
    let failed = with(Verdict::Failed).count() as u64;
    let left_out: Vec<_> = with(Verdict::LeftOut)
        .map(|item| (item.name.clone(), item.remark.clone()))
        .collect();
    let left = left_out.len();
    println!("vm: {passed} passed, {failed} failed, {left} left out");
    Outcome::Ran {
        passed,
        failed,
        left_out,
    }
}

fn run_with(scope: Scope, kernel: &Kernel, items: &mut Vec<Item>) -> Result<(), String> {
    let programs = Programs::build(scope == Scope::Full)?;
    let end = Instant::now() + scope.time();
    let small = write_archive("archive", kernel, &programs, None, None)?;
    let accelerator = Accelerator::find(kernel, &small)?;
    let fabric = Fabric::find();
    for mut boot in plan::boots(scope) {
        println!("\n== {} ({accelerator:?})", boot.name);
        if let Err(why) = time_left(end, scope) {
            let left_out = |step: &Step| Item::new(&step.name, Verdict::LeftOut, why.clone(), 0);
            items.extend(boot.steps.iter().map(left_out));
            continue;
        }
        if let Err(why) = &fabric {
            items.extend(steps::leave_out_fabric(&mut boot.steps, why));
        }
        let (name, fabric) = ("archive-with-tests", fabric.as_ref().ok());
        let archive = write_archive(name, kernel, &programs, fabric, Some(&boot.steps))?;
        let mut machine = Machine::new("steps", kernel, &archive, accelerator)?;
        machine.caches_persist = boot.caches_persist;
        let found = run_steps(&machine, &boot.steps, end);
        machine.discard(found.iter().any(|item| item.verdict == Verdict::Failed));
        items.extend(found);
    }
    for mut campaign in plan::campaigns(scope) {
        println!("\n== {} ({accelerator:?})", campaign.name);
        match time_left(end, scope) {
            Ok(left) => campaign.limit = campaign.limit.min(left),
            Err(why) => {
                items.push(Item::new(campaign.name, Verdict::LeftOut, why, 0));
                continue;
            }
        }
        let archive = match (&fabric, campaign.over_fabric) {
            (_, false) => small.clone(),
            (Ok(fabric), true) => {
                write_archive("archive-with-fabric", kernel, &programs, Some(fabric), None)?
            }
            (Err(why), true) => {
                let why = why.clone();
                items.push(Item::new(campaign.name, Verdict::LeftOut, why, 0));
                continue;
            }
        };
        let machine = Machine::new("power", kernel, &archive, accelerator)?;
        let item = campaign.run(&machine, programs.test("power")?);
        machine.discard(item.verdict == Verdict::Failed);
        items.push(item);
    }
    Ok(())
}

/// Boots a machine that runs the steps, until `end` at most.
fn run_steps(machine: &Machine, steps: &[Step], end: Instant) -> Vec<Item> {
    let mut follower = Follower::default();
    let all: Duration = steps.iter().map(|step| step.limit).sum();
    let (own, left) = (
        START_MAX + all,
        end.saturating_duration_since(Instant::now()),
    );
    let orders = "everdram.do=steps everdram.fresh=yes";
    let ended = match machine.run(orders, own.min(left), |line| {
        println!("  | {line}");
        follower.take(line);
    }) {
        Ok(()) => Ended::Well,
        Err(failure) if failure.is_out_of_time() && left < own => {
            Ended::NoTime("the time for all machines was over".into())
        }
        Err(failure) => Ended::Badly(format!("the machine {failure}")),
    };
    if let Ended::NoTime(why) | Ended::Badly(why) = &ended {
        println!("{why}");
    }
    follower.finish(steps, ended)
}

/// The time until `end`, or an error if it is too short to start a machine.
fn time_left(end: Instant, scope: Scope) -> Result<Duration, String> {
    let left = end.saturating_duration_since(Instant::now());
    if left >= LEAST {
        return Ok(left);
    }
    let (left, all) = (left.as_secs(), scope.time().as_secs());
    Err(format!("{left} s were left of {all}"))
}

/// The archive that a machine starts from. Contains the test binaries if there are steps.
fn write_archive(
    name: &str,
    kernel: &Kernel,
    programs: &Programs,
    fabric: Option<&Fabric>,
    steps: Option<&[Step]>,
) -> Result<PathBuf, String> {
    let mut image = Image::default();
    image.script("/init", INIT);
    let mut modules = String::new();
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        let bytes = host::read(module)?;
        image.file(&format!("/lib/modules/{name}"), &bytes);
        modules.push_str(&format!("/lib/modules/{name}\n"));
    }
    image.file("/modules", modules.as_bytes());
    image.program("/bin/busybox", &host::find("busybox")?)?;
    image.program("/usr/bin/ndctl", &host::find("ndctl")?)?;
    image.program("/usr/sbin/mkfs.ext4", &host::find("mkfs.ext4")?)?;
    image.program("/usr/bin/everdram", &programs.everdram)?;
    if let Some(fabric) = fabric {
        fabric.add_to(&mut image)?;
    }
    if let Some(steps) = steps {
        image.file("/steps", steps::script(steps).as_bytes());
        // The kill loop looks for the program that was built with it, and finds the tested one here.
        let expected = programs.everdram_of_tests.to_string_lossy();
        image.program(&expected, &programs.everdram)?;
        for test in plan::TESTS {
            image.program(&format!("/tests/{test}"), programs.test(test)?)?;
        }
    }
    let archive = host::cache()?.join(name);
    host::write(&archive, &image.finish())?;
    Ok(archive)
}
