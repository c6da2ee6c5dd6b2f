//! everdram beside what people use today: which scenes there are, how one store takes its turn in one of
//! them, and how the turns of all become lines that a table and a report are made of.
//!
//! Every store has a turn in every round, and every second round goes the other way round, so that whatever
//! else the machine does meets all of them alike. A turn is meant for a process of its own: its memory is
//! then the store's, and a store that ends it ends nothing else. Starting processes is left to the caller,
//! who hands back what they said.

mod bound;
mod gather;
mod group;
mod line;
mod scene;
mod stand;
mod table;
mod turn;
mod verdict;

pub use bound::{Bound, bound};
pub use gather::{merged_limits, row};
pub use group::{Group, groups};
pub use line::{Line, label, label_of, read_lines};
pub use scene::{Ground, Scene};
pub use table::tables;
pub use turn::{Measured, Part, Turn};
pub use verdict::{Duel, Standing, Verdict};
