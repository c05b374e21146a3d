//! The cost of epoll and of io_uring to a fabric's polling thread, side by side on this machine's loopback.
//!
//! Three loads, each carried by both interfaces to the kernel in turn (median of several repeats):
//!
//! - *round trip*: one connection, 64 bytes there and back; both sides sleep for each;
//! - *fan-out*: one thread sends 512 bytes to each of 8 connections and waits for 8 echoes, as a node does that pushes
//!   its row to 8 members;
//! - *bulk*: one thread sends 256 KiB at a time to each of 3 connections, as the root of a sequential multicast does.
//!
//! The far side is the same in both cases: a plain blocking thread per connection. The figures therefore differ by the
//! near side alone.

mod epoll;
mod uring;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// An interface to the kernel by which the near side sends and receives.
trait Near {
    fn name(&self) -> &'static str;
    /// Sends `send` over every connection and receives `recv` bytes from each, `rounds` times.
    fn exchange(&mut self, peers: &[TcpStream], send: &[u8], recv: usize, rounds: usize) -> std::io::Result<()>;
}

struct Load {
    name: &'static str,
    connections: usize,
    send: usize,
    recv: usize,
    rounds: usize,
}

const LOADS: [Load; 3] = [
    Load { name: "round trip, 64 B", connections: 1, send: 64, recv: 64, rounds: 20_000 },
    Load { name: "fan-out, 8 x 512 B", connections: 8, send: 512, recv: 512, rounds: 4_000 },
    Load { name: "bulk, 3 x 256 KiB", connections: 3, send: 256 << 10, recv: 0, rounds: 1_000 },
];

const REPEATS: usize = 7;

/// A connection whose far side takes `take` bytes and answers with `give`, again and again.
fn connection(take: usize, give: usize) -> std::io::Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    thread::spawn(move || {
        let (mut taken, given) = (vec![0; take], vec![7; give]);
        while far.read_exact(&mut taken).is_ok() && far.write_all(&given).is_ok() {}
    });
    Ok(near)
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> std::io::Result<()> {
    println!("{:<20} {:>9} {:>12} {:>12} {:>10}", "load", "way", "us a round", "cpu us", "GB/s");
    for load in &LOADS {
        let mut ways: Vec<Box<dyn Near>> = vec![Box::new(epoll::Epoll::default())];
        match uring::Uring::new() {
            Ok(uring) => ways.push(Box::new(uring)),
            Err(error) => println!("io_uring can't be used here: {error}"),
        }
        let mut figures = vec![(Vec::new(), Vec::new()); ways.len()];
        for _ in 0..REPEATS {
            for (way, (times, cpus)) in ways.iter_mut().zip(&mut figures) {
                let peers: Vec<_> =
                    (0..load.connections).map(|_| connection(load.send, load.recv)).collect::<Result<_, _>>()?;
                let send = vec![1; load.send];
                way.exchange(&peers, &send, load.recv, load.rounds / 10)?;
                let (began, used) = (Instant::now(), cpu());
                way.exchange(&peers, &send, load.recv, load.rounds)?;
                let a_round = |d: Duration| d.as_secs_f64() * 1e6 / load.rounds as f64;
                times.push(a_round(began.elapsed()));
                cpus.push(a_round(cpu() - used));
            }
        }
        for (way, (times, cpus)) in ways.iter().zip(figures) {
            let (time, cpu) = (median(times), median(cpus));
            let rate = (load.connections * load.send) as f64 / time / 1e3;
            println!("{:<20} {:>9} {time:>12.2} {cpu:>12.2} {rate:>10.2}", load.name, way.name());
        }
    }
    Ok(())
}
