//! A store and its pipe, as one state machine.

use squall_fabric::{Completion, Fabric, Time};
use squall_onepipe::{Clock, Controller, Message, Mode, OnePipe, PipeEvent, ScatterError};

use crate::{Store, StoreConfig};

/// The most messages of one mode that are delivered before the other mode has its turn.
const DELIVERIES: usize = 256;

/// The reason why a store and a pipe don't go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The store's placement and the pipe have different numbers of members.
    #[error("the store is placed on {members} members, and the pipe has {ranks} ranks: give both the same")]
    Members {
        /// The members of the placement.
        members: usize,
        /// The ranks of the pipe.
        ranks: usize,
    },
    /// The pipe cannot take the store's longest messages.
    #[error(
        "`StoreConfig::message_bytes` is {message_bytes}, and the pipe takes {most}: lower it, or raise the pipe's `ring_bytes`"
    )]
    MessageBytes {
        /// The store's longest message, in bytes.
        message_bytes: usize,
        /// The pipe's longest message, in bytes.
        most: usize,
    },
}

/// One member of the store, with the pipe that carries its scatterings.
#[derive(Debug)]
pub struct Member<C> {
    pipe: OnePipe<C>,
    store: Store,
}

impl<C: Clock> Member<C> {
    /// Joins an empty store with its pipe. The store has the pipe's rank.
    pub fn new(pipe: OnePipe<C>, config: StoreConfig) -> Result<Member<C>, MemberError> {
        let (members, ranks) = (config.placement.members(), pipe.ranks());
        if members != ranks {
            return Err(MemberError::Members { members, ranks });
        }
        let (message_bytes, most) = (config.message_bytes, pipe.max_message());
        if message_bytes > most {
            return Err(MemberError::MessageBytes { message_bytes, most });
        }
        let store = Store::new(config, pipe.rank());
        Ok(Member { pipe, store })
    }

    /// The store, to submit transactions to and to take their results from.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// The pipe that carries the scatterings.
    pub fn pipe(&self) -> &OnePipe<C> {
        &self.pipe
    }

    /// Hands a completion to the pipe. Returns false if it belongs to another user of the fabric.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
        self.pipe.on_completion(fabric, now, completion)
    }

    /// Makes progress: failures are settled, messages delivered, and answers and new transactions sent. Returns whether
    /// anything has changed.
    pub fn step(&mut self, fabric: &mut impl Fabric, now: Time, controller: &mut impl Controller) -> bool {
        let mut progress = self.pipe.step(fabric, now);
        progress |= self.pipe.attend(fabric, now, controller);
        // Removals precede the delivery of anything that was sent after the settlement.
        progress |= self.hear();
        for mode in [Mode::Reliable, Mode::BestEffort] {
            let store = &mut self.store;
            progress |= self.pipe.deliver(mode, DELIVERIES, &mut |delivery| store.on_delivery(&delivery)) > 0;
        }
        let scattered = self.scatter(now);
        if scattered {
            self.pipe.step(fabric, now);
        }
        progress || scattered
    }

    /// The time at which the member has to be stepped even if nothing happens.
    pub fn deadline(&self) -> Time {
        self.pipe.deadline()
    }

    fn hear(&mut self) -> bool {
        let mut removed = Vec::new();
        let mut heard = false;
        while let Some(event) = self.pipe.next_event() {
            heard = true;
            match event {
                PipeEvent::Undeliverable { id, mode, .. } => self.store.on_undeliverable(mode, id),
                PipeEvent::Removed { rank, .. } => removed.push(rank),
                PipeEvent::Ended => self.store.on_ended(),
                _ => {}
            }
        }
        if !removed.is_empty() {
            self.store.on_removed(&removed);
        }
        heard
    }

    /// Gives the pipe the scatterings that it has room for. Returns whether it took any.
    fn scatter(&mut self, now: Time) -> bool {
        let mut any = false;
        for mode in [Mode::BestEffort, Mode::Reliable] {
            while let Some(scattering) = self.store.outgoing(mode) {
                let messages: Vec<_> =
                    scattering.messages.iter().map(|(to, bytes)| Message { to: *to, bytes }).collect();
                match self.pipe.scatter(now, scattering.mode, &messages) {
                    Ok(id) => self.store.sent(mode, id),
                    Err(ScatterError::Full { .. } | ScatterError::Ended) => break,
                    Err(error) => unreachable!("the store sends only what the pipe takes: {error}"),
                }
                any = true;
            }
        }
        any
    }
}
