//! The steps, and their limits.

use super::fabric::ADDRESS;
use super::power::Campaign;
use super::steps::Step;
use std::time::Duration;

/// The paths of the DAX file system and the device in the guest.
const DAX_DIRECTORY: &str = "/mnt/pmem";
const DAX_DEVICE: &str = "/dev/dax1.0";
/// The virtio-pmem device, and where it is mounted.
const VIRTIO_DEVICE: &str = "/dev/pmem2";
const VIRTIO: &str = "/mnt/virtio";

/// The test binaries that the steps name.
pub(crate) const TESTS: [&str; 13] = [
    "media",
    "pool",
    "growth",
    "view",
    "contract",
    "regressions",
    "pmem",
    "loopback",
    "ends",
    "windows",
    "probe",
    "libfabric",
    "fabric_kill",
];

/// How much to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// As much as fits into CI's time, with the program that the tests build.
    Quick,
    /// Everything, with the release build.
    Full,
}

impl Scope {
    /// Time for all machines together, without the build: CI has built the tests already.
    pub(crate) fn time(self) -> Duration {
        Duration::from_secs(match self {
            Scope::Quick => 310,
            Scope::Full => 7200,
        })
    }

    fn pick(self, quick: u64, full: u64) -> u64 {
        match self {
            Scope::Quick => quick,
            Scope::Full => full,
        }
    }
}

/// One start of a machine with blank NVDIMMs, and its steps.
pub(crate) struct Boot {
    pub(crate) name: &'static str,
    /// As with eADR: the firmware says that caches are inside the persistence domain.
    pub(crate) caches_persist: bool,
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn boots(scope: Scope) -> Vec<Boot> {
    let mut boots = vec![Boot {
        name: "two NVDIMMs",
        caches_persist: false,
        steps: steps(scope),
    }];
    if scope == Scope::Full {
        boots.push(Boot {
            name: "two NVDIMMs, caches that persist",
            caches_persist: true,
            steps: steps_with_persistent_caches(),
        });
    }
    boots
}

fn steps(scope: Scope) -> Vec<Step> {
    let mut steps = vec![
        doctor("fsdax", DAX_DIRECTORY, "pmem: ext4 .*MAP_SYNC granted"),
        doctor("devdax", DAX_DEVICE, "pmem: a devdax device of"),
        virtio(),
        values_on_a_block_device(scope),
    ];
    for (name, place) in [("fsdax", DAX_DIRECTORY), ("devdax", DAX_DEVICE)] {
        steps.push(test(scope, "media tests", "media", name, place));
        steps.push(test(scope, "engine contract", "contract", name, place));
        steps.push(kill_loop(scope, name, place));
        if scope == Scope::Full {
            steps.push(test(
                scope,
                "engine regressions",
                "regressions",
                name,
                place,
            ));
        }
    }
    // The tests left a pool there.
    steps.push(doctor(
        "devdax with a pool",
        DAX_DEVICE,
        "one small durable write",
    ));
    let look =
        format!("everdram inspect --json {DAX_DEVICE} && everdram check --json {DAX_DEVICE}");
    steps.push(Step::new("inspect and check, devdax", 60, look));
    steps.extend(over_verbs(scope));
    if scope == Scope::Full {
        for binary in ["pool", "growth", "view"] {
            let name = format!("{binary} tests in a DAX directory");
            let command = format!("TMPDIR={DAX_DIRECTORY} /tests/{binary} --test-threads 1");
            steps.push(Step::new(&name, 600, command));
        }
    }
    steps
}

/// The door over libfabric's provider `verbs`, on soft-RoCE: what doctor says of it; hostile peers, whom the
/// device refuses; the contract of the door and the kill loop with remote writers, on persistent memory.
fn over_verbs(scope: Scope) -> Vec<Step> {
    let wanted = "provider verbs .*no durable writes.*the device refuses";
    let ask = ask_doctor(&format!("--fabric {DAX_DIRECTORY}"), wanted);
    let run = |binary: &str, place: Option<&str>, more: &str| {
        let place = place.map_or("TMPDIR=/dev/shm".to_owned(), |place| {
            format!("TMPDIR={DAX_DIRECTORY} EVERDRAM_TEST_PMEM={place}")
        });
        let door = format!("EVERDRAM_TEST_FABRIC=verbs://{ADDRESS}:0");
        format!("{door} {place} /tests/{binary} --test-threads 1 {more}")
    };
    let step = |name: &str, command| Step::new(name, step_max(scope), command);
    // It takes what ten thousand messages take, one after the other.
    let slow = "--skip ten_thousand";
    let ports = ["probe", "ends", "loopback"].map(|binary| run(binary, None, slow));
    let kills = format!("EVERDRAM_KILLS={} ", scope.pick(3, 30));
    let kill_loop = |place| kills.clone() + &run("fabric_kill", Some(place), "--nocapture");
    let mut steps = vec![
        Step::new("doctor, verbs", 60, ask),
        step(
            "hostile peers over verbs, devdax",
            run("windows", Some(DAX_DEVICE), ""),
        ),
        step("kill loop over verbs, devdax", kill_loop(DAX_DEVICE)),
    ];
    if scope == Scope::Full {
        // The kernel lets nobody pin its files.
        let long_values = run("libfabric", Some(DAX_DIRECTORY), "long_values");
        steps.push(step("long values over verbs, fsdax", long_values));
        steps.push(step("ports over verbs", ports.join(" && ")));
        steps.push(step("door over verbs, memory", run("libfabric", None, "")));
        steps.push(step(
            "door over verbs, devdax",
            run("libfabric", Some(DAX_DEVICE), ""),
        ));
        steps.push(step(
            "kill loop over verbs, fsdax",
            kill_loop(DAX_DIRECTORY),
        ));
    }
    steps.into_iter().map(Step::over_fabric).collect()
}

fn steps_with_persistent_caches() -> Vec<Step> {
    let mut steps = vec![doctor(
        "fsdax, eADR",
        DAX_DIRECTORY,
        "sfence alone: the caches persist",
    )];
    for (name, place) in [("fsdax, eADR", DAX_DIRECTORY), ("devdax, eADR", DAX_DEVICE)] {
        steps.push(test(Scope::Full, "media tests", "media", name, place));
        steps.push(test(
            Scope::Full,
            "engine contract",
            "contract",
            name,
            place,
        ));
        steps.push(kill_loop(Scope::Quick, name, place));
    }
    steps
}

/// Shows what doctor prints about a path; the output must contain `wanted`.
fn doctor(name: &str, path: &str, wanted: &str) -> Step {
    Step::new(&format!("doctor, {name}"), 30, ask_doctor(path, wanted))
}

fn ask_doctor(path: &str, wanted: &str) -> String {
    format!(
        "everdram doctor {path} >/tmp/said; code=$?; cat /tmp/said; grep -q '{wanted}' /tmp/said && exit $code"
    )
}

/// virtio-pmem has DAX, but needs a flush by the host, which no instruction causes. It must not be taken for
/// persistent memory.
fn virtio() -> Step {
    let (device, place) = (VIRTIO_DEVICE, VIRTIO);
    let make = format!("mkdir {place} && mkfs.ext4 -q -F -b 4096 {device}");
    let mount = format!("mount -t ext4 -o dax=always {device} {place}");
    let ask = ask_doctor(place, "file: ext4 refuses MAP_SYNC");
    Step::new(
        "doctor, virtio-pmem: must be file",
        60,
        format!("{make} && {mount} && {{ {ask}; }}"),
    )
}

/// The engine that keeps its values apart, on the block device that the step before has tried.
fn values_on_a_block_device(scope: Scope) -> Step {
    let tests = "a_reopened_store_holds_what_it_held::dstore answers_as_the_model_does::dstore sizes_outside_the_limits";
    let test = run_test("contract", DAX_DIRECTORY);
    let command = format!("umount {VIRTIO} && EVERDRAM_TEST_DATA={VIRTIO_DEVICE} {test} {tests}");
    Step::new(
        "engine contract, values on a block device",
        step_max(scope),
        command,
    )
}

/// A test binary with its pools at `place`. A device holds one pool, so its tests run one at a time.
fn test(scope: Scope, what: &str, binary: &str, name: &str, place: &str) -> Step {
    let name = format!("{what}, {name}");
    Step::new(&name, step_max(scope), run_test(binary, place))
}

/// Seconds for a step that takes up to half a minute, or ten times as much in full. In CI a step that hangs
/// must reach this limit before the time for all machines ends: after that it would only count as left out.
fn step_max(scope: Scope) -> u64 {
    scope.pick(180, 900)
}

fn run_test(binary: &str, place: &str) -> String {
    format!("EVERDRAM_TEST_PMEM={place} TMPDIR={DAX_DIRECTORY} /tests/{binary} --test-threads 1")
}

fn kill_loop(scope: Scope, name: &str, place: &str) -> Step {
    let (kills, test) = (scope.pick(6, 60), run_test("pmem", place));
    let command = format!("EVERDRAM_KILLS={kills} {test} --nocapture");
    Step::new(&format!("kill loop, {name}"), step_max(scope), command)
}

/// The power cuts.
pub(crate) fn campaigns(scope: Scope) -> Vec<Campaign> {
    let limit = Duration::from_secs(scope.pick(150, 2400));
    let campaign = |name, engine, pool, cuts, forgets| Campaign {
        name,
        engine,
        pool,
        cuts,
        over_fabric: false,
        forgets,
        limit,
    };
    let pool = "/mnt/pmem/pool";
    let mut campaigns = vec![
        campaign(
            "power cuts, viper, fsdax",
            "viper",
            pool,
            scope.pick(1, 10),
            false,
        ),
        campaign(
            "power cuts, bullet, devdax",
            "bullet",
            DAX_DEVICE,
            scope.pick(1, 10),
            false,
        ),
    ];
    if scope == Scope::Full {
        campaigns.push(campaign(
            "power cuts, bullet, fsdax",
            "bullet",
            pool,
            10,
            false,
        ));
        campaigns.push(campaign(
            "power cuts, viper, devdax",
            "viper",
            DAX_DEVICE,
            10,
            false,
        ));
        campaigns.push(campaign(
            "power cuts, all lost: must be seen",
            "viper",
            pool,
            1,
            true,
        ));
        campaigns.push(Campaign {
            over_fabric: true,
            ..campaign(
                "power cuts over verbs, devdax",
                "viper",
                DAX_DEVICE,
                10,
                false,
            )
        });
        // A device keeps its pool when it becomes devdax again.
        campaigns.push(Campaign {
            over_fabric: true,
            ..campaign(
                "the same, fsdax, all lost: must be seen",
                "viper",
                pool,
                1,
                true,
            )
        });
    }
    campaigns
}
