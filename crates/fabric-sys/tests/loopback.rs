//! Ports of this machine: what arrives, and in which order.
//!
//! Without the library every test says so and passes.

mod support;

use everdram_fabric_sys::{Completion, Conn, Error, Event, Listener, Port, Sizes, providers};
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{PATIENCE, SIZES, Side, echo, exposed, listen, loaded, pair, provider, ticks};

#[test]
fn tcp_is_among_the_providers() {
    let Some(library) = loaded() else { return };
    assert!(library.version() >= (1, 9), "{:?}", library.version());
    let list = providers(library).unwrap();
    println!("{:?} {list:#?}", library.version());
    assert!(
        list.iter().any(|provider| provider.name == "tcp"),
        "{list:?}"
    );
}

#[test]
fn what_is_not_there_is_an_error() {
    let Some(library) = loaded() else { return };
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let error = Listener::bind(library, "no such provider", address).expect_err("no provider");
    assert!(
        matches!(
            error,
            Error::Call {
                call: "fi_getinfo",
                ..
            }
        ),
        "{error}"
    );
    assert!(Listener::bind(library, &provider(), "240.0.0.1:0".parse().unwrap()).is_err());
    let sizes = Sizes {
        message_bytes: usize::MAX,
    };
    let error = Port::of(&listen(library), sizes).expect_err("an error");
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}

#[test]
fn the_parameter_arrives_with_the_request() {
    let Some(library) = loaded() else { return };
    let mut listener = listen(library);
    assert!(listener.wait(Duration::from_millis(1)).unwrap().is_none());
    let address = listener.local_address();
    let mut port = Port::connecting(library, &provider(), address, SIZES).unwrap();
    // Some releases of `verbs` fill it with zeros; 1.17 puts its length in front, which takes a byte of 56.
    let longest = if provider() == "verbs" { 55 } else { 256 };
    for parameter in [&b"0123456789abcdef"[..], b"", &[7; 256][..longest]] {
        port.connect(address, parameter, 1).unwrap();
        // The connecting end has to be in its port for the request to leave.
        let until = Instant::now() + PATIENCE;
        let incoming = loop {
            port.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
            if let Some(incoming) = listener.wait(Duration::from_millis(1)).unwrap() {
                break incoming;
            }
            assert!(Instant::now() < until);
        };
        let mut expected = parameter.to_vec();
        if provider() == "verbs" {
            expected.resize(incoming.parameter().len().max(parameter.len()), 0);
        }
        assert_eq!(incoming.parameter(), expected);
    }
}

#[test]
fn ten_thousand_messages_go_there_and_back() {
    pair(SIZES, 4, echo, |side, conn| {
        let mut times = Vec::new();
        for round in 0..10_000u32 {
            let start = Instant::now();
            let bytes = round.to_le_bytes();
            side.port
                .send(conn, &[&bytes[..1], &bytes[1..], &[3; 60]])
                .unwrap();
            let answer = side.message();
            assert_eq!(answer.len(), 64);
            assert_eq!(answer[..4], bytes);
            times.push(start.elapsed());
        }
        times.sort();
        println!(
            "64 bytes there and back: median {:?}, 99 % {:?}",
            times[5000], times[9900]
        );
    });
}

#[test]
fn messages_of_no_and_of_all_bytes_arrive() {
    for message_bytes in [1, 4096, 1 << 20] {
        pair(Sizes { message_bytes }, 4, echo, |side, conn| {
            let all: Vec<u8> = (0..message_bytes).map(|at| (at * 7) as u8).collect();
            for bytes in [&[][..], &all[..1], &all] {
                side.port.send(conn, &[bytes]).unwrap();
                assert!(
                    side.message() == bytes,
                    "{} of {message_bytes}",
                    bytes.len()
                );
            }
            let error = side.port.send(conn, &[&all, b"x"]).expect_err("too long");
            assert!(matches!(error, Error::TooLong { .. }), "{error}");
        });
    }
}

/// What a peer sends beyond the posted buffers waits, and is not lost.
#[test]
fn messages_wait_for_buffers() {
    let serve = |side: &mut Side, conn: Conn| {
        let before = ticks();
        let Event::Message(_, first) = side.next() else {
            panic!("no message")
        };
        assert!(side.within(Duration::from_millis(500)).is_none());
        println!(
            "{} ticks of 10 ms in 0.5 s with a message that has no buffer",
            ticks() - before
        );
        assert_eq!(side.port.message(&first), b"first");
        side.port.give_back(first, true).unwrap();
        assert_eq!(side.message(), b"second");
        side.port.send(conn, &[b"enough"]).unwrap();
        side.closed(conn);
    };
    pair(SIZES, 1, serve, |side, conn| {
        side.port.send(conn, &[b"first"]).unwrap();
        side.port.send(conn, &[b"second"]).unwrap();
        assert_eq!(side.message(), b"enough");
    });
}

#[test]
fn sixteen_under_way_stay_in_order() {
    pair(SIZES, 16, echo, |side, conn| {
        let (mut sent, mut received) = (0u32, 0u32);
        while received < 4000 {
            while sent < 4000 && sent - received < 16 {
                let bytes = sent.to_le_bytes();
                side.port
                    .send(conn, &[&bytes, &vec![sent as u8; sent as usize % 4000]])
                    .unwrap();
                sent += 1;
            }
            let answer = side.message();
            assert_eq!(answer[..4], received.to_le_bytes());
            assert_eq!(answer.len(), 4 + received as usize % 4000);
            received += 1;
        }
    });
}

#[test]
fn more_sends_than_the_provider_takes_wait_in_the_port() {
    const COUNT: u32 = 5000;
    let serve = |side: &mut Side, conn: Conn| {
        for expected in 0..COUNT {
            assert_eq!(side.message()[..4], expected.to_le_bytes());
        }
        side.port.send(conn, &[b"all"]).unwrap();
        side.closed(conn);
    };
    pair(SIZES, 8, serve, |side, conn| {
        for count in 0..COUNT {
            side.port
                .send(conn, &[&count.to_le_bytes(), &[1; 4000]])
                .unwrap();
        }
        assert_eq!(side.message(), b"all");
    });
}

#[test]
fn a_message_behind_a_write_finds_its_bytes_and_a_read_brings_them_back() {
    const BYTES: usize = 1 << 20;
    let (give, take) = channel::<(u64, u64)>();
    let serve = move |side: &mut Side, conn: Conn| {
        let area = exposed(side, conn, BYTES);
        println!(
            "addresses are {}",
            if area.address == 0 {
                "offsets"
            } else {
                "virtual"
            }
        );
        give.send((area.address, area.key)).unwrap();
        for round in 0..60 {
            let message = side.message();
            let bytes = u64::from_le_bytes(message[..8].try_into().unwrap()) as usize;
            let mut copy = vec![0; bytes];
            side.port.read_area(&area, 0, &mut copy).unwrap();
            assert!(
                copy.iter().all(|&byte| byte == message[8]),
                "round {round}, {bytes} bytes"
            );
            side.port.send(conn, &[b"next"]).unwrap();
        }
        assert!(matches!(
            side.port.read_area(&area, BYTES, &mut [0]),
            Err(Error::OutOfArea { .. })
        ));
        side.closed(conn);
        side.port.unexpose(area);
    };
    pair(SIZES, 4, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        for round in 0..60u8 {
            let bytes = [4, 64 << 10, BYTES][round as usize % 3];
            let fill = vec![round + 1; bytes];
            side.port
                .write(
                    conn,
                    &[&fill[..1], &fill[1..]],
                    address,
                    key,
                    round.into(),
                    Completion::Sent,
                )
                .unwrap();
            side.port
                .send(conn, &[&(bytes as u64).to_le_bytes(), &[round + 1]])
                .unwrap();
            let (mut is_written, mut is_answered) = (false, false);
            while !(is_written && is_answered) {
                match side.next() {
                    Event::Written(_, token, Ok(())) => is_written = token == u64::from(round),
                    Event::Message(_, buffer) => {
                        is_answered = true;
                        side.port.give_back(buffer, true).unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
            side.port.read(conn, bytes, address, key, 1000).unwrap();
            match side.next() {
                Event::Read(_, 1000, Ok(read)) => assert!(read == fill, "{bytes} bytes"),
                other => panic!("{other:?}"),
            }
        }
    });
}
