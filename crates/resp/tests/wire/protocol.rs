//! The forms of requests, and their replies.

use crate::support::{Raw, request, start};
use everdram::{EngineKind, test_each_engine};
use everdram_resp::Settings;
use std::net::Shutdown;

test_each_engine!(
    replies_are_the_same_however_the_stream_is_cut,
    resp3_after_hello,
    malformed_requests_get_an_error_and_the_door,
    a_browser_is_turned_away_without_a_word,
    values_of_many_sizes_come_back,
    large_arguments_keep_their_bytes_between_small_requests,
    a_long_pipeline_is_answered_in_order,
    requests_before_the_end_of_the_stream_are_answered,
);

/// Requests and their replies, one list for every way to cut the stream.
const CONVERSATION: [(&str, &str); 21] = [
    ("*1\r\n$4\r\nPING\r\n", "+PONG\r\n"),
    ("PING hello\r\n", "$5\r\nhello\r\n"),
    (
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\r\nb\0\r\n",
        "+OK\r\n",
    ),
    ("*2\r\n$3\r\nget\r\n$1\r\nk\r\n", "$5\r\na\r\nb\0\r\n"),
    ("GET none\r\n", "$-1\r\n"),
    ("\r\n\r\n*0\r\n*-1\r\nECHO 'a b'\r\n", "$3\r\na b\r\n"),
    ("echo \"\\x41\\n\"\n", "$2\r\nA\n\r\n"),
    (
        "*1\r\n$0\r\n\r\n",
        "-ERR unknown command '', with args beginning with: \r\n",
    ),
    (
        "foo a b\r\n",
        "-ERR unknown command 'foo', with args beginning with: 'a' 'b' \r\n",
    ),
    (
        "GET\r\n",
        "-ERR wrong number of arguments for 'get' command\r\n",
    ),
    (
        "client foo\r\n",
        "-ERR unknown subcommand 'foo'. Try CLIENT HELP.\r\n",
    ),
    (
        "client kill\r\n",
        "-ERR wrong number of arguments for 'client|kill' command\r\n",
    ),
    ("SELECT 1\r\n", "-ERR DB index is out of range\r\n"),
    (
        "CLIENT SETNAME me\r\nCLIENT GETNAME\r\n",
        "+OK\r\n$2\r\nme\r\n",
    ),
    ("CLIENT REPLY OFF\r\nPING\r\nCLIENT REPLY ON\r\n", "+OK\r\n"),
    ("CLIENT REPLY SKIP\r\nPING\r\nPING x\r\n", "$1\r\nx\r\n"),
    (
        "MULTI\r\nSET m 1\r\nGET m\r\nEXEC\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$1\r\n1\r\n",
    ),
    (
        "MULTI\r\nnothing\r\nEXEC\r\n",
        "+OK\r\n-ERR unknown command 'nothing', with args beginning with: \r\n\
         -EXECABORT Transaction discarded because of previous errors.\r\n",
    ),
    (
        "CONFIG GET maxmemory\r\n",
        "*2\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n",
    ),
    ("WAITAOF 1 0 0\r\n", "*2\r\n:1\r\n:0\r\n"),
    ("RESET\r\n", "+RESET\r\n"),
];

fn replies_are_the_same_however_the_stream_is_cut(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            threads: 1,
            ..Settings::default()
        },
    );
    let sent: String = CONVERSATION.iter().map(|(request, _)| *request).collect();
    let expected: String = CONVERSATION.iter().map(|(_, reply)| *reply).collect();
    let mut one_by_one = server.connect();
    for (request, reply) in CONVERSATION {
        one_by_one.ask(request, reply);
    }
    server.connect().ask(&sent, &expected);
    let mut bytewise = server.connect();
    for byte in sent.bytes() {
        bytewise.send([byte]);
    }
    bytewise.expect(&expected);
    // Every place where the stream can be cut in two.
    let mut twofold = server.connect();
    for at in 1..sent.len() {
        let (first, second) = sent.as_bytes().split_at(at);
        twofold.send(first);
        // When the replies to the whole requests arrive, the server has read the rest of the first part, too.
        let mut whole = 0;
        let early = CONVERSATION.iter().take_while(|(request, _)| {
            whole += request.len();
            whole <= at
        });
        let early: String = early.map(|(_, reply)| *reply).collect();
        twofold.expect(&early);
        twofold.ask(second, &expected[early.len()..]);
    }
}

fn resp3_after_hello(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let mut client = server.connect();
    client.send("HELLO 3 SETNAME three\r\n");
    client.expect("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n");
    client.expect(
        "$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
    );
    client.ask("GET none\r\n", "_\r\n");
    client.ask(
        "CONFIG GET maxmemory\r\n",
        "%1\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n",
    );
    client.send("CLIENT INFO\r\n");
    let info = client.bulk();
    assert!(
        info.starts_with("txt:id=1 addr=127.0.0.1:") && info.contains(" name=three "),
        "{info}"
    );
    client.ask("HELLO 4\r\n", "-NOPROTO unsupported protocol version\r\n");
    client.ask(
        "HELLO x\r\n",
        "-ERR Protocol version is not an integer or out of range\r\n",
    );
    client.ask(
        "HELLO 2 FOO\r\n",
        "-ERR Syntax error in HELLO option 'FOO'\r\n",
    );
    client.ask("RESET\r\nGET none\r\n", "+RESET\r\n$-1\r\n");
}

fn malformed_requests_get_an_error_and_the_door(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let cases = [
        ("*abc\r\n", "invalid multibulk length"),
        ("*3000000000\r\n", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*1\r\n$536870913\r\n", "invalid bulk length"),
        ("*2\r\n+a\r\n", "expected '$', got '+'"),
        ("foo 'bar\r\n", "unbalanced quotes in request"),
    ];
    for (bytes, reason) in cases {
        let mut client = server.connect();
        // Earlier requests are answered; later ones are not read.
        client.send(format!("PING\r\n{bytes}PING\r\n"));
        let answer = String::from_utf8_lossy(&client.rest()).into_owned();
        assert_eq!(
            answer,
            format!("+PONG\r\n-ERR Protocol error: {reason}\r\n"),
            "{bytes:?}"
        );
    }
    for start in [b'a', b'*'] {
        let mut client = server.connect();
        let mut line = vec![b'1'; 64 * 1024 + 10];
        line[0] = start;
        client.send(&line);
        let reason = if start == b'*' {
            "too big mbulk count string"
        } else {
            "too big inline request"
        };
        assert_eq!(
            String::from_utf8_lossy(&client.rest()),
            format!("-ERR Protocol error: {reason}\r\n")
        );
    }
}

fn a_browser_is_turned_away_without_a_word(engine: EngineKind) {
    let server = start(engine, Settings::default());
    for line in ["POST / HTTP/1.1\r\n", "Host: localhost\r\n"] {
        let mut client = server.connect();
        client.send(format!("{line}SET attacked 1\r\n"));
        client.expect_closed();
    }
    server.connect().ask("EXISTS attacked\r\n", ":0\r\n");
}

fn values_of_many_sizes_come_back(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let mut client = server.connect();
    for size in [0, 1, 16 * 1024, 64 * 1024 - 1, 1 << 20, (8 << 20) + 3] {
        let value = "v".repeat(size);
        client.ask(request(&["SET", "big", &value]), "+OK\r\n");
        client.ask("GET big\r\n", format!("${size}\r\n{value}\r\n"));
    }
}

/// Large arguments are read directly to their place, small ones through a shared buffer, and one read may end
/// anywhere in either.
fn large_arguments_keep_their_bytes_between_small_requests(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            threads: 1,
            ..Settings::default()
        },
    );
    let sizes = [
        70_000,
        3,
        16 * 1024 - 40,
        300_001,
        65_536,
        16 * 1024,
        1_500_000,
        20,
    ];
    let value = |size: usize| -> String {
        let letters = (0..size).map(|at| char::from(b'a' + (at * at % 251 % 26) as u8));
        letters.collect()
    };
    let mut client = server.connect();
    let mut writer = Raw(client.0.try_clone().expect("a second handle"));
    let sender = std::thread::spawn(move || {
        for size in sizes {
            writer.send("PING\r\n".repeat(size % 7));
            writer.send(request(&["SET", "k", &value(size)]));
            writer.send("GET k\r\nSTRLEN k\r\n");
        }
    });
    for size in sizes {
        client.expect("+PONG\r\n".repeat(size % 7));
        client.expect(format!("+OK\r\n${size}\r\n{}\r\n:{size}\r\n", value(size)));
    }
    sender.join().expect("the sender ends");
}

fn a_long_pipeline_is_answered_in_order(engine: EngineKind) {
    let server = start(
        engine,
        Settings {
            threads: 1,
            ..Settings::default()
        },
    );
    let mut client = server.connect();
    let mut writer = Raw(client.0.try_clone().expect("a second handle"));
    let sender = std::thread::spawn(move || {
        for number in 0..20_000 {
            writer.send(format!("SET k {number}\r\nGET k\r\n"));
        }
    });
    for number in 0..20_000 {
        let text = number.to_string();
        client.expect(format!("+OK\r\n${}\r\n{text}\r\n", text.len()));
    }
    sender.join().expect("the sender ends");
}

fn requests_before_the_end_of_the_stream_are_answered(engine: EngineKind) {
    let server = start(engine, Settings::default());
    let mut client = server.connect();
    // More than one turn may execute.
    client.send("PING\r\n".repeat(5000));
    client.0.shutdown(Shutdown::Write).expect("half close");
    assert_eq!(client.rest().len(), "+PONG\r\n".len() * 5000);
}
