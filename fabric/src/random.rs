//! Random numbers that can't be guessed.

use rustix::{
    io::{Errno, retry_on_intr},
    rand::{GetRandomFlags, getrandom},
};

/// Draws bytes, at most 256. A child process draws others than its parent, from the fork on.
pub fn bytes<const N: usize>() -> Result<[u8; N], Errno> {
    // The kernel cuts so few short only until its pool has been filled for the first time (getrandom(2)).
    const { assert!(N <= 256) };
    let (mut bytes, mut drawn) = ([0; N], 0);
    while drawn < N {
        drawn += retry_on_intr(|| getrandom(&mut bytes[drawn..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}

/// Draws a number.
pub fn number() -> Result<u64, Errno> {
    bytes().map(u64::from_ne_bytes)
}
