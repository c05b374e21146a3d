//! The pure heart of a node: the one place where the layers' effects are routed.
//!
//! Events of the fabric and the view log go in. Membership says what to do, the shards do it, and their answers go back in.
//! What concerns threads and the application comes out as [`CoreEffect`]s. There is no clock, thread, socket or file here,
//! so the simulator drives the same core as a real node's engine thread.

use std::{collections::BTreeMap, sync::Arc};

use squall_fabric::{Completion, EndpointId, Fabric, NodeId, RegisterError, Time};
use squall_membership::{Effect, EndReason, Input, Membership, Rank, Settings, ShardId, View, ViewEvent, ViewLog};
use squall_ordered::{CreateError, DeliverError, Deliverer, Row, Shard, ShardConfig, Submitter, Undelivered};

/// What a node's surroundings must do.
#[derive(Debug)]
pub(crate) enum CoreEffect {
    /// A shard exists: its other two parts.
    Created { shard: ShardId, submitter: Submitter, deliverer: Deliverer },
    /// Every member of the first view has appeared.
    Formed(Arc<View>),
    /// The shard's deliverer may have more to do.
    Deliver(ShardId),
    /// The shard's ring has more room.
    Freed(ShardId),
    /// So has what the shard keeps for bulk messages.
    FreedBulk(ShardId),
    /// The shard delivers nothing more: fail whatever waits.
    End { shard: ShardId, undelivered: Vec<Undelivered>, reason: EndReason },
    /// All shards have ended; the node has nothing more to do.
    Ended(EndReason),
}

/// Why a node's core could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CoreError {
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Create(#[from] CreateError),
}

/// Which layer an endpoint belongs to.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Membership,
    Shard(usize),
}

#[derive(Debug)]
struct Slot {
    shard: Shard,
    /// Its deliverer met a faulty sender, and goes no further.
    stuck: bool,
    ended: bool,
}

/// One node's protocols, and the fabric that they share.
pub(crate) struct NodeCore<F> {
    fabric: F,
    membership: Membership,
    view_log: Option<Box<dyn ViewLog>>,
    shards: Vec<Slot>,
    owners: BTreeMap<EndpointId, Owner>,
    connected: bool,
    cleaning: bool,
    ending: Option<EndReason>,
    ended: bool,
    completions: Vec<Completion>,
    effects: Vec<Effect>,
}

impl<F: Fabric> NodeCore<F> {
    /// Starts to form the first view. Its shards are created at once, in the order of `settings.shards`.
    pub(crate) fn start(
        mut fabric: F,
        now: Time,
        settings: Settings,
        configs: &BTreeMap<ShardId, ShardConfig>,
        view_log: Option<Box<dyn ViewLog>>,
        out: &mut Vec<CoreEffect>,
    ) -> Result<NodeCore<F>, CoreError> {
        let mut effects = Vec::new();
        let membership = Membership::form(&mut fabric, now, settings, &mut effects)?;
        let owners = membership.endpoints().map(|endpoint| (endpoint, Owner::Membership)).collect();
        let mut core = NodeCore {
            fabric,
            membership,
            view_log,
            shards: Vec::new(),
            owners,
            connected: false,
            cleaning: false,
            ending: None,
            ended: false,
            completions: Vec::new(),
            effects: Vec::new(),
        };
        for effect in effects {
            match effect {
                Effect::Install(view) => core.install(&view, configs, out)?,
                other => core.effects.push(other),
            }
        }
        core.route(out);
        Ok(core)
    }

    fn install(
        &mut self,
        view: &View,
        configs: &BTreeMap<ShardId, ShardConfig>,
        out: &mut Vec<CoreEffect>,
    ) -> Result<(), CoreError> {
        for members in &view.shards {
            let config = configs.get(&members.shard).copied().unwrap_or_default();
            let (submitter, shard, deliverer) = squall_ordered::create(&mut self.fabric, view, members.shard, &config)?;
            self.owners.extend(shard.endpoints().map(|endpoint| (endpoint, Owner::Shard(self.shards.len()))));
            self.shards.push(Slot { shard, stuck: false, ended: false });
            out.push(CoreEffect::Created { shard: members.shard, submitter, deliverer });
        }
        Ok(())
    }

    /// The fabric.
    pub(crate) fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// The current view.
    pub(crate) fn view(&self) -> &Arc<View> {
        self.membership.view()
    }

    /// How far a member of a shard is.
    pub(crate) fn row(&self, shard: ShardId, member: NodeId) -> Option<Row> {
        let slot = self.shards.iter().find(|slot| slot.shard.id() == shard)?;
        let rank: Rank = self.view().shard(shard)?.rank_of(member)?;
        Some(slot.shard.row(rank))
    }

    /// How many bulk messages of this node some member of a shard has not delivered, and the memory that they take, in bytes.
    pub(crate) fn bulk_in_flight(&self, shard: ShardId) -> (usize, usize) {
        let slot = self.shards.iter().find(|slot| slot.shard.id() == shard);
        slot.map_or((0, 0), |slot| slot.shard.bulk_in_flight())
    }

    /// When [`step`](NodeCore::step) must be called next, if nothing happens before.
    pub(crate) fn deadline(&self) -> Time {
        self.membership.deadline()
    }

    /// Whether all is over.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Asks for the end.
    pub(crate) fn stop(&mut self, out: &mut Vec<CoreEffect>) {
        self.membership.input(Input::Stop, &mut self.effects);
        self.route(out);
    }

    /// A shard's deliverer met a faulty sender. It must not be run again.
    pub(crate) fn faulty(&mut self, shard: ShardId, error: &DeliverError, out: &mut Vec<CoreEffect>) {
        if let Some(slot) = self.shards.iter_mut().find(|slot| slot.shard.id() == shard) {
            slot.stuck = true;
        }
        let input = Input::Faulty(error.sender, error.cause.to_string());
        self.membership.input(input, &mut self.effects);
        self.route(out);
    }

    /// Looks at all that came, lets every layer act, and sends what accumulated. Returns whether anything changed, so that
    /// another step may find more to do.
    pub(crate) fn step(&mut self, now: Time, out: &mut Vec<CoreEffect>) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.fabric.poll(now, &mut completions);
        let mut busy = !completions.is_empty();
        for completion in completions.drain(..) {
            self.on_completion(&completion);
        }
        self.completions = completions;
        for slot in self.shards.iter_mut().filter(|slot| !slot.ended) {
            let stepped = slot.shard.step(&mut self.fabric, now);
            busy |= stepped.busy;
            if stepped.deliver {
                out.push(CoreEffect::Deliver(slot.shard.id()));
            }
            if stepped.freed {
                out.push(CoreEffect::Freed(slot.shard.id()));
            }
            if stepped.freed_bulk {
                out.push(CoreEffect::FreedBulk(slot.shard.id()));
            }
            for (node, why) in slot.shard.take_faulty() {
                self.membership.input(Input::Faulty(node, why), &mut self.effects);
            }
        }
        if !self.connected && self.shards.iter().all(|slot| slot.shard.is_complete()) {
            self.connected = true;
            self.membership.input(Input::ShardsConnected, &mut self.effects);
        }
        while let Some(event) = self.view_log.as_mut().and_then(|log| log.poll(now)) {
            busy = true;
            self.membership.input(Input::ViewLog(event), &mut self.effects);
        }
        busy |= self.membership.step(&mut self.fabric, now, &mut self.effects);
        busy |= self.route(out);
        self.watch_ends(out);
        busy
    }

    fn on_completion(&mut self, completion: &Completion) {
        match completion.endpoint().and_then(|endpoint| self.owners.get(&endpoint)) {
            Some(Owner::Membership) => {
                self.membership.on_completion(&mut self.fabric, completion, &mut self.effects);
            }
            Some(&Owner::Shard(index)) => {
                let lost = self.shards[index].shard.on_completion(&mut self.fabric, completion);
                if let Some((node, reason)) = lost {
                    self.membership.input(Input::Broken(node, reason), &mut self.effects);
                }
            }
            None => {}
        }
    }

    /// Carries out what membership asks for, until it asks for nothing more. Returns whether it asked for anything.
    fn route(&mut self, out: &mut Vec<CoreEffect>) -> bool {
        let mut any = false;
        while !self.effects.is_empty() {
            any = true;
            for effect in std::mem::take(&mut self.effects) {
                self.carry_out(effect, out);
            }
        }
        any
    }

    fn carry_out(&mut self, effect: Effect, out: &mut Vec<CoreEffect>) {
        match effect {
            Effect::Install(_) => unreachable!("only the first view is installed, when the node starts"),
            Effect::Formed(view) => out.push(CoreEffect::Formed(view)),
            Effect::Wedge => {
                for slot in &mut self.shards {
                    let (shard, count) = (slot.shard.id(), slot.shard.wedge());
                    let input = Input::Frozen { shard, count, leased: slot.shard.leased().collect() };
                    self.membership.input(input, &mut self.effects);
                }
            }
            Effect::Propose(proposal) => match &mut self.view_log {
                Some(log) => log.propose(proposal),
                None => self.membership.input(Input::ViewLog(ViewEvent::NoQuorum), &mut self.effects),
            },
            Effect::CleanUp(trims) => {
                self.cleaning = true;
                for slot in &mut self.shards {
                    if let Some(&trim) = trims.get(&slot.shard.id()) {
                        slot.shard.clean_up(trim);
                    }
                }
            }
            Effect::End(reason) => {
                for slot in &mut self.shards {
                    slot.shard.wedge();
                    slot.shard.close();
                }
                self.ending = Some(reason);
            }
        }
    }

    /// Reports shards that have delivered all that they will.
    fn watch_ends(&mut self, out: &mut Vec<CoreEffect>) {
        if self.cleaning && self.ending.is_none() && self.shards.iter().all(|slot| slot.shard.is_ended()) {
            self.cleaning = false;
            for slot in &self.shards {
                self.membership.input(Input::Ended(slot.shard.id()), &mut self.effects);
            }
            self.route(out);
        }
        let Some(reason) = self.ending.clone().filter(|_| !self.ended) else { return };
        for slot in self.shards.iter_mut().filter(|slot| !slot.ended) {
            if !slot.stuck && !slot.shard.is_ended() {
                continue;
            }
            // None while a thread is still completing a message.
            if let Some(undelivered) = slot.shard.undelivered() {
                slot.ended = true;
                let (shard, reason) = (slot.shard.id(), reason.clone());
                out.push(CoreEffect::End { shard, undelivered, reason });
            }
        }
        if self.shards.iter().all(|slot| slot.ended) {
            self.ended = true;
            out.push(CoreEffect::Ended(reason));
        }
    }

    /// Closes all endpoints.
    pub(crate) fn disconnect(&mut self) {
        for slot in &mut self.shards {
            slot.shard.disconnect(&mut self.fabric);
        }
        self.membership.disconnect(&mut self.fabric);
    }
}
