//! The group that moves a stage, as the source sees it. The source sends, or a receiver does in its place.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use squall_rdmc::{Buffer, Event, GroupId, Interrupted};

use super::{
    super::{
        super::{
            control::{Join, ToReceiver},
            plan::TransferStage,
        },
        PushError,
        peers::PeerEvent,
    },
    Transfer,
};

/// The number of groups in a row that may fail without a receiver being lost or anything achieved.
const STRIKES: u32 = 3;

/// The time in which a receiver that sends in the source's place must achieve something, in silences.
const STALL: u32 = 4;

/// The group that moves a stage.
pub(super) struct SendingGroup {
    pub(super) stage: TransferStage,
    /// The receiver that sends. None: the source does, and is a member.
    pub(super) root: Option<usize>,
    pub(super) join: Join,
    pub(super) id: GroupId,
    /// Whether its members were asked to join.
    created: bool,
    /// Whether the source has left it, or asked its members to.
    pub(super) over: bool,
    /// The members for which it is not over.
    members: HashSet<usize>,
    /// The next segment to be read.
    pub(super) next_read: u64,
    /// The next segment to be sent.
    pub(super) next_send: u64,
    /// The segments that are being sent, in order.
    pub(super) sending: VecDeque<Arc<Buffer>>,
    /// The reason of its failure, and the suspected node, if it failed.
    failure: Option<(Option<u32>, String)>,
    somebody_left: bool,
    growth: Growth,
    /// The number of its segments that somebody got, if the source does not send.
    relayed: u64,
}

/// The growth of what the receivers of a group have written.
struct Growth {
    bytes: u64,
    since: Instant,
}

impl Growth {
    /// Notes the number of bytes that are written. Tells whether it has been the same for longer than `time`.
    fn has_stalled(&mut self, now: Instant, bytes: u64, time: Duration) -> bool {
        if bytes != self.bytes {
            *self = Growth { bytes, since: now };
        }
        now.saturating_duration_since(self.since) > time
    }
}

impl SendingGroup {
    /// Tells whether it is over for all its nodes.
    pub(super) fn has_ended(&self) -> bool {
        self.members.is_empty() && (self.over || self.root.is_some())
    }

    /// Tells whether it is not over for the node that sends.
    fn is_being_sent(&self) -> bool {
        self.root.map_or(!self.over, |root| self.members.contains(&root))
    }
}

impl Transfer<'_> {
    pub(super) fn begin(&mut self, stage: TransferStage, root: Option<usize>) -> Result<(), PushError> {
        self.instance += 1;
        self.best = self.best.max(self.peers.achieved());
        let (members, algorithm) = self.peers.group(root, &stage.receivers);
        let partial = stage.partial;
        let join = Join {
            group: self.group,
            instance: self.instance,
            members,
            algorithm,
            network: self.options.network.is_some(),
            block_bytes: self.block_bytes as u64,
            first: stage.first,
            end: stage.end,
            partial: stage.partial,
        };
        let id = join.id();
        tracing::debug!(?stage, ?root, ?id, "a group begins");
        self.current = Some(SendingGroup {
            join,
            id,
            root,
            created: false,
            over: false,
            members: stage.receivers.iter().copied().chain(root).collect(),
            next_read: stage.first,
            next_send: stage.first,
            sending: VecDeque::new(),
            failure: None,
            somebody_left: false,
            growth: Growth { bytes: self.peers.written(&stage.receivers), since: Instant::now() },
            relayed: 0,
            stage,
        });
        match root {
            Some(_) => self.invite(),
            // To resume, the segment must be here first.
            None if partial => {}
            None => self.create(None)?,
        }
        Ok(())
    }

    /// Creates the current group, and asks its members to join.
    pub(super) fn create(&mut self, message: Option<Interrupted>) -> Result<(), PushError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let config = current
            .join
            .config()
            .ok_or_else(|| PushError::Group(format!("there is no algorithm {:?}", current.join.algorithm.name)))?;
        let created = match message {
            Some(message) => self.bulk.resume(config, message),
            None => self.bulk.create(config),
        };
        created.map_err(|error| PushError::Group(error.to_string()))?;
        self.invite();
        Ok(())
    }

    /// Asks the members of the current group to join.
    fn invite(&mut self) {
        let Some(current) = &mut self.current else { return };
        current.created = true;
        let message = ToReceiver::Join(current.join.clone());
        for &peer in current.stage.receivers.iter().chain(&current.root) {
            self.peers.tell_one(peer, &message);
        }
    }

    /// Handles the end of the current group for all its members.
    pub(super) fn conclude(&mut self) {
        let Some(SendingGroup { stage, root, failure, somebody_left, relayed, .. }) = self.current.take() else {
            return;
        };
        (self.multicasts, self.relayed) = (self.multicasts + relayed, self.relayed + relayed);
        let Some((suspect, reason)) = failure else {
            self.strikes = 0;
            return;
        };
        if root.is_some() {
            if !somebody_left {
                tracing::info!(reason, "a receiver could not send in the source's place");
                let suspect = suspect.and_then(|node| self.peers.by_node(node));
                self.peers.exclude_root(root.filter(|_| suspect == root));
            }
            return;
        }
        if somebody_left || self.peers.achieved() > self.best {
            self.strikes = 0;
            return;
        }
        self.strikes += 1;
        if self.strikes >= STRIKES {
            self.strikes = 0;
            let suspect = suspect.and_then(|node| self.peers.by_node(node));
            let lost: Vec<usize> = suspect.map_or(stage.receivers, |peer| vec![peer]);
            for peer in lost {
                self.peers.lose(peer, format!("nothing reaches it: {reason}"));
            }
        }
    }

    /// Ends a group in which a receiver sends, and others have got nothing for too long: its disk may hang.
    pub(super) fn end_if_stalled(&mut self) {
        let Some(current) = self.current.as_mut().filter(|current| current.root.is_some() && !current.over) else {
            return;
        };
        let written = self.peers.written(&current.stage.receivers);
        let for_a_segment = self.options.limit_rate.map_or(0, |rate| self.segment_bytes as u64 / rate.max(1));
        let limit = self.options.silence.saturating_mul(STALL) + Duration::from_secs(for_a_segment);
        if current.growth.has_stalled(Instant::now(), written, limit) {
            current.failure.get_or_insert((None, "nothing came of it".to_owned()));
            self.leave();
        }
    }

    pub(super) fn on_event(&mut self, id: GroupId, event: Event) -> Result<(), PushError> {
        let Some(current) = self.current.as_mut().filter(|current| current.id == id) else { return Ok(()) };
        match event {
            Event::Released { .. } => {
                if let Some(buffer) = current.sending.pop_front() {
                    self.pool.give_shared(buffer);
                }
            }
            Event::Failed(failure) => {
                current.failure = Some((failure.suspect.map(|node| node.0), failure.reason.clone()));
                drop(failure);
                self.leave();
            }
            Event::Destroyed => self.leave(),
            Event::Connected | Event::Incoming { .. } | Event::Received { .. } => {}
        }
        Ok(())
    }

    /// Handles what a receiver says of its group, or its loss.
    pub(super) fn on_group_word(&mut self, word: PeerEvent) {
        let Some(current) = &mut self.current else { return };
        match word {
            // A lost member counts even if the group is over for it, as long as it is not over for the node that sends:
            // others may wait for it.
            PeerEvent::Lost(peer)
                if current.members.remove(&peer)
                    || current.is_being_sent() && current.stage.receivers.contains(&peer) =>
            {
                current.somebody_left = true;
                current.failure.get_or_insert((None, "a receiver is gone".to_owned()));
                self.leave();
            }
            PeerEvent::Over(peer, over) if over.instance == current.id.instance => {
                current.members.remove(&peer);
                let lacked = current.root != Some(peer);
                let has_all = over.holding.segments == current.stage.end;
                if current.root.is_some() && lacked {
                    let moved = over.holding.segments.min(current.stage.end).saturating_sub(current.stage.first);
                    current.relayed = current.relayed.max(moved);
                }
                if over.failure.is_none()
                    && lacked
                    && !has_all
                    && let Some(root) = current.root
                {
                    // The one that sends has ended it. If it has not, the source will see.
                    let root = self.peers.node(root);
                    current.failure.get_or_insert((Some(root), "it ended too early".to_owned()));
                    self.leave();
                } else if over.failure.is_none() && lacked && !has_all {
                    // The receiver would be sent the same again, for ever.
                    current.somebody_left = true;
                    current.failure.get_or_insert((None, "a receiver left too early".to_owned()));
                    self.peers.lose_breaker(peer);
                    self.leave();
                } else if let Some((suspect, reason)) = over.failure {
                    // A receiver that names no suspect could not take part itself.
                    let suspect = suspect.unwrap_or(self.peers.node(peer));
                    current.failure.get_or_insert((Some(suspect), reason));
                    self.leave();
                }
            }
            _ => {}
        }
    }

    /// Leaves the current group, or asks its members to. It fails for the members that are still in it.
    pub(super) fn leave(&mut self) {
        let Some(current) = self.current.as_mut().filter(|current| !current.over) else { return };
        current.over = true;
        if current.root.is_some() {
            let message = ToReceiver::EndGroup { instance: current.id.instance };
            current.members.iter().for_each(|&peer| self.peers.tell_one(peer, &message));
        } else if current.created {
            self.bulk.remove(current.id);
        } else {
            // No receiver was asked to join.
            current.members.clear();
        }
        for buffer in current.sending.drain(..) {
            self.pool.give_shared(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_has_not_stalled() {
        let (begin, limit) = (Instant::now(), Duration::from_secs(120));
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut growth = Growth { bytes: 5, since: begin };
        assert!(!growth.has_stalled(after(120), 5, limit));
        assert!(growth.has_stalled(after(121), 5, limit));
        assert!(!growth.has_stalled(after(122), 6, limit));
        assert!(!growth.has_stalled(after(242), 6, limit));
        assert!(growth.has_stalled(after(243), 6, limit));
    }
}
