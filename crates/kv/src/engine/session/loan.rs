//! A loan: room of the pool into which a remote client writes a long value, and which becomes that of the
//! value if the client keeps its word. (RDMP-KV section III-B: the data phase writes where the value stays.)
//!
//! Nothing in the pool knows of a loan. What was not adopted before a crash is free after it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Room in the image of a pool that is nobody's but the loan's. It ends by
/// [`EngineSession::put_lent`](crate::engine::EngineSession::put_lent) or
/// [`Engine::take_back`](crate::engine::Engine::take_back); if it is dropped, its room is free at the next open.
#[derive(Debug)]
#[must_use = "the room of a loan that is dropped is lost until the pool is opened again"]
pub struct Loan {
    places: Vec<Place>,
}

/// Where a part of the value is to be written, all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first byte, from the start of the pool's image: a multiple of 64.
    pub offset: u64,
    /// Length in bytes. The rest of its last line of 64 bytes belongs to the loan, too, and holds nothing.
    pub bytes: u64,
}

/// What a client says of the value that it has written into a loan.
#[derive(Clone, Debug)]
pub struct Said {
    /// Seeds the checks, and becomes the name of the value's room: random, and drawn for this loan.
    pub seed: u64,
    /// XXH3-64 of what is in each place of the loan, in their order.
    pub checks: Vec<u64>,
    /// Whether whoever wrote has made all of it durable. If that is a lie, the key's value may be damaged
    /// after the next crash.
    pub is_durable: bool,
    /// Whether the checks are to be stored as they are, for readers to verify. If they are wrong, the key's
    /// value is damaged. Otherwise the bytes are read and summed up first.
    pub is_believed: bool,
}

impl Said {
    /// What a client says that has written this value into a loan; it is not to be believed.
    ///
    /// # Panics
    /// If the value is shorter than the loan.
    #[must_use]
    pub fn of(loan: &Loan, value: &[u8], seed: u64, is_durable: bool) -> Said {
        let (mut checks, mut rest) = (Vec::new(), value);
        for place in loan.places() {
            let (piece, behind) = rest.split_at(place.bytes as usize);
            checks.push(xxh3_64_with_seed(piece, seed));
            rest = behind;
        }
        Said {
            seed,
            checks,
            is_durable,
            is_believed: false,
        }
    }
}

impl Loan {
    pub(crate) fn new(places: Vec<Place>) -> Loan {
        Loan { places }
    }

    /// The places of the value's parts, in order; none if it was adopted.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Length of the value in bytes; 0 if it was adopted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.places.iter().map(|place| place.bytes).sum()
    }

    /// Its room is its owner's no more.
    pub(crate) fn take(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.places)
    }
}
