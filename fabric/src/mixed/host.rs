//! The host of each node, by the spelling of their addresses: all nodes come to the same result.

use std::net::IpAddr;

/// Whether two addresses, each `host:port` or `[IPv6 address]:port`, are of one host, as far as their spelling says.
/// All loopback addresses are (RFC 6761, §6.3, for names).
pub fn shares_host(one: &str, other: &str) -> bool {
    let (one, other) = (Host::of(one), Host::of(other));
    one == other || one.is_loopback() && other.is_loopback()
}

#[derive(PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    /// A name, in lower case.
    Name(String),
}

impl Host {
    fn of(address: &str) -> Host {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match host.parse::<IpAddr>() {
            Ok(ip) => Host::Ip(ip.to_canonical()),
            Err(_) => Host::Name(host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()),
        }
    }

    fn is_loopback(&self) -> bool {
        match self {
            Host::Ip(ip) => ip.is_loopback(),
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_known_by_their_spelling() {
        for (one, other, together) in [
            ("10.0.0.1:1", "10.0.0.1:2", true),
            ("10.0.0.1:1", "[::ffff:10.0.0.1]:2", true),
            ("127.0.0.1:1", "[::1]:2", true),
            ("127.0.0.1:1", "a.localhost:2", true),
            ("Host.example:1", "host.example.:2", true),
            ("10.0.0.1:1", "10.0.0.2:1", false),
            ("10.0.0.1:1", "127.0.0.1:1", false),
            ("a.example:1", "b.example:1", false),
        ] {
            assert_eq!(shares_host(one, other), together, "{one} and {other}");
            assert_eq!(shares_host(other, one), together, "{other} and {one}");
        }
    }
}
