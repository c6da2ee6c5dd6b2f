//! How superblock copies reach each medium.

use super::header::Carrier;
use super::superblock::{Block, PAGE};
use crate::io::File;
use crate::memory::cpu;
use crate::memory::cpu::FlushKind;
use crate::memory::region::Region;
use rustix::io::Errno;
use std::sync::Arc;

/// Through the file: `pwrite` and `fdatasync`. For the `file` medium, whose private mapping is never written
/// back, and for reading any image before it is mapped.
pub(crate) struct ThroughFile(pub(crate) Arc<File>);

impl Carrier for ThroughFile {
    fn read(&self, at: u64) -> Result<Block, Errno> {
        let mut block = [0; PAGE as usize];
        self.0.pread_exact(at, &mut block)?;
        Ok(block)
    }

    fn write(&self, at: u64, block: &Block) -> Result<(), Errno> {
        self.0.pwrite_all(at, block)?;
        self.0.data_sync()
    }
}

/// Through the mapping: streaming stores and a fence.
pub(crate) struct ThroughRegion {
    pub(crate) region: Arc<Region>,
    pub(crate) kind: FlushKind,
}

impl Carrier for ThroughRegion {
    fn read(&self, at: u64) -> Result<Block, Errno> {
        let mut block = [0; PAGE as usize];
        self.region.load(at, &mut block);
        Ok(block)
    }

    fn write(&self, at: u64, block: &Block) -> Result<(), Errno> {
        self.region.stream(self.kind, at, block);
        cpu::fence();
        Ok(())
    }
}

/// Through the memory of a lab pool, with its tap listening.
#[cfg(feature = "lab")]
pub(crate) struct ThroughTap {
    region: Arc<Region>,
    actor: crate::lab::Actor,
}

#[cfg(feature = "lab")]
impl ThroughTap {
    pub(crate) fn new(region: Arc<Region>) -> ThroughTap {
        let actor = region.tap().map_or(0, |tap| tap.actor());
        ThroughTap { region, actor }
    }

    #[track_caller]
    fn report(&self, event: crate::lab::Event<'_>, perform: crate::lab::Perform<'_>) {
        match self.region.tap() {
            None => {
                perform();
            }
            Some(tap) => {
                let source = crate::lab::Source {
                    actor: self.actor,
                    site: std::panic::Location::caller(),
                };
                tap.event(&self.region, source, event, perform);
            }
        }
    }
}

#[cfg(feature = "lab")]
impl Carrier for ThroughTap {
    fn read(&self, at: u64) -> Result<Block, Errno> {
        let mut block = [0; PAGE as usize];
        self.region.load(at, &mut block);
        Ok(block)
    }

    fn write(&self, at: u64, block: &Block) -> Result<(), Errno> {
        let event = crate::lab::Event::Store {
            at,
            bytes: block,
            kind: crate::lab::StoreKind::Stream,
        };
        self.report(event, &mut || {
            self.region.store(at, block);
            true
        });
        self.report(crate::lab::Event::Fence, &mut || true);
        Ok(())
    }
}
