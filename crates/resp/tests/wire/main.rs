//! Raw bytes over a socket: what clients may send, what they get, and what the server does not take.

mod administration;
mod lifecycle;
mod limits;
mod protocol;
mod support;
