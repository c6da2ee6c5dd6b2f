//! The door over pools with a landing area: RDMP-CC.

use super::*;

fn landed(fixture: &Fixture) -> everdram::landing::LandingStats {
    fixture.store.landing().unwrap().stats()
}

#[test]
fn a_client_makes_its_value_durable_by_itself() {
    let fixture = Fixture::landing(16 << 20);
    let mut client = fixture.client();
    assert!(client.takes_client_centric());
    for (turn, bytes) in [0, 1, 200, 4096, 100_000, VALUE_BYTES_MAX]
        .into_iter()
        .enumerate()
    {
        for way in [
            Way::ClientCentric,
            Way::ClientCentricAsked,
            Way::ClientCentricImmediate,
        ] {
            let (key, value) = (format!("{way:?} {bytes}"), value(bytes, turn as u8));
            let before = fixture.door.stats().requests;
            assert_eq!(
                client.put_expiring(key.as_bytes(), &value, 0, way).unwrap(),
                way
            );
            // The metadata phase alone is a request, or what asks to look, too.
            let requests = fixture.door.stats().requests - before;
            assert_eq!(requests, if way == Way::ClientCentric { 1 } else { 2 });
            // Any other door sees it.
            let mut session = fixture.store.session().unwrap();
            assert_eq!(session.get(key.as_bytes()).unwrap().as_ref(), Some(&value));
            assert_eq!(client.get(key.as_bytes()).unwrap(), Some(value));
        }
    }
    drop(client);
    fixture.door.stop();
    let stats = fixture.store.landing().unwrap().stats();
    assert_eq!((stats.pages_free, stats.grants), (stats.pages, 0));
    assert_eq!(stats.applied, 18);
}

#[test]
fn a_slot_takes_one_value_after_the_other() {
    let fixture = Fixture::landing(8 << 20);
    let mut client = fixture.client();
    let long = value(VALUE_BYTES_MAX, 3);
    for turn in 0..40u8 {
        let key = [turn % 7];
        client
            .put_expiring(&key, &long[usize::from(turn)..], 0, Way::ClientCentric)
            .unwrap();
    }
    let mut session = fixture.store.session().unwrap();
    for turn in 33..40u8 {
        let read = session.get(&[turn % 7]).unwrap().unwrap();
        assert!(read == long[usize::from(turn)..], "put {turn}");
    }
    assert!(landed(&fixture).pages_free > 0);
}

/// Slots that others want do not stay with who keeps them in silence.
#[test]
fn slots_that_are_wanted_are_taken_from_who_keeps_them_in_silence() {
    let settings = Settings {
        lease: LEASE,
        ..Settings::default()
    };
    let fixture = Fixture::with(Medium::Emulated, settings, 1 << 20);
    let [mut silent, mut wants] = std::array::from_fn(|_| fixture.raw());
    let ask = |raw: &mut Raw, key: u8| {
        let head = Head {
            value_bytes: 60_000,
            place: wire::BY_CLIENT,
            ..Head::request(Kind::Prepare, 2)
        };
        raw.ask(head, &[key], &[]).0.status
    };
    silent.hello();
    wants.hello();
    let given = (0..16).take_while(|&key| ask(&mut silent, key) == Status::Ok);
    assert!((10..16).contains(&given.count()), "the area is full before");
    let until = Instant::now() + Duration::from_secs(30);
    let mut tries = 0;
    while ask(&mut wants, 100) == Status::Full {
        assert!(Instant::now() < until, "nobody gives up its slots");
        std::thread::sleep(Duration::from_millis(10));
        tries += 1;
    }
    assert!(tries > 0 && matches!(silent.next(), Event::Closed(_)));
    assert_eq!(ask(&mut wants, 101), Status::Ok);
    assert_eq!(fixture.door.stats().expelled, 1);
}

/// A client that puts one value after the other has a second slot while half of the area is free, and one
/// otherwise: so as many clients as there are slots can put.
#[test]
fn slots_to_spare_are_given_while_half_of_the_area_is_free() {
    let fixture = Fixture::landing(1 << 20);
    let whole = value(60_000, 1);
    let mut clients: Vec<Client> = (0..14).map(|_| fixture.client()).collect();
    for turn in 0..4 {
        for (number, client) in clients.iter_mut().enumerate() {
            let key = [number as u8, turn];
            let put = client.put_expiring(&key, &whole, 0, Way::ClientCentric);
            put.unwrap_or_else(|error| panic!("client {number}, put {turn}: {error}"));
        }
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert!(client.get(&[number as u8, 3]).unwrap().unwrap() == whole);
    }
}

/// Where there is no room for what has arrived, its client learns so, and goes on no longer.
#[test]
fn a_client_learns_that_what_it_wrote_finds_no_room() {
    let fixture = Fixture::of(Settings::default(), |options| {
        options.landing_bytes = 4 << 20;
        options.initial_bytes = 6 << 20;
        options.max_bytes = 12 << 20;
        options.chunk_bytes = 1 << 20;
    });
    let (mut client, whole) = (fixture.client(), value(60_000, 1));
    let mut put =
        |number: u32| client.put_expiring(&number.to_le_bytes(), &whole, 0, Way::ClientCentric);
    let stored = (0..400).take_while(|&number| put(number).is_ok()).count() as u32;
    assert!(stored > 20);
    let mut session = fixture.store.session().unwrap();
    let waits = |number: &u32| session.get(&number.to_le_bytes()).is_err();
    let waiting = (0..stored).filter(waits).count();
    assert!(waiting <= 3, "{waiting} values wait for room");
}

/// Puts of one key take effect in the order of their calls, whatever way each takes.
#[test]
fn ways_do_not_overtake_each_other() {
    let fixture = Fixture::landing(4 << 20);
    let mut client = fixture.client();
    let ways = [
        Way::ClientCentric,
        Way::Inline,
        Way::ServerAssisted,
        Way::ClientCentricAsked,
        Way::ClientCentricImmediate,
    ];
    let mut last = Vec::new();
    for turn in 0..200u32 {
        let way = ways[(turn * 7 % 11 % 5) as usize];
        last = turn.to_le_bytes().to_vec();
        client.submit_put(b"key", &last, 0, way).unwrap();
    }
    assert_eq!(client.get(b"key").unwrap(), Some(last));
    client
        .submit_put(b"key", b"again", 0, Way::ClientCentric)
        .unwrap();
    let ticket = client.submit_delete(b"key").unwrap();
    let mut done = Vec::new();
    while client.calls_under_way() > 0 {
        done.extend(client.poll(std::time::Duration::from_secs(1)).unwrap());
    }
    let outcome = done
        .into_iter()
        .find(|done| done.ticket == ticket)
        .unwrap()
        .outcome;
    assert_eq!(outcome.unwrap(), Outcome::Removed);
    assert_eq!(client.get(b"key").unwrap(), None);
}

/// R1, R10: a client that dies between the phases has changed nothing, and leaves nothing behind; what it
/// made durable counts.
#[test]
fn a_client_of_the_landing_area_may_vanish_at_any_time() {
    let fixture = Fixture::landing(1 << 20);
    let slot_of = |raw: &mut Raw, key: &[u8], bytes: u64| {
        let head = Head {
            value_bytes: bytes,
            place: wire::BY_CLIENT,
            ..Head::request(Kind::Prepare, 2)
        };
        let (head, body) = raw.ask(head, key, &[]);
        assert_eq!(head.status, Status::Ok);
        let generation = wire::first_word(&body[8..]).unwrap();
        (head, wire::first_word(&body).unwrap(), generation)
    };
    for writes in [false, true] {
        let key = [u8::from(writes)];
        let mut raw = fixture.raw();
        raw.hello();
        let (head, area, generation) = slot_of(&mut raw, &key, 5);
        let mut other = fixture.raw();
        other.hello();
        // R7: the grant of another connection.
        let done = Head {
            grant: head.grant,
            sum: generation,
            place: wire::BY_CLIENT,
            ..Head::request(Kind::Done, 3)
        };
        assert_eq!(other.ask(done, &[], &[]).0.status, Status::Refused);
        // Nothing has arrived.
        assert_eq!(raw.ask(done, &[], &[]).0.status, Status::Torn);
        if writes {
            let grant = everdram::landing::Grant {
                number: 0,
                offset: 0,
                bytes: 0,
                generation,
                nonce: head.sum,
            };
            let mut bytes = Vec::new();
            everdram::landing::slot::encode(&mut bytes, &grant, &key, b"value", 0);
            raw.port
                .write_durably(raw.conn, &bytes, (head.place, area), 7)
                .unwrap();
            assert!(matches!(raw.next(), Event::Committed(7, true)));
        }
        raw.port.close(raw.conn);
        drop(raw);
        let mut session = fixture.store.session().unwrap();
        let expected = writes.then(|| b"value".to_vec());
        assert_eq!(session.get(&key).unwrap(), expected);
        while fixture.door.stats().connections > 1 {
            std::thread::yield_now();
        }
        drop(other);
        while fixture.door.stats().connections > 0 {
            std::thread::yield_now();
        }
    }
    fixture.door.stop();
    let stats = fixture.store.landing().unwrap().stats();
    assert_eq!((stats.pages_free, stats.grants), (stats.pages, 0));
}

/// R4: no return code says whether a durable write is durable, so a link that does not know offers none.
#[test]
fn hole_r4_cc_is_refused_where_commit_is_a_guess() {
    let mut fixture = Fixture::landing(1 << 20);
    let network = Network::new();
    let links = vec![Box::new(inside::Port::guessing()) as Box<dyn Link>];
    let ear = Box::new(network.listen());
    let (store, landing) = (&fixture.store, fixture.store.landing());
    fixture.door = Door::over(store, ear, links, Settings::default(), landing).unwrap();
    let mut client = Client::inside(&network, &ClientOptions::default()).unwrap();
    assert!(!client.takes_client_centric() && !client.takes_immediate());
    for way in [Way::ClientCentric, Way::ClientCentricImmediate] {
        let refused = client.put_expiring(b"key", b"value", 0, way).err();
        assert!(
            matches!(refused, Some(ClientError::NotOffered)),
            "{refused:?}"
        );
    }
    // RDMP-SA needs none.
    client
        .put_expiring(b"key", b"value", 0, Way::ServerAssisted)
        .unwrap();
}

#[test]
fn a_door_without_a_landing_area_does_not_offer_one() {
    for fixture in [
        Fixture::new(Settings::default()),
        Fixture::on(Medium::File, Settings::default()),
    ] {
        let mut client = fixture.client();
        assert!(!client.takes_client_centric());
        let refused = client
            .put_expiring(b"key", b"value", 0, Way::ClientCentric)
            .err();
        assert!(
            matches!(refused, Some(ClientError::NotOffered)),
            "{refused:?}"
        );
        let mut raw = fixture.raw();
        raw.hello();
        let head = Head {
            place: wire::BY_CLIENT,
            ..Head::request(Kind::Prepare, 2)
        };
        assert_eq!(raw.ask(head, b"key", &[]).0.status, Status::Refused);
    }
}

/// A raw client with a slot that it may tell about: address and key of the slot, its bytes, and the word.
fn slot_to_tell(raw: &mut Raw, key: &[u8], sequence: u32) -> ((u64, u64), Vec<u8>, u32) {
    let head = Head {
        value_bytes: 5,
        place: wire::BY_CLIENT_TOLD,
        ..Head::request(Kind::Prepare, sequence)
    };
    let (head, body) = raw.ask(head, key, &[]);
    assert_eq!(head.status, Status::Ok);
    let grant = everdram::landing::Grant {
        number: 0,
        offset: 0,
        bytes: 0,
        generation: wire::word(&body, 1).unwrap(),
        nonce: head.sum,
    };
    let mut bytes = Vec::new();
    everdram::landing::slot::encode(&mut bytes, &grant, key, b"value", 0);
    let target = (head.place, wire::word(&body, 0).unwrap());
    (
        target,
        bytes,
        wire::word(&body, 2).unwrap().try_into().unwrap(),
    )
}

/// What one client tells is its own: a word that nobody was given, another's, one of a value that is not
/// there, or one for the second time ends the connection of whoever says it, and nothing else.
#[test]
fn immediate_data_that_names_no_grant_of_its_client_ends_its_connection() {
    let fixture = Fixture::landing(1 << 20);
    let mut honest = fixture.raw();
    honest.hello();
    let (target, bytes, word) = slot_to_tell(&mut honest, b"honest", 9);
    for (number, wrong) in ["nobody's", "another's", "not there", "twice"]
        .into_iter()
        .enumerate()
    {
        let mut raw = fixture.raw();
        raw.hello();
        let key = [number as u8];
        let (own_target, mut own_bytes, own_word) = slot_to_tell(&mut raw, &key, 3);
        let (told, is_first_sound) = match wrong {
            "nobody's" => (own_word ^ 1 ^ word, false),
            "another's" => (word, false),
            "not there" => {
                own_bytes[70] ^= 1;
                (own_word, false)
            }
            _ => (own_word, true),
        };
        let tell = |raw: &mut Raw| {
            raw.port
                .write_and_tell(raw.conn, &own_bytes, own_target, 7, told)
                .unwrap();
            assert!(matches!(raw.next(), Event::Committed(7, true)), "{wrong}");
        };
        tell(&mut raw);
        if is_first_sound {
            let (head, _) = raw.reply();
            assert_eq!((head.status, head.sequence), (Status::Ok, 3));
            tell(&mut raw);
        }
        assert!(matches!(raw.next(), Event::Closed(_)), "{wrong}");
        // What is durable counts all the same.
        let mut session = fixture.store.session().unwrap();
        let expected = (wrong != "not there").then(|| b"value".to_vec());
        assert_eq!(session.get(&key).unwrap(), expected, "{wrong}");
    }
    assert_eq!(fixture.door.stats().expelled, 4);
    // What is told may come behind a request that looks for a slot, when the value is there already.
    honest
        .port
        .write_durably(honest.conn, &bytes, target, 6)
        .unwrap();
    assert!(matches!(honest.next(), Event::Committed(6, true)));
    let (other, ..) = slot_to_tell(&mut honest, b"honest, too", 10);
    assert_ne!(other, target);
    honest
        .port
        .write_and_tell(honest.conn, &bytes, target, 7, word)
        .unwrap();
    assert!(matches!(honest.next(), Event::Committed(7, true)));
    let (head, _) = honest.reply();
    assert_eq!((head.status, head.sequence), (Status::Ok, 9));
}

/// The slot of a put that is done and not asked about yet may be given to the next one.
#[test]
fn a_put_whose_slot_was_given_again_is_known_to_be_done() {
    let fixture = Fixture::landing(1 << 20);
    let mut client = fixture.client();
    let mut tickets = Vec::new();
    // More credits, and then many at once.
    for turn in 0..400u32 {
        let key = (turn % 50).to_le_bytes();
        let value = turn.to_le_bytes();
        tickets.push(
            client
                .submit_put(&key, &value, 0, Way::ClientCentricAsked)
                .unwrap(),
        );
    }
    let mut ended = 0;
    while client.calls_under_way() > 0 {
        for done in client.poll(std::time::Duration::from_secs(1)).unwrap() {
            assert_eq!(
                done.outcome.unwrap(),
                Outcome::Stored(Way::ClientCentricAsked)
            );
            ended += 1;
        }
    }
    ended += client.poll(std::time::Duration::ZERO).unwrap().len();
    assert_eq!(ended, tickets.len());
    for key in 0..50u32 {
        let value = client.get(&key.to_le_bytes()).unwrap().unwrap();
        assert_eq!(value, (350 + key).to_le_bytes());
    }
}

/// No mixture of lengths uses up what a connection may have.
#[test]
fn values_of_all_lengths_may_follow_each_other() {
    let fixture = Fixture::landing(16 << 20);
    let mut client = fixture.client();
    for turn in 0..300usize {
        let bytes = (turn * 4093) % VALUE_BYTES_MAX;
        let value = value(bytes, turn as u8);
        let key = (turn as u32).to_le_bytes();
        client
            .put_expiring(&key, &value, 0, Way::ClientCentric)
            .unwrap();
    }
    assert_eq!(fixture.store.len(), 300);
}
