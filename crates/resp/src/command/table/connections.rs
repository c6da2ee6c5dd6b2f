//! Rows of the command table: the connection. The module above explains the columns.

use super::commands;
use crate::command::{Command, container};
use crate::commands::{client, connection};

const CLIENT: &[Command] = commands! {
    "client|id" 2 [noscript loading stale] (0 0 0){} [connection] connection "5.0.0" "O(1)"
        client::id: "This connection's number.";
    "client|info" 2 [noscript loading stale] (0 0 0){} [connection] connection "6.2.0" "O(1)"
        client::info: "This connection.";
    "client|list" -2 [admin noscript loading stale] (0 0 0){} [connection] connection "2.4.0" "O(N)"
        client::list: "All connections.";
    "client|kill" -3 [admin noscript loading stale] (0 0 0){} [connection] connection "2.4.0" "O(N)"
        client::kill: "Closes connections.";
    "client|setname" 3 [noscript loading stale] (0 0 0){} [connection] connection "2.6.9" "O(1)"
        client::setname: "Names this connection.";
    "client|getname" 2 [noscript loading stale] (0 0 0){} [connection] connection "2.6.9" "O(1)"
        client::getname: "This connection's name.";
    "client|setinfo" 4 [noscript loading stale] (0 0 0){} [connection] connection "7.2.0" "O(1)"
        client::setinfo: "Notes the client library.";
    "client|reply" 3 [noscript loading stale] (0 0 0){} [connection] connection "3.2.0" "O(1)"
        client::reply: "Turns replies on or off.";
    "client|pause" -3 [admin noscript loading stale] (0 0 0){} [connection] connection "2.9.50" "O(1)"
        client::pause: "Accepted; nothing pauses here.";
    "client|unpause" 2 [admin noscript loading stale] (0 0 0){} [connection] connection "6.2.0" "O(N)"
        client::unpause: "Accepted; nothing pauses here.";
    "client|no-evict" 3 [admin noscript loading stale] (0 0 0){} [connection] connection "7.0.0" "O(1)"
        client::no_evict: "Accepted; connections are not evicted.";
    "client|no-touch" 3 [noscript loading stale] (0 0 0){} [connection] connection "7.2.0" "O(1)"
        client::no_touch: "Accepted; reads do not age keys.";
    "client|help" 2 [loading stale] (0 0 0){} [connection] connection "5.0.0" "O(1)"
        client::help: "What CLIENT can do.";
};

pub(super) const ROWS: &[Command] = commands! {
    "ping" -1 [fast] (0 0 0){} [connection] connection "1.0.0" "O(1)"
        connection::ping: "Answers PONG, or its argument.";
    "echo" 2 [loading stale fast] (0 0 0){} [connection] connection "1.0.0" "O(1)"
        connection::echo: "Answers its argument.";
    "hello" -1 [noscript loading stale fast no_auth allow_busy] (0 0 0){} [connection] connection "6.0.0" "O(1)"
        connection::hello: "Chooses the protocol; can authenticate and name the connection.";
    "auth" -2 [noscript loading stale fast no_auth allow_busy] (0 0 0){} [connection] connection "1.0.0" "O(N)"
        connection::auth: "Authenticates the connection.";
    "select" 2 [loading stale fast] (0 0 0){} [connection] connection "1.0.0" "O(1)"
        connection::select: "Chooses a database; there is only 0.";
    "quit" -1 [noscript loading stale fast no_auth allow_busy] (0 0 0){} [connection] connection "1.0.0" "O(1)"
        connection::quit: "Closes the connection.";
    "reset" 1 [noscript loading stale fast no_auth allow_busy] (0 0 0){} [connection] connection "6.2.0" "O(1)"
        connection::reset: "Makes the connection as it was at first.";
    "client" -2 [] (0 0 0){} [] connection "2.4.0" "As its subcommands"
        container [CLIENT]: "About connections.";
};
