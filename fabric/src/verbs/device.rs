//! An RDMA device and its memory, as libibverbs has them. Each object is released when it is dropped, and keeps the
//! objects alive that it was made of.

use std::{
    ffi::CStr,
    io,
    mem::{MaybeUninit, zeroed},
    ptr::NonNull,
    sync::Arc,
};

use rdma_sys::{
    ___ibv_query_port, ibv_access_flags, ibv_alloc_pd, ibv_close_device, ibv_context, ibv_dealloc_pd, ibv_dereg_mr,
    ibv_device_attr, ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_gid, ibv_mr, ibv_open_device,
    ibv_pd, ibv_port_attr, ibv_query_device, ibv_query_gid, ibv_query_pkey, ibv_reg_mr,
};

/// The result of a call that returns an error number, or 0.
pub(super) fn check(returned: i32) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

/// The result of a call that returns an object, or null and sets the error number.
pub(super) fn object<T>(returned: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(returned).ok_or_else(io::Error::last_os_error)
}

/// An open device.
pub(super) struct Context {
    raw: NonNull<ibv_context>,
    pub(super) name: String,
}

// SAFETY: libibverbs guards its objects with locks of its own; none is tied to a thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens all devices that `wanted` picks by name; it is called in the system's order.
    pub(super) fn open_all(wanted: impl Fn(&str) -> bool) -> io::Result<Vec<(String, io::Result<Arc<Context>>)>> {
        let mut count = 0;
        // SAFETY: the list is as long as `count` says, and is freed below, after its last use.
        let list = object(unsafe { ibv_get_device_list(&raw mut count) })?;
        let mut opened = Vec::new();
        for at in 0..count as usize {
            // SAFETY: `at` lies in the list; a device's name ends with a zero, and lives as long as the list.
            let (device, name) = unsafe {
                let device = *list.as_ptr().add(at);
                (device, CStr::from_ptr(ibv_get_device_name(device)).to_string_lossy().into_owned())
            };
            if wanted(&name) {
                // SAFETY: the device is one of the list, which a context outlives.
                let context = object(unsafe { ibv_open_device(device) });
                opened.push((name.clone(), context.map(|raw| Arc::new(Context { raw, name }))));
            }
        }
        // SAFETY: the list came from `ibv_get_device_list`, and nothing refers to it any more.
        unsafe { ibv_free_device_list(list.as_ptr()) };
        Ok(opened)
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn limits(&self) -> io::Result<ibv_device_attr> {
        let mut limits = MaybeUninit::zeroed();
        // SAFETY: the context is open, and the structure is all zeros, which are valid, until it is filled in.
        unsafe {
            check(ibv_query_device(self.raw(), limits.as_mut_ptr()))?;
            Ok(limits.assume_init())
        }
    }

    pub(super) fn port(&self, port: u8) -> io::Result<ibv_port_attr> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: as in `limits`.
        unsafe {
            check(___ibv_query_port(self.raw(), port, attributes.as_mut_ptr()))?;
            Ok(attributes.assume_init())
        }
    }

    pub(super) fn gid(&self, port: u8, index: u8) -> io::Result<[u8; 16]> {
        // SAFETY: the context is open, and 16 bytes of any value are a GID.
        unsafe {
            let mut gid: ibv_gid = zeroed();
            check(ibv_query_gid(self.raw(), port, i32::from(index), &raw mut gid))?;
            Ok(gid.raw)
        }
    }

    /// An entry of a port's table of partitions.
    pub(super) fn partition_key(&self, port: u8, index: u16) -> io::Result<u16> {
        let mut key = 0;
        // SAFETY: the context is open.
        check(unsafe { ibv_query_pkey(self.raw(), port, i32::from(index), &raw mut key) })?;
        Ok(u16::from_be(key))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: any object that was made of the context holds it, so nothing is left.
        report("a device could not be closed", unsafe { ibv_close_device(self.raw()) });
    }
}

/// Logs an error that no caller can act on.
pub(super) fn report(what: &str, returned: i32) {
    if let Err(error) = check(returned) {
        tracing::error!(%error, "{what}");
    }
}

/// A protection domain: queue pairs reach memory of their own domain only.
pub(super) struct Pd {
    raw: NonNull<ibv_pd>,
    pub(super) context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Pd {}
// SAFETY: as for `Context`.
unsafe impl Sync for Pd {}

impl Pd {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Arc<Pd>> {
        // SAFETY: the context is open.
        let raw = object(unsafe { ibv_alloc_pd(context.raw()) })?;
        Ok(Arc::new(Pd { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: as for `Context`.
        report("a protection domain could not be freed", unsafe { ibv_dealloc_pd(self.raw()) });
    }
}

/// Registered memory: its pages are locked, and the device can find them.
pub(super) struct Mr {
    raw: NonNull<ibv_mr>,
    _pd: Arc<Pd>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Mr {}
// SAFETY: as for `Context`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers memory for use by queue pairs of `pd`. No peer reaches it but through a window: see `window`.
    ///
    /// It does not permit relaxed ordering: a thread that polls memory counts on writes that become visible in order
    /// (G1).
    ///
    /// # Safety
    ///
    /// The memory is mapped and writable, and this process accesses it through [`Region`](crate::Region)s only.
    pub(super) unsafe fn register(pd: &Arc<Pd>, base: NonNull<u8>, bytes: usize) -> io::Result<Mr> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        // SAFETY: the caller answers for the memory. Its later use by the caller does no harm: the device keeps
        // to the pages that are locked now.
        let raw = object(unsafe { ibv_reg_mr(pd.raw(), base.as_ptr().cast(), bytes, access as i32) })?;
        Ok(Mr { raw, _pd: Arc::clone(pd) })
    }

    /// The key by which this process's requests name the memory.
    #[inline]
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the structure lives until the memory is deregistered, and does not change.
        unsafe { self.raw.as_ref().lkey }
    }

    /// The registration, as windows name it.
    pub(super) fn raw(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: any endpoint that has work outstanding on the memory, or a window on it, holds the memory's region.
        report("memory could not be deregistered", unsafe { ibv_dereg_mr(self.raw.as_ptr()) });
    }
}
