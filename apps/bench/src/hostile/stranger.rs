//! A process outside of the cluster, which connects to all its nodes.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use fastrand::Rng;

use crate::{
    job::{HostileJob, WorkerReport},
    parent::say,
};

/// The number of connections at a time.
const THREADS: u64 = 16;

/// The longest time for which a connection is held.
const HOLD: Duration = Duration::from_secs(2);

/// The beginning of a TLS handshake, whose length is a lie.
const CLIENT_HELLO: [u8; 11] = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];

/// Connects, sends garbage, and says nothing, until it is to stop.
pub(super) fn run(job: &HostileJob, begins: &AtomicBool, stops: &AtomicBool) -> Result<(), String> {
    let places = job.place.as_ref().ok_or("there is no network to come over")?;
    let nodes = places.addresses().iter();
    let addresses: Vec<SocketAddr> = nodes.filter_map(|text| text.to_socket_addrs().ok()?.next()).collect();
    if addresses.is_empty() {
        return Err("no node's address could be found".into());
    }
    say(&WorkerReport::Ready);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let addresses = &addresses;
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed);
                while !stops.load(Ordering::Relaxed) {
                    if begins.load(Ordering::Relaxed) {
                        visit(addresses[rng.usize(..addresses.len())], &mut rng);
                    } else {
                        thread::sleep(Duration::from_millis(10));
                    }
                }
            });
        }
    });
    Ok(())
}

/// One connection. A node may close it at any time, so nothing that fails here matters.
fn visit(address: SocketAddr, rng: &mut Rng) {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, HOLD) else { return };
    let _ = stream.set_write_timeout(Some(HOLD));
    let _ = stream.set_read_timeout(Some(Duration::from_nanos(rng.u64(1..=HOLD.as_nanos() as u64))));
    let mut bytes = vec![0; rng.usize(..1 << 16)];
    rng.fill(&mut bytes);
    let _ = match rng.u8(..4) {
        0 => stream.write_all(&bytes),
        1 => stream.write_all(&CLIENT_HELLO).and_then(|()| stream.write_all(&bytes[..bytes.len().min(100)])),
        2 => stream.write_all(&(rng.u32(..)).to_le_bytes()),
        _ => Ok(()),
    };
    let _ = stream.read(&mut [0; 512]);
}
