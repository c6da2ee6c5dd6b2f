//! How superblock copies reach each medium.

use crate::cpu::{self, FlushKind};
use crate::header::Carrier;
use crate::io::File;
use crate::region::Region;
use crate::superblock::{Block, PAGE};
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
