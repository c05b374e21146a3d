//! Sockets.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
};

use super::{finding::Area, limits};

/// About six times the bytes under way on a connection of 10 Gbit/s between hosts half a millisecond apart.
const BUFFER: u64 = 4 << 20;

pub(super) fn look() -> Area {
    let mut area = Area::new("tcp", "hosts on any network");
    match round_trip((Ipv4Addr::LOCALHOST, 0).into()) {
        Ok(()) => area.good("connections over loopback work"),
        Err(error) => area.bad(
            format!("no connection over 127.0.0.1: {error}"),
            "bring the loopback interface up: `ip link set lo up` (in this network namespace)",
        ),
    }
    match round_trip((Ipv6Addr::LOCALHOST, 0).into()) {
        Ok(()) => area.good("so do those over IPv6"),
        Err(error) => {
            area.warn(format!("no connection over [::1]: {error}"), "give members IPv4 addresses, or switch IPv6 on");
        }
    }
    for (what, name) in [("receives", "tcp_rmem"), ("sends", "tcp_wmem")] {
        let Some(most) = limits::number(format!("/proc/sys/net/ipv4/{name}")) else { continue };
        if most < BUFFER {
            area.warn(
                format!(
                    "the system keeps at most {} KiB of what a connection {what}: little for fast links",
                    most >> 10
                ),
                format!("raise the last number: `sysctl -w net.ipv4.{name}=\"4096 131072 {BUFFER}\"`"),
            );
        } else {
            area.good(format!("a connection's buffer for what it {what} grows to {} MiB by itself", most >> 20));
        }
    }
    // These limits bound what a configuration may ask for, and nothing else.
    let most = ["rmem_max", "wmem_max"].map(|name| limits::number(format!("/proc/sys/net/core/{name}")));
    if let [Some(receive), Some(send)] = most {
        area.good(format!(
            "receive_buffer_bytes and send_buffer_bytes may be set up to {} and {} KiB (net.core.rmem_max, wmem_max)",
            receive >> 10,
            send >> 10
        ));
    }
    area
}

fn round_trip(at: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(at)?;
    let mut dialed = TcpStream::connect(listener.local_addr()?)?;
    let (mut accepted, _) = listener.accept()?;
    dialed.write_all(&[7])?;
    accepted.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_works_where_the_tests_run() {
        let area = look();
        assert!(area.usable(), "{:?}", area.findings);
    }
}
