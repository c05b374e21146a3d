//! Checks that hold whatever the fabric, of posts and of memory, made before anything takes effect.

use crate::{INLINE_BYTES, Op, PostError, RegionKey, RegionKind, RegisterError, Slice, Source, Target};

/// The most bytes of a region of memory. Offsets in it fit a pointer's, and whole pages around it a size.
const MAX_BYTES: usize = 1 << (usize::BITS - 2);

/// Checks the size of a region that is to be registered.
pub(crate) fn check_size(kind: RegionKind, bytes: usize) -> Result<(), RegisterError> {
    if bytes == 0 || kind == RegionKind::Polled && !bytes.is_multiple_of(8) {
        return Err(RegisterError::Size { bytes });
    }
    if kind != RegionKind::Phantom && bytes > MAX_BYTES {
        let cause = format!("an address space has room for {MAX_BYTES} bytes at most");
        return Err(RegisterError::System { bytes, cause });
    }
    Ok(())
}

/// Checks a region that is to be registered with a fabric that moves bytes.
pub(crate) fn check_region(kind: RegionKind, bytes: usize) -> Result<(), RegisterError> {
    check_size(kind, bytes)?;
    if kind == RegionKind::Phantom { Err(RegisterError::NoPhantoms) } else { Ok(()) }
}

/// Checks a post. `check` is [`check_slice`] or [`check_range`]. `kind_of` gives the kind of a region that the peer
/// exposed. An unknown key passes: it breaks the endpoint instead.
#[inline]
pub(crate) fn check_op(
    op: Op<'_>,
    check: impl Fn(Slice<'_>) -> Result<(), PostError>,
    kind_of: impl Fn(RegionKey) -> Option<RegionKind>,
) -> Result<(), PostError> {
    let check_target = |target: Target, len: usize| {
        check_words(kind_of(target.region) == Some(RegionKind::Polled), target.offset, len)
    };
    match op {
        Op::Write { source, target } | Op::WriteWithImm { source, target, .. } => {
            check_source(source, check)?;
            check_target(target, source.len())
        }
        Op::WriteThenWord { source, target, word_target, .. } => {
            check_words(true, word_target.offset, 8)?;
            check_source(source, check)?;
            check_target(target, source.len())
        }
        Op::Send { source, .. } => check_source(source, check),
        Op::Read { from, into } => {
            check(into)?;
            check_target(from, into.len)
        }
        Op::Recv { into } => check(into),
    }
}

#[inline]
fn check_source(source: Source<'_>, check: impl Fn(Slice<'_>) -> Result<(), PostError>) -> Result<(), PostError> {
    match source {
        Source::Inline(bytes) if bytes.len() > INLINE_BYTES => Err(PostError::InlineTooLong { len: bytes.len() }),
        Source::Inline(_) => Ok(()),
        Source::Region(slice) => check(slice),
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
    if !region.holds(offset, len) {
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

/// Checks a graph's request, before its endpoint is connected. `check` is [`check_slice`] or [`check_range`].
pub(crate) fn check_request(op: Op<'_>, check: impl Fn(Slice<'_>) -> Result<(), PostError>) -> Result<(), PostError> {
    match op {
        Op::Send { source, .. } | Op::Write { source, .. } => check_source(source, check),
        Op::Recv { into } | Op::Read { into, .. } => check(into),
        Op::WriteWithImm { .. } | Op::WriteThenWord { .. } => Ok(()),
    }
}
