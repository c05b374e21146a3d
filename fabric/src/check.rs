//! Checks of a post that hold whatever its endpoint, made before anything of it takes effect.

use crate::{INLINE_BYTES, Op, PostError, RegionKind, Slice, Source};

#[inline]
pub(crate) fn check_source(source: Source<'_>) -> Result<(), PostError> {
    match source {
        Source::Inline(bytes) if bytes.len() > INLINE_BYTES => Err(PostError::InlineTooLong { len: bytes.len() }),
        Source::Inline(_) => Ok(()),
        Source::Region(slice) => check_slice(slice),
    }
}

/// Checks a range of memory that has bytes.
#[inline]
pub(crate) fn check_slice(slice: Slice<'_>) -> Result<(), PostError> {
    let Slice { region, offset, len } = slice;
    if region.kind() == RegionKind::Phantom {
        // Only the simulator moves phantom regions; elsewhere they have no bytes.
        return Err(PostError::LocalBounds { offset, len, region_bytes: 0 });
    }
    check_range(slice)
}

/// Checks a range of memory, phantoms included.
#[inline]
pub(crate) fn check_range(slice: Slice<'_>) -> Result<(), PostError> {
    let Slice { region, offset, len } = slice;
    if offset > region.len() || len > region.len() - offset {
        return Err(PostError::LocalBounds { offset, len, region_bytes: region.len() });
    }
    check_words(region.kind() == RegionKind::Polled, offset, len)
}

/// Checks that polled memory is accessed in whole aligned words.
#[inline]
pub(crate) fn check_words(polled: bool, offset: usize, len: usize) -> Result<(), PostError> {
    if polled && !(offset.is_multiple_of(8) && len.is_multiple_of(8)) {
        return Err(PostError::Misaligned { offset, len });
    }
    Ok(())
}

/// Checks a graph's request, before its endpoint is connected.
pub(crate) fn check_request(op: Op<'_>) -> Result<(), PostError> {
    match op {
        Op::Send { source, .. } | Op::Write { source, .. } => check_source(source),
        Op::Recv { into } | Op::Read { into, .. } => check_slice(into),
        Op::WriteWithImm { .. } | Op::WriteThenWord { .. } => Ok(()),
    }
}
