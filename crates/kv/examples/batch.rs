//! An order and the stock that it takes, atomically: a batch, and a transaction whose decision depends on the
//! current stock. Kill it at any time: no order is ever there in half.
//!
//! `cargo run -p everdram --example batch -- PATH`

use everdram::engine::Scope;
use everdram::{Batch, Options, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("where is the store?")?;
    let store = Store::open(path, &Options::default())?;
    let mut session = store.session()?;

    // The writes are known in advance: a batch.
    let mut delivery = Batch::new();
    for item in ["apples", "pears"] {
        delivery.put(format!("stock:{item}").as_bytes(), &10_u64.to_le_bytes());
    }
    delivery.put(b"last delivery", b"apples and pears");
    session.apply(&delivery)?;

    // The writes depend on a decision under the keys' locks: a transaction.
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
