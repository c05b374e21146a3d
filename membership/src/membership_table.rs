//! The table of one view, in which its members tell each other about it.

use std::{collections::BTreeMap, sync::Arc};

use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, RegionKey, RegisterError};
use squall_sst::{ColumnSet, Counter, Counters, Fingerprint, Flag, Layout, Mesh, MeshEvent, Table};

use crate::{
    lead::Accusations,
    stall::{Waits, WaitsFor},
    view::{Member, Seq, ShardId, View},
    view_log::{Final, Finals},
};

/// The layer's number in a [`GroupTag`].
const LAYER: u32 = 1;

/// A change of a member's endpoint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TableEvent {
    Up,
    Down(usize, BreakReason),
    /// The member exposed memory that is no table of this kind.
    Strange(usize),
}

/// One member's copy of a view's table, and so its knowledge of the view. Members are named by their ranks, shards by
/// their places in the view.
#[derive(Debug)]
pub(crate) struct MembershipTable {
    view: Arc<View>,
    /// This node's final counts.
    counts: BTreeMap<ShardId, Seq>,
    /// The counts that all members of a shard had published when this node was wedged, by the shard's place.
    stable: BTreeMap<usize, Seq>,
    mesh: Mesh,
    remote: Vec<Option<RegionKey>>,
    table: Table,
    heartbeat: Counter,
    /// The number of endpoints that have come about at the member, of this view and the one before.
    endpoints: Counter,
    /// The member's wall clock: the sums by which it has gone forward, and back, in nanoseconds. Two counters, since a
    /// clock may be set back, and a counter can't.
    clock: Counters,
    /// The final count of each shard.
    frozen: Counters,
    /// A number for each shard: 1 once the member holds its state, on its disk too. A counter, so that a member that
    /// sees `wedged` sees it.
    complete: Counters,
    /// The thing for which the member's clean-up of each shard waits: the remainder of a division by 3. Each change
    /// adds to it.
    waits: Counters,
    /// Whether the member's storage is short of room: it is if the number is odd. 0 until the member has told. Each
    /// change adds one.
    room: Counter,
    /// Whether this member suspects another, by member.
    suspected: Vec<Flag>,
    asks: Flag,
    leaving: Flag,
    /// A number that no accident makes, once all members are to leave: it can't be taken back.
    closing: Counter,
    closing_word: u64,
    wedged: Flag,
    /// Whether the member knows the view's successor.
    decided: Flag,
    flags: ColumnSet,
}

impl MembershipTable {
    /// Starts to connect the table of a view in which this node has rank `me`.
    pub(crate) fn connect(
        fabric: &mut impl Fabric,
        view: Arc<View>,
        me: usize,
        fingerprint: u64,
    ) -> Result<MembershipTable, RegisterError> {
        let nodes = view.nodes();
        let mut layout = Layout::builder();
        let heartbeat = layout.counter("heartbeat");
        let endpoints = layout.counter("endpoints");
        let clock = layout.counters("clock", 2);
        let frozen = layout.counters("frozen", view.shards.len());
        let complete = layout.counters("complete", view.shards.len());
        let waits = layout.counters("waits", view.shards.len());
        let room = layout.counter("room");
        let suspected: Vec<Flag> = nodes.iter().map(|_| layout.flag("suspected")).collect();
        let (asks, leaving, wedged) = (layout.flag("asks"), layout.flag("leaving"), layout.flag("wedged"));
        let (decided, closing) = (layout.flag("decided"), layout.counter("closing"));
        let layout = layout.build();
        let all = suspected.iter().chain([&asks, &leaving, &wedged]);
        let flags = all.fold(layout.counter_set(closing), |set, &flag| set.union(layout.flag_set(flag)));
        let mut closing_word = Fingerprint::default();
        closing_word.text("closing").number(view.life.0);
        let mut agreed = Fingerprint::default();
        agreed.number(fingerprint);
        for member in &view.members {
            agreed.number(u64::from(member.node.0)).number(member.incarnation.0);
        }
        let hello: Vec<u8> =
            [layout.fingerprint(), agreed.value()].iter().flat_map(|word| word.to_le_bytes()).collect();
        let table = Table::register(fabric, Arc::clone(&layout), nodes.len(), me)?;
        let tag = GroupTag { layer: LAYER, group: 0, epoch: view.epoch.0 };
        let mesh = Mesh::connect(fabric, &nodes, me, tag, &hello, |peer| vec![table.row(peer).clone()]);
        let remote = vec![None; nodes.len()];
        Ok(MembershipTable {
            view,
            counts: BTreeMap::new(),
            stable: BTreeMap::new(),
            mesh,
            remote,
            table,
            heartbeat,
            endpoints,
            clock,
            frozen,
            complete,
            waits,
            room,
            suspected,
            asks,
            leaving,
            closing,
            closing_word: closing_word.value().max(1),
            wedged,
            decided,
            flags,
        })
    }

    pub(crate) fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// This node, as a member of the view.
    pub(crate) fn member(&self) -> &Member {
        &self.view.members[self.me()]
    }

    /// The shards that this node is a member of, with their places in the view.
    pub(crate) fn own_shards(&self) -> impl Iterator<Item = (usize, ShardId)> {
        let node = self.member().node;
        let mine = self.view.shards.iter().enumerate().filter(move |(_, shard)| shard.members.contains(&node));
        mine.map(|(index, shard)| (index, shard.shard))
    }

    /// A shard's place in the view.
    pub(crate) fn place_of(&self, shard: ShardId) -> Option<usize> {
        self.view.shards.iter().position(|other| other.shard == shard)
    }

    pub(crate) fn len(&self) -> usize {
        self.mesh.len()
    }

    pub(crate) fn me(&self) -> usize {
        self.mesh.me()
    }

    pub(crate) fn node(&self, member: usize) -> NodeId {
        self.mesh.node(member)
    }

    pub(crate) fn rank_of(&self, node: NodeId) -> Option<usize> {
        (0..self.len()).find(|&member| self.node(member) == node)
    }

    pub(crate) fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        self.mesh.endpoints()
    }

    /// Takes note of a completion, if it is of one of this table's endpoints.
    pub(crate) fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion) -> Option<TableEvent> {
        match self.mesh.on_completion(fabric, completion)? {
            MeshEvent::Up(member) => match self.mesh.link(member) {
                Some((_, [row])) if self.table.is_copy(row) => {
                    self.remote[member] = Some(row.key);
                    Some(TableEvent::Up)
                }
                _ => Some(TableEvent::Strange(member)),
            },
            MeshEvent::Down(member, reason) => Some(TableEvent::Down(member, reason)),
            MeshEvent::Room(_) => None,
        }
    }

    /// Whether a member was reached, if only for a while.
    pub(crate) fn was_reached(&self, member: usize) -> bool {
        member == self.me() || self.remote[member].is_some()
    }

    /// The number of other members that were reached.
    pub(crate) fn reached(&self) -> u64 {
        self.remote.iter().flatten().count() as u64
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.mesh.is_complete() && (0..self.len()).all(|member| self.was_reached(member))
    }

    /// Looks at the others' rows. Returns whether any column changed, and whether a flag did, in any row since the last
    /// call.
    pub(crate) fn refresh(&mut self) -> (bool, bool) {
        self.table.refresh();
        let changes = self.table.take_changes();
        (!changes.is_empty(), changes.intersects(self.flags))
    }

    /// Sends the changes of this node's row.
    pub(crate) fn push(&mut self, fabric: &mut impl Fabric) {
        for (peer, remote) in self.remote.iter().enumerate() {
            if let Some(remote) = remote.filter(|_| self.table.owes(peer)) {
                self.table.push(fabric, &self.mesh, peer, remote);
            }
        }
    }

    pub(crate) fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.mesh.disconnect(fabric);
    }

    pub(crate) fn beat(&mut self) {
        self.table.set(self.heartbeat, self.table.get(self.me(), self.heartbeat) + 1);
    }

    pub(crate) fn heartbeat(&self, member: usize) -> u64 {
        self.table.get(member, self.heartbeat)
    }

    /// Sets the number of endpoints that have come about at this node, in its row.
    pub(crate) fn tell_endpoints(&mut self, count: u64) {
        self.table.set(self.endpoints, count);
    }

    /// The number of endpoints that have come about, at all other members whose rows say so.
    pub(crate) fn endpoints_elsewhere(&self) -> u64 {
        let others = (0..self.len()).filter(|&member| member != self.me());
        others.fold(0, |sum, member| sum.saturating_add(self.table.get(member, self.endpoints)))
    }

    /// Sets this node's wall clock in its row, in nanoseconds since 1970.
    pub(crate) fn tell_clock(&mut self, wall: u64) {
        let (told, me) = (self.clock(self.me()), self.me());
        let (column, by) = if wall >= told { (0, wall - told) } else { (1, told - wall) };
        let column = self.clock.nth(column);
        self.table.set(column, self.table.get(me, column).saturating_add(by));
    }

    /// A member's wall clock when it last beat, in nanoseconds since 1970; 0 before its first beat.
    pub(crate) fn clock(&self, member: usize) -> u64 {
        let [forward, back] = [0, 1].map(|column| self.table.get(member, self.clock.nth(column)));
        forward.saturating_sub(back)
    }

    /// Sets this node's final count of a shard. False if it had one.
    pub(crate) fn freeze(&mut self, shard: usize, (count, stable): (Seq, Seq)) -> bool {
        self.stable.insert(shard, stable);
        let is_new = self.counts.insert(self.view.shards[shard].shard, count).is_none();
        if is_new {
            let column = self.frozen.nth(shard);
            self.table.set(column, count.0.max(self.table.get(self.me(), column)));
        }
        is_new
    }

    /// This node's final count of a shard.
    pub(crate) fn count(&self, shard: ShardId) -> Option<Seq> {
        self.counts.get(&shard).copied()
    }

    /// Whether this node has its final counts of all shards.
    pub(crate) fn is_frozen(&self) -> bool {
        self.own_shards().all(|(_, shard)| self.counts.contains_key(&shard))
    }

    /// A sentence about a member whose final count of a shard is below one that it has published before: a trim that
    /// took it into account would lie before what others have delivered.
    pub(crate) fn falls_back(&self, member: usize) -> Option<String> {
        let shards = self.stable.iter().filter(|_| self.is_wedged(member));
        shards.map(|(&index, &stable)| (&self.view.shards[index], self.frozen(member, index), stable)).find_map(
            |(shard, count, stable)| {
                let is_member = shard.members.contains(&self.node(member));
                let shard = shard.shard;
                (is_member && count < stable)
                    .then(|| format!("it says that it has received {count} of {shard}, and said before {stable}"))
            },
        )
    }

    pub(crate) fn frozen(&self, member: usize, shard: usize) -> Seq {
        Seq(self.table.get(member, self.frozen.nth(shard)))
    }

    pub(crate) fn set_complete(&mut self, shard: usize) {
        self.table.set(self.complete.nth(shard), 1);
    }

    pub(crate) fn is_complete(&self, member: usize, shard: usize) -> bool {
        self.table.get(member, self.complete.nth(shard)) > 0
    }

    /// Whether a member holds a shard's state, as far as is known.
    pub(crate) fn holds(&self, member: usize, shard: usize) -> bool {
        self.view.shards[shard].is_complete(self.node(member)) || self.is_complete(member, shard)
    }

    /// Whether the view calls a member complete, and its disk is known to have all that it had delivered when the view
    /// began.
    pub(crate) fn is_on_disk(&self, member: usize, shard: usize) -> bool {
        self.view.shards[shard].is_complete(self.node(member)) && self.is_complete(member, shard)
    }

    /// The final counts of members, as their rows say.
    pub(crate) fn finals_of(&self, members: &[usize]) -> Finals {
        let mut finals = Finals::new();
        for (index, shard) in self.view.shards.iter().enumerate() {
            let ranks = shard.members.iter().filter_map(|&node| self.rank_of(node));
            let end = |member: usize| self.end(member, index, self.frozen(member, index));
            finals.insert(shard.shard, ranks.filter(|member| members.contains(member)).map(end).collect());
        }
        finals
    }

    /// This node's own final counts.
    pub(crate) fn own_finals(&self) -> BTreeMap<ShardId, Final> {
        let end = |(index, shard)| Some((shard, self.end(self.me(), index, self.count(shard)?)));
        self.own_shards().filter_map(end).collect()
    }

    fn end(&self, member: usize, shard: usize, count: Seq) -> Final {
        let (complete, on_disk) = (self.holds(member, shard), self.is_on_disk(member, shard));
        Final { node: self.node(member), count, complete, on_disk }
    }

    /// Publishes the thing for which the clean-up of a shard waits now, or that it has got on with it.
    pub(crate) fn set_waits(&mut self, shard: usize, waits: Option<Waits>) {
        let code = match waits.map(|waits| waits.waits_for) {
            // Nobody waits for a member's messages or turns once the view has ended.
            None | Some(WaitsFor::Messages | WaitsFor::Turns) => 0,
            Some(WaitsFor::Disk) => 1,
            Some(WaitsFor::Application) => 2,
        };
        let column = self.waits.nth(shard);
        let told = self.table.get(self.me(), column);
        // The next number with that remainder.
        self.table.set(column, told + 1 + (code + 2 - told % 3) % 3);
    }

    /// The disk or the application that a member's clean-up of a shard waits for.
    pub(crate) fn waits(&self, member: usize, shard: usize) -> Option<Waits> {
        let at = self.table.get(member, self.waits.nth(shard));
        let waits_for = [None, Some(WaitsFor::Disk), Some(WaitsFor::Application)][(at % 3) as usize]?;
        Some(Waits { waits_for, at })
    }

    /// Publishes whether this node's storage is short of room.
    pub(crate) fn set_short_of_room(&mut self, is_short: bool) {
        let told = self.table.get(self.me(), self.room);
        match is_short == told.is_multiple_of(2) {
            true => self.table.set(self.room, told + 1),
            false if told == 0 => self.table.set(self.room, 2),
            false => {}
        }
    }

    /// Whether a member's storage is short of room; None until its row says so.
    pub(crate) fn is_short_of_room(&self, member: usize) -> Option<bool> {
        let told = self.table.get(member, self.room);
        (told > 0).then_some(!told.is_multiple_of(2))
    }

    pub(crate) fn suspect(&mut self, member: usize) {
        self.table.raise(self.suspected[member]);
    }

    pub(crate) fn suspects(&self, by: usize, member: usize) -> bool {
        self.table.is_set(by, self.suspected[member])
    }

    /// The members that a member suspects.
    pub(crate) fn accused_by(&self, by: usize) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(move |&member| self.suspects(by, member))
    }

    pub(crate) fn accusations(&self) -> Accusations {
        let mut accusations = Accusations::none(self.len());
        for by in 0..self.len() {
            self.accused_by(by).for_each(|whom| accusations.accuse(by, whom));
        }
        accusations
    }

    pub(crate) fn ask(&mut self) {
        self.table.raise(self.asks);
    }

    pub(crate) fn leave(&mut self) {
        self.table.raise(self.leaving);
    }

    pub(crate) fn is_leaving(&self, member: usize) -> bool {
        self.table.is_set(member, self.leaving)
    }

    pub(crate) fn close(&mut self) {
        self.table.set(self.closing, self.closing_word);
    }

    /// Whether a member says that all are to leave.
    pub(crate) fn is_closing(&self) -> bool {
        (0..self.len()).any(|member| self.table.get(member, self.closing) == self.closing_word)
    }

    /// Shows that this node is wedged.
    pub(crate) fn wedge(&mut self) {
        if !self.is_wedged(self.me()) {
            self.table.raise(self.wedged);
        }
    }

    pub(crate) fn is_wedged(&self, member: usize) -> bool {
        self.table.is_set(member, self.wedged)
    }

    pub(crate) fn decide(&mut self) {
        self.table.raise(self.decided);
    }

    pub(crate) fn has_decided(&self, member: usize) -> bool {
        self.table.is_set(member, self.decided)
    }

    /// Whether a member's row calls for the view's end.
    pub(crate) fn ends(&self, member: usize) -> bool {
        let calls = [self.wedged, self.asks, self.leaving];
        calls.iter().any(|&flag| self.table.is_set(member, flag)) || self.accused_by(member).next().is_some()
    }
}
