//! Memory windows: the parts of memory that the peer of one endpoint may reach.
//!
//! A registration has no rights for peers. What an endpoint exposes gets a window of type 2, which its queue pair binds
//! to the memory with its first requests, for reads alone if the memory is lent. The window's key serves on that queue
//! pair alone: a peer that presents it through another endpoint is refused by the device. A window ends before its
//! queue pair, and with it the key.
//!
//! A protection domain for each peer would separate peers as well. But requests name local memory by a registration of
//! their own domain. So whatever is sent to several peers would be registered, and its pages locked, once for each.

use std::{io, ptr::NonNull, sync::Arc};

use rdma_sys::{
    bind_mw_t, ibv_access_flags, ibv_alloc_mw, ibv_dealloc_mw, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_mw_type,
};

use super::device::{Mr, Pd, check, object};
use crate::region::PeerAccess;

/// The most bytes of a window: devices count them in 32 bits.
pub(super) const MAX_WINDOW: usize = u32::MAX as usize;

/// A window on a part of registered memory.
pub(super) struct Window {
    raw: NonNull<ibv_mw>,
    /// The key that it has when it is bound.
    pub(super) key: u32,
    mr: *mut ibv_mr,
    addr: u64,
    bytes: u64,
    access: PeerAccess,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs guards its objects with locks of its own; none is tied to a thread. The registration is only
// named.
unsafe impl Send for Window {}

impl Window {
    /// A window for this access to `bytes` bytes at `addr`, which lie in memory that is registered as `mr`. It is not
    /// bound yet.
    pub(super) fn new(pd: &Arc<Pd>, mr: &Mr, addr: u64, bytes: usize, access: PeerAccess) -> io::Result<Window> {
        // SAFETY: the domain lives, for as long as the window, which holds it.
        let raw = unsafe { ibv_alloc_mw(pd.raw(), ibv_mw_type::IBV_MW_TYPE_2) };
        let raw = object(raw.ok_or(io::ErrorKind::Unsupported)?)?;
        // SAFETY: the structure lives until the window is deallocated.
        let unbound = unsafe { raw.as_ref().rkey };
        // The lowest byte is the binder's to choose, and must be another than before.
        let key = unbound & !0xff | unbound.wrapping_add(1) & 0xff;
        Ok(Window { raw, key, mr: mr.raw(), addr, bytes: bytes as u64, access, _pd: Arc::clone(pd) })
    }

    /// The request's part that binds it.
    pub(super) fn binding(&self) -> bind_mw_t {
        let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let rights = match self.access {
            PeerAccess::Read => read,
            PeerAccess::Write => read | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        };
        let bind_info = ibv_mw_bind_info { mr: self.mr, addr: self.addr, length: self.bytes, mw_access_flags: rights };
        bind_mw_t { mw: self.raw.as_ptr(), rkey: self.key, bind_info }
    }

    /// Ends it: no request reaches memory through it any more. If that fails, it is left as it is.
    pub(super) fn end(self) -> io::Result<()> {
        // SAFETY: nothing else has the window; its queue pair carries out no requests any more.
        check(unsafe { ibv_dealloc_mw(self.raw.as_ptr()) })
    }
}
