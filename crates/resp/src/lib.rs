//! Redis protocol door.
