//! Without write collapsing: a gleaner applies each record of a key that the back lacks, the oldest first
//! (section 2.3).
//!
//! It follows `prev` from the newest record, which the key's node names, back through all logs. In a pool
//! that was written without write collapsing, all these records still exist: only applied records are
//! reclaimed, and the gleaner that applies them holds the key's row. The chain ends at the back's version, or
//! at a record that does not verify.

use crate::bullet::Bullet;
use crate::bullet::front::Node;
use crate::bullet::gleaner::Gleaner;
use crate::bullet::gleaner::stage::State;
use crate::bullet::layout::{ObjectHead, Opcode, RecordAt, operations};
use crate::crl::{Cursor, Next};
use crate::error::Error;

/// A record of a key that is older than its node.
struct Older {
    head: ObjectHead,
    value: Vec<u8>,
}

impl Gleaner {
    /// Applies the key's records before the node's own, each in a transaction. The caller holds no row.
    pub(in crate::bullet) fn apply_older(
        &mut self,
        engine: &Bullet,
        node: &Node,
        key: &[u8],
    ) -> Result<(), Error> {
        let is_stale = || {
            // A newer node may be a removal that is applied, of which the back keeps no trace (B5). Or the
            // store was cleared, and no sweep would remove an object that gets into the table now.
            let shown = engine.front.find(node.hash, key);
            shown.is_none_or(|shown| shown.at != node.at)
                || engine.front.is_applied(node.at)
                || node.version <= engine.floor()
        };
        let row = self.lock_row(engine, node.hash)?;
        if is_stale() {
            engine.back.unlock(row);
            return Ok(());
        }
        let located = engine.back.locate(node.hash, key, &mut self.bytes);
        let applied = located.map(|(_, head)| head.map_or(0, |head| head.version));
        let chain = applied.map(|applied| older(engine, node, key, applied));
        engine.back.unlock(row);
        let chain = chain?;
        for Older { head, value } in chain.iter().rev() {
            let row = self.lock_row(engine, node.hash)?;
            let staged = match is_stale() {
                true => Ok(false),
                false => self.stage(engine, &State::of_value(*head, value), key, row),
            };
            if !matches!(staged, Ok(true)) {
                engine.back.unlock(row);
            }
            staged?;
        }
        Ok(())
    }
}

/// The key's records before that of its node, the newest first, down to those up to version `applied`.
fn older(engine: &Bullet, node: &Node, key: &[u8], applied: u64) -> Vec<Older> {
    let mut chain = Vec::new();
    let mut record = RecordAt(node.record);
    let mut before = node.version + 1;
    while let Some((log, position)) = record.place() {
        let mut cursor = Cursor::of_one(log);
        let Next::Entry(entry, ..) =
            cursor.next(&engine.logs, position, position + engine.logs.log_bytes())
        else {
            break;
        };
        let found =
            operations(entry.bytes, entry.operations).find(|operation| operation.key == key);
        let Some(operation) = found
            .filter(|found| found.version < before && found.version > applied.max(engine.floor()))
        else {
            break;
        };
        (before, record) = (operation.version, operation.prev);
        let head = ObjectHead {
            check: 0,
            hash: node.hash,
            version: operation.version,
            is_tombstone: operation.opcode == Opcode::Remove,
            has_lentry: engine.system.has_transaction(),
            expires_at_ms: operation.expires_at_ms,
            key_bytes: key.len() as u32,
            value_bytes: operation.payload.len() as u32,
        };
        // Edits are part of the node's state. A removal and the node's own record need no step of their own.
        if operation.version < node.version && operation.opcode == Opcode::Put {
            chain.push(Older {
                head,
                value: operation.payload.to_vec(),
            });
        }
    }
    chain
}
