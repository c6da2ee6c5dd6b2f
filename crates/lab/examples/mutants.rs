//! Which flushes, fences and syncs the lab would miss.
use everdram_lab::mutation::Mutation;

fn main() {
    drop(std::hint::black_box(vec![1u8; 24 << 20]));
    std::panic::set_hook(Box::new(|_| {}));
    let medium = std::env::args().nth(1).unwrap().parse().unwrap();
    let mutation = Mutation { medium, ..Mutation::default() };
    let mutants = mutation.score(&|mutant| {
        println!("{:?} {} x{}: {}", mutant.mute.what, mutant.place(), mutant.events, match &mutant.caught {
            None => "SURVIVED".to_owned(),
            Some(c) => format!("{} {} after {}: {}", c.profile, c.seed, c.images, c.wrong.chars().take(100).collect::<String>()),
        });
    }).unwrap();
    println!("{} of {}", mutants.iter().filter(|m| m.caught.is_some()).count(), mutants.len());
}
