//! The engines: their names for people, their numbers for superblocks.

/// The engine number of a journal's pool.
pub(crate) const JOURNAL: u32 = 64;

/// The design of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum EngineKind {
    /// Records in DIMM-aligned pages, a volatile index (PVLDB 14).
    #[default]
    Viper,
    /// A hash table in DRAM, a persistent one behind it, cross-referencing logs between them (USENIX ATC
    /// 2018).
    Bullet,
    /// Values on a disk, their metadata in DRAM, with a log and a shadow in persistent memory (HPDC 2021).
    Dstore,
    /// Viper's records in a bounded pool, and below it a log on a disk that any Redis can read (SAC 2019).
    Tiered,
}

impl EngineKind {
    /// The engines that a pool can have; the default one first.
    pub const ALL: &[EngineKind] = &[
        EngineKind::Viper,
        EngineKind::Bullet,
        EngineKind::Dstore,
        EngineKind::Tiered,
    ];

    /// As `--engine` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Viper => "viper",
            EngineKind::Bullet => "bullet",
            EngineKind::Dstore => "dstore",
            EngineKind::Tiered => "tiered",
        }
    }

    /// A short description, as `--help` shows it.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            EngineKind::Viper => "records in persistent memory, their index in DRAM",
            EngineKind::Bullet => {
                "a table in DRAM, one in persistent memory, and logs between them"
            }
            EngineKind::Dstore => {
                "values on a disk, written once; their metadata and the order of keys in DRAM"
            }
            EngineKind::Tiered => {
                "recent records in persistent memory, the others below in a log on a disk"
            }
        }
    }

    /// The number in the superblock of a pool. 0 is unused.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            EngineKind::Viper => 1,
            EngineKind::Bullet => 2,
            EngineKind::Dstore => 3,
            EngineKind::Tiered => 4,
        }
    }

    /// The engine with this number in the superblock; `None` if this everdram has no such engine.
    #[must_use]
    pub fn from_number(number: u32) -> Option<EngineKind> {
        let mut all = EngineKind::ALL.iter().copied();
        all.find(|kind| kind.number() == number)
    }
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for EngineKind {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let mut known = EngineKind::ALL.iter().copied();
        known
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("engine `{name}`: this everdram has {}", names()))
    }
}

/// Makes a test for each engine (`name::viper` and so on) from each of these functions, which take an engine.
#[doc(hidden)]
#[macro_export]
macro_rules! test_each_engine {
    ($($test:ident),+ $(,)?) => {
        $(mod $test {
            $crate::test_each_engine!(@ $test: viper = Viper, bullet = Bullet, dstore = Dstore, tiered = Tiered);
        })+
    };
    (@ $test:ident: $($name:ident = $kind:ident),+) => {
        $(#[test]
        fn $name() {
            super::$test($crate::EngineKind::$kind);
        })+
        const TESTED: usize = [$($crate::EngineKind::$kind),+].len();
        const _: () = assert!(TESTED == $crate::EngineKind::ALL.len(), "an engine is not tested");
    };
}

/// The names of all engines, for people.
fn names() -> String {
    let names = EngineKind::ALL.iter().map(|kind| format!("`{kind}`"));
    names.collect::<Vec<_>>().join(", ")
}

/// Why a pool with this engine number cannot be opened, given the engine asked for, and what to do.
pub(crate) fn refusal(number: u32, asked: Option<EngineKind>) -> String {
    match (EngineKind::from_number(number), asked) {
        (None, _) if number == JOURNAL => {
            "the pool is a journal's (`everdram::crl`), not a store's: the program that made it opens it, and `everdram \
             check` and `everdram inspect` look at it"
                .into()
        }
        (None, _) => format!(
            "the pool has engine number {number}, and this everdram has {}; use the one that made the pool",
            names()
        ),
        (Some(has), None) => format!("the pool has engine `{has}`; open it as that"),
        (Some(has), Some(asked)) => format!(
            "the pool has engine `{has}`, not `{asked}`; leave the engine out, or move the data to a new pool with \
             `everdram export` and `everdram import`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back_to_their_engine() {
        for &kind in EngineKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(EngineKind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(EngineKind::ALL.first(), Some(&EngineKind::default()));
        assert_eq!(EngineKind::from_number(0), None);
        assert_eq!(EngineKind::from_number(u32::MAX), None);
        let refused = "steam".parse::<EngineKind>().unwrap_err();
        assert!(refused.contains("`viper`"), "{refused}");
    }
}
