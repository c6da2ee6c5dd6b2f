//! An order and the stock that it takes from, all or none: a batch, and a transaction where the decision
//! depends on what is there. Kill it whenever you like: of no order there is half.
//!
//! `cargo run -p everdram --example batch -- PATH`

use everdram::engine::Scope;
use everdram::{Batch, Options, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("where is the store?")?;
    let store = Store::open(path, &Options::default())?;
    let mut session = store.session()?;

    // Known before: a batch.
    let mut delivery = Batch::new();
    for item in ["apples", "pears"] {
        delivery.put(format!("stock:{item}").as_bytes(), &10_u64.to_le_bytes());
    }
    delivery.put(b"last delivery", b"apples and pears");
    session.apply(&delivery)?;

    // Decided under the keys' locks: a transaction.
    let (stock, order) = (b"stock:apples", b"order:1");
    let mut left = 0;
    session.transaction(Scope::Keys(&[stock, order]), &mut |shop| {
        let mut bytes = Vec::new();
        shop.get(stock, &mut bytes)?;
        left = bytes
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        if left >= 3 {
            left -= 3;
            shop.put(stock, &left.to_le_bytes(), 0)?;
            shop.put(order, b"3 apples", 0)?;
        }
        Ok(())
    })?;
    println!("{left} apples are left");
    Ok(())
}
