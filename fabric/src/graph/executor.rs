//! The order of the requests of all graphs. Pure: a backend feeds it completions, asks for requests, and posts them.

use std::{collections::BTreeMap, mem};

use super::{GraphError, Queue, Work, WorkGraph};
use crate::{Completion, EndpointId, GraphFailure, Token};

/// The graphs that run on one fabric.
#[derive(Debug, Default)]
pub(crate) struct Executor {
    /// A slot is used again when nothing of its graph is outstanding, so a token never means two requests.
    slots: Vec<Option<Run>>,
    free: Vec<usize>,
    /// Lanes whose first request may go as far as its graph is concerned.
    stirred: Vec<LaneId>,
    /// Lanes whose first request waits for room, or for the connection.
    stalled: Vec<LaneId>,
    /// Ends of graphs that no completion brought about.
    ended: Vec<Completion>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LaneId {
    slot: usize,
    lane: usize,
}

/// One graph.
#[derive(Debug)]
struct Run {
    token: Token,
    requests: Vec<Running>,
    /// The requests that wait for each request, in ranges by `Running::followers_end`.
    followers: Vec<u32>,
    lanes: Vec<Lane>,
    /// Requests that are not complete.
    left: usize,
    /// Requests that were handed over and are not complete.
    outstanding: usize,
    failed: bool,
}

#[derive(Debug)]
struct Running {
    work: Work,
    lane: usize,
    stage: RequestStage,
    followers_end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStage {
    /// The request waits for so many others.
    Waits(u32),
    Outstanding,
    Complete,
}

/// The requests of one queue, in the order of the list.
#[derive(Debug)]
struct Lane {
    endpoint: EndpointId,
    queue: Queue,
    requests: Vec<u32>,
    /// The number of requests that were handed over.
    next: usize,
    /// The number of requests that are complete.
    complete: usize,
}

/// A backend's next step.
#[derive(Debug)]
pub(crate) enum Next {
    /// Post this, with this token.
    Post(EndpointId, Work, Token),
    /// Ask again after [`Executor::retry`], when this endpoint has room or is connected.
    #[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "only the simulator looks at the endpoint"))]
    Stalled(EndpointId),
}

impl Executor {
    /// Whether there is nothing to do, and no report concerns a graph.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len() && self.ended.is_empty()
    }

    /// Takes a graph, whose requests were checked. `room` says how many receives an endpoint takes now.
    pub(crate) fn start(
        &mut self,
        graph: WorkGraph,
        token: Token,
        mut room: impl FnMut(EndpointId) -> usize,
    ) -> Result<(), GraphError> {
        if token.is_reserved() || token == Token::UNSIGNALED {
            return Err(GraphError::Token(token.0));
        }
        let run = Run::new(graph, token);
        for lane in run.lanes.iter().filter(|lane| lane.queue == Queue::Recv) {
            let waits_for_nothing = |request: &&u32| run.requests[**request as usize].stage == RequestStage::Waits(0);
            let (receives, room) = (lane.requests.iter().take_while(waits_for_nothing).count(), room(lane.endpoint));
            if receives > room {
                return Err(GraphError::Receives { receives, room });
            }
        }
        if run.left == 0 {
            self.ended.push(Completion::GraphDone { token, result: Ok(()) });
            return Ok(());
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        // The last of `stirred` goes first. Receives are first among lanes, so the reversal has them go ahead of sends.
        self.stirred.extend((0..run.lanes.len()).rev().map(|lane| LaneId { slot, lane }));
        self.slots[slot] = Some(run);
        Ok(())
    }

    /// The next step, or none for now. `takes` says whether a queue takes another request.
    pub(crate) fn next(&mut self, takes: impl FnOnce(EndpointId, Queue) -> bool) -> Option<Next> {
        loop {
            let id = *self.stirred.last()?;
            let Some(run) = self.slots[id.slot].as_mut().filter(|run| !run.failed) else {
                self.stirred.pop();
                continue;
            };
            let Some(request) = run.lanes[id.lane].first().filter(|first| run.waits_for_nothing(*first)) else {
                self.stirred.pop();
                continue;
            };
            let lane = &mut run.lanes[id.lane];
            if !takes(lane.endpoint, lane.queue) {
                self.stalled.extend(self.stirred.pop());
                return Some(Next::Stalled(lane.endpoint));
            }
            lane.next += 1;
            run.outstanding += 1;
            let running = &mut run.requests[request];
            running.stage = RequestStage::Outstanding;
            return Some(Next::Post(lane.endpoint, running.work.clone(), token_of(id.slot, request)));
        }
    }

    /// Has lanes that waited for room, or for a connection, try again.
    pub(crate) fn retry(&mut self) {
        self.stirred.append(&mut self.stalled);
    }

    /// Takes the completions of graphs' requests out of a report, and adds the ends of graphs.
    pub(crate) fn report(&mut self, completion: Completion, out: &mut Vec<Completion>) {
        match completion {
            Completion::Done { endpoint, token, result } if token.is_reserved() => {
                let failure = result.err().map(|_| GraphFailure::Endpoint(endpoint));
                out.extend(self.complete(token, failure));
            }
            Completion::Received { endpoint, token, bytes, .. } if token.is_reserved() => {
                let failure = match self.wanted(token) {
                    Some(wanted) if wanted != bytes => Some(GraphFailure::Length { endpoint, bytes, wanted }),
                    _ => None,
                };
                out.extend(self.complete(token, failure));
            }
            Completion::Broken { endpoint, .. } => {
                self.endpoint_gone(endpoint);
                self.ended(out);
                out.push(completion);
            }
            other => out.push(other),
        }
    }

    /// Whether a request may go that could not before.
    #[cfg(feature = "sim")]
    pub(crate) fn is_stirred(&self) -> bool {
        !self.stirred.is_empty()
    }

    /// Ends a graph that is all but done, which then is not reported any more: for showing that a check bites.
    #[cfg(feature = "sim")]
    pub(crate) fn almost_done(&mut self) -> Option<Completion> {
        let run = self.slots.iter_mut().flatten().find(|run| run.left == 1 && !run.failed)?;
        run.failed = true;
        Some(Completion::GraphDone { token: run.token, result: Ok(()) })
    }

    /// Reports the ends that no completion brought about.
    pub(crate) fn ended(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.ended);
    }

    /// Ends the graph of a request that could not be posted because its endpoint is gone.
    pub(crate) fn refused(&mut self, endpoint: EndpointId, token: Token) {
        let end = self.complete(token, Some(GraphFailure::Endpoint(endpoint)));
        self.ended.extend(end);
    }

    /// Ends the graphs of an endpoint that broke or was closed: nothing more is reported of it.
    pub(crate) fn endpoint_gone(&mut self, endpoint: EndpointId) {
        for slot in 0..self.slots.len() {
            let Some(run) = &mut self.slots[slot] else { continue };
            let (mut unfinished, mut outstanding) = (false, 0);
            for lane in run.lanes.iter_mut().filter(|lane| lane.endpoint == endpoint) {
                unfinished |= lane.complete < lane.requests.len();
                outstanding += lane.next - lane.complete;
                lane.complete = lane.next;
                for &request in &lane.requests[..lane.next] {
                    run.requests[request as usize].stage = RequestStage::Complete;
                }
            }
            run.outstanding -= outstanding;
            if unfinished && !mem::replace(&mut run.failed, true) {
                let result = Err(GraphFailure::Endpoint(endpoint));
                self.ended.push(Completion::GraphDone { token: run.token, result });
            }
            self.free_if_over(slot);
        }
    }

    /// The length of the receive with this token.
    fn wanted(&self, token: Token) -> Option<usize> {
        let (slot, request) = place_of(token);
        match &self.slots.get(slot)?.as_ref()?.requests.get(request)?.work {
            Work::Recv { into } => Some(into.len),
            Work::Send { .. } | Work::Write { .. } => None,
        }
    }

    /// Takes a request that is complete, or has failed. Returns the graph's end, if this is it.
    fn complete(&mut self, token: Token, failure: Option<GraphFailure>) -> Option<Completion> {
        let (slot, request) = place_of(token);
        let run = self.slots.get_mut(slot)?.as_mut()?;
        let running = run.requests.get_mut(request)?;
        if mem::replace(&mut running.stage, RequestStage::Complete) != RequestStage::Outstanding {
            return None;
        }
        run.lanes[running.lane].complete += 1;
        run.left -= 1;
        run.outstanding -= 1;
        let mut end = None;
        if let Some(failure) = failure {
            if !mem::replace(&mut run.failed, true) {
                end = Some(Err(failure));
            }
        } else if !run.failed {
            let begin = request.checked_sub(1).map_or(0, |before| run.requests[before].followers_end);
            for at in begin..run.requests[request].followers_end {
                let follower = run.followers[at] as usize;
                let RequestStage::Waits(others) = &mut run.requests[follower].stage else { continue };
                *others -= 1;
                let lane = run.requests[follower].lane;
                if run.waits_for_nothing(follower) && run.lanes[lane].first() == Some(follower) {
                    self.stirred.push(LaneId { slot, lane });
                }
            }
            if run.left == 0 {
                end = Some(Ok(()));
            }
        }
        let token = run.token;
        self.free_if_over(slot);
        end.map(|result| Completion::GraphDone { token, result })
    }

    fn free_if_over(&mut self, slot: usize) {
        if self.slots[slot].as_ref().is_some_and(|run| run.outstanding == 0 && (run.failed || run.left == 0)) {
            self.slots[slot] = None;
            self.free.push(slot);
            self.stirred.retain(|id| id.slot != slot);
            self.stalled.retain(|id| id.slot != slot);
        }
    }
}

impl Run {
    fn new(graph: WorkGraph, token: Token) -> Run {
        let mut lanes: Vec<Lane> = Vec::new();
        let mut lane_of: BTreeMap<(Queue, EndpointId), usize> = BTreeMap::new();
        for request in &graph.requests {
            lane_of.insert((request.work.queue(), request.endpoint), 0);
        }
        for (lane, (&(queue, endpoint), index)) in lane_of.iter_mut().enumerate() {
            *index = lane;
            lanes.push(Lane { endpoint, queue, requests: Vec::new(), next: 0, complete: 0 });
        }

        // Followers are counted first: the number for each request gives the ends of their ranges, which are then
        // filled.
        let mut ends = vec![0; graph.requests.len()];
        for &before in &graph.after {
            ends[before as usize] += 1;
        }
        let mut total = 0;
        for end in &mut ends {
            total += *end;
            *end = total;
        }
        let mut place = ends.clone();
        let mut followers = vec![0; graph.after.len()];
        for request in (0..graph.requests.len()).rev() {
            for &before in graph.after(request) {
                let place = &mut place[before as usize];
                *place -= 1;
                followers[*place] = request as u32;
            }
        }

        let waits: Vec<u32> = (0..graph.requests.len()).map(|request| graph.after(request).len() as u32).collect();
        let requests =
            graph.requests.into_iter().zip(waits).zip(ends).enumerate().map(|(id, ((request, waits), end))| {
                let lane = lane_of[&(request.work.queue(), request.endpoint)];
                lanes[lane].requests.push(id as u32);
                Running { work: request.work, lane, stage: RequestStage::Waits(waits), followers_end: end }
            });
        let requests: Vec<Running> = requests.collect();
        Run { token, left: requests.len(), requests, followers, lanes, outstanding: 0, failed: false }
    }

    fn waits_for_nothing(&self, request: usize) -> bool {
        self.requests[request].stage == RequestStage::Waits(0)
    }
}

impl Lane {
    fn first(&self) -> Option<usize> {
        self.requests.get(self.next).map(|request| *request as usize)
    }
}

/// The reserved token that names a slot and a request.
fn token_of(slot: usize, request: usize) -> Token {
    Token(Token::RESERVED.0 | (slot as u64) << 32 | request as u64)
}

fn place_of(token: Token) -> (usize, usize) {
    let Token(bits) = token;
    (((bits & !Token::RESERVED.0) >> 32) as usize, bits as u32 as usize)
}
