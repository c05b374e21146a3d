//! One node's process: its membership, and shards that only count.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use fastrand::Rng;
use squall_fabric::{Completion, Fabric, NodeId, Time, sim::SimFabric};
use squall_membership::{
    Effect, EndReason, Epoch, HeldCopy, Input, Member, Membership, Seq, ShardId, StallLimits, StallWatch, View,
    ViewEvent, Waits, WaitsFor,
};

use super::{DiskLog, Log, PASSED, after, settings};

pub(crate) struct Process {
    pub(crate) membership: Membership,
    fabric: SimFabric,
    rng: Rng,
    effects: Vec<Effect>,
    pub(crate) inbox: VecDeque<ViewEvent>,
    /// The inputs that its shards will give, with their times.
    later: BTreeMap<(Time, usize), Input>,
    pub(crate) view: Option<Arc<View>>,
    /// Every view that it has installed.
    pub(crate) views: Vec<Arc<View>>,
    /// The last view that was connected.
    pub(crate) installed: Option<Epoch>,
    pub(crate) wedged: bool,
    cleaning: bool,
    /// The places up to which shards that are being cleaned up go. None: the node has not received that much, and is to
    /// get the state anew.
    pub(crate) cleaned_to: BTreeMap<ShardId, Option<Seq>>,
    pub(crate) stalled: bool,
    /// The shards whose state it holds.
    pub(crate) state: BTreeSet<ShardId>,
    /// The disk, which outlives its process. None: the next process begins with a new one.
    pub(crate) disk: Option<BTreeMap<ShardId, DiskLog>>,
    /// The nodes for which it last said that it waits.
    pub(crate) waits_for: Vec<NodeId>,
    /// The nodes for which its shards have vouched.
    pub(crate) leased: Vec<NodeId>,
    /// The nodes that it has reported to the view log as gone.
    pub(crate) gone: Vec<NodeId>,
    /// The time at which it last cleaned up.
    pub(crate) cleaned_up: Option<Time>,
    /// The longest time that a clean-up takes.
    pub(crate) slow_ms: f64,
    /// The thing for which it waits meanwhile.
    pub(crate) slow_for: WaitsFor,
    watch: StallWatch,
    /// Whether the next view that it cleans up can't be brought to its end here.
    pub(crate) is_spoiled: bool,
    pub(crate) dropped: usize,
    /// Whether it was told how its last view ended when it was dropped.
    pub(crate) knows_trims: bool,
    pub(crate) ended: Option<EndReason>,
    pub(crate) crashed: bool,
    /// Whether it was asked to leave.
    pub(crate) leaving: bool,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let epoch = self.view.as_ref().map(|view| view.epoch.0);
        write!(
            f,
            "{:?} in {epoch:?}, connected {:?}, wedged {}, ",
            self.membership.me().incarnation,
            self.installed,
            self.wedged
        )?;
        write!(f, "cleaning {}, state {:?}, crashed {}, {:?}", self.cleaning, self.state, self.crashed, self.ended)
    }
}

type Received = BTreeMap<(Epoch, ShardId, NodeId), Seq>;
type Delivered = BTreeMap<(Epoch, ShardId), Seq>;

impl Process {
    pub(crate) fn new(member: Member, fabric: SimFabric, rng: Rng, limits: StallLimits) -> Process {
        Process {
            membership: Membership::new(member, settings(limits)),
            fabric,
            rng,
            effects: Vec::new(),
            inbox: VecDeque::new(),
            later: BTreeMap::new(),
            view: None,
            views: Vec::new(),
            installed: None,
            wedged: false,
            cleaning: false,
            cleaned_to: BTreeMap::new(),
            stalled: false,
            state: BTreeSet::new(),
            disk: None,
            waits_for: Vec::new(),
            leased: Vec::new(),
            gone: Vec::new(),
            cleaned_up: None,
            slow_ms: 2.0,
            slow_for: WaitsFor::Application,
            watch: StallWatch::new(limits),
            is_spoiled: false,
            dropped: 0,
            knows_trims: false,
            ended: None,
            crashed: false,
            leaving: false,
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.fabric.node()
    }

    pub(crate) fn input(&mut self, input: Input) {
        self.membership.input(input, &mut self.effects);
    }

    /// Whether it works in this view.
    pub(crate) fn is_in(&self, epoch: Epoch) -> bool {
        !self.crashed
            && !self.wedged
            && self.installed == Some(epoch)
            && self.view.as_ref().is_some_and(|v| v.epoch == epoch)
    }

    pub(crate) fn is_cleaning(&self) -> bool {
        self.cleaning
    }

    pub(crate) fn deadline(&self) -> Time {
        if self.ended.is_some() {
            return Time::MAX;
        }
        let own = if self.effects.is_empty() { Time::MAX } else { Time::ZERO };
        let later = self.later.keys().next().map_or(Time::MAX, |(at, _)| *at);
        let watch = self.membership.lingering().map_or(Time::MAX, |_| self.watch.deadline());
        own.min(later).min(watch).min(self.membership.deadline())
    }

    pub(crate) fn deliver(&mut self, epoch: Epoch, shard: ShardId, up_to: Seq, delivered: &mut Delivered) {
        if let Some(disk) = self.disk.as_mut().filter(|_| shard != PASSED) {
            disk.get_mut(&shard).expect("it holds the state").append(epoch, up_to);
        }
        let most = delivered.entry((epoch, shard)).or_default();
        *most = up_to.max(*most);
    }

    /// Brings the deliveries to the disk.
    pub(crate) fn sync(&mut self) {
        self.disk.iter_mut().flat_map(BTreeMap::values_mut).for_each(DiskLog::sync);
    }

    /// Starts the process with this disk.
    pub(crate) fn mount(&mut self, disk: BTreeMap<ShardId, DiskLog>) {
        self.disk = Some(disk);
        self.says_what_is_held();
    }

    fn says_what_is_held(&mut self) {
        let Some(disk) = &self.disk else { return };
        let held: BTreeMap<ShardId, HeldCopy> =
            disk.iter().filter_map(|(shard, log)| Some((*shard, log.held()?))).collect();
        self.input(Input::Held(held));
    }

    fn say_later(&mut self, now: Time, most_ms: f64, input: Input) {
        let at = after(now, self.rng.f64() * most_ms);
        let key = (at, self.later.len() + self.views.len() * 100);
        self.later.insert(key, input);
    }

    pub(crate) fn step(&mut self, now: Time, log: &mut Log, received: &mut Received, delivered: &mut Delivered) {
        let mut completions: Vec<Completion> = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            self.membership.on_completion(&mut self.fabric, completion, &mut self.effects);
        }
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let input = entry.remove();
            let cleaned_to = |shard| self.cleaned_to.get(shard).copied();
            if matches!(&input, Input::Complete(shard) if cleaned_to(shard) == Some(None)) {
                continue;
            }
            if let (Input::Complete(shard), Some(view)) = (&input, &self.view)
                && self.state.insert(*shard)
                && let Some(disk) = &mut self.disk
            {
                let mut fetched = DiskLog::fetched(&log.line(*shard, view.epoch), view.epoch);
                fetched.append(view.epoch, self.cleaned_to.get(shard).copied().flatten().unwrap_or_default());
                disk.insert(*shard, fetched);
            }
            self.input(input);
        }
        while let Some(event) = self.inbox.pop_front() {
            self.input(Input::ViewLog(event));
        }
        self.membership.step(&mut self.fabric, now, now.as_nanos(), &mut self.effects);
        self.watch_lingering(now);
        while !self.effects.is_empty() && self.ended.is_none() {
            for effect in std::mem::take(&mut self.effects) {
                self.carry_out(effect, now, log, received, delivered);
            }
        }
    }

    /// Gives up members that stand still at the end of the view before.
    fn watch_lingering(&mut self, now: Time) {
        let Some(watched) = self.membership.lingering().filter(|_| now >= self.watch.deadline()) else { return };
        for stall in self.watch.look(now, &[watched]) {
            self.input(Input::Late { stall, waited: now.since(stall.since) });
        }
    }

    fn carry_out(
        &mut self,
        effect: Effect,
        now: Time,
        log: &mut Log,
        received: &mut Received,
        delivered: &mut Delivered,
    ) {
        match effect {
            Effect::Install(view) => self.install(view, now),
            Effect::Installed(view) => self.installed = Some(view.epoch),
            Effect::Wedge => {
                self.wedged = true;
                let Some(view) = self.view.clone() else { return };
                let node = self.node();
                for shard in view.shards.iter().filter(|shard| shard.members.contains(&node)) {
                    let count = received.get(&(view.epoch, shard.shard, node)).copied().unwrap_or_default();
                    // The most that this node can have read of the others' counts by now.
                    let counts = shard.members.iter().map(|&node| received.get(&(view.epoch, shard.shard, node)));
                    let stable = counts.map(|count| count.copied().unwrap_or_default()).min().unwrap_or_default();
                    self.input(Input::Frozen { shard: shard.shard, count, stable, leased: self.leased.clone() });
                }
            }
            Effect::Propose(proposal) => log.propose(now, self.node(), proposal),
            Effect::Report { to, report } => log.report(now, &to, self.node(), &report),
            Effect::PeerGone(node) => self.gone.push(node),
            Effect::Join(me) => log.join(now, me),
            Effect::Return(back) => log.report_return(now, back),
            Effect::WaitsFor(nodes) => self.waits_for = nodes,
            Effect::CutTo { shard, end } => {
                let log = self.disk.as_mut().and_then(|disk| disk.get_mut(&shard));
                if log.is_some_and(|log| log.cut(end)) {
                    self.state.remove(&shard);
                }
            }
            Effect::CleanUp { .. } if std::mem::take(&mut self.is_spoiled) => {
                let why = "it spoiled a record".to_owned();
                self.input(Input::DropOut(EndReason::Incompatible { node: NodeId(99), why }));
            }
            Effect::CleanUp { trims, counted } => {
                self.cleaning = true;
                self.cleaned_up = Some(now);
                let epoch = self.view.as_ref().expect("it is in a view").epoch;
                for (&shard, &trim) in &trims {
                    let own = received.get(&(epoch, shard, self.node())).copied().unwrap_or_default();
                    assert!(!counted.contains(&shard) || own >= trim, "{}: {own} received, trim {trim}", self.node());
                    if own < trim && shard != PASSED {
                        self.state.remove(&shard);
                    } else if self.state.contains(&shard) {
                        self.deliver(epoch, shard, trim, delivered);
                    }
                    self.cleaned_to.insert(shard, (own >= trim).then_some(trim));
                    self.say_later(now, self.slow_ms, Input::Ended(shard));
                }
                let waits = Waits { waits_for: self.slow_for, at: 0 };
                self.input(Input::CleansUp(trims.keys().map(|&shard| (shard, waits)).collect()));
            }
            Effect::Dropped { next, trims, .. } => {
                self.knows_trims = trims.is_some();
                assert!(!next.members.contains(self.membership.me()));
                self.stop();
                self.dropped += 1;
                self.says_what_is_held();
            }
            Effect::Gather => self.says_what_is_held(),
            Effect::Stalled(_) => self.stalled = true,
            Effect::End(reason) => {
                self.stop();
                self.membership.disconnect(&mut self.fabric);
                self.ended = Some(reason);
            }
        }
    }

    /// Ends its shards, whose state is lost.
    fn stop(&mut self) {
        (self.view, self.installed, self.wedged, self.cleaning, self.stalled) = (None, None, false, false, false);
        self.state.clear();
        self.later.clear();
        self.cleaned_to.clear();
    }

    fn install(&mut self, view: Arc<View>, now: Time) {
        let node = self.node();
        self.membership.install(&mut self.fabric, &mut self.effects);
        (self.wedged, self.cleaning, self.stalled) = (false, false, false);
        self.later.clear();
        self.cleaned_to.clear();
        self.say_later(now, 0.2, Input::ShardsConnected);
        for shard in view.shards.iter().filter(|shard| shard.members.contains(&node)) {
            if view.epoch == Epoch::FIRST || shard.shard == PASSED {
                self.state.insert(shard.shard);
            }
            if let Some(disk) = self.disk.as_mut().filter(|_| shard.shard != PASSED)
                && (shard.is_complete(node) || self.state.contains(&shard.shard))
            {
                disk.entry(shard.shard).or_default().begin(view.epoch);
                // The replica is built from the log, if there is none.
                self.state.insert(shard.shard);
            }
            let holds = self.state.contains(&shard.shard);
            assert!(holds || !shard.is_complete(node), "{node} holds no state of {} in {}", shard.shard, view.epoch);
            if !shard.is_complete(node) && !shard.complete.is_empty() {
                // A holder gives it the state, and may be gone by then, with less on its disk.
                self.say_later(now, if holds { 0.1 } else { 20.0 }, Input::Complete(shard.shard));
            }
        }
        let mine: BTreeSet<ShardId> =
            view.shards.iter().filter(|s| s.members.contains(&node)).map(|s| s.shard).collect();
        self.state.retain(|shard| mine.contains(shard));
        self.views.push(Arc::clone(&view));
        self.view = Some(view);
    }
}
