//! Completion: io_uring, one `io_uring_enter` for all sends and receives of a round.

use std::{io, net::TcpStream, os::fd::AsRawFd};

use io_uring::{IoUring, opcode, types::Fd};

use crate::Near;

pub(crate) struct Uring(IoUring);

impl Uring {
    pub(crate) fn new() -> io::Result<Uring> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64)?;
        Ok(Uring(ring))
    }
}

/// The bit of a completion's data that marks it as a receive's.
const RECV: u64 = 1 << 32;

impl Near for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn exchange(&mut self, peers: &[TcpStream], bytes: &[u8], answer: usize, rounds: usize) -> io::Result<()> {
        let mut buffers = vec![vec![0u8; answer]; peers.len()];
        for _ in 0..rounds {
            let mut sent = vec![0; peers.len()];
            let mut received = vec![0; peers.len()];
            let mut outstanding = 0;
            let mut due: Vec<u64> = (0..peers.len() as u64).collect();
            if answer > 0 {
                due.extend((0..peers.len() as u64).map(|index| index | RECV));
            }
            loop {
                for data in due.drain(..) {
                    let index = (data & (RECV - 1)) as usize;
                    let fd = Fd(peers[index].as_raw_fd());
                    let entry = if data & RECV == 0 {
                        let rest = &bytes[sent[index]..];
                        opcode::Send::new(fd, rest.as_ptr(), rest.len() as u32).flags(libc_nosignal()).build()
                    } else {
                        let rest = &mut buffers[index][received[index]..];
                        opcode::Recv::new(fd, rest.as_mut_ptr(), rest.len() as u32).build()
                    };
                    // SAFETY: the buffers outlive the request: this function returns only when none is outstanding.
                    unsafe { self.0.submission().push(&entry.user_data(data)) }.map_err(io::Error::other)?;
                    outstanding += 1;
                }
                if outstanding == 0 {
                    break;
                }
                self.0.submit_and_wait(1)?;
                let completed: Vec<_> = self.0.completion().map(|entry| (entry.user_data(), entry.result())).collect();
                for (data, result) in completed {
                    outstanding -= 1;
                    let index = (data & (RECV - 1)) as usize;
                    let count = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
                    let (done, all) = match data & RECV {
                        0 => (&mut sent[index], bytes.len()),
                        _ => (&mut received[index], answer),
                    };
                    *done += count;
                    if *done < all {
                        due.push(data);
                    }
                }
            }
        }
        Ok(())
    }
}

/// `MSG_NOSIGNAL`.
fn libc_nosignal() -> i32 {
    rustix::net::SendFlags::NOSIGNAL.bits() as i32
}
