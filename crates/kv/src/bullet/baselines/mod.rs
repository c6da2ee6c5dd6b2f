//! The eight systems that the paper compares (section 5), each a pool of this engine that lacks something.

pub(super) mod direct;
pub(super) mod reader_locks;
pub(super) mod record_chain;

/// Which of the paper's systems a pool is. Anything but [`BulletSystem::Wrc`] exists to be measured.
///
/// The first three are bounds. `Volatile` keeps nothing: its pool is as empty after a restart as before. `HikvHt` writes so that its table would
/// survive, but not which memory is in use; so its pools are not opened twice. Nor are those of `Phash`.
///
/// The others are Bullet's ladder, each with all of what those before it have; their pools are ordinary ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BulletSystem {
    /// The table in DRAM alone: no logs, no pool. The upper bound.
    Volatile,
    /// The persistent table alone; each write is a transaction. The lower bound.
    Phash,
    /// The persistent table as HiKV's hash table writes one: an object, a fence, its slot, a fence.
    HikvHt,
    /// The base: gets take locks; a transaction in the path of each write; workers either answer or glean, for ever.
    Static,
    /// And gets take no lock (section 4.2).
    Lfr,
    /// And no transaction in the path of a write (section 4.1).
    Opt,
    /// And workers change between answering and gleaning (section 4.3).
    Dyn,
    /// And writes collapse: a gleaner applies what a key has now, not each record of it (section 4.4). All of Bullet.
    #[default]
    Wrc,
}

impl BulletSystem {
    /// All eight: the bounds, and the ladder upwards.
    pub const ALL: &[BulletSystem] = &[
        BulletSystem::Volatile,
        BulletSystem::Phash,
        BulletSystem::HikvHt,
        BulletSystem::Static,
        BulletSystem::Lfr,
        BulletSystem::Opt,
        BulletSystem::Dyn,
        BulletSystem::Wrc,
    ];

    /// The number in the superblock of a system whose pools are opened once; 0: its pools are ordinary ones.
    pub(crate) const fn bound(self) -> u32 {
        match self {
            BulletSystem::Volatile => 1,
            BulletSystem::Phash => 2,
            BulletSystem::HikvHt => 3,
            _ => 0,
        }
    }

    /// Whether writes are logged: they are durable then, and gleaned.
    pub(crate) const fn is_logged(self) -> bool {
        !matches!(
            self,
            BulletSystem::Volatile | BulletSystem::Phash | BulletSystem::HikvHt
        )
    }

    /// Whether there is a table in DRAM.
    pub(crate) const fn has_front(self) -> bool {
        !matches!(self, BulletSystem::Phash | BulletSystem::HikvHt)
    }

    /// Whether gets take locks.
    pub(crate) const fn locks_gets(self) -> bool {
        matches!(self, BulletSystem::Static)
    }

    /// Whether a write finds its key's object in the back and changes it, in a transaction.
    pub(crate) const fn has_transaction(self) -> bool {
        matches!(self, BulletSystem::Static | BulletSystem::Lfr)
    }

    /// Whether workers keep the role they have.
    pub(crate) const fn has_fixed_roles(self) -> bool {
        matches!(
            self,
            BulletSystem::Static | BulletSystem::Lfr | BulletSystem::Opt
        )
    }

    /// Whether each record is applied, and not only what a key has now.
    pub(crate) const fn applies_each(self) -> bool {
        self.is_logged() && !matches!(self, BulletSystem::Wrc)
    }

    /// Its name in the paper's figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BulletSystem::Volatile => "volatile",
            BulletSystem::Phash => "phash",
            BulletSystem::HikvHt => "hikv-ht",
            BulletSystem::Static => "static",
            BulletSystem::Lfr => "+lfr",
            BulletSystem::Opt => "+opt",
            BulletSystem::Dyn => "+dyn",
            BulletSystem::Wrc => "+wrc",
        }
    }
}

impl std::fmt::Display for BulletSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for BulletSystem {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = BulletSystem::ALL.iter().copied();
        all.find(|system| system.name() == name).ok_or_else(|| {
            let names: Vec<_> = BulletSystem::ALL
                .iter()
                .map(|system| system.name())
                .collect();
            format!("system `{name}`: there are {}", names.join(", "))
        })
    }
}
