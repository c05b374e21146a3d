//! The data plane: all endpoints, and the sockets of those that are connected. Driven by the polling thread alone.
//!
//! A poll touches only endpoints that have something to do, by lists: of those that were posted to, of those whose
//! sockets have bytes, of those that have something to report. Sockets are watched for edges, so one that was not
//! emptied stays on its list until it is.

use std::{mem::MaybeUninit, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{
    event::epoll::{self, EventData, EventFlags},
    io::Errno,
};

use super::{
    config::TcpConfig,
    core::{Core, LAST_BYTES},
    endpoint::{Endpoint, Up},
    set_up::{self, MAX_EXPOSED},
    socket::{Came, Socket},
    timer_fd::TimerFd,
};
use crate::{
    BreakReason, Completion, EndpointId, GroupTag, HELLO_BYTES, NodeId, Op, PostError, Region, RegionKind, Time, Token,
    endpoints::{Endpoints, TCP},
    net::{Command, Connect, DataStream, Event, Paired},
    recvs::RecvQueue,
};

/// The number of sockets that one call reports.
const READY: usize = 128;

/// The number of bytes that one endpoint receives before others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// The doorbell's name among sockets, which are named by their endpoints.
const BELL: u64 = u64::MAX;

/// The timer's name among sockets.
const TIMER: u64 = u64::MAX - 1;

pub(super) struct Data {
    pub(super) core: Core,
    pub(super) endpoints: Endpoints<Endpoint>,
    /// Commands to the control plane, sent with the next poll.
    pub(super) commands: Vec<Command>,
    /// Reports the sockets that are ready; the doorbell is among them.
    pub(super) epoll: OwnedFd,
    /// Whether the doorbell has rung since this was last cleared.
    pub(super) rung: bool,
}

impl Data {
    /// A data plane without endpoints; `bell` is signaled to end a wait.
    pub(super) fn new(config: TcpConfig, bell: &Arc<OwnedFd>) -> Result<Data, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // It is watched for edges, so that it never has to be read.
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &**bell, EventData::new_u64(BELL), edges)?;
        let timer = TimerFd::new()?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), edges)?;
        Ok(Data {
            core: Core::new(config, timer),
            endpoints: Endpoints::new(TCP),
            commands: Vec::new(),
            epoll,
            rung: false,
        })
    }

    pub(super) fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        let id = self.endpoints.reserve();
        let endpoint = self.check_connect(peer, tag, expose).map(|()| Endpoint {
            id,
            peer,
            tag,
            hello: hello[..hello.len().min(HELLO_BYTES)].to_vec(),
            announced: false,
            exposed: expose.to_vec(),
            recvs: RecvQueue::default(),
            up: None,
        });
        self.endpoints.put(id, (peer, tag), endpoint)
    }

    fn check_connect(&self, peer: NodeId, tag: GroupTag, expose: &[Region]) -> Result<(), BreakReason> {
        let failed = |text: String| Err(BreakReason::Failed(text));
        self.endpoints.check(self.core.config.net.node, peer, tag)?;
        if expose.iter().any(|region| region.kind() == RegionKind::Phantom) {
            return failed("a phantom region, which only the simulator moves, can't be exposed".to_owned());
        }
        if expose.len() > MAX_EXPOSED {
            return failed(format!("{} regions can't be exposed: {MAX_EXPOSED} at most", expose.len()));
        }
        Ok(())
    }

    /// Closes an endpoint. Posted work is tried once.
    pub(super) fn disconnect(&mut self, on: EndpointId) {
        let Some(endpoint) = self.endpoints.remove(on) else { return };
        tracing::debug!(peer = %endpoint.peer, tag = ?endpoint.tag, endpoint = on.0, "disconnected");
        if let Some(up) = endpoint.up {
            self.core.close(up);
        }
        // Of an endpoint that was not announced yet, the control plane knows nothing.
        if endpoint.announced {
            self.commands.push(Command::Close { endpoint: on, reason: BreakReason::PeerClosed });
        }
    }

    #[inline]
    pub(super) fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        let endpoint = self.endpoints.get_mut(on).ok_or(PostError::Broken)?;
        endpoint.post(self.core.depth, &mut self.core.stats, op, token)?;
        if let Some(up) = &mut endpoint.up {
            self.core.list(on, up);
        }
        Ok(())
    }

    /// Whether the next poll has something to do that would come without a signal.
    pub(super) fn is_unfinished(&self) -> bool {
        !self.core.is_idle() || self.endpoints.has_news() || !self.commands.is_empty()
    }

    pub(super) fn poll(&mut self, out: &mut Vec<Completion>) {
        if self.endpoints.has_news() {
            self.endpoints.report_stillborn(out);
            self.announce();
        }
        self.send();
        self.look();
        self.receive(out);
        // Sends the answers to peers' reads, and work that has found room meanwhile.
        self.send();
        self.report(out);
        if !(self.core.ended.is_empty() && self.core.stuck.is_empty()) {
            self.look_at_the_clock(out);
        }
    }

    /// Tells the control plane of new endpoints, so that they meet their counterparts.
    fn announce(&mut self) {
        for id in self.endpoints.take_new() {
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            endpoint.announced = true;
            let set_up = set_up::encode(self.core.depth, &endpoint.hello, &endpoint.exposed);
            let connect = Connect { endpoint: id, peer: endpoint.peer, tag: endpoint.tag, set_up };
            self.commands.push(Command::Connect(connect));
        }
    }

    /// Takes an event of the control plane.
    pub(super) fn on_event(&mut self, event: Event, out: &mut Vec<Completion>) {
        match event {
            Event::Paired(paired) => {
                let id = paired.endpoint;
                if let Err(reason) = self.on_paired(*paired, out) {
                    self.fail(id, reason, out);
                }
            }
            // This plane sends no such messages.
            Event::Told { .. } => {}
            Event::Broken { endpoint, reason } => self.on_broken(endpoint, reason, out),
        }
    }

    /// Breaks an endpoint of which the control plane says that it is no more. Bytes that the peer sent before are not
    /// lost, as far as they have come; and if the peer closed its side, as far as they come soon.
    fn on_broken(&mut self, id: EndpointId, reason: BreakReason, out: &mut Vec<Completion>) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        if let Some(up) = &mut endpoint.up {
            up.socket.ending = true;
            // Of a stream that has ended nothing more comes; but a send that failed leaves the bytes that came before.
            up.closed = reason == BreakReason::PeerClosed && up.ended.is_none();
            if up.closed {
                self.core.read(id, up);
                return self.core.wait_for_end(id);
            }
            // An error of it does not matter any more.
            let _ = endpoint.receive(&mut self.core, &mut LAST_BYTES.clone(), out);
        }
        self.break_endpoint(id, reason, out);
    }

    fn on_paired(&mut self, paired: Paired, out: &mut Vec<Completion>) -> Result<(), BreakReason> {
        // The endpoint may have been closed meanwhile.
        let Some(endpoint) = self.endpoints.get_mut(paired.endpoint) else { return Ok(()) };
        let set_up = set_up::decode(&paired.set_up);
        let (Some(set_up), Some(stream)) = (set_up, paired.stream) else {
            return Err(BreakReason::Failed(format!("{} said what no node says of an endpoint", endpoint.peer)));
        };
        let DataStream { socket, tls, mut early } = stream;
        let socket = OwnedFd::from(socket);
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        self.core
            .prepare(&socket)
            .and_then(|()| epoll::add(&self.epoll, &socket, EventData::new_u64(endpoint.id.0), flags))
            .map_err(|cause| BreakReason::Failed(format!("its connection could not be watched: {cause}")))?;
        tracing::debug!(peer = %endpoint.peer, tag = ?endpoint.tag, endpoint = endpoint.id.0, "connected");
        endpoint.up = Some(Up::new(Socket::new(socket, tls), set_up.remote.clone(), set_up.depth));
        out.push(Completion::Connected { endpoint: endpoint.id, remote: set_up.remote, hello: set_up.hello });
        endpoint.receive_early(&mut self.core, &mut early, out)
    }

    /// Asks which sockets are ready.
    pub(super) fn look(&mut self) {
        self.core.stats.ready_calls += 1;
        let mut ready = [const { MaybeUninit::uninit() }; READY];
        let ready = match epoll::wait(&self.epoll, &mut ready, Some(&NO_TIME)) {
            Ok((ready, _)) => &*ready,
            Err(Errno::INTR) => &[],
            Err(error) => {
                tracing::error!(%error, "asking which sockets are ready failed");
                &[]
            }
        };
        for event in ready {
            // The event is a packed structure.
            let (flags, id) = (event.flags, event.data.u64());
            self.rung |= id == BELL;
            let id = EndpointId(id);
            let Some(up) = self.endpoints.get_mut(id).and_then(|endpoint| endpoint.up.as_mut()) else { continue };
            up.socket.ending |= flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            if flags.contains(EventFlags::IN) || up.socket.ending {
                self.core.read(id, up);
            }
            if flags.contains(EventFlags::OUT) && !up.socket.writable {
                up.socket.writable = true;
                up.stuck_since = None;
                self.core.list(id, up);
            }
        }
    }

    /// Takes the bytes that have come, of each endpoint in turn.
    fn receive(&mut self, out: &mut Vec<Completion>) {
        let mut budget = self.core.config.poll_bytes;
        while budget > 0
            && let Some(id) = self.core.readable.pop_front()
        {
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            let mut turn = TURN_BYTES.min(budget);
            let before = turn;
            let came = endpoint.receive(&mut self.core, &mut turn, out);
            budget -= before - turn;
            match came {
                Ok(Came::All) => {}
                Ok(Came::Some) => {
                    if let Some(up) = &mut endpoint.up {
                        self.core.read(id, up);
                    }
                }
                Ok(Came::Ended(_)) if endpoint.is_closed() => {
                    self.break_endpoint(id, BreakReason::PeerClosed, out);
                }
                Ok(Came::Ended(why)) => self.core.end(endpoint, why),
                Err(_) if endpoint.is_closed() => self.break_endpoint(id, BreakReason::PeerClosed, out),
                Err(reason) => self.fail(id, reason, out),
            }
        }
    }

    /// Gives posted work to the sockets.
    pub(super) fn send(&mut self) {
        for _ in 0..self.core.sending.len() {
            let Some(id) = self.core.sending.pop_front() else { break };
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            self.core.send(endpoint);
        }
    }

    /// Reports work that is complete.
    fn report(&mut self, out: &mut Vec<Completion>) {
        for at in 0..self.core.touched.len() {
            let id = self.core.touched[at];
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            if let Some(up) = &mut endpoint.up {
                up.listed.touched = false;
            }
            if let Some(reason) = endpoint.retire(self.core.depth, out) {
                self.fail(id, reason, out);
            }
        }
        self.core.touched.clear();
    }

    /// Ends streams of which the control plane said nothing, and those whose peer acknowledges nothing any more.
    #[cold]
    fn look_at_the_clock(&mut self, out: &mut Vec<Completion>) {
        let (now, timeout) = (Time::boot_clock(), self.core.config.net.failure_timeout);
        let over = self.core.ended.extract_if(.., |(_, until)| *until <= now).map(|(id, _)| id);
        for id in over.collect::<Vec<_>>() {
            let Some(up) = self.endpoints.get_mut(id).and_then(|endpoint| endpoint.up.as_mut()) else { continue };
            if up.closed {
                self.break_endpoint(id, BreakReason::PeerClosed, out);
            } else if let Some(why) = up.ended.take() {
                self.fail(id, BreakReason::Lost(why), out);
            }
        }
        if !self.core.stuck.is_empty() && now >= self.core.look_at_stuck {
            self.look_at_stuck(now, timeout, out);
        }
        self.core.set_alarm();
    }

    /// Breaks endpoints whose peer's host acknowledges nothing any more.
    fn look_at_stuck(&mut self, now: Time, timeout: Duration, out: &mut Vec<Completion>) {
        self.core.look_at_stuck = now + timeout / 4;
        for id in std::mem::take(&mut self.core.stuck) {
            let Some(up) = self.endpoints.get_mut(id).and_then(|endpoint| endpoint.up.as_mut()) else { continue };
            let Some(since) = up.stuck_since else {
                up.listed.stuck = false;
                continue;
            };
            // A peer that does not read is legal, and its host says so; one whose host says nothing is not there.
            if now.since(since) >= timeout && up.socket.silence().is_some_and(|silence| silence >= timeout) {
                self.fail(id, BreakReason::Unreachable, out);
            } else {
                self.core.stuck.push(id);
            }
        }
    }

    /// Breaks an endpoint, and tells its counterpart the reason.
    fn fail(&mut self, id: EndpointId, reason: BreakReason, out: &mut Vec<Completion>) {
        self.commands.push(Command::Close { endpoint: id, reason: reason.clone() });
        self.break_endpoint(id, reason, out);
    }

    pub(super) fn break_endpoint(&mut self, id: EndpointId, reason: BreakReason, out: &mut Vec<Completion>) {
        if let Some(endpoint) = self.endpoints.remove(id) {
            endpoint.finish(reason, out);
        }
    }

    /// Closes all connections; posted work is tried once.
    pub(super) fn shut_down(&mut self) {
        for id in self.endpoints.ids() {
            if let Some(up) = self.endpoints.remove(id).and_then(|endpoint| endpoint.up) {
                self.core.close(up);
            }
        }
    }
}

const NO_TIME: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
