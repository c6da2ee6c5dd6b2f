//! What the lints say.
use everdram_lab::profile::Profile;

fn main() {
    drop(std::hint::black_box(vec![1u8; 24 << 20]));
    for profile in Profile::ALL {
        match everdram_lab::lint::survey(&[profile], 1..4, 80) {
            Ok((lints, totals)) => println!("{profile}: {} calls {lints:#?}", totals.calls),
            Err(wrong) => println!("{profile}: {wrong}"),
        }
    }
}
