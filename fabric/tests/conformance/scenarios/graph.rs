//! Work graphs: requests that wait for one another in the fabric.

use squall_fabric::{
    EndpointId, GraphError, GraphFailure, Op, PostError, RegionKind, Source, Target, Token, WorkGraph, graph::RequestId,
};

use crate::rig::{Pair, Rig, Verdict, bytes_of, ensure, inline, slice, tag};

const BLOCK: usize = 512;

fn add(graph: &mut WorkGraph, e: EndpointId, op: Op<'_>, after: &[RequestId]) -> Result<RequestId, String> {
    graph.add(e, op, after).map_err(|error| format!("a request was refused: {error}"))
}

/// Nodes 0 and 1, and nodes 1 and 2, connected.
fn chain(rig: &mut Rig<'_>) -> Result<[Pair; 2], String> {
    let group = rig.rng.u32(..);
    let mut pairs = [rig.open([0, 1], tag(group), [&[], &[]])?, rig.open([1, 2], tag(group), [&[], &[]])?];
    pairs.iter_mut().try_for_each(|pair| rig.up(pair))?;
    Ok(pairs)
}

/// Bytes that differ from block to block, and from run to run.
fn fill(rig: &mut Rig<'_>, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| rig.rng.u8(1..)).collect()
}

/// A relay's graph: each block goes on once it is there, and not before.
pub(crate) fn a_graph_hands_on_what_it_receives(rig: &mut Rig<'_>) -> Verdict {
    let blocks = rig.rng.usize(1..=8);
    let [from, via, to] = [0, 1, 2].map(|node| rig.region(node, RegionKind::Bulk, blocks * BLOCK));
    let (from, via, to) = (from?, via?, to?);
    let message = fill(rig, blocks * BLOCK);
    from.write(0, &message);
    let [first, second] = chain(rig)?;

    let mut graph = WorkGraph::new();
    for block in 0..blocks {
        let here = slice(&via, block * BLOCK, BLOCK);
        let received = add(&mut graph, first.ends[1], Op::Recv { into: here }, &[])?;
        let send = Op::Send { source: Source::Region(here), imm: Some(block as u32) };
        add(&mut graph, second.ends[0], send, &[received])?;
    }
    for block in 0..blocks {
        let recv = rig.token();
        rig.post(2, second.ends[1], Op::Recv { into: slice(&to, block * BLOCK, BLOCK) }, recv)?;
    }
    let graph = rig.post_graph(1, graph)?;
    for block in 0..blocks {
        for _ in 0..rig.rng.usize(..3) {
            rig.step()?;
        }
        let source = Source::Region(slice(&from, block * BLOCK, BLOCK));
        rig.post(0, first.ends[0], Op::Send { source, imm: None }, Token::UNSIGNALED)?;
    }
    rig.received(2, second.ends[1], blocks)?;
    ensure!(bytes_of(&to) == message, "what was handed on is not what was received");
    let imms: Vec<_> = rig.endpoint(2, second.ends[1]).received.iter().map(|received| received.imm).collect();
    ensure!(imms == (0..blocks as u32).map(Some).collect::<Vec<_>>(), "the immediates were {imms:?}");
    rig.graph_done(1, graph)?;
    rig.settle()
}

/// A graph is done, once, when its last request is complete.
pub(crate) fn a_graph_is_done_when_its_last_request_is(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 64)?;
    let pair = rig.pair(&[])?;
    let mut graph = WorkGraph::new();
    for message in 0..3 {
        let into = slice(&inbox, 8 * message, 8);
        add(&mut graph, pair.ends[1], Op::Recv { into }, &[])?;
    }
    let graph = rig.post_graph(1, graph)?;
    for message in 0..3 {
        rig.settle()?;
        ensure!(rig.graph(1, graph).is_none(), "the graph is done after {message} of its 3 messages");
        rig.post(0, pair.ends[0], Op::Send { source: inline(&[7; 8]), imm: None }, Token::UNSIGNALED)?;
    }
    rig.graph_done(1, graph)?;
    ensure!(bytes_of(&inbox)[..24] == [7; 24], "the graph is done, and its bytes are not there");
    let empty = rig.post_graph(1, WorkGraph::new())?;
    rig.graph_done(1, empty)?;
    rig.settle()
}

/// On one endpoint, a request that waits for nothing does not go before an earlier one that waits.
pub(crate) fn a_graph_keeps_the_order_of_its_list(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(0, RegionKind::Bulk, 8)?;
    let replies = rig.region(1, RegionKind::Bulk, 64)?;
    let pair = rig.pair(&[])?;
    for reply in 0..2 {
        let recv = rig.token();
        rig.post(1, pair.ends[1], Op::Recv { into: slice(&replies, 8 * reply, 8) }, recv)?;
    }
    let mut graph = WorkGraph::new();
    let received = add(&mut graph, pair.ends[0], Op::Recv { into: slice(&inbox, 0, 8) }, &[])?;
    add(&mut graph, pair.ends[0], Op::Send { source: Source::Region(slice(&inbox, 0, 8)), imm: Some(1) }, &[received])?;
    add(&mut graph, pair.ends[0], Op::Send { source: inline(b"second.."), imm: Some(2) }, &[])?;
    let graph = rig.post_graph(0, graph)?;
    rig.settle()?;
    ensure!(rig.endpoint(1, pair.ends[1]).received.is_empty(), "a request went before one that it follows");
    rig.post(1, pair.ends[1], Op::Send { source: inline(b"first..."), imm: None }, Token::UNSIGNALED)?;
    rig.received(1, pair.ends[1], 2)?;
    ensure!(bytes_of(&replies)[..16] == *b"first...second..", "the messages came as {:?}", bytes_of(&replies));
    rig.graph_done(0, graph)?;
    rig.settle()
}

/// Work that was posted before the graph goes ahead of it: sends as receives.
pub(crate) fn a_graph_goes_behind_earlier_work(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 64)?;
    let pair = rig.pair(&[])?;
    let count = rig.rng.usize(1..4);
    let mut graphs = [WorkGraph::new(), WorkGraph::new()];
    for message in 0..2 * count {
        let into = slice(&inbox, 8 * message, 8);
        let op = Op::Recv { into };
        if message < count {
            let recv = rig.token();
            rig.post(1, pair.ends[1], op, recv)?;
        } else {
            add(&mut graphs[1], pair.ends[1], op, &[])?;
        }
    }
    let receiving = rig.post_graph(1, std::mem::take(&mut graphs[1]))?;
    for message in 0..2 * count {
        let bytes = (message as u64).to_ne_bytes();
        let op = Op::Send { source: inline(&bytes), imm: None };
        if message < count {
            rig.post(0, pair.ends[0], op, Token::UNSIGNALED)?;
        } else {
            add(&mut graphs[0], pair.ends[0], op, &[])?;
        }
    }
    let sending = rig.post_graph(0, std::mem::take(&mut graphs[0]))?;
    rig.graph_done(1, receiving)?;
    rig.graph_done(0, sending)?;
    for (message, came) in bytes_of(&inbox).as_chunks().0.iter().take(2 * count).enumerate() {
        let came = u64::from_ne_bytes(*came);
        ensure!(came == message as u64, "message {came} came as number {message}");
    }
    rig.settle()
}

/// The receives of a graph posted between `connect` and the next poll are in place for the peer's sends; its sends
/// wait.
pub(crate) fn a_graph_may_precede_the_connection(rig: &mut Rig<'_>) -> Verdict {
    let inboxes = [rig.region(0, RegionKind::Bulk, 64)?, rig.region(1, RegionKind::Bulk, 64)?];
    let group = rig.rng.u32(..);
    let mut pair = rig.open([0, 1], tag(group), [&[], &[]])?;
    let mut graphs = Vec::new();
    for (side, inbox) in inboxes.iter().enumerate() {
        let mut graph = WorkGraph::new();
        for message in 0..3 {
            let into = slice(inbox, 8 * message, 8);
            add(&mut graph, pair.ends[side], Op::Recv { into }, &[])?;
            let bytes = [side as u8 + 1; 8];
            let send = Op::Send { source: inline(&bytes), imm: None };
            add(&mut graph, pair.ends[side], send, &[])?;
        }
        graphs.push(rig.post_graph(side, graph)?);
    }
    rig.up(&mut pair)?;
    for (side, graph) in graphs.into_iter().enumerate() {
        rig.graph_done(side, graph)?;
        ensure!(bytes_of(&inboxes[side])[..24] == [2 - side as u8; 24], "node {side} got other bytes");
    }
    rig.settle()
}

/// A graph is not bound by the depth of a queue: requests without room wait, and the process does not hear of the room.
pub(crate) fn a_graph_waits_for_room(rig: &mut Rig<'_>) -> Verdict {
    const WRITES: usize = 1500;
    let table = rig.region(1, RegionKind::Polled, 8 * 16)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let signaled = rig.rng.bool();
    // Some of the room is taken by other work, signaled or not.
    for _ in 0..rig.rng.usize(..40) {
        let token = if signaled { rig.token() } else { Token::UNSIGNALED };
        let op = Op::Write { source: inline(&[0; 8]), target: pair.at(0, 0, 0) };
        if rig.try_post(0, pair.ends[0], op, token)? == Err(PostError::Full) {
            break;
        }
    }
    let mut graph = WorkGraph::new();
    for value in 1..=WRITES as u64 {
        let target = pair.at(0, 0, 8 * (value as usize % 16));
        let value = value.to_ne_bytes();
        let op = Op::Write { source: inline(&value), target };
        add(&mut graph, pair.ends[0], op, &[])?;
    }
    let graph = rig.post_graph(0, graph)?;
    rig.graph_done(0, graph)?;
    rig.until("the last writes", |_| Ok((0..16).all(|word| table.load(8 * word) > WRITES as u64 - 16)))?;
    rig.settle()
}

/// A write announces to a polling thread that the bytes that it waits for are there.
pub(crate) fn a_graph_writes_words(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(0, RegionKind::Bulk, 8)?;
    let table = rig.region(1, RegionKind::Polled, 64)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let mut graph = WorkGraph::new();
    let mut last = None;
    // A chain of writes, each of which waits for the one before.
    let received = add(&mut graph, pair.ends[0], Op::Recv { into: slice(&inbox, 0, 8) }, &[])?;
    for word in 1..=5u64 {
        let after = last.unwrap_or(received);
        let word = word.to_ne_bytes();
        let op = Op::Write { source: inline(&word), target: pair.at(0, 0, 8) };
        last = Some(add(&mut graph, pair.ends[0], op, &[after, received])?);
    }
    let graph = rig.post_graph(0, graph)?;
    rig.settle()?;
    ensure!(table.load(8) == 0, "a word was written before what it announces");
    rig.post(1, pair.ends[1], Op::Send { source: inline(&[1; 8]), imm: None }, Token::UNSIGNALED)?;
    rig.graph_done(0, graph)?;
    rig.until("the last word", |_| Ok(table.load(8) == 5))?;
    rig.settle()
}

/// A relay's graph that has got some of its messages. Returns it, and the two connections.
fn half_done(rig: &mut Rig<'_>) -> Result<(Token, [Pair; 2]), String> {
    let via = rig.region(1, RegionKind::Bulk, 64)?;
    let to = rig.region(2, RegionKind::Bulk, 64)?;
    let pairs = chain(rig)?;
    let mut graph = WorkGraph::new();
    for message in 0..6 {
        let here = slice(&via, 8 * message, 8);
        let received = add(&mut graph, pairs[0].ends[1], Op::Recv { into: here }, &[])?;
        let send = Op::Send { source: Source::Region(here), imm: None };
        add(&mut graph, pairs[1].ends[0], send, &[received])?;
        let recv = rig.token();
        rig.post(2, pairs[1].ends[1], Op::Recv { into: slice(&to, 8 * message, 8) }, recv)?;
    }
    let graph = rig.post_graph(1, graph)?;
    for _ in 0..rig.rng.usize(..5) {
        rig.post(0, pairs[0].ends[0], Op::Send { source: inline(&[5; 8]), imm: None }, Token::UNSIGNALED)?;
        for _ in 0..rig.rng.usize(..6) {
            rig.step()?;
        }
    }
    Ok((graph, pairs))
}

/// An endpoint that breaks fails the graph, once, before the break is reported; the other endpoint lives on.
pub(crate) fn a_graph_fails_once_with_its_endpoint(rig: &mut Rig<'_>) -> Verdict {
    let (graph, pairs) = half_done(rig)?;
    let (mine, other) = if rig.rng.bool() { (0, 1) } else { (1, 0) };
    let (lost, peer) = (pairs[mine].ends[1 - mine], [0, 2][mine]);
    match rig.rng.u8(..3) {
        0 if rig.can().cut => rig.cut(1, peer),
        1 if rig.can().kill => rig.kill(peer),
        _ => rig.disconnect(peer, pairs[mine].ends[mine]),
    }
    rig.until("a break", |rig| {
        let (end, broken) = (rig.graph(1, graph), rig.broken(1, lost));
        ensure!(broken.is_none() || end.is_some(), "the endpoint broke, and its graph goes on");
        Ok(broken.is_some())
    })?;
    let end = rig.graph(1, graph);
    ensure!(end == Some(Err(GraphFailure::Endpoint(lost))), "the graph ended as {end:?}");
    // The graph's remains at the other endpoint do no harm.
    let alive = pairs[other].ends[1 - other];
    ensure!(rig.broken(1, alive).is_none(), "the other endpoint broke too");
    rig.disconnect(1, alive);
    let next = rig.post_graph(1, WorkGraph::new())?;
    rig.graph_done(1, next)?;
    rig.settle()
}

/// A graph also fails when this side closes one of its endpoints; a graph that was through with the endpoint goes on.
pub(crate) fn a_graph_ends_when_its_endpoint_is_closed(rig: &mut Rig<'_>) -> Verdict {
    let (graph, pairs) = half_done(rig)?;
    let closed = if rig.rng.bool() { pairs[0].ends[1] } else { pairs[1].ends[0] };
    let mut through = WorkGraph::new();
    let inbox = rig.region(1, RegionKind::Bulk, 8)?;
    let late = rig.region(1, RegionKind::Bulk, 8)?;
    let third = rig.rng.u32(..);
    let mut beside = rig.open([0, 1], tag(third), [&[], &[]])?;
    rig.up(&mut beside)?;
    add(&mut through, beside.ends[1], Op::Recv { into: slice(&inbox, 0, 8) }, &[])?;
    let through = rig.post_graph(1, through)?;

    rig.disconnect(1, closed);
    rig.until("the graph's end", |rig| Ok(rig.graph(1, graph).is_some()))?;
    let end = rig.graph(1, graph);
    ensure!(end == Some(Err(GraphFailure::Endpoint(closed))), "the graph ended as {end:?}");
    ensure!(rig.graph(1, through).is_none(), "a graph that does not use the endpoint ended with it");
    rig.post(0, beside.ends[0], Op::Send { source: inline(&[1; 8]), imm: None }, Token::UNSIGNALED)?;
    rig.graph_done(1, through)?;
    // An endpoint may be closed once its graph is done.
    rig.disconnect(1, beside.ends[1]);
    let mut refused = WorkGraph::new();
    add(&mut refused, beside.ends[1], Op::Recv { into: slice(&late, 0, 8) }, &[])?;
    let error = rig.try_post_graph(1, refused);
    let broken = GraphError::Request { request: 0, cause: PostError::Broken };
    ensure!(error == Err(broken), "a graph on a closed endpoint gave {error:?}");
    rig.settle()
}

/// The two sides of a transfer agree on every length.
pub(crate) fn a_graph_refuses_a_message_of_another_length(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 64)?;
    let pair = rig.pair(&[])?;
    let mut graph = WorkGraph::new();
    add(&mut graph, pair.ends[1], Op::Recv { into: slice(&inbox, 0, 64) }, &[])?;
    let graph = rig.post_graph(1, graph)?;
    rig.post(0, pair.ends[0], Op::Send { source: inline(&[1; 24]), imm: None }, Token::UNSIGNALED)?;
    rig.until("the graph's end", |rig| Ok(rig.graph(1, graph).is_some()))?;
    let wanted = Some(Err(GraphFailure::Length { endpoint: pair.ends[1], bytes: 24, wanted: 64 }));
    let end = rig.graph(1, graph);
    ensure!(end == wanted, "the graph ended as {end:?}");
    rig.settle()
}

/// A graph with anything wrong in it is refused as a whole.
pub(crate) fn a_refused_graph_takes_no_effect(rig: &mut Rig<'_>) -> Verdict {
    let inbox = rig.region(1, RegionKind::Bulk, 64)?;
    let pair = rig.pair(&[])?;
    let e = pair.ends[1];
    let whole = Op::Recv { into: slice(&inbox, 0, 64) };
    let mut graph = WorkGraph::new();
    let first = add(&mut graph, e, whole, &[])?;
    let mut other = WorkGraph::new();
    let unknown = other.add(e, whole, &[first]).err();
    ensure!(unknown == Some(GraphError::Dependency { request: 0, after: 0 }), "an unknown request gave {unknown:?}");
    let target = Target { region: inbox.key(), offset: 4 };
    for op in [
        Op::Write { source: inline(&[0; 8]), target },
        Op::Write { source: Source::Region(slice(&inbox, 0, 8)), target },
        Op::Read { from: target, into: slice(&inbox, 0, 8) },
    ] {
        let error = graph.add(e, op, &[]);
        ensure!(error == Err(GraphError::Operation { request: 1 }), "{op:?} gave {error:?}");
    }

    let refused = |rig: &mut Rig<'_>, e: EndpointId, op| {
        let mut graph = graph.clone();
        add(&mut graph, e, op, &[first])?;
        match rig.try_post_graph(1, graph) {
            Ok(_) => Err(format!("a graph with {op:?} was accepted")),
            Err(error) => Ok::<GraphError, String>(error),
        }
    };
    let outside = refused(rig, e, Op::Recv { into: slice(&inbox, 60, 8) })?;
    let cause = PostError::LocalBounds { offset: 60, len: 8, region_bytes: 64 };
    ensure!(outside == GraphError::Request { request: 1, cause }, "a receive outside its region gave {outside:?}");
    let long = refused(rig, e, Op::Send { source: inline(&[0; 300]), imm: None })?;
    let cause = PostError::InlineTooLong { len: 300 };
    ensure!(long == GraphError::Request { request: 1, cause }, "300 inline bytes gave {long:?}");
    let nobody = refused(rig, EndpointId(1 << 40), whole)?;
    let cause = PostError::Broken;
    ensure!(nobody == GraphError::Request { request: 1, cause }, "an unknown endpoint gave {nobody:?}");

    let mut many = WorkGraph::new();
    for _ in 0..5000 {
        add(&mut many, e, whole, &[])?;
    }
    let error = rig.try_post_graph(1, many);
    ensure!(matches!(error, Err(GraphError::Receives { receives: 5000, .. })), "5000 receives at once gave {error:?}");
    let error = rig.try_post(1, e, whole, Token::RESERVED)?;
    ensure!(error == Err(PostError::ReservedToken { token: 1 << 63 }), "a reserved token gave {error:?}");

    // None of those receives is there.
    rig.post(0, pair.ends[0], Op::Send { source: inline(b"breach"), imm: None }, Token::UNSIGNALED)?;
    rig.both_broken(&pair, &squall_fabric::BreakReason::ReceiverNotReady)?;
    ensure!(bytes_of(&inbox) == [0; 64], "a message landed");
    rig.settle()
}

/// Graphs have random dependencies, on connections that end at any time: each ends once, and is reported no more than
/// that.
pub(crate) fn any_graphs_keep_the_rules(rig: &mut Rig<'_>) -> Verdict {
    let regions = [0, 1, 2].map(|node| rig.region(node, RegionKind::Bulk, 4096));
    let regions: Vec<_> = regions.into_iter().collect::<Result<_, _>>()?;
    let group = rig.rng.u32(..1000);
    let mut pairs = Vec::new();
    for (i, nodes) in [[0, 1], [1, 2], [2, 0], [0, 1]].into_iter().enumerate() {
        pairs.push(rig.open(nodes, tag(group + i as u32), [&[], &[]])?);
    }
    let mut posted: Vec<(usize, Token)> = Vec::new();
    for _ in 0..4 {
        // Both sides of each connection get the same messages, so that each finds its receive, in one order.
        let mut graphs = [WorkGraph::new(), WorkGraph::new(), WorkGraph::new()];
        let mut ids = [Vec::new(), Vec::new(), Vec::new()];
        let messages: Vec<(usize, usize, usize)> = (0..rig.rng.usize(1..20))
            .map(|_| (rig.rng.usize(..pairs.len()), rig.rng.usize(..2), 8 * rig.rng.usize(..64)))
            .collect();
        for receives in [true, false] {
            for &(pair, from, len) in &messages {
                let pair = &pairs[pair];
                let side = if receives { 1 - from } else { from };
                let node = pair.nodes[side];
                let here = slice(&regions[node], 0, len);
                let op = match receives {
                    true => Op::Recv { into: slice(&regions[node], 1024, len) },
                    false => Op::Send { source: Source::Region(here), imm: None },
                };
                // Sends wait for earlier sends only: with receives among them, the nodes could wait in a circle.
                let after: Vec<_> = match ids[node].last() {
                    Some(&last) if !receives && rig.rng.bool() => vec![last],
                    _ => Vec::new(),
                };
                let id = add(&mut graphs[node], pair.ends[side], op, &after)?;
                if !receives {
                    ids[node].push(id);
                }
            }
        }
        for (node, graph) in graphs.into_iter().enumerate() {
            match rig.try_post_graph(node, graph) {
                Ok(token) => posted.push((node, token)),
                Err(GraphError::Receives { .. } | GraphError::Request { cause: PostError::Broken, .. }) => {}
                Err(other) => return Err(format!("a graph was refused: {other}")),
            }
        }
        for _ in 0..rig.rng.usize(..20) {
            rig.step()?;
        }
    }
    for pair in &pairs {
        // A side whose peer is closed before the two have met would wait on, so both are connected first.
        for (&node, &e) in pair.nodes.iter().zip(&pair.ends) {
            rig.until("a connection", |rig| {
                Ok(rig.endpoint(node, e).connected.is_some() || rig.broken(node, e).is_some())
            })?;
        }
    }
    rig.settle()?;
    for pair in &pairs {
        let side = rig.rng.usize(..2);
        if rig.broken(pair.nodes[side], pair.ends[side]).is_none() {
            rig.disconnect(pair.nodes[side], pair.ends[side]);
        }
    }
    rig.until("the end of every graph", |rig| {
        Ok(posted.iter().all(|(node, token)| rig.graph(*node, *token).is_some()))
    })?;
    rig.settle()
}
