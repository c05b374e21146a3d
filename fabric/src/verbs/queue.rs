//! Queue pairs, completion queues and the channel that wakes a thread that waits for completions.

use std::{
    io,
    mem::{MaybeUninit, zeroed},
    os::fd::BorrowedFd,
    ptr::{NonNull, null_mut},
    sync::Arc,
};

use rdma_sys::{
    ibv_access_flags, ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_create_cq,
    ibv_create_qp, ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_qp, ibv_get_cq_event, ibv_modify_qp, ibv_mtu,
    ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type, ibv_recv_wr, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_flags,
    ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode, rdma_t,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::{
    device::{Context, Mr, Pd, check, object, report},
    window::Window,
};
use crate::region::PeerAccess;

/// A port's link layer (`IBV_LINK_LAYER_INFINIBAND`); all others address by GID.
pub(super) const INFINIBAND: u8 = 1;

/// The channel on which completion queues announce completions to a waiting thread.
pub(super) struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs guards its objects with locks of its own; none is tied to a thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Arc<Channel>> {
        // SAFETY: the context is open.
        let raw = object(unsafe { ibv_create_comp_channel(context.raw()) })?;
        let channel = Channel { raw, context: Arc::clone(context) };
        let flags = fcntl_getfl(channel.fd())?;
        fcntl_setfl(channel.fd(), flags | OFlags::NONBLOCK)?;
        Ok(Arc::new(channel))
    }

    /// A descriptor that is readable when a queue that was asked to has announced a completion.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// Takes all announcements.
    pub(super) fn drain(&self) {
        let (mut cq, mut queue_context) = (null_mut(), null_mut());
        // SAFETY: the channel lives; an announcement names a queue that does too, since to destroy one takes its
        // announcements away.
        while unsafe { ibv_get_cq_event(self.raw.as_ptr(), &raw mut cq, &raw mut queue_context) } == 0 {
            // SAFETY: as above; each announcement is acknowledged once.
            unsafe { ibv_ack_cq_events(cq, 1) };
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the completion queues hold the channel, so none is left.
        report("a completion channel could not be destroyed", unsafe { ibv_destroy_comp_channel(self.raw.as_ptr()) });
    }
}

/// A queue for the completions of many queue pairs.
pub(super) struct Cq {
    raw: NonNull<ibv_cq>,
    _channel: Arc<Channel>,
}

// SAFETY: as for `Channel`.
unsafe impl Send for Cq {}
// SAFETY: as for `Channel`.
unsafe impl Sync for Cq {}

/// One completion.
#[derive(Clone, Copy)]
pub(super) struct Completed {
    /// The id of the work request.
    pub(super) id: u64,
    pub(super) status: ibv_wc_status::Type,
    /// The number of bytes that came into the buffer of a receive that succeeded.
    pub(super) bytes: usize,
    pub(super) imm: Option<u32>,
}

impl Cq {
    pub(super) fn new(channel: &Arc<Channel>, entries: usize) -> io::Result<Arc<Cq>> {
        let entries = i32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: context and channel live, the latter for as long as the queue, which holds it.
        let raw =
            object(unsafe { ibv_create_cq(channel.context.raw(), entries, null_mut(), channel.raw.as_ptr(), 0) })?;
        Ok(Arc::new(Cq { raw, _channel: Arc::clone(channel) }))
    }

    /// Its address, as the device's reports name it.
    pub(super) fn address(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    /// Takes some completions, and appends them to `into`. Returns their number.
    #[inline]
    pub(super) fn poll(&self, into: &mut Vec<Completed>) -> io::Result<usize> {
        const AT_A_TIME: usize = 32;
        let mut entries = [const { MaybeUninit::<ibv_wc>::uninit() }; AT_A_TIME];
        // SAFETY: the queue lives, and there is room for as many entries as are asked for.
        let count = unsafe { ibv_poll_cq(self.raw.as_ptr(), AT_A_TIME as i32, entries.as_mut_ptr().cast()) };
        let count = usize::try_from(count).map_err(|_| io::Error::other(format!("ibv_poll_cq gave {count}")))?;
        for entry in &entries[..count] {
            // SAFETY: so many entries were filled in.
            let entry = unsafe { entry.assume_init_ref() };
            let received = entry.status == ibv_wc_status::IBV_WC_SUCCESS && entry.opcode == ibv_wc_opcode::IBV_WC_RECV;
            let with_imm =
                entry.status == ibv_wc_status::IBV_WC_SUCCESS && entry.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
            // SAFETY: either field is a u32.
            let imm = unsafe { entry.imm_data_invalidated_rkey_union.imm_data };
            into.push(Completed {
                id: entry.wr_id,
                status: entry.status,
                bytes: if received { entry.byte_len as usize } else { 0 },
                imm: with_imm.then(|| u32::from_be(imm)),
            });
        }
        Ok(count)
    }

    /// Has the next completion announced on the channel.
    pub(super) fn announce_next(&self) {
        // SAFETY: the queue lives.
        report("a completion queue could not be armed", unsafe { ibv_req_notify_cq(self.raw.as_ptr(), 0) });
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: the queue pairs hold the queue, so none is left, and each announcement was acknowledged when it was
        // taken.
        report("a completion queue could not be destroyed", unsafe { ibv_destroy_cq(self.raw.as_ptr()) });
    }
}

/// The numbers of requests and bytes that a queue pair takes at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Work requests in its send queue.
    pub(super) sends: u32,
    /// Receives.
    pub(super) recvs: u32,
    /// Bytes that a request may carry itself.
    pub(super) inline: u32,
}

impl Room {
    /// The number of completions that may be outstanding.
    pub(super) fn entries(&self) -> usize {
        (self.sends + self.recvs) as usize
    }
}

/// The way to a peer's queue pair, with its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) traffic_class: u8,
    pub(super) service_level: u8,
    pub(super) link_layer: u8,
    pub(super) mtu: ibv_mtu::Type,
    /// The number of the peer's queue pair.
    pub(super) number: u32,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    pub(super) send_psn: u32,
    pub(super) recv_psn: u32,
    /// The number of reads that may be under way, from here and to here.
    pub(super) reads: u8,
    pub(super) served_reads: u8,
    /// The exponent of the time that an acknowledgement is waited for, 4.096 µs · 2^this.
    pub(super) timeout: u8,
    pub(super) retries: u8,
    /// The number of times that a message is sent again which finds no receive; 7 is without end.
    pub(super) rnr_retries: u8,
}

/// A piece of local memory, as a request names it.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) key: u32,
}

/// The place of a send request's bytes.
#[derive(Clone, Copy)]
pub(super) enum Local {
    Memory(Piece),
    /// A range of the bytes that are given with the request, which are captured.
    Captured {
        begin: usize,
        len: usize,
    },
}

/// A place in the peer's memory.
#[derive(Clone, Copy)]
pub(super) struct Remote {
    pub(super) addr: u64,
    pub(super) key: u32,
}

/// A request for the send queue.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) local: Local,
    /// Whether its success is reported.
    pub(super) signaled: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Verb {
    Send {
        imm: Option<u32>,
    },
    Write {
        to: Remote,
        imm: Option<u32>,
    },
    Read {
        from: Remote,
    },
    /// The binding of the queue pair's window of that number.
    Bind {
        window: usize,
    },
}

/// A reliable connection's queue pair.
pub(super) struct Qp {
    raw: NonNull<ibv_qp>,
    pub(super) room: Room,
    /// The windows through which the peer reaches memory; the first requests bind them.
    windows: Vec<Window>,
    is_destroyed: bool,
    pd: Arc<Pd>,
    _cq: Arc<Cq>,
}

// SAFETY: as for `Channel`.
unsafe impl Send for Qp {}

/// The most requests that are handed to the device at a time.
const CHAIN: usize = 16;

impl Qp {
    /// A queue pair that takes at least `room`; `Qp::room` gives what it takes.
    pub(super) fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, room: Room) -> io::Result<Qp> {
        // SAFETY: zeros are valid in all fields of these attributes; domain and queue live for as long as the queue
        // pair, which holds them.
        let (raw, granted) = unsafe {
            let mut attributes: ibv_qp_init_attr = zeroed();
            attributes.send_cq = cq.raw.as_ptr();
            attributes.recv_cq = cq.raw.as_ptr();
            attributes.qp_type = ibv_qp_type::IBV_QPT_RC;
            attributes.cap.max_send_wr = room.sends;
            attributes.cap.max_recv_wr = room.recvs;
            attributes.cap.max_send_sge = 1;
            attributes.cap.max_recv_sge = 1;
            attributes.cap.max_inline_data = room.inline;
            (object(ibv_create_qp(pd.raw(), &raw mut attributes))?, attributes.cap)
        };
        // Room beyond the request is not used, so that the completion queue's room is enough.
        let room = Room { inline: granted.max_inline_data, ..room };
        Ok(Qp { raw, room, windows: Vec::new(), is_destroyed: false, pd: Arc::clone(pd), _cq: Arc::clone(cq) })
    }

    /// Makes a window for this access to `bytes` bytes at `addr`, for a request to bind. Returns the key by which a
    /// peer reaches them.
    ///
    /// The memory is registered as `mr`, and stays so until the queue pair is destroyed.
    pub(super) fn add_window(&mut self, mr: &Mr, addr: u64, bytes: usize, access: PeerAccess) -> io::Result<u32> {
        let window = Window::new(&self.pd, mr, addr, bytes, access)?;
        let key = window.key;
        self.windows.push(window);
        Ok(key)
    }

    /// The number of its windows.
    pub(super) fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Destroys the queue pair. After that the device neither reads nor writes memory for it; if this fails, it may.
    pub(super) fn destroy(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_destroyed, true) {
            return Ok(());
        }
        // In this state it ignores requests. In another it would refuse those through windows that are gone, and the
        // peer would take its own for a breach.
        // SAFETY: zeros are valid in all fields.
        let mut attributes: ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        if let Err(error) = self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE) {
            tracing::debug!(%error, "a queue pair could not be stopped before its end");
        }
        // A queue pair that has windows can't be destroyed on some devices.
        let ended = self.windows.drain(..).map(Window::end).fold(Ok(()), io::Result::and);
        // SAFETY: nothing else has it, and it is destroyed once.
        let destroyed = check(unsafe { ibv_destroy_qp(self.raw.as_ptr()) });
        ended.and(destroyed)
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the structure lives until the queue pair is destroyed, and its number does not change.
        unsafe { self.raw.as_ref().qp_num }
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair lives, and the mask names fields that were set.
        check(unsafe { ibv_modify_qp(self.raw.as_ptr(), attributes, mask.0 as i32) })
    }

    /// Has the queue pair take receives.
    pub(super) fn initialize(&self, port: u8, pkey_index: u16) -> io::Result<()> {
        // SAFETY: zeros are valid in all fields.
        let mut attributes: ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = port;
        attributes.pkey_index = pkey_index;
        attributes.qp_access_flags =
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }

    /// Has the queue pair carry out the peer's requests and take this side's.
    pub(super) fn connect(&self, path: &Path) -> io::Result<()> {
        // SAFETY: zeros are valid in all fields.
        let mut attributes: ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = path.mtu;
        attributes.dest_qp_num = path.number;
        attributes.rq_psn = path.recv_psn;
        attributes.max_dest_rd_atomic = path.served_reads;
        attributes.min_rnr_timer = 12;
        attributes.ah_attr.port_num = path.port;
        attributes.ah_attr.dlid = path.lid;
        attributes.ah_attr.sl = path.service_level;
        if path.link_layer != INFINIBAND {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh.dgid.raw = path.gid;
            attributes.ah_attr.grh.sgid_index = path.gid_index;
            attributes.ah_attr.grh.hop_limit = 64;
            attributes.ah_attr.grh.traffic_class = path.traffic_class;
        }
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, mask)?;

        // SAFETY: zeros are valid in all fields.
        let mut attributes: ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = path.send_psn;
        attributes.timeout = path.timeout;
        attributes.retry_cnt = path.retries;
        attributes.rnr_retry = path.rnr_retries;
        attributes.max_rd_atomic = path.reads;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, mask)
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The piece lies in registered memory that stays registered, and that is read only as a [`Region`](crate::Region),
    /// until the receive is complete or the queue pair is destroyed.
    pub(super) unsafe fn post_recv(&self, id: u64, into: Piece) -> io::Result<()> {
        let mut entry = ibv_sge { addr: into.addr, length: into.len, lkey: into.key };
        let mut request = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut entry, num_sge: 1 };
        if into.len == 0 {
            // A piece of length 0 may mean 2^31 bytes.
            request.num_sge = 0;
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair lives, the lists live during the call, and the caller answers for the memory.
        check(unsafe { ibv_post_recv(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Hands requests to the device, in this order; `captured` holds their captured bytes.
    ///
    /// # Safety
    ///
    /// Each request's piece lies in registered memory that stays registered until the request is complete or the queue
    /// pair is destroyed; memory that a read fetches into is read only as a [`Region`](crate::Region).
    pub(super) unsafe fn post_send(&self, id: u64, requests: &[Request], captured: &[u8]) -> io::Result<()> {
        for some in requests.chunks(CHAIN) {
            let mut entries = [ibv_sge { addr: 0, length: 0, lkey: 0 }; CHAIN];
            let mut chain = [const { MaybeUninit::<ibv_send_wr>::zeroed() }; CHAIN];
            let (first_entry, first) = (entries.as_mut_ptr(), chain.as_mut_ptr().cast::<ibv_send_wr>());
            for (at, request) in some.iter().enumerate() {
                // SAFETY: `at` lies within both arrays, which are accessed through these pointers only, and zeros are
                // valid in all fields of both.
                let (entry, wr) = unsafe { (&mut *first_entry.add(at), &mut *first.add(at)) };
                wr.wr_id = id;
                if request.signaled {
                    wr.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
                }
                *entry = match request.local {
                    Local::Memory(Piece { addr, len, key }) => ibv_sge { addr, length: len, lkey: key },
                    Local::Captured { begin, len } => {
                        wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                        let addr = captured[begin..begin + len].as_ptr().expose_provenance() as u64;
                        ibv_sge { addr, length: len as u32, lkey: 0 }
                    }
                };
                if entry.length > 0 {
                    (wr.sg_list, wr.num_sge) = (entry, 1);
                }
                self.describe(request.verb, wr);
                if at + 1 < some.len() {
                    // SAFETY: the next one lies in the array as well.
                    wr.next = unsafe { first.add(at + 1) };
                }
            }
            let mut bad = null_mut();
            // SAFETY: the queue pair lives; the chain, its pieces and the captured bytes live during the call, in which
            // the device takes them over; the caller answers for the memory.
            check(unsafe { ibv_post_send(self.raw.as_ptr(), first, &raw mut bad) })?;
        }
        Ok(())
    }

    /// Fills in the parts of a request that depend on its verb.
    fn describe(&self, verb: Verb, wr: &mut ibv_send_wr) {
        let mut imm = None;
        match verb {
            Verb::Send { imm: given } => {
                let opcodes = [ibv_wr_opcode::IBV_WR_SEND, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM];
                (wr.opcode, imm) = (opcodes[usize::from(given.is_some())], given);
            }
            Verb::Write { to, imm: given } => {
                let opcodes = [ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM];
                (wr.opcode, imm) = (opcodes[usize::from(given.is_some())], given);
                wr.wr.rdma = rdma_t { remote_addr: to.addr, rkey: to.key };
            }
            Verb::Read { from } => {
                wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
                wr.wr.rdma = rdma_t { remote_addr: from.addr, rkey: from.key };
            }
            Verb::Bind { window } => {
                wr.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
                wr.bind_mw_tso_union.bind_mw = self.windows[window].binding();
            }
        }
        wr.imm_data_invalidated_rkey_union.imm_data = imm.unwrap_or(0).to_be();
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            tracing::error!(%error, "a queue pair could not be destroyed");
        }
    }
}
