//! The smallest server: a pool, a port, a medium.
//!
//! ```text
//! cargo run --release -p everdram-resp --example serve -- PATH [PORT] [auto|pmem|file|emulated]
//! ```
//! It runs until SHUTDOWN. For daily use there is `everdram serve`.

use everdram::{Options, Store};
use everdram_resp::{Server, Settings};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: serve PATH [PORT] [MEDIUM]")?;
    let port = arguments.next().map_or(Ok(6379), |port| port.parse())?;
    let mut options = Options::default();
    if let Some(medium) = arguments.next() {
        options.medium = medium.parse()?;
    }
    let store = Store::open(path, &options)?;
    println!("{}", store.report().acknowledgement);
    let settings = Settings {
        port,
        ..Settings::default()
    };
    let server = Server::start(store.clone(), settings)?;
    println!("listening on {:?}", server.local_addrs());
    server.wait()?;
    store.close()?;
    Ok(())
}
