//! The watches of a client: a part of its protocol.
//!
//! A watch that has begun goes on over each new connection behind the last change that it has handed on. The node tells
//! changes in their order, and only as many as the watch's credit permits; the client gives it more as the application
//! takes them.

use std::{collections::BTreeMap, mem};

use squall_fabric::Time;

use super::{
    effect::{ClientEffect, WatchEvent, WatchId, WatchRequest},
    error::ClientError,
};
use crate::clients::{
    changes::ChangePlace,
    wire::{ToClient, ToNode, ToldChange, WatchEnd, WatchStart},
};

/// All watches of a client.
#[derive(Debug, Default)]
pub(super) struct Watches(BTreeMap<WatchId, ActiveWatch>);

#[derive(Debug)]
struct ActiveWatch {
    request: WatchRequest,
    begun: bool,
    /// The cost of the changes that the application has not taken, at most.
    waiting: u64,
}

impl ActiveWatch {
    fn send(&self, id: WatchId) -> ClientEffect {
        let WatchRequest { prefix, start, window, .. } = self.request.clone();
        let credit = i64::try_from(window).unwrap_or(i64::MAX).saturating_sub_unsigned(self.waiting);
        ClientEffect::Send(ToNode::Watch { number: id.0, prefix, start, credit })
    }
}

impl Watches {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a new watch. `is_up` says whether there is a connection.
    pub(super) fn add(&mut self, id: WatchId, request: WatchRequest, is_up: bool, out: &mut Vec<ClientEffect>) {
        let watch = ActiveWatch { request, begun: false, waiting: 0 };
        out.extend(is_up.then(|| watch.send(id)));
        self.0.insert(id, watch);
    }

    pub(super) fn remove(&mut self, id: WatchId, is_up: bool, out: &mut Vec<ClientEffect>) {
        if self.0.remove(&id).is_some() && is_up {
            out.push(ClientEffect::Send(ToNode::Unwatch { number: id.0 }));
        }
    }

    /// Notes that the application has taken changes of this cost.
    pub(super) fn taken(&mut self, id: WatchId, cost: u64, is_up: bool, out: &mut Vec<ClientEffect>) {
        let Some(watch) = self.0.get_mut(&id) else { return };
        watch.waiting = watch.waiting.saturating_sub(cost);
        if is_up {
            out.push(ClientEffect::Send(ToNode::More { number: id.0, credit: cost }));
        }
    }

    /// Goes on with all watches, over a fresh connection.
    pub(super) fn resume(&self, out: &mut Vec<ClientEffect>) {
        out.extend(self.0.iter().map(|(&id, watch)| watch.send(id)));
    }

    /// Takes a message of a node, and tells whether a watch goes on by it. Fails if the node breaks the rules.
    pub(super) fn heard(&mut self, message: ToClient, out: &mut Vec<ClientEffect>) -> Result<bool, String> {
        match message {
            ToClient::Watching { number, at, answer } => {
                let Some(watch) = self.0.get_mut(&WatchId(number)) else { return Ok(false) };
                if !mem::replace(&mut watch.begun, true) {
                    watch.request.start = WatchStart::Behind(at);
                    out.push(ClientEffect::Watch(WatchId(number), WatchEvent::Began(at, answer)));
                }
            }
            ToClient::Changes { number, upto, changes } => {
                let Some(watch) = self.0.get_mut(&WatchId(number)) else { return Ok(false) };
                watch.take(upto, &changes)?;
                out.push(ClientEffect::Watch(WatchId(number), WatchEvent::Changes(upto, changes)));
            }
            ToClient::WatchEnded { number, why } => {
                let error = match why {
                    WatchEnd::TooFarBehind { needed, oldest } => ClientError::TooFarBehind { needed, oldest },
                    WatchEnd::OtherHistory(number) => ClientError::OtherHistory { number },
                    WatchEnd::Refused(why) => ClientError::NotWatched(why),
                };
                self.end(WatchId(number), error, out);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn end(&mut self, id: WatchId, error: ClientError, out: &mut Vec<ClientEffect>) {
        if self.0.remove(&id).is_some() {
            out.push(ClientEffect::Watch(id, WatchEvent::Ended(error)));
        }
    }

    /// Ends all watches.
    pub(super) fn end_all(&mut self, error: &ClientError, out: &mut Vec<ClientEffect>) {
        let ended = mem::take(&mut self.0).into_keys();
        out.extend(ended.map(|id| ClientEffect::Watch(id, WatchEvent::Ended(error.clone()))));
    }

    /// Returns the first time by which a watch must have begun.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.0.values().filter(|watch| !watch.begun).map(|watch| watch.request.begin_by).min()
    }

    /// Ends the watches that have not begun in time.
    pub(super) fn expire(&mut self, now: Time, is_up: bool, trouble: &str, out: &mut Vec<ClientEffect>) {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let late = |(_, watch): &(&WatchId, &ActiveWatch)| !watch.begun && watch.request.begin_by <= now;
        let late: Vec<WatchId> = self.0.iter().filter(late).map(|(&id, _)| id).collect();
        for id in late {
            self.remove(id, is_up, out);
            let error = ClientError::Deadline { sent: false, trouble: trouble.to_owned() };
            out.push(ClientEffect::Watch(id, WatchEvent::Ended(error)));
        }
    }
}

impl ActiveWatch {
    /// Takes changes in, if they are the next ones and there is credit for them.
    fn take(&mut self, upto: ChangePlace, changes: &[ToldChange]) -> Result<(), String> {
        let WatchStart::Behind(place) = &mut self.request.start else {
            return Err("a member told changes of a watch that had not begun".to_owned());
        };
        let numbers = changes.iter().map(|change| change.at.number);
        let ascends = [place.number].into_iter().chain(numbers.clone()).zip(numbers).all(|(last, next)| last < next);
        if !ascends || changes.last().map_or(place.number, |last| last.at.number) > upto.number {
            return Err("a member told changes out of order".to_owned());
        }
        let waits = changes
            .iter()
            .try_fold(self.waiting, |waiting, change| (waiting < self.request.window).then(|| waiting + change.cost()));
        self.waiting = waits.ok_or("a member told more changes than a watch has room for")?;
        *place = upto;
        Ok(())
    }
}
