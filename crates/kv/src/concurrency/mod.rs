//! What threads share: the locks and clocks of keys, the pins of readers, the work of a start, and the points
//! where the crash lab switches threads.

pub(crate) mod catching_up;
pub(crate) mod epoch;
pub(crate) mod retired;
pub(crate) mod seam;
pub(crate) mod shares;
pub(crate) mod stripes;
