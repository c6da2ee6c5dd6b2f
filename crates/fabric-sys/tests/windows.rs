//! Memory of a pool, written and read by peers: durable writes, refused access, and what is kept until when.
//! `EVERDRAM_TEST_PMEM` may name a devdax device, whose pool is erased: then the memory is there.
//!
//! Without the library every test says so and passes.

mod support;

use everdram_fabric_sys::{Access, Completion, Conn, Event, Port};
use everdram_pm::{Medium, MediumChoice, Pool, PoolOptions, Window};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use support::{PATIENCE, SIZES, Side, is_other_than_tcp, loaded, pair, provider};

const NO_COMMIT: &str = "it makes nothing durable";

/// The completion that says the most.
fn surest() -> Completion {
    match provider().as_str() {
        "tcp" => Completion::Durable,
        _ => Completion::Sent,
    }
}

/// A window of a new pool. A device has room for one at a time.
fn window(bytes: u64) -> Arc<Window> {
    let pool = match std::env::var_os("EVERDRAM_TEST_PMEM").map(PathBuf::from) {
        None => Pool::heap(bytes + (1 << 16), 0, [0; 8]),
        Some(device) => {
            everdram_pm::erase(&device).unwrap();
            let options = PoolOptions {
                medium: MediumChoice::Only(Medium::Pmem),
                ..PoolOptions::default()
            };
            Pool::open(&device, &options).unwrap()
        }
    };
    let at = pool.allocate(100, bytes, 4096).unwrap().at;
    Arc::new(pool.window(at, bytes).unwrap())
}

/// What lies in a window now, as its pool sees it.
fn shown(window: &Window, at: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    let region = window.pool().region();
    region.load(window.at() + at as u64, &mut copy);
    copy
}

/// Waits for the end of a write with this token.
fn written(side: &mut Side, token: u64) {
    match side.next() {
        Event::Written(_, ended, Ok(())) => assert_eq!(ended, token),
        other => panic!("{other:?}"),
    }
}

/// A write that says it is durable has arrived: who is told so needs no message to find the bytes there.
#[test]
fn a_durable_write_is_in_the_pool_when_it_completes() {
    if is_other_than_tcp(NO_COMMIT) {
        return;
    }
    const BYTES: usize = 1 << 20;
    let window = window(BYTES as u64);
    let (give, take) = channel::<(u64, u64)>();
    let served = window.clone();
    let serve = move |side: &mut Side, conn: Conn| {
        assert!(side.port.can_commit(), "tcp of this machine commits");
        let area = side
            .port
            .expose_window(conn, &served, Access::ReadWrite)
            .unwrap();
        assert_eq!(area.bytes, BYTES);
        give.send((area.address, area.key)).unwrap();
        assert_eq!(side.message(), b"look");
        let mut copy = [0; 9];
        side.port.read_area(&area, 3, &mut copy).unwrap();
        assert_eq!(copy, [30, 30, 30, 30, 30, 29, 29, 29, 29]);
        side.port.send(conn, &[b"seen"]).unwrap();
        side.closed(conn);
    };
    pair(SIZES, 4, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        for round in 1..=30_u8 {
            let bytes = [8, 64 << 10, BYTES][round as usize % 3];
            let fill = vec![round; bytes];
            let how = Completion::Durable;
            let token = u64::from(round);
            side.port
                .write(conn, &[&fill], address, key, token, how)
                .unwrap();
            written(side, token);
            assert!(shown(&window, 0, bytes) == fill, "{bytes} bytes");
            side.port.read(conn, bytes, address, key, 1000).unwrap();
            match side.next() {
                Event::Read(_, 1000, Ok(read)) => assert!(read == fill, "{bytes} bytes"),
                other => panic!("{other:?}"),
            }
        }
        side.port.send(conn, &[b"look"]).unwrap();
        assert_eq!(side.message(), b"seen");
        // Writes of both kinds keep their order, and end in it.
        for token in 0..40 {
            let how = [Completion::Sent, Completion::Durable][token as usize % 2];
            let fill = [token as u8; 64];
            side.port
                .write(conn, &[&fill], address, key, token, how)
                .unwrap();
        }
        let mut durable = Vec::new();
        for _ in 0..40 {
            match side.next() {
                Event::Written(_, token, Ok(())) if token % 2 == 1 => durable.push(token),
                Event::Written(_, _, Ok(())) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(durable, (0..20).map(|at| 2 * at + 1).collect::<Vec<_>>());
        assert_eq!(shown(&window, 0, 64), [39; 64]);
    });
}

/// Immediate data of a durable write: the target's port hears of it when the bytes are there, needs no
/// receive buffer for it, and is told nothing by other writes. Messages keep their place.
#[test]
fn a_durable_write_may_tell_the_target_four_bytes() {
    if is_other_than_tcp(NO_COMMIT) {
        return;
    }
    const ROUNDS: u32 = 200;
    let window = window(1 << 16);
    let (give, take) = channel::<(u64, u64)>();
    let served = window.clone();
    let serve = move |side: &mut Side, conn: Conn| {
        assert!(side.port.can_tell(), "tcp of this machine tells");
        let area = side
            .port
            .expose_window(conn, &served, Access::Write)
            .unwrap();
        give.send((area.address, area.key)).unwrap();
        for round in 0..ROUNDS {
            match side.next() {
                Event::Told(told) => assert_eq!(told, u32::MAX - round),
                other => panic!("{other:?}"),
            }
            let at = 256 * (round as usize % 256);
            assert_eq!(shown(&served, at, 256), [round as u8; 256], "{round}");
        }
        assert_eq!(side.message(), b"behind them");
        side.port.send(conn, &[b"seen"]).unwrap();
        side.closed(conn);
    };
    // One receive buffer, for the message.
    pair(SIZES, 1, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        for round in 0..ROUNDS {
            let at = address + 256 * (u64::from(round) % 256);
            let fill = [round as u8; 256];
            let hows = [
                Completion::Sent,
                Completion::Durable,
                Completion::DurableAndTold(u32::MAX - round),
            ];
            for how in hows {
                side.port.write(conn, &[&fill], at, key, 1, how).unwrap();
            }
        }
        for _ in 0..3 * ROUNDS {
            written(side, 1);
        }
        side.port.send(conn, &[b"behind them"]).unwrap();
        assert_eq!(side.message(), b"seen");
    });
}

/// The completion of a durable write comes from the target: while its port stands still there is none.
#[test]
fn a_durable_write_waits_for_the_other_side() {
    if is_other_than_tcp(NO_COMMIT) {
        return;
    }
    let (give, take) = channel::<(u64, u64)>();
    let (tell, told) = channel::<()>();
    let serve = move |side: &mut Side, conn: Conn| {
        let area = side
            .port
            .expose_window(conn, &window(4096), Access::Write)
            .unwrap();
        give.send((area.address, area.key)).unwrap();
        // Nothing moves here meanwhile.
        told.recv_timeout(PATIENCE).unwrap();
        side.closed(conn);
    };
    pair(SIZES, 4, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        for (token, how) in [(1, Completion::Sent), (2, Completion::Durable)] {
            side.port
                .write(conn, &[&[1; 64]], address, key, token, how)
                .unwrap();
        }
        written(side, 1);
        assert!(side.within(Duration::from_millis(50)).is_none());
        tell.send(()).unwrap();
        written(side, 2);
    });
}

/// The flag goes over the wire, so that the target's provider flushes: an answer alone would not show that. A
/// hand-made target of provider `tcp` looks at it (bit 3, `XNET_COMMIT_COMPLETE`).
#[test]
fn a_durable_write_asks_the_target_for_a_commit() {
    let Some(library) = loaded() else { return };
    if is_other_than_tcp("its wire is not known here") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let target = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut request = [0; 32];
        stream.read_exact(&mut request).unwrap();
        let mut answer = [0; 32];
        (answer[0], answer[1], answer[24]) = (3, 1, 1);
        stream.write_all(&answer).unwrap();
        let mut flags = |operation, bytes| {
            let mut message = vec![0; bytes];
            stream.read_exact(&mut message).unwrap();
            assert_eq!(message[..2], [3, operation], "version and operation");
            u16::from_le_bytes([message[2], message[3]])
        };
        [flags(4, 40 + 8), flags(0, 16 + 8), flags(4, 40 + 8)]
    });
    let mut side = Side::new(Port::connecting(library, &provider(), address, SIZES).unwrap());
    let conn = side.port.connect(address, b"", 1).unwrap();
    side.opened(conn);
    side.port
        .write(conn, &[&[1; 8]], 0, 7, 1, Completion::Sent)
        .unwrap();
    side.port.send(conn, &[&[2; 8]]).unwrap();
    side.port
        .write(conn, &[&[1; 8]], 0, 7, 1, Completion::Durable)
        .unwrap();
    written(&mut side, 1);
    // Neither a plain write nor a message asks for an answer.
    assert_eq!(target.join().unwrap(), [0, 0, 1 << 3]);
}

/// How the peer is refused: it learns of a failure, or only that the connection is over.
fn refused(side: &mut Side, conn: Conn, may_be_sent: bool) {
    loop {
        match side.next() {
            // A write can be sent, and then refused.
            Event::Written(_, _, Ok(())) => assert!(may_be_sent, "it is not durable"),
            Event::Written(_, _, Err(_)) | Event::Read(_, _, Err(_)) => {}
            Event::Closed(closed) => return assert_eq!(closed, conn),
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Copy)]
enum Attempt {
    Write(Completion),
    Read,
    WriteBehind,
    ReadBehind,
}

/// Tries something with a window of 4096 bytes that must be refused, and that changes nothing.
fn attempt(access: Access, attempt: Attempt) {
    let window = window(8192);
    let inner = Arc::new(window.pool().window(window.at(), 4096).unwrap());
    let (give, take) = channel::<(u64, u64)>();
    let serve = move |side: &mut Side, conn: Conn| {
        let area = side.port.expose_window(conn, &inner, access).unwrap();
        give.send((area.address, area.key)).unwrap();
        side.closed(conn);
    };
    pair(SIZES, 4, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        let port: &mut Port = &mut side.port;
        let behind = address + 4096 - 8;
        let tried = match attempt {
            Attempt::Write(how) => port.write(conn, &[&[1; 64]], address, key, 1, how),
            Attempt::WriteBehind => port.write(conn, &[&[1; 64]], behind, key, 1, surest()),
            Attempt::Read => port.read(conn, 64, address, key, 1),
            Attempt::ReadBehind => port.read(conn, 64, behind, key, 1),
        };
        tried.unwrap();
        refused(
            side,
            conn,
            matches!(attempt, Attempt::Write(Completion::Sent)) && provider() == "tcp",
        );
    });
    assert_eq!(shown(&window, 0, 8192), vec![0; 8192]);
}

#[test]
fn a_window_to_read_is_not_written() {
    attempt(Access::Read, Attempt::Write(surest()));
    attempt(Access::Read, Attempt::Write(Completion::Sent));
}

#[test]
fn a_window_to_write_is_not_read() {
    attempt(Access::Write, Attempt::Read);
}

#[test]
fn nobody_reaches_behind_a_window() {
    attempt(Access::ReadWrite, Attempt::WriteBehind);
    attempt(Access::ReadWrite, Attempt::ReadBehind);
}

/// A write that begins after the end of the registration is refused; before that the same one arrives.
#[test]
fn a_window_that_was_taken_back_is_not_written() {
    let window = window(4096);
    let (give, take) = channel::<(u64, u64)>();
    let served = window.clone();
    let serve = move |side: &mut Side, conn: Conn| {
        let area = side
            .port
            .expose_window(conn, &served, Access::Write)
            .unwrap();
        give.send((area.address, area.key)).unwrap();
        assert_eq!(side.message(), b"written");
        assert_eq!(shown(&served, 0, 64), [1; 64]);
        side.port.unexpose(area);
        side.port.send(conn, &[b"taken back"]).unwrap();
        side.closed(conn);
    };
    pair(SIZES, 4, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        let first = side
            .port
            .write(conn, &[&[1; 64]], address, key, 1, Completion::Sent);
        first.unwrap();
        written(side, 1);
        side.port.send(conn, &[b"written"]).unwrap();
        assert_eq!(side.message(), b"taken back");
        let late = side
            .port
            .write(conn, &[&[2; 64]], address, key, 2, Completion::Sent);
        late.unwrap();
        refused(side, conn, provider() == "tcp");
    });
    assert_eq!(shown(&window, 0, 64), [1; 64]);
}

/// Closing the registration does not stop a write that has begun; the end of the connection does. Until then
/// the window, and with it the pool's memory, is kept.
#[test]
fn a_window_is_kept_until_its_connection_is_closed() {
    if is_other_than_tcp("writes of that length are not its own") {
        return;
    }
    const BYTES: usize = 64 << 20;
    let window = window(BYTES as u64);
    let (give, take) = channel::<(u64, u64)>();
    let serve = move |side: &mut Side, conn: Conn| {
        let area = side
            .port
            .expose_window(conn, &window, Access::Write)
            .unwrap();
        give.send((area.address, area.key)).unwrap();
        let until = Instant::now() + PATIENCE;
        while shown(&window, 0, 8) != [7; 8] {
            assert!(Instant::now() < until, "no byte arrived");
            assert!(side.within(Duration::from_millis(1)).is_none());
        }
        let weak = Arc::downgrade(&window);
        side.port.unexpose(area);
        drop(window);
        let kept = weak.upgrade().expect("a write is under way");
        let arrived = |window: &Window| {
            let page = |at: &usize| shown(window, at * 4096, 8) == [7; 8];
            (0..BYTES / 4096).take_while(page).count() * 4096
        };
        let before = arrived(&kept);
        let _ = side.within(Duration::from_millis(20));
        println!(
            "after its end the registration let {} bytes more in, behind {before}",
            arrived(&kept) - before
        );
        side.port.close(conn);
        let until = Instant::now() + PATIENCE;
        while Arc::strong_count(&kept) > 1 {
            assert!(Instant::now() < until, "the window is never let go");
            let _ = side.within(Duration::from_millis(1));
        }
        let before = arrived(&kept);
        let _ = side.within(Duration::from_millis(20));
        assert_eq!(arrived(&kept), before, "after the end of the connection");
    };
    pair(SIZES, 4, serve, |side, conn| {
        let (address, key) = take.recv_timeout(PATIENCE).unwrap();
        let fill = vec![7; BYTES];
        let how = Completion::Durable;
        side.port
            .write(conn, &[&fill], address, key, 3, how)
            .unwrap();
        let mut outcome = None;
        loop {
            match side.next() {
                Event::Written(_, 3, ended) => outcome = Some(ended.is_ok()),
                Event::Closed(_) => break,
                other => panic!("{other:?}"),
            }
        }
        println!("the write ended in {outcome:?}");
        assert!(outcome.is_some(), "a write ends before its connection");
    });
}
