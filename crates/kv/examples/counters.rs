//! Counters that threads share and no crash sets back: each addition changes an 8-byte word of a value,
//! atomically and durably. With records of one size (`Options::fixed`) it happens in place.
//!
//! `cargo run --release -p everdram --example counters -- PATH`

use everdram::{Options, Store};

const THREADS: u64 = 4;
const TIMES: u64 = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("where is the store?")?;
    let mut options = Options::default();
    options.fixed = Some((4, 8));
    let store = Store::open(path, &options)?;
    let mut session = store.session()?;
    session.put_if_absent(b"hits", &0_u64.to_le_bytes())?;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| -> Result<(), everdram::Error> {
                let mut session = store.session()?;
                for _ in 0..TIMES {
                    session.increment(b"hits", 0, 1)?;
                }
                Ok(())
            });
        }
    });
    let hits = session.update_word(b"hits", 0, &mut |hits| hits)?;
    println!("{} hits", hits.unwrap_or(0));
    Ok(())
}
