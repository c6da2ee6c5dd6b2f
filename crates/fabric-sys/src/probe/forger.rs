//! A peer that speaks the wire protocol of libfabric's provider `tcp` by hand, to say what the library would
//! not.
//!
//! The protocol is that of the versions 1.17 to 2.5 (`prov/tcp/src/xnet_proto.h` there):
//!
//! ```text
//! both ways, first: u8 version 3 | u8 kind: 0 connect, 1 accepted, 6 refused | u16 bytes of data behind it, big-endian
//!                   4 u32 0 | 8 u64 0 | 16 u64 0 | 24 u64 1, which shows the sender's order of bytes
//! a write:          u8 version 3 | u8 operation 4 | u16 flags | u8 0 | u8 ranges | u8 bytes of the header | u8 0
//!                   8 u64 bytes of header and payload | for each range u64 address, u64 bytes, u64 key | payload
//! ```
//!
//! Little-endian; a big-endian peer swaps.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const VERSION: u8 = 3;
const ACCEPTED: u8 = 1;
const CONTROL_BYTES: usize = 32;
const OPERATION_WRITE: u8 = 4;
const HEADER_BYTES: usize = 40;

/// A hand-made client.
pub(super) struct Forger {
    stream: TcpStream,
}

/// A failed step of a forger.
type Reason = String;

impl Forger {
    /// Connects and asks for a connection of the fabric.
    pub(super) fn connect(to: SocketAddr, patience: Duration) -> Result<Forger, Reason> {
        let connect = || {
            let mut stream = TcpStream::connect_timeout(&to, patience)?;
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(patience))?;
            stream.set_read_timeout(Some(patience))?;
            let mut request = [0; CONTROL_BYTES];
            request[0] = VERSION;
            request[24] = 1;
            stream.write_all(&request)?;
            Ok(Forger { stream })
        };
        connect().map_err(text)
    }

    /// Takes in the answer to the request, which was given already.
    pub(super) fn greet(&mut self) -> Result<(), Reason> {
        let mut answer = [0; CONTROL_BYTES];
        self.stream.read_exact(&mut answer).map_err(text)?;
        let is_sound = answer[..2] == [VERSION, ACCEPTED] && answer[2..4] == [0, 0];
        if !is_sound {
            return Err(format!(
                "the provider answers a request with version {} and kind {}",
                answer[0], answer[1]
            ));
        }
        // From now on only the end of the connection is looked for.
        let soon = Some(Duration::from_millis(1));
        self.stream.set_read_timeout(soon).map_err(text)
    }

    /// Writes a payload, and says that it goes to a range of so many bytes.
    pub(super) fn write(
        &mut self,
        address: u64,
        key: u64,
        claimed_bytes: u64,
        payload: &[u8],
    ) -> Result<(), Reason> {
        let mut message = vec![VERSION, OPERATION_WRITE, 0, 0, 0, 1, HEADER_BYTES as u8, 0];
        let bytes = (HEADER_BYTES + payload.len()) as u64;
        for word in [bytes, address, claimed_bytes, key] {
            message.extend(word.to_le_bytes());
        }
        message.extend(payload);
        self.stream.write_all(&message).map_err(text)
    }

    /// Whether the other end has closed the connection. Waits a millisecond.
    pub(super) fn is_over(&mut self) -> bool {
        match self.stream.read(&mut [0; 64]) {
            Ok(bytes) => bytes == 0,
            Err(error) => !matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
            ),
        }
    }
}

fn text(error: std::io::Error) -> Reason {
    format!("a hand-made peer: {error}")
}
