//! Batches of records, as they travel: each behind its length in 4 bytes, little-endian.

use std::io::{self, ErrorKind, Read};

use squall_ordered::log::MAX_PAYLOAD_BYTES;

/// The approximate size of a batch of records, in bytes.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// Reads the next records of a suffix, as they travel. Returns None at its end.
pub(crate) fn read_batch(from: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = Vec::new();
    from.take(4).read_to_end(&mut length)?;
    if length.is_empty() {
        return Ok(None);
    }
    let length = <[u8; 4]>::try_from(length).map_err(|_| ErrorKind::UnexpectedEof)?;
    let bytes = u64::from(u32::from_le_bytes(length));
    if bytes > (BATCH_BYTES + 2 * MAX_PAYLOAD_BYTES) as u64 {
        return Err(io::Error::new(ErrorKind::InvalidData, "a batch of records is longer than any"));
    }
    let mut batch = Vec::new();
    if from.take(bytes).read_to_end(&mut batch)? as u64 != bytes {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(batch))
}
