//! The rules for the completions of any endpoint, whatever the scenario does.

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{BreakReason, Completion, EndpointId, GraphFailure, Op, PostError, RemoteRegion, Token};

/// A receive completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) token: Token,
    pub(crate) bytes: usize,
    pub(crate) imm: Option<u32>,
}

/// The state of one endpoint of one node.
#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    /// The peer's regions and private data, once it is connected.
    pub(crate) connected: Option<(Vec<RemoteRegion>, Vec<u8>)>,
    /// The reason for which it broke.
    pub(crate) broken: Option<BreakReason>,
    /// The work that succeeded, in the order of reports.
    pub(crate) done: Vec<Token>,
    /// The work that was flushed.
    pub(crate) flushed: Vec<Token>,
    /// The messages that came in.
    pub(crate) received: Vec<Received>,
    /// The number of times that it had room again.
    pub(crate) rooms: usize,
    closed: bool,
    /// Signaled writes, reads and sends, in the order of posts.
    sends: VecDeque<Token>,
    /// Receives and their lengths, in the order of posts.
    recvs: VecDeque<(Token, usize)>,
    /// The number of `Full`s that may still be answered by a `Room`.
    rooms_owed: usize,
}

/// The endpoints of one node.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    endpoints: BTreeMap<EndpointId, Endpoint>,
    /// Graphs, and their ends.
    graphs: BTreeMap<Token, Option<Result<(), GraphFailure>>>,
}

impl Monitor {
    pub(crate) fn endpoint(&self, e: EndpointId) -> &Endpoint {
        &self.endpoints[&e]
    }

    /// The end of a graph, if it has ended.
    pub(crate) fn graph(&self, token: Token) -> Option<Result<(), GraphFailure>> {
        self.graphs[&token]
    }

    pub(crate) fn on_graph(&mut self, token: Token) {
        self.graphs.insert(token, None);
    }

    pub(crate) fn on_connect(&mut self, e: EndpointId) -> Result<(), String> {
        match self.endpoints.insert(e, Endpoint::default()) {
            None => Ok(()),
            Some(_) => Err(format!("{e:?} was given to two connections")),
        }
    }

    pub(crate) fn on_disconnect(&mut self, e: EndpointId) {
        self.endpoints.entry(e).or_default().closed = true;
    }

    pub(crate) fn on_post(
        &mut self,
        e: EndpointId,
        op: &Op<'_>,
        token: Token,
        result: Result<(), PostError>,
    ) -> Result<(), String> {
        let Some(known) = self.endpoints.get_mut(&e) else { return Ok(()) };
        let recv = matches!(op, Op::Recv { .. });
        if (known.closed || known.broken.is_some()) && result != Err(PostError::Broken) {
            return Err(format!("G5: a post to {e:?}, which is broken or closed, gave {result:?}"));
        }
        if known.connected.is_none() && !recv && result.is_ok() {
            return Err(format!("a post to {e:?} succeeded before it was connected"));
        }
        match (result, op) {
            (Ok(()), Op::Recv { into }) => known.recvs.push_back((token, into.len)),
            (Ok(()), _) if token != Token::UNSIGNALED => known.sends.push_back(token),
            (Err(PostError::Full), _) => known.rooms_owed += 1,
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn on_completion(&mut self, completion: &Completion) -> Result<(), String> {
        if let Completion::GraphDone { token, result } = completion {
            return match self.graphs.get_mut(token) {
                Some(end @ None) => {
                    *end = Some(*result);
                    Ok(())
                }
                end => Err(format!("{completion:?}, but of that graph is known {end:?}")),
            };
        }
        let Some(e) = completion.endpoint() else { return Err(format!("of no endpoint: {completion:?}")) };
        let Some(known) = self.endpoints.get_mut(&e) else {
            return Err(format!("reported of an endpoint that does not exist: {completion:?}"));
        };
        if known.closed {
            return Err(format!("reported after the endpoint was closed: {completion:?}"));
        }
        if known.broken.is_some() {
            return Err(format!("G5: reported after the endpoint broke: {completion:?}"));
        }
        if !known.flushed.is_empty()
            && !matches!(completion, Completion::Broken { .. } | Completion::Done { result: Err(_), .. })
        {
            return Err(format!("G5: reported after work was flushed: {completion:?}"));
        }
        let early = known.connected.is_none();
        match completion {
            Completion::Connected { remote, hello, .. } => {
                if known.connected.replace((remote.clone(), hello.clone())).is_some() {
                    return Err(format!("{e:?} was connected twice"));
                }
            }
            Completion::Done { token, result: Ok(()), .. } => {
                if known.sends.front() != Some(token) {
                    return Err(format!(
                        "G4: {token:?} is done, but outstanding are, in this order, {:?}",
                        known.sends
                    ));
                }
                known.sends.pop_front();
                known.done.push(*token);
            }
            Completion::Done { token, result: Err(_), .. } => {
                if known.sends.front() == Some(token) {
                    known.sends.pop_front();
                } else if known.recvs.front().is_some_and(|(first, _)| first == token) {
                    known.recvs.pop_front();
                } else {
                    return Err(format!(
                        "G5: {token:?} was flushed, but outstanding are {:?} and the receives {:?}",
                        known.sends, known.recvs
                    ));
                }
                known.flushed.push(*token);
            }
            Completion::Received { .. } if early => {
                return Err(format!("reported before it was connected: {completion:?}"));
            }
            Completion::Received { token, bytes, imm, .. } => match known.recvs.pop_front() {
                Some((first, len)) if first == *token && *bytes <= len => {
                    known.received.push(Received { token: *token, bytes: *bytes, imm: *imm });
                }
                first => return Err(format!("G3: {completion:?}, but the first receive is {first:?}")),
            },
            Completion::Room { .. } => {
                let owed = known.rooms_owed.checked_sub(1);
                known.rooms_owed = owed.ok_or_else(|| format!("room on {e:?}, which was not full"))?;
                known.rooms += 1;
            }
            Completion::Broken { reason, .. } => {
                if !known.sends.is_empty() || !known.recvs.is_empty() {
                    return Err(format!(
                        "G5: {e:?} broke, but {:?} and the receives {:?} were not flushed",
                        known.sends, known.recvs
                    ));
                }
                known.broken = Some(reason.clone());
            }
            Completion::GraphDone { .. } => unreachable!("taken above"),
        }
        Ok(())
    }
}
