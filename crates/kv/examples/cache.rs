//! A cache with expiry that is warm after a restart: results of the last minute come from the store, all
//! others are computed.
//!
//! `cargo run -p everdram --example cache -- PATH NUMBER`

use everdram::{Error, Options, Session, Store};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FRESH: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("where is the cache?")?;
    let number: u64 = words.next().ok_or("which number?")?.parse()?;
    let store = Store::open(path, &Options::default())?;
    let mut session = store.session()?;
    let primes = remembered(&mut session, number)?;
    println!("up to {number} there are {primes} primes");
    Ok(())
}

/// The number of primes, from the cache if it has it.
fn remembered(session: &mut Session, number: u64) -> Result<u64, Error> {
    let key = format!("primes:{number}");
    if let Some(value) = session.get(key.as_bytes())?
        && let Some(word) = value.first_chunk()
    {
        println!("that is known");
        return Ok(u64::from_le_bytes(*word));
    }
    let primes = count_primes(number);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let until = now.unwrap_or_default() + FRESH;
    let value = primes.to_le_bytes();
    session.put_expiring(key.as_bytes(), &value, until.as_millis() as u64)?;
    Ok(primes)
}

fn count_primes(most: u64) -> u64 {
    let is_prime = |number: &u64| {
        (2..)
            .take_while(|divisor| divisor * divisor <= *number)
            .all(|divisor| !number.is_multiple_of(divisor))
    };
    (2..=most).filter(is_prime).count() as u64
}
