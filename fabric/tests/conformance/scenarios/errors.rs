//! Posts that are refused with an error value.

use squall_fabric::{EndpointId, INLINE_BYTES, Op, PostError, RegionKind, Source, Token};

use crate::rig::{Rig, Verdict, bytes_of, ensure, inline, slice, tag};

/// Each wrong post gives its error, does nothing, and leaves the endpoint as it is.
pub(crate) fn a_refused_post_takes_no_effect(rig: &mut Rig<'_>) -> Verdict {
    let polled = rig.region(1, RegionKind::Polled, 1024)?;
    let bulk = rig.region(1, RegionKind::Bulk, 1024)?;
    let mine = rig.region(0, RegionKind::Polled, 1024)?;
    let my_bulk = rig.region(0, RegionKind::Bulk, 1024)?;
    mine.write(0, &[1; 1024]);
    my_bulk.write(0, &[1; 1024]);
    let mut pair = rig.open([0, 1], tag(1), [&[], &[polled.clone(), bulk.clone()]])?;
    let e = pair.ends[0];
    let early = rig.try_post(0, e, Op::Send { source: inline(b"early"), imm: None }, Token::UNSIGNALED)?;
    ensure!(early == Err(PostError::NotConnected), "a post before Connected gave {early:?}");
    rig.up(&mut pair)?;

    let long = vec![1; INLINE_BYTES + 8];
    let region = |offset, len| Source::Region(slice(&mine, offset, len));
    let bounds = |offset, len| PostError::LocalBounds { offset, len, region_bytes: 1024 };
    let misaligned = |offset, len| PostError::Misaligned { offset, len };
    let to = |offset| pair.at(0, 0, offset);
    let write = |source, target| Op::Write { source, target };
    let word = inline(&[1; 8]);
    let cases = [
        (write(inline(&long), to(0)), PostError::InlineTooLong { len: long.len() }),
        (Op::Send { source: inline(&long), imm: None }, PostError::InlineTooLong { len: long.len() }),
        (write(region(1024, 8), to(0)), bounds(1024, 8)),
        (write(region(0, 1032), to(0)), bounds(0, 1032)),
        (write(region(usize::MAX - 7, 16), to(0)), bounds(usize::MAX - 7, 16)),
        (Op::Send { source: region(1032, 0), imm: None }, bounds(1032, 0)),
        (Op::Read { from: to(0), into: slice(&mine, 1000, 48) }, bounds(1000, 48)),
        (Op::Recv { into: slice(&mine, 1000, 48) }, bounds(1000, 48)),
        (write(region(4, 8), to(0)), misaligned(4, 8)),
        (write(region(0, 12), to(0)), misaligned(0, 12)),
        (write(word, to(4)), misaligned(4, 8)),
        (write(inline(&[1; 7]), to(0)), misaligned(0, 7)),
        (Op::WriteWithImm { source: word, target: to(1), imm: 1 }, misaligned(1, 8)),
        (Op::Read { from: to(4), into: slice(&my_bulk, 0, 8) }, misaligned(4, 8)),
        (Op::Read { from: to(0), into: slice(&mine, 4, 8) }, misaligned(4, 8)),
        (Op::Recv { into: slice(&mine, 4, 8) }, misaligned(4, 8)),
        (Op::WriteThenWord { source: word, target: pair.at(0, 1, 0), word: 1, word_target: to(4) }, misaligned(4, 8)),
    ];
    for (op, error) in cases {
        let token = rig.token();
        let result = rig.try_post(0, e, op, token)?;
        ensure!(result == Err(error), "{op:?} gave {result:?} instead of {error:?}");
    }
    let nobody = rig.try_post(0, EndpointId(0x7fff_ffff), write(word, to(0)), Token::UNSIGNALED)?;
    ensure!(nobody == Err(PostError::Broken), "a post to an endpoint that never existed gave {nobody:?}");

    // The endpoint is as good as before, and the next write is the first that it carries.
    let token = rig.post_signaled(0, e, write(inline(&[2; 13]), pair.at(0, 1, 3)))?;
    rig.done(0, e, token)?;
    rig.until("a write", |_| Ok(bytes_of(&bulk)[15] == 2))?;
    ensure!(bytes_of(&polled) == [0; 1024], "a post that was refused took effect");
    let rest = bytes_of(&bulk).iter().filter(|byte| **byte == 1).count();
    ensure!(rest == 0, "a post that was refused wrote {rest} bytes");
    Ok(())
}

/// A region has at least a byte, a polled one whole words, and begins with zeros.
pub(crate) fn a_region_has_a_size(rig: &mut Rig<'_>) -> Verdict {
    for (kind, bytes) in
        [(RegionKind::Bulk, 0), (RegionKind::Lent, 0), (RegionKind::Polled, 0), (RegionKind::Polled, 12)]
    {
        let result = rig.region(0, kind, bytes);
        ensure!(result.is_err(), "a {kind:?} region of {bytes} bytes was registered");
    }
    for (kind, bytes) in
        [(RegionKind::Bulk, 1), (RegionKind::Bulk, 4097), (RegionKind::Lent, 5), (RegionKind::Polled, 8)]
    {
        let region = rig.region(0, kind, bytes)?;
        ensure!((region.kind(), region.len()) == (kind, bytes), "registered {region:?} instead of {bytes} bytes");
        ensure!(bytes_of(&region).iter().all(|byte| *byte == 0), "registered memory is not zeroed");
        let other = rig.region(0, kind, bytes)?;
        ensure!(region.key() != other.key(), "two regions have one key");
    }
    Ok(())
}
