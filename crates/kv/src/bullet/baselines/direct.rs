//! Direct writes: in the systems that the paper compares Bullet with, and in its own base, writers change the
//! persistent table themselves.

use crate::bullet::Bullet;
use crate::bullet::front::Node;
use crate::bullet::front::head_of;
use crate::bullet::gleaner::Gleaner;
use crate::bullet::gleaner::stage::State;
use crate::bullet::layout::{LENTRY_BYTES, ObjectHead, RecordAt};
use crate::bullet::session::{At, BulletSession};
use crate::bullet::table::slot_word;
use crate::concurrency::stripes::Backoff;
use crate::engine::backend::{Change, Seen, Taken};
use crate::engine::counters::{bump, bump_signed};
use crate::error::Error;
use crate::options::BulletSystem;
use std::sync::atomic::Ordering;

impl BulletSession {
    /// A gleaner to change the back with. Other threads return theirs soon: they wait for no lock of the
    /// caller.
    fn direct(&self) -> Gleaner {
        let mut backoff = Backoff::new();
        loop {
            if let Some(gleaner) = self.engine.take_gleaner() {
                return gleaner;
            }
            backoff.wait();
        }
    }

    /// `phash`, `hikv-ht`: writes a key whose stripe the caller holds, and gives the stripe back. Durable on
    /// return.
    pub(in crate::bullet) fn write_behind(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        change: Change<'_>,
    ) -> Result<(), Error> {
        let Taken { hash, stripe } = taken;
        let engine = self.engine.clone();
        let value = change.value();
        let head = ObjectHead {
            check: 0,
            hash,
            version: engine.stripes.next_version(stripe),
            is_tombstone: matches!(change, Change::Remove),
            has_lentry: false,
            expires_at_ms: change.expires_at_ms(),
            key_bytes: key.len() as u32,
            value_bytes: value.len() as u32,
        };
        let mut direct = self.direct();
        let written = match engine.system {
            BulletSystem::HikvHt => direct.write_in_place(&engine, &head, key, value),
            _ => direct.write_alone(&engine, &head, key, value),
        };
        direct.give_back_behind(&engine);
        engine.put_back(direct);
        engine.stripes.unlock(stripe);
        written?;
        let (counters, came) = (self.counters(), !head.is_tombstone);
        bump_signed(&counters.keys, i64::from(came) - i64::from(seen.is_counted));
        bump(
            if came {
                &counters.puts
            } else {
                &counters.deletes
            },
            1,
        );
        self.core.made = came && !seen.is_live;
        Ok(())
    }

    /// `static`, `+lfr`: makes the key's object in the back, if there is none, and points it at the key's
    /// newest record.
    pub(in crate::bullet) fn enter(
        &mut self,
        node: &Node,
        record: RecordAt,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        if node.object != 0 {
            return Ok(());
        }
        let engine = self.engine.clone();
        let mut direct = self.direct();
        let row = direct.lock_row(&engine, node.hash)?;
        let located = engine.back.locate(node.hash, key, &mut direct.bytes);
        let entered = match located {
            Err(error) => {
                engine.back.unlock(row);
                Err(error)
            }
            Ok((place, Some(old))) if old.has_lentry => {
                direct
                    .txn
                    .set(place.object + old.bytes() - LENTRY_BYTES, record.0);
                direct.txn.commit(&mut direct.lane, None);
                engine.back.unlock(row);
                Ok(())
            }
            _ if node.is_tombstone => {
                engine.back.unlock(row);
                Ok(())
            }
            _ => {
                let head = ObjectHead {
                    has_lentry: true,
                    ..head_of(node)
                };
                direct.replace(&engine, &head, key, value, row)
            }
        };
        engine.put_back(direct);
        entered
    }
}

impl Gleaner {
    /// One write, one transaction.
    fn write_alone(
        &mut self,
        engine: &Bullet,
        head: &ObjectHead,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        let row = self.lock_row(engine, head.hash)?;
        self.replace(engine, head, key, value, row)
    }

    /// Replaces a key's object in a transaction. The caller holds the row, and this unlocks it.
    fn replace(
        &mut self,
        engine: &Bullet,
        head: &ObjectHead,
        key: &[u8],
        value: &[u8],
        row: usize,
    ) -> Result<(), Error> {
        match self.stage(engine, &State::of_value(*head, value), key, row) {
            Ok(true) => {
                self.commit(engine);
                Ok(())
            }
            other => {
                engine.back.unlock(row);
                other.map(drop)
            }
        }
    }

    /// As HiKV: the object and a fence, then its slot and a fence. Only DRAM knows which memory is in use.
    fn write_in_place(
        &mut self,
        engine: &Bullet,
        head: &ObjectHead,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        let back = &engine.back;
        let row = self.lock_row(engine, head.hash)?;
        let located = back.locate(head.hash, key, &mut self.bytes);
        let (place, old) = located.inspect_err(|_| back.unlock(row))?;
        let Some(slot) = place.vacancy() else {
            // Chains grow seldom, so a transaction will do.
            return self.replace(engine, head, key, value, row);
        };
        let word = match head.is_tombstone {
            true => Ok(0),
            false => self
                .write(engine, head, key, value)
                .map(|at| slot_word(head.hash, at)),
        };
        if let Some(flushed) = self.flushed.take() {
            let _ordered = self.lane.fence(flushed);
        }
        if let Ok(word) = word {
            let flushed = back.change_in_place(&mut self.lane, slot, word);
            let _ordered = self.lane.fence(flushed);
            let more = i64::from(!head.is_tombstone) - i64::from(old.is_some());
            back.objects.fetch_add(more, Ordering::Relaxed);
            if let Some(old) = old {
                self.objects.push((place.object, old.bytes()));
            }
        }
        back.unlock(row);
        word.map(drop)
    }

    /// Gives back replaced objects that no reader can access any more: no log names them.
    fn give_back_behind(&mut self, engine: &Bullet) {
        let later = std::mem::take(&mut *engine.gleaning.later.lock());
        later
            .into_iter()
            .for_each(|(_, object)| self.objects.push(object));
        self.give_back(engine);
    }
}
