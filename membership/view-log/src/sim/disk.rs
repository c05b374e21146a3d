//! A disk whose power may fail.

use std::{
    io,
    sync::{Arc, MutexGuard},
};

use redb::StorageBackend;
use squall_fabric::sync::Lock;

/// A disk that loses what was not synced when its node crashes. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Lock<Platter>>);

#[derive(Clone, Debug)]
struct Platter {
    rng: fastrand::Rng,
    /// The contents that are durable.
    synced: Vec<u8>,
    /// The contents that are read.
    current: Vec<u8>,
    unsynced: Vec<Write>,
    /// The number of writes that still succeed. None: all do.
    writes_left: Option<u64>,
}

#[derive(Clone, Debug)]
enum Write {
    Bytes(u64, Vec<u8>),
    Length(u64),
}

impl SimDisk {
    /// An empty disk. Its losses follow from the seed.
    pub fn new(seed: u64) -> SimDisk {
        let rng = fastrand::Rng::with_seed(seed);
        let platter = Platter { rng, synced: Vec::new(), current: Vec::new(), unsynced: Vec::new(), writes_left: None };
        SimDisk(Arc::new(Lock::new(platter)))
    }

    /// Simulates a power failure: of the writes since the last sync, some are there, some are not, some in part. Call
    /// it after the node's [`SimLog`](crate::SimLog) was dropped.
    pub fn crash(&self) {
        let mut platter = self.lock();
        let Platter { rng, synced, current, unsynced, .. } = &mut *platter;
        for write in unsynced.drain(..) {
            match write {
                Write::Bytes(offset, mut bytes) => match rng.u8(..3) {
                    0 => {}
                    1 => {
                        bytes.truncate(rng.usize(..=bytes.len()));
                        put(synced, offset, &bytes);
                    }
                    _ => put(synced, offset, &bytes),
                },
                Write::Length(length) => synced.resize(length as usize, 0),
            }
        }
        current.clone_from(synced);
    }

    /// The disk as it is found after a power failure now: later writes to this one don't reach it.
    pub fn crashed(&self) -> SimDisk {
        let disk = SimDisk(Arc::new(Lock::new(self.lock().clone())));
        disk.crash();
        disk
    }

    /// A copy of the disk, as it is now.
    pub fn copy(&self) -> SimDisk {
        SimDisk(Arc::new(Lock::new(self.lock().clone())))
    }

    /// Fails all writes after this many more, as on a disk that is full.
    pub fn fail_after(&self, writes: u64) {
        self.lock().writes_left = Some(writes);
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.0.lock()
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset as usize..end].copy_from_slice(data);
}

impl Platter {
    fn may_write(&mut self) -> io::Result<()> {
        match &mut self.writes_left {
            Some(0) => Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on the simulated disk")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl StorageBackend for SimDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.lock();
        let start = offset as usize;
        let bytes = platter.current.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.lock();
        platter.may_write()?;
        platter.current.resize(len as usize, 0);
        platter.unsynced.push(Write::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.lock();
        let Platter { synced, unsynced, .. } = &mut *platter;
        for write in unsynced.drain(..) {
            match write {
                Write::Bytes(offset, bytes) => put(synced, offset, &bytes),
                Write::Length(length) => synced.resize(length as usize, 0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.lock();
        platter.may_write()?;
        put(&mut platter.current, offset, data);
        platter.unsynced.push(Write::Bytes(offset, data.to_vec()));
        Ok(())
    }
}
