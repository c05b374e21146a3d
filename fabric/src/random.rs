//! Random numbers that can't be guessed.

use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

/// Draws bytes, at most 256.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    // So few are never cut short, once the system's pool has been filled for the first time.
    while let Err(error) = getrandom(&mut bytes, GetRandomFlags::empty()) {
        if error != Errno::INTR {
            return Err(error);
        }
    }
    Ok(bytes)
}

pub(crate) fn number() -> Result<u64, Errno> {
    bytes().map(u64::from_ne_bytes)
}
