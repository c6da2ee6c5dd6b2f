//! What takes a moment of its own to show: something else is done before a certain load, store or fence of a
//! call. Bugs of Bullet that were there once, and what its gleaners and its gets promise.

mod collapse;
mod found;
mod memory;
mod place;
mod reads;
