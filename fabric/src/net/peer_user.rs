//! The user of the process at the other end of a loopback connection, from the kernel's table of sockets.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with},
    process::geteuid,
};

use super::{config::Security, stats::RefusalKind};

/// A reason for which a connection without keys is not trusted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UserError {
    #[error("its process belongs to another user: run both as the same user, or make keys with `squall keys`")]
    Other,
    #[error("it left")]
    Gone,
    #[error(
        "the system does not tell whose process it is ({0}): make keys with `squall keys`, or write `security = \"none\"` if \
         every user of this host may take part"
    )]
    Untold(String),
}

impl UserError {
    pub(super) fn kind(&self) -> RefusalKind {
        match self {
            UserError::Other | UserError::Untold(_) => RefusalKind::OtherUser,
            UserError::Gone => RefusalKind::Left,
        }
    }
}

impl Security {
    /// Checks that the process at the other end of a connection belongs to this process's user, where nothing else
    /// protects the port. A user's equal alone is trusted: root's processes are not, but by root's.
    ///
    /// A connection that was dialed has no owner at its other end until it was accepted, so it is to be checked after
    /// something has come through it.
    pub(super) fn check_user(&self, socket: &TcpStream) -> Result<(), UserError> {
        let Security::LoopbackOnly = self else { return Ok(()) };
        let address = |address: io::Result<SocketAddr>| address.map_err(|_| UserError::Gone);
        let (own, peer) = (address(socket.local_addr())?, address(socket.peer_addr())?);
        let end = match ask(peer, own) {
            // Without the module for TCP the kernel knows no socket, this one neither.
            Ok(None) if !matches!(ask(own, peer), Ok(Some(_))) => read_tables(peer, own),
            Err(_) => read_tables(peer, own),
            Ok(end) => Ok(end),
        };
        match end.map_err(|cause| UserError::Untold(cause.to_string()))? {
            Some(SocketEntry { user, inode: 1.., .. }) if user == geteuid().as_raw() => Ok(()),
            Some(SocketEntry { inode: 1.., .. }) => Err(UserError::Other),
            // A socket without a process counts as root's.
            Some(_) | None => Err(UserError::Gone),
        }
    }
}

/// A socket of the kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketEntry {
    own: SocketAddr,
    peer: SocketAddr,
    user: u32,
    /// 0: no process has the socket.
    inode: u64,
}

impl SocketEntry {
    fn has(&self, own: SocketAddr, peer: SocketAddr) -> bool {
        canonical(self.own) == canonical(own) && canonical(self.peer) == canonical(peer)
    }
}

/// An address without the IPv6 form of IPv4: the two ends of a connection may differ in that.
fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// The numbers of `linux/netlink.h`, `linux/sock_diag.h` and `linux/inet_diag.h`.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The largest number of an error (`MAX_ERRNO` of the kernel).
const MAX_ERRNO: i32 = 4095;

/// Asks the kernel for the socket with these addresses, by `NETLINK_SOCK_DIAG`. It answers within the send.
fn ask(own: SocketAddr, peer: SocketAddr) -> Result<Option<SocketEntry>, Errno> {
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    send(&kernel, &request(own, peer), SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (len, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    let found = entry(&answer[..len]).ok_or(Errno::PROTO)?;
    // The kernel may find a socket that only listens there.
    Ok(found?.filter(|socket| socket.has(own, peer)))
}

/// A request for one socket: `nlmsghdr`, and `inet_diag_req_v2` with `inet_diag_sockid` in it.
fn request(own: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let (own, peer) = (canonical(own), canonical(peer));
    let family = if own.0.is_ipv4() && peer.0.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut bytes = Vec::with_capacity(72);
    bytes.extend(72u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    // The message's number, and the port that the kernel knows.
    bytes.extend([0; 8]);
    bytes.extend([family, IPPROTO_TCP, 0, 0]);
    // Any state.
    bytes.extend([0xff; 4]);
    bytes.extend(own.1.to_be_bytes());
    bytes.extend(peer.1.to_be_bytes());
    for (ip, _) in [own, peer] {
        let mut field = [0; 16];
        match ip {
            IpAddr::V4(ip) if family == AF_INET => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V4(ip) => field = ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => field = ip.octets(),
        }
        bytes.extend(field);
    }
    // Any interface, and no cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

/// The socket in the kernel's answer: `nlmsghdr` and `inet_diag_msg`, or `nlmsgerr`. None if it is malformed.
fn entry(bytes: &[u8]) -> Option<Result<Option<SocketEntry>, Errno>> {
    let field = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let is_error = |number: &i32| (1..=MAX_ERRNO).contains(number);
    match u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?) {
        NLMSG_ERROR => match Errno::from_raw_os_error((field(16)? as i32).checked_neg().filter(is_error)?) {
            Errno::NOENT => Some(Ok(None)),
            error => Some(Err(error)),
        },
        SOCK_DIAG_BY_FAMILY => {
            let address = |port: usize, ip: usize| {
                let port = u16::from_be_bytes(bytes.get(port..port + 2)?.try_into().ok()?);
                let ip = <[u8; 16]>::try_from(bytes.get(ip..ip + 16)?).ok()?;
                match bytes[16] {
                    AF_INET => Some(SocketAddr::from(([ip[0], ip[1], ip[2], ip[3]], port))),
                    AF_INET6 => Some(SocketAddr::from((ip, port))),
                    _ => None,
                }
            };
            let (own, peer) = (address(20, 24)?, address(22, 40)?);
            Some(Ok(Some(SocketEntry { own, peer, user: field(80)?, inode: field(84)?.into() })))
        }
        _ => None,
    }
}

/// Reads bytes as the kernel's answer, and as its tables.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = entry(bytes);
    String::from_utf8_lossy(bytes).lines().for_each(|line| _ = table_entry(line));
}

/// Looks for the socket in `/proc/net`, where netlink is not permitted. It reads the whole table.
fn read_tables(own: SocketAddr, peer: SocketAddr) -> io::Result<Option<SocketEntry>> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let find = |table: &String| table.lines().filter_map(table_entry).find(|socket| socket.has(own, peer));
    // There is no table for IPv6 where the system has none.
    match tables.iter().flatten().find_map(find) {
        Some(found) => Ok(Some(found)),
        None => tables.into_iter().next().map_or(Ok(None), |table| table.map(|_| None)),
    }
}

/// The socket of a line of `/proc/net/tcp` or `tcp6` (proc_net_tcp.rst in the kernel's documentation).
fn table_entry(line: &str) -> Option<SocketEntry> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let address = |text: &str| {
        let (ip, port) = text.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        // Each 32 bits are shown as a number of this host, though they lie in the network's order.
        let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
        match ip.len() {
            8 => Some(SocketAddr::from((word(0)?, port))),
            32 => {
                let words = [word(0)?, word(8)?, word(16)?, word(24)?];
                let octets: [u8; 16] = words.concat().try_into().ok()?;
                Some(SocketAddr::from((Ipv6Addr::from(octets), port)))
            }
            _ => None,
        }
    };
    let (own, peer) = (address(fields.get(1)?)?, address(fields.get(2)?)?);
    Some(SocketEntry { own, peer, user: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    use super::*;

    /// A connection, dialed and not accepted yet, and its listener. The addresses are of one host in two spellings.
    fn dialed(listen: &str, dial: &str) -> (TcpListener, TcpStream) {
        let listener = TcpListener::bind((listen, 0)).expect("a loopback address");
        let port = listener.local_addr().expect("it is bound").port();
        let stream = TcpStream::connect((dial, port)).expect("it listens");
        (listener, stream)
    }

    fn ends(socket: &TcpStream) -> (SocketAddr, SocketAddr) {
        (socket.local_addr().expect("it is connected"), socket.peer_addr().expect("it is connected"))
    }

    #[test]
    fn the_own_user_is_known_in_both_tables_and_both_directions() {
        let pairs = [("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "::ffff:127.0.0.2"), ("::1", "::1")];
        for (listen, dial) in pairs.into_iter().chain([("::ffff:127.0.0.1", "127.0.0.1")]) {
            let (listener, mut dialed) = dialed(listen, dial);
            let (mut accepted, _) = listener.accept().expect("it was dialed");
            accepted.write_all(&[1]).expect("it is connected");
            dialed.read_exact(&mut [0]).expect("a byte comes");
            for socket in [&dialed, &accepted] {
                let (own, peer) = ends(socket);
                let by_netlink = ask(peer, own).expect("the kernel answers").expect("it is there");
                let by_table = read_tables(peer, own).expect("there is a table").expect("it is there");
                assert_eq!((by_netlink.user, by_netlink.inode), (by_table.user, by_table.inode), "{listen} {dial}");
                assert_eq!(by_netlink.user, geteuid().as_raw());
                assert_eq!(Security::LoopbackOnly.check_user(socket), Ok(()), "{listen} {dial}");
            }
        }
    }

    #[test]
    fn an_end_without_a_process_is_of_no_user() {
        let (listener, waits) = dialed("127.0.0.1", "127.0.0.1");
        assert_eq!(Security::LoopbackOnly.check_user(&waits), Err(UserError::Gone), "it was not accepted");
        let (accepted, _) = listener.accept().expect("it was dialed");
        assert_eq!(Security::LoopbackOnly.check_user(&accepted), Ok(()));
        drop(waits);
        assert_eq!(Security::LoopbackOnly.check_user(&accepted), Err(UserError::Gone), "it was closed");
        assert_eq!(Security::None.check_user(&accepted), Ok(()), "there is no one to keep out");
        // Nor is a socket that only listens the end of a connection.
        let (at, nowhere) = (listener.local_addr().expect("it is bound"), SocketAddr::from(([127, 0, 0, 1], 1)));
        assert_eq!(ask(at, nowhere), Ok(None));
        assert_eq!(read_tables(at, nowhere).expect("there is a table"), None);
    }

    #[test]
    fn lines_of_the_tables_are_read() {
        let line =
            "   4: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 34567 1 0 20";
        let found = table_entry(line).expect("a socket");
        let octets = |host: u32| host.to_ne_bytes();
        let own = SocketAddr::from((octets(0x0100_007f), 8080));
        assert_eq!((found.own, found.user, found.inode), (own, 1000, 34567));
        let line = line.replace("0100007F:", "0000000000000000FFFF00000100007F:").replace(" 0200007F:", " 02:");
        assert_eq!(table_entry(&line), None, "an address is malformed");
        assert_eq!(
            table_entry("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"),
            None
        );
        assert_eq!(table_entry(""), None);
    }

    #[test]
    fn answers_that_are_cut_are_malformed() {
        let (own, peer) = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 2], 2)));
        let request = request(own, peer);
        assert_eq!(request.len(), 72);
        // An answer has the same addresses, at other places.
        let mut answer = [&request[..16], &[AF_INET, 1, 0, 0], &request[24..72], &[0; 12]].concat();
        answer.extend([1000u32.to_ne_bytes(), 7u32.to_ne_bytes()].concat());
        let expected = SocketEntry { own, peer, user: 1000, inode: 7 };
        assert_eq!(entry(&answer), Some(Ok(Some(expected))));
        for len in 0..answer.len() {
            assert_eq!(entry(&answer[..len]), None, "cut to {len}");
        }
        let mut error = answer.clone();
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        for (number, expected) in [(-2i32, Ok(None)), (-1, Err(Errno::PERM))] {
            error[16..20].copy_from_slice(&number.to_ne_bytes());
            assert_eq!(entry(&error), Some(expected));
        }
    }
}
