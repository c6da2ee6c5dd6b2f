//! What threads share: the locks and clocks of keys, the pins of readers, and where the crash lab lets
//! threads change places.

pub(crate) mod epoch;
pub(crate) mod seam;
pub(crate) mod stripes;
