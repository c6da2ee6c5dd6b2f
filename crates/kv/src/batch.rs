//! [`Batch`]: puts and removals, collected one by one and applied atomically.

use crate::engine::BatchOp;

/// Puts and removals that [`Session::apply`](crate::Session::apply) applies all or none, also across a crash.
/// The batch owns copies of its keys and values, in one buffer. If it has several operations on a key, the
/// last one counts.
///
/// ```
/// # fn main() -> Result<(), everdram::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let store = everdram::Store::open(dir.path().join("pool"), &everdram::Options::default())?;
/// # let mut session = store.session()?;
/// let mut batch = everdram::Batch::new();
/// for user in 0..3 {
///     batch.put(format!("user:{user}").as_bytes(), b"new");
/// }
/// batch.delete(b"users:none");
/// session.apply(&batch)?; // all of it is durable when it returns
/// assert_eq!(session.get(b"user:2")?.as_deref(), Some(&b"new"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Keys and values, in the order of the operations.
    bytes: Vec<u8>,
    ops: Vec<Op>,
}

/// An operation. Its key and value are the next bytes of the buffer.
#[derive(Clone, Copy, Debug)]
struct Op {
    key: usize,
    /// Bytes of the value, and expiry; `None` = a removal.
    put: Option<(usize, u64)>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a put.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Batch {
        self.put_expiring(key, value, 0)
    }

    /// Adds a put of a key that expires at `expires_at_ms` (Unix milliseconds; 0 = never).
    pub fn put_expiring(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> &mut Batch {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        let put = Some((value.len(), expires_at_ms));
        self.ops.push(Op {
            key: key.len(),
            put,
        });
        self
    }

    /// Adds a removal; it does nothing if the key is absent then.
    pub fn delete(&mut self, key: &[u8]) -> &mut Batch {
        self.bytes.extend_from_slice(key);
        self.ops.push(Op {
            key: key.len(),
            put: None,
        });
        self
    }

    /// Operations so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether the batch has no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Removes all operations and keeps the memory for new ones.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ops.clear();
    }

    /// The operations in the form that engines take.
    pub(crate) fn to_ops(&self) -> Vec<BatchOp<'_>> {
        let mut rest = &self.bytes[..];
        let mut take = |bytes| {
            let (taken, left) = rest.split_at(bytes);
            rest = left;
            taken
        };
        let op = |op: &Op| {
            let key = take(op.key);
            match op.put {
                None => BatchOp::Delete { key },
                Some((bytes, expires_at_ms)) => BatchOp::Put {
                    key,
                    value: take(bytes),
                    expires_at_ms,
                },
            }
        };
        self.ops.iter().map(op).collect()
    }
}
