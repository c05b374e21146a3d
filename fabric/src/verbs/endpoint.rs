//! One side of a connection.

use std::io;

use rdma_sys::ibv_wc_status as status;

use super::{
    address::PortAddress,
    fabric::Core,
    queue::{Completed, Qp},
    sending::Sending,
    setup::{Exposed, SetUp},
    watch::{Announcement, Watch},
};
use crate::{
    BreakReason, Completion, EndpointId, GroupTag, NodeId, Region, RegionKey, RegionKind, Slice, Time,
    endpoints::report_end, net::Command, recvs::RecvQueue,
};

/// One side of a connection, from `connect` until it breaks or is closed.
pub(super) struct Endpoint {
    pub(super) qp: Qp,
    pub(super) id: EndpointId,
    pub(super) peer: NodeId,
    pub(super) tag: GroupTag,
    /// The number of its completion queue.
    pub(super) cq: usize,
    pub(super) set_up: SetUp,
    /// The port's address when it was made.
    pub(super) address: PortAddress,
    /// The regions that the peer may reach.
    pub(super) exposed: Vec<Region>,
    /// Their memory is held until they are complete.
    pub(super) recvs: RecvQueue,
    pub(super) sending: Sending,
    pub(super) stage: ConnectionStage,
    /// Whether the peer was told that it can reach this side.
    pub(super) has_told_ready: bool,
    pub(super) watch: Option<Watch>,
    pub(super) announcement: Announcement,
    /// The end that it is about to come to.
    pub(super) ending: Option<Ending>,
    /// Whether it is among the active ones.
    pub(super) is_active: bool,
}

/// The stage of a connection.
pub(super) enum ConnectionStage {
    /// The next poll announces it.
    New,
    /// The two sides have not both asked for it yet.
    Waiting,
    /// The queue pairs have met; the peer has not said yet that it can be reached.
    Ready(SetUp),
    Up(SetUp),
}

/// The end that an endpoint comes to.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// A reason that this side knows, of which the peer is to be told.
    Known(BreakReason),
    /// The peer or the control plane may give a better reason, until that time.
    Suspected(BreakReason, Time),
}

/// The mark of receives in the ids of work requests: the highest bit, which this fabric's number leaves free in the ids
/// of its endpoints.
const RECV: u64 = 1 << 63;

/// The id of an endpoint's work requests.
pub(super) fn request_id(endpoint: EndpointId, recv: bool) -> u64 {
    endpoint.0 & !RECV | if recv { RECV } else { 0 }
}

/// The endpoint of a work request, and whether that is a receive.
pub(super) fn endpoint_of(request: u64) -> (EndpointId, bool) {
    (EndpointId(request & !RECV), request & RECV != 0)
}

impl Endpoint {
    /// The peer's part, once posts are possible.
    #[inline]
    pub(super) fn up(&self) -> Option<&SetUp> {
        match &self.stage {
            ConnectionStage::Up(theirs) => Some(theirs),
            _ => None,
        }
    }

    /// Has the poll that is under way, or else the next, hand over its work and report its room.
    #[inline]
    pub(super) fn activate(&mut self, core: &mut Core) {
        if !self.is_active {
            self.is_active = true;
            core.active.push(self.id);
        }
    }

    /// Reports the connection, if the peer can be reached and that was not reported yet.
    pub(super) fn connected(&mut self, core: &mut Core, out: &mut Vec<Completion>) {
        match std::mem::replace(&mut self.stage, ConnectionStage::Waiting) {
            ConnectionStage::Ready(mut theirs) => {
                tracing::debug!(peer = %self.peer, tag = ?self.tag, endpoint = self.id.0, "connected");
                let remote = theirs.regions.iter().map(|exposed| exposed.describe).collect();
                let hello = std::mem::take(&mut theirs.hello);
                out.push(Completion::Connected { endpoint: self.id, remote, hello });
                self.stage = ConnectionStage::Up(theirs);
                if self.exposes_polled() {
                    core.unannounced.push(self.id);
                }
            }
            other => self.stage = other,
        }
    }

    /// Hands a receive to the device, which is in the queue already.
    pub(super) fn hand_over_recv(&mut self, core: &mut Core, into: Slice<'_>) -> io::Result<()> {
        let piece = core.piece(into.region, into.offset, into.len)?;
        // SAFETY: the slice was checked to lie in its region, which the queue holds until the receive is complete or
        // the queue pair, which is destroyed before it is dropped, is no more.
        unsafe { self.qp.post_recv(request_id(self.id, true), piece) }
    }

    /// Takes in a completion.
    pub(super) fn on_completed(
        &mut self,
        completed: Completed,
        recv: bool,
        core: &mut Core,
        now: Time,
        out: &mut Vec<Completion>,
    ) {
        self.activate(core);
        if completed.status != status::IBV_WC_SUCCESS {
            return self.on_error(completed.status, recv, core, now);
        }
        if recv {
            // The peer's first message may overtake its `READY`.
            core.look_again |= matches!(self.stage, ConnectionStage::Ready(_));
            self.connected(core, out);
            let Some(recv) = self.recvs.queue.pop_front() else { return };
            let Completed { bytes, imm, .. } = completed;
            debug_assert!(bytes <= recv.len);
            out.push(Completion::Received { endpoint: self.id, token: recv.token, bytes, imm });
            return;
        }
        let before = self.sending.completed;
        self.sending.on_success(self.id, out);
        self.tell_ready(core);
        if self.announcement.end > before {
            // Of writes that came before the announcement was complete, no peer tells.
            core.look_again = true;
        }
        if self.sending.last_polled > before && self.watch.as_mut().is_some_and(Watch::must_tell) {
            core.bells.to_wake.push(self.id);
        }
    }

    #[cold]
    fn on_error(&mut self, error: status::Type, recv: bool, core: &mut Core, now: Time) {
        if self.ending.is_some() {
            return;
        }
        let suspect = |reason| match self.is_bell() {
            false => Ending::Suspected(reason, now + core.failure_timeout / 4),
            // Nobody reads the reason, and a peer may sleep whose ring was lost.
            true => Ending::Known(reason),
        };
        let ending = match error {
            status::IBV_WC_RNR_RETRY_EXC_ERR => Ending::Known(BreakReason::ReceiverNotReady),
            // A message was longer than its receive: to cards the request is invalid, to rxe the receive is.
            status::IBV_WC_REM_INV_REQ_ERR | status::IBV_WC_REM_OP_ERR => Ending::Known(BreakReason::ReceiverNotReady),
            status::IBV_WC_LOC_LEN_ERR | status::IBV_WC_LOC_QP_OP_ERR if recv => {
                Ending::Known(BreakReason::ReceiverNotReady)
            }
            status::IBV_WC_REM_ACCESS_ERR => Ending::Known(BreakReason::Access),
            // The peer has destroyed its queue pair, or the network is interrupted.
            status::IBV_WC_RETRY_EXC_ERR => suspect(BreakReason::Unreachable),
            // The queue pair failed in its other half, or as the peer's did.
            status::IBV_WC_WR_FLUSH_ERR => suspect(BreakReason::Lost("its queue pair failed".to_owned())),
            other => Ending::Known(BreakReason::Failed(describe(other))),
        };
        tracing::debug!(peer = %self.peer, tag = ?self.tag, endpoint = self.id.0, recv, "{}: {ending:?}", describe(error));
        core.has_endings = true;
        self.ending = Some(ending);
    }

    /// Tells the peer that it can reach this side, once that is so.
    pub(super) fn tell_ready(&mut self, core: &mut Core) {
        if !self.has_told_ready && self.sending.has_bound(&self.qp) {
            self.has_told_ready = true;
            core.commands.push(Command::Tell { endpoint: self.id, bytes: vec![READY] });
        }
    }

    /// Has the endpoint break at once, for a failure of this side.
    #[cold]
    pub(super) fn fail(&mut self, core: &mut Core, reason: BreakReason) {
        if !matches!(self.ending, Some(Ending::Known(_))) {
            self.ending = Some(Ending::Known(reason));
        }
        (core.has_endings, core.unfinished) = (true, true);
    }

    /// Reports room where there was none.
    pub(super) fn report_room(&mut self, depth: usize, out: &mut Vec<Completion>) {
        if self.ending.is_some() {
            return;
        }
        if self.sending.was_full && self.sending.outstanding() < depth {
            self.sending.was_full = false;
            out.push(Completion::Room { endpoint: self.id });
        }
        self.recvs.report_room(depth, self.id, out);
    }

    /// Reports the end: the work that is not complete, and then the reason. Returns the watch, which another endpoint
    /// can use.
    pub(super) fn finish(self, reason: BreakReason, out: &mut Vec<Completion>) -> Option<Watch> {
        let Endpoint { mut qp, id, peer, tag, recvs, sending, exposed, watch, .. } = self;
        // No memory is written any more when the completions below are read.
        let stopped = qp.destroy();
        report_end(id, (peer, tag), sending.tokens(), &recvs, reason, out);
        let Err(error) = stopped else { return watch };
        tracing::error!(
            %error, %peer, ?tag,
            "a queue pair could not be destroyed: the memory that it may still use is kept until this process ends"
        );
        std::mem::forget((qp, recvs, sending, exposed, watch));
        None
    }

    /// Whether the peer may write memory that this side polls.
    pub(super) fn exposes_polled(&self) -> bool {
        self.exposed.iter().any(|region| region.kind() == RegionKind::Polled)
    }
}

/// The message to a peer over the control plane that this side can be reached.
pub(super) const READY: u8 = 0;

/// The message that this side has written polled memory of a node that sleeps.
pub(super) const WAKE: u8 = 1;

/// The peer's region of that key. (There are few, so a search costs less than a map.)
#[inline]
pub(super) fn find(theirs: &SetUp, key: RegionKey) -> Option<&Exposed> {
    theirs.regions.iter().find(|exposed| exposed.describe.key == key)
}

/// A completion's failure, in the device's words and in a sentence.
fn describe(error: status::Type) -> String {
    // SAFETY: the function gives a constant string for any number.
    let text = unsafe { std::ffi::CStr::from_ptr(rdma_sys::ibv_wc_status_str(error)) };
    format!("the device reported {:?} (status {error})", text.to_string_lossy())
}
