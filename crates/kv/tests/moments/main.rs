//! Tests that need a precise moment: another action runs before a certain load, store or fence of a call.
//! They cover former bugs of Bullet, and the promises of its gleaners and gets.

mod collapse;
mod found;
mod landing;
mod memory;
mod place;
mod reads;
