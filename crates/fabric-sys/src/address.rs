//! Socket addresses in the form of the C library.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A `sockaddr_in` or `sockaddr_in6`; longer than both.
///
/// ```text
/// 0 u16 family | 2 u16 port, big-endian | 4 IPv4: 4 bytes; IPv6: u32 flow, 16 bytes, u32 scope
/// ```
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Name {
    family: u16,
    port: [u8; 2],
    rest: [u8; 60],
}

const _: () = assert!(size_of::<Name>() == 64);

impl Name {
    /// Room for any address.
    pub(crate) fn room() -> Name {
        Name {
            family: 0,
            port: [0; 2],
            rest: [0; 60],
        }
    }

    pub(crate) fn new(address: SocketAddr) -> Name {
        let port = address.port();
        let mut name = Name {
            family: 0,
            port: [(port >> 8) as u8, port as u8],
            rest: [0; 60],
        };
        match address {
            SocketAddr::V4(address) => {
                name.family = AF_INET;
                name.rest[..4].copy_from_slice(&address.ip().octets());
            }
            SocketAddr::V6(address) => {
                name.family = AF_INET6;
                name.rest[4..20].copy_from_slice(&address.ip().octets());
                name.rest[20..24].copy_from_slice(&address.scope_id().to_le_bytes());
            }
        }
        name
    }

    /// The address, or nothing if it is of another family.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let port = u16::from(self.port[0]) << 8 | u16::from(self.port[1]);
        match self.family {
            AF_INET => {
                let octets: [u8; 4] = self.rest[..4].try_into().ok()?;
                Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port))
            }
            AF_INET6 => {
                let octets: [u8; 16] = self.rest[4..20].try_into().ok()?;
                let scope = u32::from_le_bytes(self.rest[20..24].try_into().ok()?);
                Some(SocketAddr::V6(SocketAddrV6::new(
                    Ipv6Addr::from(octets),
                    port,
                    0,
                    scope,
                )))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in [
            "127.0.0.1:7400",
            "[::1]:1",
            "[fe80::1%3]:65535",
            "0.0.0.0:0",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Name::new(address).address(), Some(address), "{text}");
        }
        assert_eq!(Name::room().address(), None);
    }
}
