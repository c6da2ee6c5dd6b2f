//! Redis protocol door.
#![forbid(unsafe_code)]
#![allow(dead_code)] // until every file below is in place
mod args;
mod reply;
