//! Each hole that can be opened on purpose does harm: a short story in which the sound engine keeps its word,
//! and the engine with the hole does not. Whether the crash lab finds that by itself is tested in the lab.
//!
//! And bugs that were there once, and that took a moment of their own to show.

mod bullet;
mod collapse;
mod found;
mod memory;
mod place;
mod reads;
mod viper;
