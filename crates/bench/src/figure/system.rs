//! What figures compare: the systems of a paper, and rivals; and the grounds on which they are measured.

use super::fabric::{ROUTES, Route};
use crate::named::named;
use crate::server::{Contender, Persistence};
use crate::subject::{Durability, Opener};
use everdram::options::{BulletSystem, DstoreSystem};
use everdram::{EngineKind, Options};
use serde::Deserialize;
use std::fmt;
use std::path::Path;

named! {
    /// What a store lies on, where a figure tells.
    Ground, "ground":
    Modelled = "a": "emulated persistent memory, and a modelled disk in memory beside it",
    Disk = "b": "emulated persistent memory, and a data file on a disk; rivals on the disk",
    Files = "c": "everything on a disk",
}

impl Ground {
    /// Whether its stores wait for a disk.
    #[must_use]
    pub fn is_on_disk(self) -> bool {
        self != Ground::Modelled
    }
}

named! {
    /// Ways to run the engine `viper`, and what is in its place in the figures of its paper.
    Viper, "system of viper":
    Variable = "viper": "records of any size, with checkpoints of the index",
    Fixed = "viper-fixed": "records of one size, which are changed in place",
    Dram = "viper-dram": "the same on memory without delays",
    Scan = "viper-scan": "the same as `viper-fixed` without checkpoints: an opening reads all blocks",
    Pm = "pm": "no store: bare stores to emulated persistent memory",
    Memory = "dram": "no store: bare stores to memory",
}

impl Viper {
    /// Those that are stores.
    const STORES: [Viper; 4] = [Viper::Variable, Viper::Fixed, Viper::Dram, Viper::Scan];

    /// Whether it is a loop without a store.
    pub(super) fn is_bare(self) -> bool {
        !Viper::STORES.contains(&self)
    }

    /// Whether its memory has delays.
    pub(super) fn is_delayed(self) -> bool {
        !matches!(self, Viper::Dram | Viper::Memory)
    }
}

/// The program behind [`System::Redis`].
pub(super) const REDIS: &str = "redis-server";

/// Which systems a paper compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Systems {
    Bullet,
    Dstore,
    Ndhedis,
    RdmpKv,
    Viper,
}

impl Systems {
    /// Whether values lie on a data file beside the pool, or a log below it.
    pub(super) fn have_data_files(self) -> bool {
        matches!(self, Systems::Dstore | Systems::Ndhedis)
    }
}

/// A system of a figure.
#[derive(Clone, Copy)]
pub enum System {
    /// Of Bullet's paper.
    Bullet(BulletSystem),
    /// Of DStore's paper.
    Dstore(DstoreSystem),
    /// Of Viper's paper; with pages for records of any size also in the place of PMDK/Redis of NDHedis'
    /// paper: everything is in persistent memory.
    Viper(Viper),
    /// NDHedis.
    Tiered,
    /// A route to a fabric door.
    Fabric(&'static Route),
    /// The Redis door over loopback, in the place of Redis over IPoIB.
    Loopback,
    /// redis-server with an append-only file.
    Redis(Persistence),
    /// Another store.
    Rival(&'static dyn Opener),
}

impl System {
    /// All systems of a paper.
    #[must_use]
    pub(super) fn all(of: Systems) -> Vec<System> {
        match of {
            Systems::Bullet => map(BulletSystem::ALL, System::Bullet),
            Systems::Dstore => map(DstoreSystem::ALL, System::Dstore),
            Systems::Ndhedis => [
                System::Viper(Viper::Variable),
                System::Tiered,
                System::Redis(Persistence::EachWrite),
                System::Redis(Persistence::EverySecond),
            ]
            .into(),
            Systems::RdmpKv => {
                let routes = ROUTES.iter().map(System::Fabric);
                std::iter::once(System::Loopback).chain(routes).collect()
            }
            // The last two are in the place of CrlStore, and of indexes in persistent memory.
            Systems::Viper => {
                let others = [BulletSystem::Wrc, BulletSystem::Phash].map(System::Bullet);
                [map(&Viper::ALL, System::Viper), others.into()].concat()
            }
        }
    }

    /// As figures, rows and the command line call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            System::Bullet(system) => system.name(),
            System::Dstore(system) => system.name(),
            System::Viper(viper) => viper.name(),
            System::Tiered => EngineKind::Tiered.name(),
            System::Fabric(route) => route.name,
            System::Loopback => "ipoib",
            System::Redis(Persistence::EachWrite) => "redis-always",
            System::Redis(Persistence::EverySecond) => "redis-everysec",
            System::Redis(Persistence::Never) => "redis-none",
            System::Rival(store) => store.name(),
        }
    }

    /// Whether it is another store.
    #[must_use]
    pub fn is_rival(&self) -> bool {
        matches!(self, System::Rival(_) | System::Redis(_))
    }

    /// Whether it is a server alone, and no store that could be opened.
    #[must_use]
    pub fn is_server(&self) -> bool {
        matches!(self, System::Redis(_))
    }

    /// Whether it is on this machine.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        match self {
            System::Redis(_) => Contender::redis(REDIS, Persistence::Never, Path::new(".")).is_ok(),
            _ => true,
        }
    }

    /// What it stands in for, if it is not what its paper measured.
    #[must_use]
    pub fn stands_in_for(&self) -> Option<&'static str> {
        match self {
            System::Rival(store) => store.stands_in_for(),
            _ => None,
        }
    }

    /// Where it can be measured; `None` stands for figures that tell no grounds.
    #[must_use]
    pub fn is_on(&self, ground: Option<Ground>) -> bool {
        match self {
            System::Rival(_) | System::Redis(_) => ground == Some(Ground::Disk),
            // The bounds, whose pools are opened once, exist on memory alone.
            System::Dstore(_) => ground != Some(Ground::Files) || self.is_opened_again(),
            System::Fabric(_) | System::Loopback => ground.is_none(),
            System::Bullet(_) | System::Viper(_) | System::Tiered => true,
        }
    }

    /// What an answered write means.
    pub(super) fn durability(&self) -> Durability {
        match self {
            System::Bullet(BulletSystem::Volatile) | System::Dstore(DstoreSystem::Volatile) => {
                Durability::Never
            }
            System::Viper(Viper::Dram | Viper::Memory) => Durability::Never,
            System::Rival(store) => store.durability(),
            System::Redis(Persistence::EverySecond | Persistence::Never) => Durability::Never,
            _ => Durability::EachWrite,
        }
    }

    /// Whether its pools can be opened a second time.
    pub(super) fn is_opened_again(&self) -> bool {
        match self {
            System::Bullet(_) => self.gleans(),
            System::Dstore(system) => {
                !matches!(system, DstoreSystem::Volatile | DstoreSystem::Inline)
            }
            System::Viper(_)
            | System::Tiered
            | System::Fabric(_)
            | System::Loopback
            | System::Redis(_)
            | System::Rival(_) => true,
        }
    }

    /// Whether it has nothing in a pool.
    pub(super) fn has_empty_pool(&self) -> bool {
        self.durability() == Durability::Never && !matches!(self, System::Viper(_))
    }

    /// Whether its writes are in logs until they are gleaned.
    pub(super) fn gleans(&self) -> bool {
        let System::Bullet(system) = self else {
            return false;
        };
        !matches!(
            system,
            BulletSystem::Volatile | BulletSystem::Phash | BulletSystem::HikvHt
        )
    }

    /// Whether workers glean when there is something to glean.
    pub(super) fn has_dynamic_roles(&self) -> bool {
        matches!(self, System::Bullet(BulletSystem::Dyn | BulletSystem::Wrc))
    }

    /// Says so in the options of a store, with so many logs of so many bytes.
    pub(super) fn set(&self, options: &mut Options, logs: u32, log_bytes: u64) {
        match *self {
            System::Bullet(system) => {
                options.engine = Some(EngineKind::Bullet);
                options.bullet.system = system;
                options.bullet.logs = logs;
                options.bullet.log_bytes = log_bytes;
            }
            System::Dstore(system) => {
                options.engine = Some(EngineKind::Dstore);
                options.dstore.system = system;
                options.dstore.logs = logs;
                options.dstore.log_bytes = log_bytes;
            }
            System::Viper(viper) => {
                options.engine = Some(EngineKind::Viper);
                if viper == Viper::Scan {
                    options.checkpoint_bytes = 0;
                }
            }
            System::Tiered => options.engine = Some(EngineKind::Tiered),
            System::Fabric(_) | System::Loopback | System::Redis(_) | System::Rival(_) => {}
        }
    }
}

fn map<T: Copy>(all: &[T], system: fn(T) -> System) -> Vec<System> {
    all.iter().copied().map(system).collect()
}

impl PartialEq for System {
    fn eq(&self, other: &System) -> bool {
        (self.name(), self.is_rival()) == (other.name(), other.is_rival())
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
