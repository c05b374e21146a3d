//! The state that endpoints share: a buffer, counters, and the lists of endpoints that have something to do.

use std::{collections::VecDeque, os::fd::OwnedFd, time::Duration};

use rustix::io::Errno;

use super::{
    config::TcpConfig,
    endpoint::{Endpoint, Listed, Up},
    receive::{Local, Receiver},
    socket::{Came, Socket},
    stats::TcpStats,
    timer_fd::TimerFd,
};
use crate::{BreakReason, Completion, EndpointId, RemoteRegion, Time};

/// The silence after which a connection is asked whether it still is one.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The number of bytes that had come before an endpoint's end and are still taken.
pub(super) const LAST_BYTES: usize = 8 << 20;
/// The state that endpoints share.
pub(super) struct Core {
    pub(super) depth: usize,
    pub(super) config: TcpConfig,
    pub(super) staging: Vec<u8>,
    pub(super) stats: TcpStats,
    /// Endpoints that have bytes to send, and whose sockets may take them.
    pub(super) sending: VecDeque<EndpointId>,
    /// Endpoints whose sockets may have bytes.
    pub(super) readable: VecDeque<EndpointId>,
    /// Endpoints that may have something to report.
    pub(super) touched: Vec<EndpointId>,
    /// Endpoints whose streams have ended, and the times until which the control plane may give the reason; and those
    /// whose peer has closed them, and the times until which the rest of their streams may come.
    pub(super) ended: Vec<(EndpointId, Time)>,
    /// Endpoints whose sockets take nothing. At `look_at_stuck` the fabric checks whether their peers still
    /// acknowledge.
    pub(super) stuck: Vec<EndpointId>,
    pub(super) look_at_stuck: Time,
    /// The timer that ends a wait when the clock is to be looked at.
    pub(super) timer: TimerFd,
}

impl Core {
    pub(super) fn new(config: TcpConfig, timer: TimerFd) -> Core {
        Core {
            depth: config.queue_depth,
            staging: vec![0; config.staging_bytes],
            config,
            stats: TcpStats::default(),
            sending: VecDeque::new(),
            readable: VecDeque::new(),
            touched: Vec::new(),
            ended: Vec::new(),
            stuck: Vec::new(),
            look_at_stuck: Time::ZERO,
            timer,
        }
    }

    /// Whether no endpoint has anything to do.
    pub(super) fn is_idle(&self) -> bool {
        self.sending.is_empty() && self.readable.is_empty() && self.touched.is_empty()
    }

    pub(super) fn prepare(&self, socket: &OwnedFd) -> Result<(), Errno> {
        use rustix::net::sockopt;
        rustix::io::ioctl_fionbio(socket, true)?;
        sockopt::set_tcp_nodelay(socket, true)?;
        // The link's heartbeats vouch for the peer, but not for this flow, which a device on the way may forget.
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE / 3)?;
        sockopt::set_tcp_keepcnt(socket, 3)?;
        if let Some(bytes) = self.config.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size(socket, bytes)?;
        }
        if let Some(bytes) = self.config.receive_buffer_bytes {
            sockopt::set_socket_recv_buffer_size(socket, bytes)?;
        }
        Ok(())
    }

    /// Has the next poll send and report for this endpoint, if there is something.
    #[inline]
    pub(super) fn list(&mut self, id: EndpointId, up: &mut Up) {
        if up.may_send() {
            if !std::mem::replace(&mut up.listed.sending, true) {
                self.sending.push_back(id);
            }
        } else if up.breaking.is_some() {
            self.touch(id, up);
        }
    }

    /// Has the next poll take the bytes that have come.
    pub(super) fn read(&mut self, id: EndpointId, up: &mut Up) {
        if !std::mem::replace(&mut up.listed.readable, true) {
            self.readable.push_back(id);
        }
    }

    #[inline]
    fn touch(&mut self, id: EndpointId, up: &mut Up) {
        if !std::mem::replace(&mut up.listed.touched, true) {
            self.touched.push(id);
        }
    }

    pub(super) fn send(&mut self, endpoint: &mut Endpoint) {
        let id = endpoint.id;
        let Some(up) = &mut endpoint.up else { return };
        up.listed.sending = false;
        if !up.may_send() {
            return;
        }
        let mut budget = self.config.poll_bytes;
        let result = up.socket.send(&mut up.send_queue, &mut budget, &mut self.stats);
        self.touch(id, up);
        self.list(id, up);
        if !up.socket.writable && up.stuck_since.is_none() {
            let now = Time::boot_clock();
            up.stuck_since = Some(now);
            if !std::mem::replace(&mut up.listed.stuck, true) {
                if self.stuck.is_empty() {
                    self.look_at_stuck = now + self.config.net.failure_timeout / 4;
                }
                self.stuck.push(id);
                self.set_alarm();
            }
        }
        if let Err(why) = result {
            // Bytes that the peer sent before may still be there.
            up.socket.ending = true;
            self.read(id, up);
            self.end(endpoint, why);
        }
    }

    /// Takes note that a stream has ended. The control plane is given a while to give the reason.
    pub(super) fn end(&mut self, endpoint: &mut Endpoint, why: String) {
        let Some(up) = &mut endpoint.up else { return };
        if up.ended.is_some() || up.closed {
            return;
        }
        let cut = if up.receiver.is_between_frames() { "" } else { ", in the middle of a message" };
        up.ended = Some(format!("{why}{cut}"));
        self.wait_for_end(endpoint.id);
    }

    /// Gives the other plane a while to bring the rest.
    pub(super) fn wait_for_end(&mut self, id: EndpointId) {
        self.ended.push((id, Time::boot_clock() + grace(self.config.net.failure_timeout)));
        self.set_alarm();
    }

    /// Sets the timer to the time at which the clock is to be looked at next.
    pub(super) fn set_alarm(&mut self) {
        let ends = self.ended.iter().map(|(_, until)| *until);
        let stuck = (!self.stuck.is_empty()).then_some(self.look_at_stuck);
        self.timer.set(ends.chain(stuck).min());
    }

    pub(super) fn close(&mut self, mut up: Up) {
        if up.ended.is_none() {
            let mut budget = self.config.poll_bytes;
            let _ = up.socket.send(&mut up.send_queue, &mut budget, &mut self.stats);
        }
        up.socket.close(&mut self.staging, LAST_BYTES);
    }
}

/// The time for which the control plane may still give the reason for a stream's end. Its connection may be slower, and
/// it notices a peer that is gone within the failure timeout at the latest.
fn grace(failure_timeout: Duration) -> Duration {
    failure_timeout / 2
}

impl Up {
    pub(super) fn new(socket: Socket, remote: Vec<RemoteRegion>, peer_depth: usize) -> Up {
        Up {
            socket,
            remote,
            peer_depth,
            receiver: Default::default(),
            send_queue: Default::default(),
            pending: VecDeque::new(),
            was_full: false,
            reads: VecDeque::new(),
            answered: 0,
            asked: Vec::new(),
            answers: VecDeque::new(),
            breaking: None,
            ended: None,
            closed: false,
            stuck_since: None,
            listed: Listed::default(),
        }
    }
}

impl Endpoint {
    pub(super) fn is_closed(&self) -> bool {
        self.up.as_ref().is_some_and(|up| up.closed)
    }

    pub(super) fn receive(
        &mut self,
        core: &mut Core,
        budget: &mut usize,
        out: &mut Vec<Completion>,
    ) -> Result<Came, BreakReason> {
        self.with_local(core, out, |up_socket, receiver, local, staging, stats| {
            up_socket.receive(receiver, local, staging, budget, stats)
        })
        .unwrap_or(Ok(Came::All))
    }

    pub(super) fn receive_early(
        &mut self,
        core: &mut Core,
        early: &mut [u8],
        out: &mut Vec<Completion>,
    ) -> Result<(), BreakReason> {
        if early.is_empty() {
            return Ok(());
        }
        core.stats.bytes_received += early.len() as u64;
        self.with_local(core, out, |socket, receiver, local, _, _| socket.take_early(early, receiver, local))
            .unwrap_or(Ok(()))
    }

    /// Has the peer's stream act on this endpoint, and queues the answers that it asks for.
    fn with_local<R>(
        &mut self,
        core: &mut Core,
        out: &mut Vec<Completion>,
        act: impl FnOnce(&mut Socket, &mut Receiver, &mut Local<'_>, &mut [u8], &mut TcpStats) -> R,
    ) -> Option<R> {
        let up = self.up.as_mut()?;
        up.listed.readable = false;
        // The peer may know of an answer that has left, though the answer is not reported, nor known to be with the
        // socket.
        while up.answers.pop_front_if(|end| *end <= up.send_queue.taken()).is_some() {}
        let mut local = Local {
            endpoint: self.id,
            exposed: &self.exposed,
            recvs: &mut self.recvs.queue,
            reads: &mut up.reads,
            answered: &mut up.answered,
            asked: &mut up.asked,
            may_ask: up.peer_depth.saturating_sub(up.answers.len()),
            out,
        };
        let (frames, bulk) = (up.receiver.frames, up.receiver.bulk);
        let result = act(&mut up.socket, &mut up.receiver, &mut local, &mut core.staging, &mut core.stats);
        core.stats.frames_received += up.receiver.frames - frames;
        core.stats.bulk_received += up.receiver.bulk - bulk;
        if !up.asked.is_empty() {
            up.answer(&mut core.stats);
        }
        core.touch(self.id, up);
        core.list(self.id, up);
        Some(result)
    }
}
