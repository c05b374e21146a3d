//! G3: sends, immediates, and the receives that they consume.

use squall_fabric::{BreakReason, Op, RegionKind, Source, Token};

use crate::{
    monitor::Received,
    rig::{Rig, Verdict, bytes_of, ensure, inline, slice, tag},
};

/// Messages of any size go into the receives in the order of both, each with its own bytes and immediate.
pub(crate) fn messages_fill_receives_in_order(rig: &mut Rig<'_>) -> Verdict {
    const MESSAGES: usize = 12;
    const MOST: usize = 600;
    let inbox = rig.region(1, RegionKind::Bulk, MESSAGES * MOST)?;
    let staging = rig.region(0, RegionKind::Bulk, MESSAGES * MOST)?;
    let pair = rig.pair(&[])?;
    let mut expected = Vec::new();
    for i in 0..MESSAGES {
        let recv = rig.token();
        rig.post(1, pair.ends[1], Op::Recv { into: slice(&inbox, i * MOST, MOST) }, recv)?;
        let len = rig.rng.usize(0..=MOST);
        let imm = rig.rng.bool().then(|| rig.rng.u32(..));
        let bytes: Vec<u8> = (0..len).map(|j| (i * 31 + j) as u8).collect();
        expected.push((Received { token: recv, bytes: len, imm }, bytes));
    }
    for (i, (received, bytes)) in expected.iter().enumerate() {
        staging.write(i * MOST, bytes);
        let by_region = bytes.len() > 256 || rig.rng.bool();
        let source = if by_region { Source::Region(slice(&staging, i * MOST, bytes.len())) } else { inline(bytes) };
        rig.post(0, pair.ends[0], Op::Send { source, imm: received.imm }, Token::UNSIGNALED)?;
    }
    rig.received(1, pair.ends[1], MESSAGES)?;
    for (i, (received, bytes)) in expected.iter().enumerate() {
        let got = &rig.endpoint(1, pair.ends[1]).received[i];
        ensure!(got == received, "G3: message {i} was reported as {got:?} instead of {received:?}");
        let mut came = vec![0; bytes.len()];
        inbox.read(i * MOST, &mut came);
        ensure!(came == *bytes, "G3: message {i} came with other bytes");
    }
    Ok(())
}

/// A write with immediate consumes a receive and leaves its buffer alone.
pub(crate) fn an_immediate_consumes_a_receive(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 64)?;
    let table = rig.region(1, RegionKind::Bulk, 64)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    inbox.write(0, &[0xaa; 64]);
    let mut expected = Vec::new();
    for imm in [3, u32::MAX] {
        let token = rig.token();
        rig.post(1, pair.ends[1], Op::Recv { into: slice(&inbox, 0, 64) }, token)?;
        expected.push(Received { token, bytes: 0, imm: Some(imm) });
    }
    let bytes = [7; 33];
    for (source, imm) in [(inline(&bytes), 3), (inline(&[]), u32::MAX)] {
        let op = Op::WriteWithImm { source, target: pair.at(0, 0, 5), imm };
        rig.post(0, pair.ends[0], op, Token::UNSIGNALED)?;
    }
    rig.received(1, pair.ends[1], 2)?;
    let got = &rig.endpoint(1, pair.ends[1]).received;
    ensure!(*got == expected, "G3: immediates were reported as {got:?} instead of {expected:?}");
    ensure!(bytes_of(&inbox) == [0xaa; 64], "G3: an immediate wrote into the receive's buffer");
    ensure!(bytes_of(&table)[5..38] == bytes, "G3: an immediate came before its bytes");
    Ok(())
}

/// At the moment of the report all bytes are there, and they do not change any more.
pub(crate) fn bytes_are_in_place_on_receipt(rig: &mut Rig<'_>) -> Verdict {
    const LEN: usize = 6000;
    let inbox = rig.region(1, RegionKind::Bulk, LEN)?;
    let staging = rig.region(0, RegionKind::Bulk, LEN)?;
    let pair = rig.pair(&[])?;
    let (a, b) = (pair.ends[0], pair.ends[1]);
    for round in 1..=8 {
        inbox.write(0, &[0; LEN]);
        let recv = rig.token();
        rig.post(1, b, Op::Recv { into: slice(&inbox, 0, LEN) }, recv)?;
        staging.write(0, &[round as u8; LEN]);
        let send = Op::Send { source: Source::Region(slice(&staging, 0, LEN)), imm: Some(1) };
        let sent = rig.post_signaled(0, a, send)?;
        rig.received(1, b, round)?;
        let missing = bytes_of(&inbox).iter().filter(|byte| **byte != round as u8).count();
        ensure!(missing == 0, "G3: a message was reported when {missing} of its {LEN} bytes were missing");
        rig.done(0, a, sent)?;
    }
    rig.settle()
}

fn breaks(rig: &mut Rig<'_>, recv_bytes: Option<usize>, immediate: bool) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 64)?;
    let table = rig.region(1, RegionKind::Polled, 64)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    inbox.write(0, &[0xaa; 64]);
    if let Some(len) = recv_bytes {
        let recv = rig.token();
        rig.post(1, pair.ends[1], Op::Recv { into: slice(&inbox, 0, len) }, recv)?;
    }
    let bytes = [1; 32];
    let op = if immediate {
        Op::WriteWithImm { source: inline(&bytes), target: pair.at(0, 0, 0), imm: 1 }
    } else {
        Op::Send { source: inline(&bytes), imm: None }
    };
    let token = rig.token();
    rig.post(0, pair.ends[0], op, token)?;
    rig.both_broken(&pair, &BreakReason::ReceiverNotReady)?;
    let outside = &bytes_of(&inbox)[recv_bytes.unwrap_or(0)..];
    ensure!(outside.iter().all(|byte| *byte == 0xaa), "G3: a message wrote outside of its receive");
    let received = &rig.endpoint(1, pair.ends[1]).received;
    ensure!(received.is_empty(), "G3: a message that found no receive was reported as {received:?}");
    Ok(())
}

/// A message that finds no receive breaks the endpoint on both sides.
pub(crate) fn a_message_without_receive_breaks(rig: &mut Rig<'_>) -> Verdict {
    breaks(rig, None, false)
}

/// An immediate that finds no receive breaks the endpoint likewise.
pub(crate) fn an_immediate_without_receive_breaks(rig: &mut Rig<'_>) -> Verdict {
    breaks(rig, None, true)
}

/// A message that is longer than its receive breaks the endpoint likewise; nothing is written beyond the receive.
pub(crate) fn a_message_too_long_breaks(rig: &mut Rig<'_>) -> Verdict {
    breaks(rig, Some(8), false)
}

/// Receives that are posted between `connect` and the next poll are in place before the peer can send.
pub(crate) fn receives_precede_connected(rig: &mut Rig<'_>) -> Verdict {
    for round in 0..4 {
        let inbox = rig.region(1, RegionKind::Bulk, 64)?;
        let pair = rig.open([0, 1], tag(100 + round), [&[], &[]])?;
        let (a, b) = (pair.ends[0], pair.ends[1]);
        let recv = rig.token();
        rig.post(1, b, Op::Recv { into: slice(&inbox, 0, 64) }, recv)?;
        rig.poll(1)?;
        rig.slow_down(1);
        rig.until("node 0 to be connected", |rig| Ok(rig.endpoint(0, a).connected.is_some()))?;
        rig.post(0, a, Op::Send { source: inline(b"at once"), imm: None }, Token::UNSIGNALED)?;
        rig.received(1, b, 1)?;
        ensure!(bytes_of(&inbox)[..7] == *b"at once", "G3: the first message came with other bytes");
    }
    Ok(())
}

/// A message that is sent after a receive was posted finds it, also where the receiver has not polled since.
pub(crate) fn a_receive_is_in_force_once_posted(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 64)?;
    let pair = rig.pair(&[])?;
    let (a, b) = (pair.ends[0], pair.ends[1]);
    rig.slow_down(1);
    for round in 1..=8 {
        let recv = rig.token();
        rig.post(1, b, Op::Recv { into: slice(&inbox, 0, 64) }, recv)?;
        rig.post(0, a, Op::Send { source: inline(&[round as u8; 8]), imm: None }, Token::UNSIGNALED)?;
        rig.poll(0)?;
        rig.received(1, b, round)?;
        ensure!(bytes_of(&inbox)[..8] == [round as u8; 8], "G3: message {round} came with other bytes");
    }
    Ok(())
}
