//! The password that all doors of a store ask for, and its comparison.

use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A password that several doors share; each sees a change at once. Clones are the same password.
#[derive(Clone, Default)]
pub struct Password(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_set: AtomicBool,
    password: RwLock<Option<Vec<u8>>>,
}

impl Password {
    /// `None` or an empty one: there is none.
    #[must_use]
    pub fn new(password: Option<Vec<u8>>) -> Password {
        let shared = Password::default();
        shared.set(password);
        shared
    }

    /// Takes effect for later authentications. `None` or an empty one: there is none from now on.
    pub fn set(&self, password: Option<Vec<u8>>) {
        let password = password.filter(|password| !password.is_empty());
        let mut current = self.0.password.write();
        self.0.is_set.store(password.is_some(), Ordering::Relaxed);
        *current = password;
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// Whether `offered` is the password; without a password, any is accepted. The time depends only on the
    /// length of `offered`.
    #[must_use]
    pub fn accepts(&self, offered: &[u8]) -> bool {
        let password = self.0.password.read();
        password
            .as_deref()
            .is_none_or(|password| is_same(password, offered))
    }
}

/// The password itself is not shown.
impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() {
            "Password(set)"
        } else {
            "Password(none)"
        })
    }
}

/// Whether `offered` is the password. The time depends only on the length of `offered`: nobody learns from it
/// how much of a guess was right.
fn is_same(password: &[u8], offered: &[u8]) -> bool {
    let mut difference = u8::from(password.len() != offered.len());
    for (index, byte) in offered.iter().enumerate() {
        let expected = password
            .get(index % password.len().max(1))
            .copied()
            .unwrap_or(0);
        difference |= std::hint::black_box(byte ^ expected);
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::{Password, is_same};

    #[test]
    fn only_the_password_is_the_password() {
        assert!(is_same(b"secret", b"secret") && is_same(b"", b""));
        for other in [
            &b""[..],
            b"s",
            b"secre",
            b"secret1",
            b"Secret",
            b"secretsecret",
        ] {
            assert!(!is_same(b"secret", other));
        }
        assert!(!is_same(b"", b"a"));
    }

    #[test]
    fn all_who_share_a_password_see_a_change() {
        let one = Password::new(Some(Vec::new()));
        let other = one.clone();
        assert!(!other.is_set() && other.accepts(b"anything"));
        one.set(Some(b"secret".to_vec()));
        assert!(other.is_set() && other.accepts(b"secret") && !other.accepts(b"anything"));
        assert_eq!(format!("{other:?}"), "Password(set)");
        one.set(None);
        assert!(!other.is_set() && other.accepts(b""));
    }
}
