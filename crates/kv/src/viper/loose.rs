//! Pieces of chained values that nothing leads to any more, until they are free.

use super::Viper;
use super::blocks::State;
use super::record::Chain;
use super::session::ViperSession;
use crate::epoch::Epochs;
use crate::error::Error;
use parking_lot::Mutex;

/// A value nobody can reach by the index any more, until no reader can hold on to it.
pub(super) struct RetiredChain {
    pub(super) chain: Chain,
    pub(super) grace: u64,
}

/// An overflow block that nothing reaches any more, if it still is in the life `epoch`.
pub(super) struct LooseBlock {
    pub(super) block: u32,
    pub(super) epoch: u32,
    pub(super) grace: u64,
}

/// Frees the pieces of values that were replaced or removed. Recovery never looks into an overflow block
/// that no live record leads to, so they need no page word of their own; but the marks of the records that
/// led to them are fenced first. Returns the bytes freed.
pub(super) fn free_loose(viper: &Viper) -> Result<u64, Error> {
    let mut ready: Vec<LooseBlock> = Vec::new();
    for retired in take_passed(&viper.epochs, &viper.retired, |r| r.grace) {
        // Damaged pieces stay lost until the pool is opened again; `check` names them.
        let Ok(blocks) = viper.reader().chain_blocks(&retired.chain) else {
            continue;
        };
        ready.extend(blocks.into_iter().filter_map(|block| {
            let epoch = viper.blocks.get(block)?.info().epoch;
            Some(LooseBlock {
                block,
                epoch,
                grace: retired.grace,
            })
        }));
    }
    ready.extend(take_passed(&viper.epochs, &viper.loose, |l| l.grace));
    if ready.is_empty() {
        return Ok(0);
    }
    let Some(engine) = viper.myself() else {
        return Ok(0);
    };
    let mut session = ViperSession::new(engine)?;
    viper.fence_marks(&mut session);
    let mut freed = 0;
    for LooseBlock { block, epoch, .. } in ready {
        let Some(entry) = viper.blocks.get(block) else {
            continue;
        };
        let info = entry.info();
        if info.state == State::Overflow && info.epoch == epoch {
            viper.blocks.release(block, epoch);
            freed += viper.geometry.block_bytes;
        }
    }
    Ok(freed)
}

/// Takes what no reader holds on to any more.
fn take_passed<T>(epochs: &Epochs, queue: &Mutex<Vec<T>>, grace: impl Fn(&T) -> u64) -> Vec<T> {
    let mut queue = queue.lock();
    epochs.ask(queue.iter().map(&grace).max());
    let (ready, waiting) = std::mem::take(&mut *queue)
        .into_iter()
        .partition(|item| epochs.is_known_to_have_passed(grace(item)));
    *queue = waiting;
    ready
}
