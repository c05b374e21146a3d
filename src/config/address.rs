//! The addresses at which members listen.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

/// A host and a port: `10.0.0.1:7700`, `[fd00::1]:7700` or `host.example:7700`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Host {
    Ip(IpAddr),
    /// A name, in lower case.
    Name(String),
}

/// The error that a text is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give a host and a port, such as \"10.0.0.1:7700\", \"[fd00::1]:7700\" or \"host.example:7700\"")]
pub struct NoAddress;

/// The longest host name, in bytes (RFC 1035, §2.3.4).
const MAX_NAME: usize = 253;

impl Address {
    /// Returns the host as it is dialed: an IP address without brackets, or a name in lower case.
    pub fn host(&self) -> String {
        match &self.host {
            Host::Ip(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the IP address, if the host is not a name.
    pub fn ip(&self) -> Option<IpAddr> {
        match &self.host {
            Host::Ip(ip) => Some(*ip),
            Host::Name(_) => None,
        }
    }

    /// Tells whether it is this host's loopback, by its spelling: `127.0.0.0/8`, `[::1]`, `localhost` and names that
    /// end in `.localhost` (RFC 6761, §6.3).
    pub fn is_loopback(&self) -> bool {
        match &self.host {
            Host::Ip(ip) => ip.to_canonical().is_loopback(),
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }

    /// Tells whether it stands for all addresses of a host (`0.0.0.0`, `[::]`): a node can listen there, and no node
    /// can dial it.
    pub fn is_wildcard(&self) -> bool {
        self.ip().is_some_and(|ip| ip.to_canonical().is_unspecified())
    }

    /// Tells whether both are of one host, as far as their spelling says. All loopback addresses are.
    pub(crate) fn shares_host(&self, other: &Address) -> bool {
        let is_same = match (self.ip(), other.ip()) {
            (Some(one), Some(other)) => one.to_canonical() == other.to_canonical(),
            _ => self.host == other.host,
        };
        is_same || self.is_loopback() && other.is_loopback()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            Host::Ip(ip) => write!(f, "{ip}:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Address, NoAddress> {
        let (host, port) = text.trim().rsplit_once(':').ok_or(NoAddress)?;
        // `parse` alone would accept a sign.
        let port = if port.bytes().all(|byte| byte.is_ascii_digit()) { port.parse().ok() } else { None };
        let port = port.filter(|&port| port > 0).ok_or(NoAddress)?;
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(inner) => Host::Ip(inner.ok_or(NoAddress)?.parse::<Ipv6Addr>().map_err(|_| NoAddress)?.into()),
            None => Host::of_name(host)?,
        };
        Ok(Address { host, port })
    }
}

impl Host {
    fn of_name(text: &str) -> Result<Host, NoAddress> {
        if let Ok(ip) = text.parse::<std::net::Ipv4Addr>() {
            return Ok(Host::Ip(ip.into()));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let labels = |name: &str| name.split('.').all(|label| !label.is_empty() && label.chars().all(fits));
        let name = text.strip_suffix('.').unwrap_or(text);
        // A name's last label is never a number (RFC 3696, §2): this is an IP address with a slip.
        let is_number = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if name.is_empty() || name.len() > MAX_NAME || !labels(name) || is_number {
            return Err(NoAddress);
        }
        Ok(Host::Name(name.to_ascii_lowercase()))
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().expect(text)
    }

    #[test]
    fn an_address_is_shown_as_it_is_read() {
        for text in ["10.0.0.1:7700", "[fd00::1]:7700", "host.example:7700", "localhost:1", "host_3:65535"] {
            assert_eq!(address(text).to_string(), text);
        }
        assert_eq!(address(" Host.Example.:7700 ").to_string(), "host.example:7700");
        assert_eq!(address("[fd00::1]:7700").host(), "fd00::1");
    }

    #[test]
    fn what_nobody_can_dial_is_no_address() {
        for text in [
            "",
            ":",
            "host",
            "host:",
            ":7700",
            "host:0",
            "host:65536",
            "host:+80",
            "host:-1",
            "fd00::1:7700",
            "[fd00::1]",
            "[fd00::1:7700",
            "[10.0.0.1]:80",
            "10.0.0:80",
            "10.0.0.256:80",
            "a b:80",
            "a..b:80",
            "-:",
            "http://host:80",
        ] {
            assert_eq!(text.parse::<Address>(), Err(NoAddress), "{text:?}");
        }
    }

    #[test]
    fn hosts_are_told_apart_by_their_spelling() {
        let shares = |a, b| address(a).shares_host(&address(b));
        assert!(shares("10.0.0.1:1", "10.0.0.1:2"));
        assert!(shares("Host:1", "host:2"));
        assert!(shares("[::ffff:10.0.0.1]:1", "10.0.0.1:2"));
        assert!(!shares("10.0.0.1:1", "10.0.0.2:1"));
        assert!(!shares("host:1", "host.example:1"), "it is not looked up");
        for (a, b) in [("localhost:1", "127.0.0.1:2"), ("[::1]:1", "127.3.2.1:2"), ("a.localhost:1", "[::1]:1")] {
            assert!(shares(a, b), "{a} and {b} are loopback");
        }
        assert!(!shares("127.0.0.1:1", "10.0.0.1:1"));
    }

    #[test]
    fn wildcards_and_loopback_are_seen() {
        for (text, wildcard, loopback) in [
            ("0.0.0.0:1", true, false),
            ("[::]:1", true, false),
            ("127.1.2.3:1", false, true),
            ("localhost.example:1", false, false),
        ] {
            assert_eq!((address(text).is_wildcard(), address(text).is_loopback()), (wildcard, loopback), "{text}");
        }
    }
}
