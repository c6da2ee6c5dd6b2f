//! Servers over real sockets: everdram beside Redis and its kin, under one load generator.
//!
//! A [`Contender`] is a server and how it is started; [`Running`] is one that is up, with its data in it;
//! [`Load`] is what it is asked. Servers of one comparison are all up, and take turns from load to load and
//! from repetition to repetition ([`compare`]), so that whatever else the machine does meets them alike.
//!
//! What a server spends is read from its process: processor time an operation is the steadiest figure on a
//! machine that others use, too. Memory is told apart by kind, since a pool that is mapped shared is the
//! medium and not DRAM.

mod connection;
mod contender;
mod driver;
mod load;
pub(crate) mod process;
mod running;
mod table;
mod wire;

pub use contender::{Contender, Persistence, Places, known};
pub use load::{Command, Data, Load};
pub use process::Pins;
pub use running::Running;
pub(crate) use running::title;
pub use table::{Comparison, compare, table, text};
