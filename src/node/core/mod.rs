//! The pure heart of a node: the one place where the layers' effects are routed.
//!
//! Events of the fabric and the view log go in. Membership says what to do, the shards do it, and their answers go back
//! in. Effects that concern threads and the application come out as [`CoreEffect`]s. There is no clock, thread, socket
//! or file here, so the simulator drives the same core as a real node's engine thread.
//!
//! A core lives through many views. Each has shards of its own. When a view ends, its shards hand out what they have
//! not delivered before those of the next are made.

mod effect;
mod view_change;
mod view_shards;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use squall_fabric::{BreakReason, Completion, EndpointId, NodeId, Time};
use squall_membership::{
    Effect, EndReason, Input, Member, Membership, OrderEnd, Settings, ShardId, Stall, StallWatch, Trims, View,
    ViewEvent, ViewLog, WatchedMembers,
};
use squall_ordered::{DeliverError, Mode, Row, ShardConfig, log::Hlc};

pub(crate) use self::effect::CoreEffect;
use self::view_shards::ViewShards;
use crate::{
    calls::clock_bound::ClockBound,
    delivery::Halt,
    durable::room,
    fabric::NodeFabric,
    node::{onepipe::OnePipeSlot, status::ViewChangeTimes},
};

/// The layer to which an endpoint belongs.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Membership,
    Shard(ShardId),
}

/// The step that follows once the current view's shards have handed out their messages.
#[derive(Debug)]
enum Turn {
    Install(Arc<View>),
    /// The view that follows, without this node. With it come the trims of the view at hand, if they are known, and the
    /// time until which other nodes that are not in it may read.
    Drop(Arc<View>, Option<Trims>, Time),
    End(EndReason),
}

/// One node's protocols, and the fabric that they share.
pub(crate) struct NodeCore<F> {
    fabric: F,
    membership: Membership,
    view_log: Box<dyn ViewLog>,
    configs: BTreeMap<ShardId, ShardConfig>,
    /// The shards of 1Pipe groups, of which views only settle how far they have gone.
    pipe_slots: BTreeMap<ShardId, Arc<OnePipeSlot>>,
    /// The view to which the shards belong.
    view: Option<Arc<View>>,
    shards: ViewShards,
    owners: BTreeMap<EndpointId, Owner>,
    is_connected: bool,
    is_cleaning: bool,
    /// The end of the delivery of the view at hand, per shard, once it is decided.
    trims: Trims,
    turns: VecDeque<Turn>,
    /// The ends from which shards go on in the view to come.
    ends: BTreeMap<ShardId, OrderEnd>,
    /// The shards whose logs are being cut to these ends.
    cutting: BTreeSet<ShardId>,
    /// The end of each copy that this node keeps in memory of the view from which it was dropped.
    kept: BTreeMap<ShardId, OrderEnd>,
    is_ended: bool,
    failure_timeout: Duration,
    /// The time at which callers of shards that don't let go are told, after this node was dropped.
    halts_at: Time,
    /// The clock, as of the last step.
    now: Time,
    /// The steps by which the view came about.
    change: ViewChangeTimes,
    changing: ViewChangeTimes,
    bound: Arc<ClockBound>,
    completions: Vec<Completion>,
    effects: Vec<Effect>,
    watch: StallWatch,
    /// The member as which it is to join, once what it had in the view from which it was dropped is out of its hands.
    joins: Option<Member>,
}

impl<F> NodeCore<F> {
    /// Tells the drivers of 1Pipe groups that the node's part is over, unless they know.
    pub(crate) fn end_pipe_slots(&self, reason: &EndReason) {
        self.pipe_slots.values().for_each(|slot| slot.end(reason));
    }
}

impl<F: NodeFabric> NodeCore<F> {
    /// A node outside of any view, which installs the views to which it belongs by the view log.
    pub(crate) fn new(
        fabric: F,
        me: Member,
        settings: Settings,
        configs: BTreeMap<ShardId, ShardConfig>,
        pipe_slots: BTreeMap<ShardId, Arc<OnePipeSlot>>,
        view_log: Box<dyn ViewLog>,
        bound: Arc<ClockBound>,
    ) -> NodeCore<F> {
        NodeCore {
            fabric,
            watch: StallWatch::new(settings.stall_limits),
            failure_timeout: settings.failure_timeout,
            halts_at: Time::MAX,
            joins: None,
            membership: Membership::new(me, settings),
            view_log,
            configs,
            pipe_slots,
            view: None,
            shards: ViewShards::default(),
            owners: BTreeMap::new(),
            is_connected: true,
            is_cleaning: false,
            trims: Trims::new(),
            turns: VecDeque::new(),
            ends: BTreeMap::new(),
            kept: BTreeMap::new(),
            cutting: BTreeSet::new(),
            is_ended: false,
            now: Time::ZERO,
            change: ViewChangeTimes::default(),
            changing: ViewChangeTimes::default(),
            bound,
            completions: Vec::new(),
            effects: Vec::new(),
        }
    }

    pub(crate) fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// The transport to a peer, as [`NodeFabric::transport`] has it.
    pub(crate) fn transport(&self, peer: NodeId) -> (Option<String>, Option<String>) {
        self.fabric.transport(peer)
    }

    /// The view that this node has installed, or installs.
    pub(crate) fn view(&self) -> Option<&Arc<View>> {
        self.view.as_ref()
    }

    /// The steps by which the node came to its view.
    pub(crate) fn last_change(&self) -> ViewChangeTimes {
        self.change
    }

    /// The steps so far of the view change that is under way.
    pub(crate) fn change_under_way(&self) -> ViewChangeTimes {
        self.changing
    }

    /// The times of this node's messages.
    pub(crate) fn bound(&self) -> &ClockBound {
        &self.bound
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The progress of a member of a shard.
    pub(crate) fn row(&self, shard: ShardId, member: NodeId) -> Option<Row> {
        let rank = self.view.as_ref()?.shard(shard)?.rank_of(member)?;
        Some(self.shards.get(shard)?.row(rank))
    }

    /// The number of bulk messages of this node that some member of a shard has not delivered, and the memory that they
    /// take, in bytes.
    pub(crate) fn bulk_in_flight(&self, shard: ShardId) -> (usize, usize) {
        self.shards.get(shard).map_or((0, 0), |shard| shard.bulk_in_flight())
    }

    /// The time at which [`step`](NodeCore::step) must be called next, if nothing happens before.
    pub(crate) fn deadline(&self) -> Time {
        let watch = if self.view.is_some() { self.watch.deadline() } else { Time::MAX };
        self.membership.deadline().min(self.view_log.deadline()).min(watch).min(self.halts_at)
    }

    /// Whether the node has nothing more to do.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Notes that this node's replica has the whole state of a shard, and all that the view at hand has delivered.
    ///
    /// It must be called in each step, since a durable shard's state counts only once its disk has it. The others are
    /// told also where the view already calls the shard complete here.
    pub(crate) fn complete(&mut self, shard: ShardId, out: &mut Vec<CoreEffect>) {
        // If no member held the state when the view was decided, a holder must return with it first.
        let is_held = self.view.as_ref().and_then(|view| view.shard(shard)).is_some_and(|shard| !shard.is_suspended());
        if is_held && self.shards.complete(shard) {
            self.input(Input::Complete(shard), out);
        }
    }

    /// Ends this node's part: it can't go on.
    pub(crate) fn fail(&mut self, reason: EndReason, out: &mut Vec<CoreEffect>) {
        if let EndReason::Storage(_) = reason {
            // A message that a log does not take is not delivered.
            for (&shard, _) in self.configs.iter().filter(|(_, config)| config.mode == Mode::Durable) {
                self.shards.stuck(shard, reason.clone());
            }
        }
        self.input(Input::Failed(reason), out);
    }

    /// Notes that a shard's log is cut as it was [asked for](CoreEffect::CutTo).
    pub(crate) fn cut_done(&mut self, shard: ShardId) {
        self.cutting.remove(&shard);
    }

    /// Notes that a shard's deliverer met a faulty sender, or that its application panicked. The deliverer must not be
    /// run again.
    pub(crate) fn halted(&mut self, shard: ShardId, halt: Halt, out: &mut Vec<CoreEffect>) {
        match halt {
            Halt::Faulty(DeliverError { sender: node, cause }) => {
                let why = cause.to_string();
                let reason = EndReason::Incompatible { node, why: why.clone() };
                let is_here = self.view.as_ref().is_some_and(|view| view.nodes().contains(&node));
                self.shards.stuck(shard, reason.clone());
                if is_here && node != self.fabric.node() {
                    tracing::error!(%shard, %node, why, "a sender has spoiled what it sent: this node will join again");
                    self.input(Input::Faulty(node, why), out);
                } else {
                    // No view ends with the suspicion of a node that is not in it.
                    self.fail(reason, out);
                }
            }
            Halt::Panicked(reason) => {
                self.shards.stuck(shard, reason.clone());
                self.fail(reason, out);
            }
        }
    }

    /// Gives membership an input that concerns no other layer.
    pub(crate) fn input(&mut self, input: Input, out: &mut Vec<CoreEffect>) {
        self.membership.input(input, &mut self.effects);
        self.route(out);
    }

    /// Looks at all that came, lets every layer act, and sends what accumulated. Returns whether anything changed, so
    /// that another step may find more to do.
    pub(crate) fn step(&mut self, now: Time, wall: Hlc, out: &mut Vec<CoreEffect>) -> bool {
        self.now = now;
        let mut completions = std::mem::take(&mut self.completions);
        self.fabric.poll(now, &mut completions);
        let mut busy = !completions.is_empty();
        for completion in completions.drain(..) {
            self.on_completion(&completion);
        }
        self.completions = completions;
        busy |= self.report_pipe_suspects();
        busy |= self.shards.step(&mut self.fabric, now, out);
        let connecting = self.shards.connecting.drain(..);
        self.owners.extend(connecting.map(|(endpoint, shard)| (endpoint, Owner::Shard(shard))));
        for (node, why) in self.shards.faulty.drain(..) {
            let input = if node == self.fabric.node() {
                Input::Failed(EndReason::Incompatible { node, why })
            } else {
                Input::Faulty(node, why)
            };
            self.membership.input(input, &mut self.effects);
        }
        if !self.is_connected && self.shards.are_connected() {
            self.is_connected = true;
            self.membership.input(Input::ShardsConnected, &mut self.effects);
        }
        while let Some(event) = self.view_log.poll(now) {
            busy = true;
            if matches!(event, ViewEvent::Committed(_)) {
                self.note_decision();
            }
            self.membership.input(Input::ViewLog(event), &mut self.effects);
        }
        busy |= self.membership.step(&mut self.fabric, now, wall.0, &mut self.effects);
        self.compare_clocks(wall, out);
        self.compare_room(out);
        self.bound.look(wall, now);
        busy |= self.route(out);
        self.note_wedging();
        self.watch_progress(out);
        self.watch_clean_up();
        busy |= self.route(out);
        busy |= self.turn(out);
        busy
    }

    /// Returns the members of this node's shards that stand still, though they have something to do.
    pub(crate) fn stalls(&self, now: Time) -> Vec<Stall> {
        self.watch.stalls(now).collect()
    }

    /// Gives up members for which others have waited for too long. A node that is late itself leaves that to the
    /// others, since its own table may be what stands still.
    fn watch_progress(&mut self, out: &mut Vec<CoreEffect>) {
        let (now, node) = (self.now, self.fabric.node());
        let Some(view) = self.view.as_ref().filter(|_| now >= self.watch.deadline()) else { return };
        let is_ending = self.is_cleaning || matches!(self.turns.front(), Some(Turn::Drop(..)));
        let watched: Vec<WatchedMembers> = if self.membership.is_running() {
            view.shards.iter().filter_map(|shard| self.shards.watched(shard)).collect()
        } else if is_ending {
            vec![self.shards.unended(view, node)]
        } else {
            self.membership.lingering().into_iter().collect()
        };
        for stall in self.watch.look(now, &watched).into_iter().filter(|stall| stall.node != node) {
            self.input(Input::Late { stall, waited: now.since(stall.since) }, out);
        }
        if self.is_cleaning {
            let rows = watched.into_iter().flat_map(|watched| watched.rows);
            self.input(Input::CleansUp(rows.filter_map(|(shard, _, waits)| Some((shard, waits?))).collect()), out);
        }
    }

    /// Bounds this node's clock by the others' new offsets.
    fn compare_clocks(&mut self, wall: Hlc, out: &mut Vec<CoreEffect>) {
        let Some(others) = self.membership.take_clocks() else { return };
        if self.bound.set(others, wall, self.now) {
            // Messages may have waited for it.
            out.extend(self.configs.keys().map(|&shard| CoreEffect::Stamps(shard)));
        }
    }

    /// Has durable shards refuse messages, or take them again, as their members have room for them.
    fn compare_room(&mut self, out: &mut Vec<CoreEffect>) {
        let Some(view) = &self.view else { return };
        let Some(short) = self.membership.take_short_of_room() else { return };
        for shard in &view.shards {
            if self.configs.get(&shard.shard).is_some_and(|config| config.mode == Mode::Durable) {
                out.push(CoreEffect::ShortOfRoom(shard.shard, room::refused_for(&shard.complete, short)));
            }
        }
    }

    /// Passes on the nodes that 1Pipe groups have lost. Returns whether there is any.
    fn report_pipe_suspects(&mut self) -> bool {
        let mut any = false;
        for slot in self.pipe_slots.values() {
            for node in slot.take_suspects() {
                any = true;
                let reason = BreakReason::Lost(format!("that of the 1Pipe group {:?}", slot.name()));
                self.membership.input(Input::Broken(node, reason), &mut self.effects);
            }
        }
        any
    }

    /// Notes the time of the first decision that ends the view at hand.
    fn note_decision(&mut self) {
        let ViewChangeTimes { suspected, wedged, decided, .. } = &mut self.changing;
        if *decided == Time::ZERO {
            *decided = self.now;
            // It is decided without waiting for this node to see that all have wedged.
            if *suspected != Time::ZERO && *wedged == Time::ZERO {
                *wedged = self.now;
            }
        }
    }

    /// Notes the time at which all members that this node keeps had wedged.
    fn note_wedging(&mut self) {
        let ViewChangeTimes { suspected, wedged, .. } = self.changing;
        if suspected != Time::ZERO && wedged == Time::ZERO && self.membership.are_all_wedged() {
            self.changing.wedged = self.now;
        }
    }

    fn on_completion(&mut self, completion: &Completion) {
        match completion.endpoint().and_then(|endpoint| self.owners.get(&endpoint)) {
            Some(Owner::Membership) => {
                self.membership.on_completion(&mut self.fabric, completion, &mut self.effects);
            }
            Some(&Owner::Shard(shard)) => {
                if matches!(completion, Completion::Connected { .. }) {
                    self.membership.input(Input::Connected, &mut self.effects);
                }
                let lost = self.shards.on_completion(&mut self.fabric, shard, completion);
                if let Some((node, reason)) = lost {
                    self.membership.input(Input::Broken(node, reason), &mut self.effects);
                }
            }
            // The endpoint belonged to a view that is over.
            None => {}
        }
    }

    /// Carries out membership's effects until there are no more. Returns whether there were any.
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
            Effect::Install(view) => {
                let node = self.fabric.node();
                for (shard, end) in std::mem::take(&mut self.ends) {
                    let complete = view.shard(shard).is_some_and(|shard| shard.is_complete(node));
                    self.cutting.insert(shard);
                    out.push(CoreEffect::CutTo { shard, end, complete });
                }
                self.turns.push_back(Turn::Install(view));
            }
            Effect::Installed(view) => {
                self.own_membership();
                self.watch.forget();
                let under_way = std::mem::take(&mut self.changing);
                self.change = ViewChangeTimes { epoch: view.epoch.0, installed: self.now, ..under_way };
                out.push(CoreEffect::Installed(view));
            }
            Effect::Wedge => self.wedge(),
            Effect::Propose(proposal) => self.view_log.propose(proposal),
            Effect::Report { to, report } => self.view_log.report(&to, report),
            // A node that can't let go of its part can't take another, and the others would wait for it.
            Effect::Join(me) if self.turns.iter().any(|turn| matches!(turn, Turn::Drop(..))) => self.joins = Some(me),
            Effect::Join(me) => self.view_log.join(me),
            Effect::Return(back) => self.view_log.report_return(back),
            Effect::WaitsFor(nodes) => out.push(CoreEffect::WaitsFor(nodes)),
            Effect::CutTo { shard, end } => {
                // A shard that only memories hold goes on no earlier than from what all have received.
                if self.configs.get(&shard).is_some_and(|config| config.mode == Mode::Durable) {
                    self.ends.insert(shard, end);
                }
            }
            Effect::PeerGone(node) => self.view_log.peer_gone(node),
            Effect::CleanUp { trims, counted } => {
                if let Err(why) = self.shards.clean_up(&trims, &counted) {
                    let (node, why) = (self.fabric.node(), format!("another member has counted wrongly: {why}"));
                    return self
                        .membership
                        .input(Input::Failed(EndReason::Incompatible { node, why }), &mut self.effects);
                }
                self.is_cleaning = true;
                // The 1Pipe groups have nothing to deliver: the next view tells them where this one ended.
                for &shard in self.pipe_slots.keys().filter(|shard| trims.contains_key(shard)) {
                    self.membership.input(Input::Ended(shard), &mut self.effects);
                }
                self.trims = trims;
            }
            Effect::Dropped { next, trims, readable_until } => {
                self.shards.abandon();
                out.push(CoreEffect::Dropped);
                self.halts_at = self.now + self.failure_timeout;
                // The node may have lost its place in that view before it came to it.
                self.turns.retain(|turn| !matches!(turn, Turn::Install(_)));
                self.turns.push_back(Turn::Drop(next, trims, readable_until));
            }
            Effect::Gather => out.push(CoreEffect::Returns),
            Effect::Stalled(why) => out.push(CoreEffect::Stalled(why)),
            Effect::End(reason) => {
                self.shards.wedge();
                self.shards.close();
                // Nothing follows an end, not even the turns that were to come before.
                self.turns.retain(|turn| matches!(turn, Turn::Drop(..)));
                self.joins = None;
                self.turns.push_back(Turn::End(reason));
            }
        }
    }

    /// Notes the endpoints of membership.
    fn own_membership(&mut self) {
        self.owners.retain(|_, owner| matches!(owner, Owner::Shard(_)));
        self.owners.extend(self.membership.endpoints().map(|endpoint| (endpoint, Owner::Membership)));
    }

    /// Closes all endpoints.
    pub(crate) fn disconnect(&mut self) {
        self.shards.disconnect(&mut self.fabric);
        self.membership.disconnect(&mut self.fabric);
    }
}
