//! Named delay models, with the figures of the papers they come from.
//!
//! Every figure of memory is *added* to the cost of the machine's own, because the papers emulated in this
//! way. The exception is `optane`: its source measured DRAM in the same table, so the preset adds the
//! difference to that row. The figures of a disk are those of a whole call.

use crate::medium::{Medium, MediumChoice};

/// The cost of a modelled device beyond DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name in options.
    pub name: &'static str,
    /// Where the figures come from.
    pub source: &'static str,
    /// Added to each copy out of the pool (one miss, whatever its size).
    pub read_ns: u64,
    /// Added to each flush or streaming write (whatever its size: the lines travel together).
    pub write_ns: u64,
    /// Added to each fence.
    pub fence_ns: u64,
    /// Cap on bytes read a second, all threads together.
    pub read_bytes_per_second: Option<u64>,
    /// Cap on bytes flushed a second, all threads together.
    pub write_bytes_per_second: Option<u64>,
}

const NOTHING: Preset = Preset {
    name: "",
    source: "",
    read_ns: 0,
    write_ns: 0,
    fence_ns: 0,
    read_bytes_per_second: None,
    write_bytes_per_second: None,
};

const GB: u64 = 1_000_000_000;

/// All presets.
pub const PRESETS: [Preset; 7] = [
    Preset {
        name: "bullet",
        source: "Bullet's platform: loads of 300 ns, persist barriers of 100 ns",
        read_ns: 300,
        fence_ns: 100,
        ..NOTHING
    },
    Preset {
        name: "rdmp-kv",
        source: "RDMP-KV, cluster setup: 150 ns after each write and each fence, 4 GB/s",
        write_ns: 150,
        fence_ns: 150,
        write_bytes_per_second: Some(4 * GB),
        ..NOTHING
    },
    ndhedis("ndhedis-dram", 50, 50),
    ndhedis("ndhedis-pcm", 50, 500),
    ndhedis("ndhedis-3dxpoint-mem", 100, 100),
    ndhedis("ndhedis-3dxpoint-storage", 200, 200),
    Preset {
        name: "optane",
        source: "Viper, table 1, less its DRAM row: random read 450 - 190, sequential write 230 - 110 ns",
        read_ns: 260,
        write_ns: 120,
        read_bytes_per_second: Some(40 * GB),
        write_bytes_per_second: Some(13 * GB),
        ..NOTHING
    },
];

/// The latency and bandwidth of a modelled disk. A sync is free: what it writes survives a power loss, as on
/// a disk with capacitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPreset {
    /// Its name in options.
    pub name: &'static str,
    /// Where the figures come from.
    pub source: &'static str,
    /// Nanoseconds of a read, at least.
    pub read_ns: u64,
    /// Nanoseconds for each 4 KiB that a call writes, at least.
    pub write_ns: u64,
    /// Cap on bytes read a second, all threads together.
    pub read_bytes_per_second: u64,
    /// Cap on bytes written a second, all threads together.
    pub write_bytes_per_second: u64,
}

/// All presets of disks.
pub const DISK_PRESETS: [DiskPreset; 1] = [DiskPreset {
    name: "p4800x",
    source: "DStore, table 3: 8.9 us to write 4 KiB; the rest from Intel's data sheet",
    read_ns: 10_000,
    write_ns: 8_900,
    read_bytes_per_second: 2_400_000_000,
    write_bytes_per_second: 2_200_000_000,
}];

const fn ndhedis(name: &'static str, read_ns: u64, write_ns: u64) -> Preset {
    Preset {
        name,
        source: "NDHedis, table 1",
        read_ns,
        write_ns,
        ..NOTHING
    }
}

impl Preset {
    /// The preset of that name.
    ///
    /// # Errors
    /// A sentence that lists the names.
    pub fn by_name(name: &str) -> Result<&'static Preset, String> {
        PRESETS
            .iter()
            .find(|preset| preset.name == name)
            .ok_or_else(|| {
                let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
                format!("delay `{name}`: use one of {}", names.join(", "))
            })
    }
}

impl DiskPreset {
    /// The preset of that name, for a data file beside a pool on this medium.
    ///
    /// # Errors
    /// A sentence: there is none of that name, with those that there are; or the medium is not `emulated`.
    pub fn by_name(name: &str, medium: MediumChoice) -> Result<&'static DiskPreset, String> {
        let found = DISK_PRESETS.iter().find(|preset| preset.name == name);
        let preset = found.ok_or_else(|| {
            let names: Vec<_> = DISK_PRESETS.iter().map(|preset| preset.name).collect();
            format!("data delay `{name}`: use one of {}", names.join(", "))
        })?;
        match medium {
            MediumChoice::Only(Medium::Emulated) => Ok(preset),
            _ => Err(
                "a delay model of the data file works on the `emulated` medium only; ask for that, or leave \
                 the delay out"
                    .into(),
            ),
        }
    }
}

impl std::fmt::Display for DiskPreset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DiskPreset {
            name,
            source,
            read_ns,
            write_ns,
            ..
        } = self;
        let [read, written] = [self.read_bytes_per_second, self.write_bytes_per_second]
            .map(|bytes| bytes as f64 / GB as f64);
        write!(
            f,
            "{name}: {read_ns} ns a read, {write_ns} ns for 4 KiB written, {read} GB/s read, {written} GB/s \
             written ({source})"
        )
    }
}

impl std::fmt::Display for Preset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Preset {
            name,
            read_ns,
            write_ns,
            fence_ns,
            source,
            ..
        } = self;
        write!(
            f,
            "{name}: +{read_ns} ns a read, +{write_ns} ns a write, +{fence_ns} ns a fence"
        )?;
        for (what, cap) in [
            ("read", self.read_bytes_per_second),
            ("written", self.write_bytes_per_second),
        ] {
            if let Some(bytes) = cap {
                write!(f, ", {} GB/s {what}", bytes / GB)?;
            }
        }
        write!(f, " ({source})")
    }
}
