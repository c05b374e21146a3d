//! Queues have a depth: `Full`, and the `Room` that follows.

use squall_fabric::{MIN_RECV_DEPTH, Op, PostError, RegionKind, Source, Token};

use crate::rig::{Rig, Verdict, bytes_of, ensure, inline, slice, tag};

/// The number of posts within which a queue that has not filled does not have to.
const MOST_POSTS: usize = 20_000;

/// A post beyond the depth is refused, is not dropped and does not block; `Room` comes once, and then there is room.
pub(crate) fn a_full_queue_says_so(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Polled, 8192)?;
    let staging = rig.region(0, RegionKind::Polled, 8192)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let e = pair.ends[0];
    let signaled = rig.rng.bool();
    let mut accepted = 0u64;
    for round in 1..=3 {
        let mut full = false;
        for _ in 0..MOST_POSTS {
            let token = if signaled { rig.token() } else { Token::UNSIGNALED };
            let value = accepted + 1;
            let bytes = value.to_ne_bytes();
            // Every sixteenth write is large, so that time passes.
            let op = if value.is_multiple_of(16) {
                Op::Write { source: Source::Region(slice(&staging, 0, 8184)), target: pair.at(0, 0, 8) }
            } else {
                Op::Write { source: inline(&bytes), target: pair.at(0, 0, 0) }
            };
            match rig.try_post(0, e, op, token)? {
                Ok(()) => accepted += 1,
                Err(PostError::Full) => {
                    full = true;
                    break;
                }
                Err(other) => return Err(format!("post {value}: {other}")),
            }
        }
        if !full {
            break;
        }
        rig.until("room", |rig| Ok(rig.endpoint(0, e).rooms == round))?;
    }
    let last = accepted - u64::from(accepted.is_multiple_of(16));
    rig.until("the last write that was accepted", |_| Ok(table.load(0) == last))?;
    let rooms = rig.endpoint(0, e).rooms;
    rig.settle()?;
    ensure!(rig.endpoint(0, e).rooms == rooms, "room was reported again");
    Ok(())
}

/// A post to a full queue of receives is refused likewise; its room comes with the messages that consume them.
pub(crate) fn a_full_receive_queue_says_so(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 8)?;
    let pair = rig.pair(&[])?;
    let (a, b) = (pair.ends[0], pair.ends[1]);
    let (mut posted, mut full) = (0, false);
    while posted < MOST_POSTS && !full {
        let token = rig.token();
        match rig.try_post(1, b, Op::Recv { into: slice(&inbox, 0, 8) }, token)? {
            Ok(()) => posted += 1,
            Err(PostError::Full) => full = true,
            Err(other) => return Err(format!("receive {posted}: {other}")),
        }
    }
    // Every receive that was accepted takes a message.
    for i in 0..posted {
        rig.post(0, a, Op::Send { source: inline(&i.to_ne_bytes()), imm: None }, Token::UNSIGNALED)?;
    }
    rig.received(1, b, posted)?;
    if full {
        rig.until("room", |rig| Ok(rig.endpoint(1, b).rooms == 1))?;
        let token = rig.token();
        rig.post(1, b, Op::Recv { into: slice(&inbox, 0, 8) }, token)?;
        rig.post(0, a, Op::Send { source: inline(b"another"), imm: None }, Token::UNSIGNALED)?;
        rig.received(1, b, posted + 1)?;
        ensure!(bytes_of(&inbox)[..7] == *b"another", "a message came with other bytes");
    }
    rig.settle()
}

/// An endpoint that is not connected yet, and any later, has room for as many receives as the contract says.
pub(crate) fn an_endpoint_takes_some_receives(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 8)?;
    let pair = rig.open([0, 1], tag(100), [&[], &[]])?;
    let (a, b) = (pair.ends[0], pair.ends[1]);
    for round in 1..=3 {
        for i in 0..MIN_RECV_DEPTH {
            let token = rig.token();
            if let Err(error) = rig.try_post(1, b, Op::Recv { into: slice(&inbox, 0, 8) }, token)? {
                return Err(format!("G3: with {i} receives outstanding, another was refused: {error}"));
            }
        }
        rig.until("both to be connected", |rig| {
            Ok([(0, a), (1, b)].iter().all(|&(node, e)| rig.endpoint(node, e).connected.is_some()))
        })?;
        for _ in 0..MIN_RECV_DEPTH {
            rig.post(0, a, Op::Send { source: inline(b"message"), imm: None }, Token::UNSIGNALED)?;
        }
        rig.received(1, b, round * MIN_RECV_DEPTH)?;
    }
    Ok(())
}
