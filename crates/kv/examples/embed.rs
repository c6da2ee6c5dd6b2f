//! The smallest program: open a store, put, get, iterate, close. A second run finds the keys of the first.
//!
//! `cargo run -p everdram --example embed -- PATH`

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("where is the store?")?;
    let store = everdram::Store::open(path, &everdram::Options::default())?;
    let report = store.report();
    println!("{:?}, durability {:?}", report.medium, report.durability);
    let mut session = store.session()?; // one for each thread
    let run = format!("run {}", store.len() + 1);
    session.put(run.as_bytes(), b"was here")?; // durable when it returns
    for entry in session.iter() {
        let (key, value) = entry?;
        println!(
            "{} {}",
            String::from_utf8_lossy(&key),
            String::from_utf8_lossy(&value)
        );
    }
    drop(session);
    store.close()?;
    Ok(())
}
