//! Readiness: edge-triggered epoll, `send` and `recv`.

use std::{io, net::TcpStream, os::fd::OwnedFd};

use rustix::{
    event::epoll,
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::Near;

#[derive(Default)]
pub(crate) struct Epoll;

impl Near for Epoll {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn exchange(&mut self, peers: &[TcpStream], bytes: &[u8], answer: usize, rounds: usize) -> io::Result<()> {
        let epoll: OwnedFd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, peer) in peers.iter().enumerate() {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            epoll::add(&epoll, peer, epoll::EventData::new_u64(index as u64), flags)?;
        }
        let mut buffer = vec![0; answer.max(1)];
        let mut events = Vec::with_capacity(peers.len());
        for _ in 0..rounds {
            let mut sent = vec![0; peers.len()];
            let mut received = vec![0; peers.len()];
            let mut ready: Vec<usize> = (0..peers.len()).collect();
            loop {
                for index in ready.drain(..) {
                    while sent[index] < bytes.len() {
                        match send(&peers[index], &bytes[sent[index]..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                            Ok(count) => sent[index] += count,
                            Err(Errno::AGAIN) => break,
                            Err(error) => return Err(error.into()),
                        }
                    }
                    // At first nothing has arrived, and asking costs a system call.
                    while sent[index] == bytes.len() && received[index] < answer {
                        match recv(&peers[index], &mut buffer[received[index]..], RecvFlags::DONTWAIT) {
                            Ok((count, _)) => received[index] += count,
                            Err(Errno::AGAIN) => break,
                            Err(error) => return Err(error.into()),
                        }
                    }
                }
                if (0..peers.len()).all(|index| sent[index] == bytes.len() && received[index] == answer) {
                    break;
                }
                events.clear();
                epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
                ready.extend(events.iter().map(|event| event.data.u64() as usize));
            }
        }
        Ok(())
    }
}
