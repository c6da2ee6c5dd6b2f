//! Named delay models, with the figures of the papers they come from.
//!
//! Every figure is *added* to the cost of the machine's own memory, because the papers emulated in this way.
//! The exception is `optane`: its source measured DRAM in the same table, so the preset adds the difference
//! to that row.

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
