//! Enumerations whose variants have a name for the command line, rows and tables, and words for people.

/// Makes one, with `ALL`, `name`, `what`, `Display`, `FromStr` and its names in JSON. The first text is how
/// an error calls a value of it.
macro_rules! named {
    ($(#[$about:meta])* $enum:ident, $kind:literal: $($variant:ident = $name:literal: $what:literal,)+) => {
        $(#[$about])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $enum {
            $(#[doc = $what] #[serde(rename = $name)] $variant,)+
        }

        impl $enum {
            /// All of them, in order.
            pub const ALL: [$enum; [$($name),+].len()] = [$($enum::$variant),+];

            /// As the command line takes it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name,)+
                }
            }

            /// What it is, in words.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self {
                    $($enum::$variant => $what,)+
                }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $enum {
            type Err = String;

            fn from_str(text: &str) -> Result<$enum, String> {
                let mut all = $enum::ALL.into_iter();
                all.find(|one| one.name() == text).ok_or_else(|| {
                    let names = $enum::ALL.map($enum::name).join(", ");
                    format!("{} `{text}`: one of {names}", $kind)
                })
            }
        }
    };
}

pub(crate) use named;
