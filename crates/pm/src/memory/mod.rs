//! Memory that persists: the instructions, the order of persistence as types, mappings, and delays that
//! emulate slower media.

pub(super) mod barrier;
pub(super) mod clock;
pub(super) mod cpu;
pub(super) mod delay;
pub(super) mod dram;
pub(super) mod fence_number;
pub(super) mod huge;
pub(super) mod lane;
pub(super) mod map;
pub(super) mod position;
pub(super) mod preset;
pub(super) mod readout;
pub(super) mod region;
pub(super) mod unfenced;
pub(super) mod words;
