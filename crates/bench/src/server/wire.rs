//! The bytes of requests and of the replies that must come, which differ in nothing but the key.
//!
//! So a request is a copy of a template with the key filled in, and a reply is checked by comparing all of
//! its bytes.

use super::load::{Command, Data};

pub(super) const KEY_BYTES: usize = 16;

/// `key:000000000123`.
pub(super) fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key.iter_mut().skip(4).rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Bytes with places for a key in them.
pub(super) struct Template {
    bytes: Vec<u8>,
    places: Vec<usize>,
}

impl Template {
    /// Each part that is `None` is a key.
    fn of(parts: &[Option<&[u8]>]) -> Template {
        let mut template = Template {
            bytes: Vec::new(),
            places: Vec::new(),
        };
        for part in parts {
            if part.is_none() {
                template.places.push(template.bytes.len());
            }
            template
                .bytes
                .extend_from_slice(part.unwrap_or(&[0; KEY_BYTES]));
        }
        template
    }

    /// Fills in a key.
    pub(super) fn set_key(&mut self, key: [u8; KEY_BYTES]) {
        for place in &self.places {
            self.bytes[*place..place + KEY_BYTES].copy_from_slice(&key);
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A command's request and the only right reply.
pub(super) struct Wire {
    pub(super) request: Template,
    pub(super) reply: Template,
}

impl Wire {
    /// Values shorter than a key are all the same.
    pub(super) fn of(command: Command, data: Data) -> Wire {
        let length = format!("${}\r\n", data.value_bytes);
        let after_key = data.value_bytes.saturating_sub(KEY_BYTES);
        let filler = vec![
            b'v';
            if after_key == 0 {
                data.value_bytes
            } else {
                after_key
            }
        ];
        let head = match command {
            Command::Set => "*3\r\n$3\r\nSET\r\n$16\r\n",
            Command::Get => "*2\r\n$3\r\nGET\r\n$16\r\n",
        };
        let mut bulk = vec![Some(length.as_bytes())];
        if after_key > 0 {
            bulk.push(None);
        }
        bulk.extend([Some(filler.as_slice()), Some(b"\r\n".as_slice())]);
        let mut request = vec![Some(head.as_bytes()), None, Some(b"\r\n".as_slice())];
        let reply = match command {
            Command::Set => {
                request.extend(bulk);
                vec![Some(b"+OK\r\n".as_slice())]
            }
            Command::Get => bulk,
        };
        Wire {
            request: Template::of(&request),
            reply: Template::of(&reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(command: Command, value_bytes: usize, number: u64) -> (String, String) {
        let mut wire = Wire::of(
            command,
            Data {
                keys: 1,
                value_bytes,
            },
        );
        wire.request.set_key(key(number));
        wire.reply.set_key(key(number));
        let text = |template: &Template| String::from_utf8(template.bytes().to_vec()).unwrap();
        (text(&wire.request), text(&wire.reply))
    }

    #[test]
    fn requests_and_replies_carry_the_key() {
        let bulk = "$18\r\nkey:000000001234vv\r\n";
        let (request, reply) = texts(Command::Set, 18, 1234);
        let head = "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000001234\r\n";
        assert_eq!(
            (request, reply),
            (format!("{head}{bulk}"), "+OK\r\n".to_owned())
        );
        let (request, reply) = texts(Command::Get, 18, 1234);
        assert_eq!(request, "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000001234\r\n");
        assert_eq!(reply, bulk);
    }

    #[test]
    fn short_values_carry_none() {
        for value_bytes in [0, 1, 16] {
            let value = "v".repeat(value_bytes);
            assert_eq!(
                texts(Command::Get, value_bytes, 5).1,
                format!("${value_bytes}\r\n{value}\r\n")
            );
        }
    }
}
