//! Clients from outside of a simulated durable group, whose members fail, lose power all at once, and come back. Each
//! command is applied once, and its client is told the truth about it, also where it is sent again after all have
//! restarted. In half of the seeds the group has shards, which move between the members, and clients know only which
//! nodes there are. To some commands all members reply: alike, and each that had the shard all the time. Programs that
//! [watch](crate::watchers) see what all members have applied. In memory the same holds as long as one member has each
//! shard's state.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Config, Group, Mode, NodeId, ServeOptions, Served, ShardView, View,
    client::{Call, ClientError},
    sim::{Client, Cluster, NotStarted, Options, ViewLogKind},
};

use crate::{
    commands_for_all::{AskedAll, Asking, Tenure},
    seeds,
    watchers::{Key, Reporting, Watcher},
};

/// The number of seeds that run here.
const SEEDS: u64 = 40;

/// The time within which all calls are over and all members serve, once nothing goes wrong any more.
const PATIENCE: Duration = Duration::from_secs(20);

/// The command that comes last, which changes something.
const LAST: u64 = 1 << 40 | 4;

/// A command that changes nothing.
const QUIET: u64 = 0;

/// The commands that a replica has applied, and the changes that it has reported.
type ShardState = (Vec<u64>, Vec<(Key, u64)>);

/// A command under way.
struct Asked {
    shard: usize,
    number: u64,
    call: Pin<Box<Call<u64>>>,
}

struct Run {
    rng: Rng,
    cluster: Cluster,
    options: ServeOptions,
    /// The members of each shard, where there are as many nodes.
    replicas: usize,
    /// The shards' groups by node, from 1 on.
    groups: Vec<Vec<Group<Served<Reporting>>>>,
    /// The clients, each with a handle to each shard.
    clients: Vec<Vec<Client<Reporting>>>,
    asked: Vec<Asked>,
    asked_all: Vec<AskedAll>,
    /// The number of each node's starts.
    starts: BTreeMap<NodeId, u64>,
    /// The outcome of each shard's commands.
    told: Vec<BTreeMap<u64, Result<u64, ClientError>>>,
    numbers: u64,
    watchers: Vec<Watcher>,
    durable: bool,
}

impl Run {
    fn new(seed: u64, mode: Mode) -> Run {
        let mut rng = Rng::with_seed(seed);
        let durable = mode == Mode::Durable;
        // One member that fails must not take a state in memory with it.
        let members = rng.u32(if durable { 2 } else { 3 }..=5);
        let shards = if rng.bool() { 1 } else { rng.u32(2..=4) };
        let fewest = if durable { 1 } else { 2 };
        let replicas = if shards == 1 { members } else { rng.u32(fewest..=3).min(members) };
        let config = Config::builder("sessions", 1)
            .members(1..=members)
            .failure_timeout(Duration::from_millis(20))
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("sequence", |group| {
                group.mode(mode).shards(shards);
                if replicas < members {
                    group.replicas(1, Some(replicas));
                }
            })
            .build()
            .expect("the configuration is valid");
        let sim = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, sim, rng.u64(..));
        let change_bytes = [200, 4000, 1 << 20][rng.usize(0..3)];
        let options = ServeOptions { window: rng.u32(1..=16), change_bytes, ..ServeOptions::default() };
        let node = |node| cluster.serve_sharded(NodeId(node), "sequence", |_| Reporting::default(), options);
        let groups = (1..=members).map(node).collect();
        let clients = (0..rng.usize(1..=4)).map(|_| cluster.clients_of_shards("sequence")).collect();
        let (replicas, told) = (replicas as usize, vec![BTreeMap::new(); shards as usize]);
        let (asked, asked_all, starts, watchers) = (Vec::new(), Vec::new(), BTreeMap::new(), Vec::new());
        let numbers = 0;
        Run {
            rng,
            cluster,
            options,
            replicas,
            groups,
            clients,
            asked,
            asked_all,
            starts,
            told,
            numbers,
            watchers,
            durable,
        }
    }

    fn nodes(&self) -> Vec<NodeId> {
        (1..=self.groups.len() as u32).map(NodeId).collect()
    }

    fn launch(&mut self, node: NodeId) -> Result<(), String> {
        while !self.cluster.is_up(node) {
            let groups = self.cluster.serve_sharded(node, "sequence", |_| Reporting::default(), self.options);
            self.groups[node.0 as usize - 1] = groups;
            *self.starts.entry(node).or_default() += 1;
            match self.cluster.launch(node) {
                Ok(()) => {}
                // A write that was to fail has come.
                Err(NotStarted::Disk { .. }) if self.cluster.fallen().contains(&node) => {}
                Err(NotStarted::Disk { why, .. }) => return Err(format!("{node} did not start: {why}")),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn pause(&mut self, most_ms: u64) {
        let micros = self.rng.u64(0..=most_ms * 1000);
        self.cluster.run_for(Duration::from_micros(micros));
    }

    fn end(&mut self, node: NodeId) {
        match self.rng.bool() {
            true => self.cluster.crash(node),
            false => self.cluster.kill(node),
        }
    }

    /// Makes something go wrong, or well again.
    fn inject(&mut self) -> Result<(), String> {
        let node = NodeId(self.rng.u32(1..=self.groups.len() as u32));
        let event = self.rng.u8(0..20);
        if !self.durable && event < 8 {
            // Another failure may come only once the shards have all their members again.
            if self.is_whole() {
                self.end(node);
            }
            return Ok(());
        }
        match event {
            0 | 1 => self.end(node),
            2 | 3 => {
                // All lose power, and come back in any order, some while others are still down.
                let mut nodes = self.nodes();
                nodes.iter().for_each(|&node| self.cluster.crash(node));
                self.rng.shuffle(&mut nodes);
                for node in nodes {
                    self.pause(20);
                    self.launch(node)?;
                }
            }
            4 => {
                let change = self.rng.u64(0..60);
                self.cluster.crash_in_write(node, 0, change);
            }
            5 => {
                let pace = [50, 2_000, 20_000][self.rng.usize(0..3)];
                self.cluster.slow_disk(node, Duration::from_micros(pace));
            }
            6 => {
                self.cluster.pause(node);
                self.pause(40);
                self.cluster.resume(node);
            }
            7 => {
                let other = NodeId(self.rng.u32(1..=self.groups.len() as u32));
                if node != other {
                    self.cluster.net().cut_one_way(node, other);
                    self.pause(60);
                    self.cluster.net().heal(node, other);
                }
            }
            8 | 9 => {
                let client = self.rng.usize(0..self.clients.len());
                let shard = self.rng.usize(0..self.told.len());
                self.cluster.break_connection(&self.clients[client][shard]);
            }
            10..=14 => self.launch(node)?,
            _ => {}
        }
        Ok(())
    }

    fn submit(&mut self) {
        let client = self.rng.usize(0..self.clients.len());
        self.numbers += 1;
        // Most calls have time until the end.
        let limit = Duration::from_millis([50, 500, 60_000, 60_000][self.rng.usize(0..4)]);
        let (shard, number) = (self.rng.usize(0..self.told.len()), self.numbers);
        if self.rng.u8(0..3) == 0 {
            let (before, deadline) = (self.tenures(shard), self.cluster.now() + limit);
            let asking = Asking::Sending(self.clients[client][shard].submit_all(&mut self.cluster, &number, limit));
            let (replies, is_patient) = (BTreeMap::new(), limit > PATIENCE);
            self.asked_all.push(AskedAll { shard, number, asking, replies, before, deadline, is_patient });
            return;
        }
        let call = self.clients[client][shard].submit(&mut self.cluster, &number, limit);
        self.asked.push(Asked { shard, number, call: Box::pin(call) });
    }

    /// Returns the nodes that have a shard's state, as of the newest view.
    fn tenures(&self, shard: usize) -> BTreeMap<NodeId, Tenure> {
        let views = self.nodes().into_iter().filter_map(|node| self.cluster.view(node));
        let Some(view) = views.max_by_key(|view| view.epoch) else { return BTreeMap::new() };
        let shard = &view.shards[shard];
        let tenure = |node: &NodeId| {
            (self.starts.get(node).copied().unwrap_or(0), shard.since.get(node).map(ToString::to_string))
        };
        shard.complete.iter().map(|node| (*node, tenure(node))).collect()
    }

    /// Hears what members reply. Each that has the shard as before must, and all reply alike.
    fn hear_all(&mut self) -> Result<(), String> {
        let now = self.cluster.now();
        for mut asked in std::mem::take(&mut self.asked_all) {
            let number = asked.number;
            match asked.poll() {
                None if now > asked.deadline + Duration::from_millis(1) => {
                    return Err(format!("command {number} has outlived its deadline"));
                }
                None => {
                    self.asked_all.push(asked);
                    continue;
                }
                Some(Err(error)) => {
                    self.told[asked.shard].insert(number, Err(error));
                    continue;
                }
                Some(Ok(())) => {}
            }
            let replied: BTreeSet<u64> = asked.replies.values().filter_map(|reply| reply.clone().ok()).collect();
            if replied.len() > 1 {
                return Err(format!("members reply {:?} to command {number}", asked.replies));
            }
            let now = self.tenures(asked.shard);
            let stayed = asked.before.iter().filter(|(node, before)| now.get(node) == Some(*before));
            for (node, _) in stayed.filter(|_| asked.is_patient) {
                // A client that knows only an earlier view may not have asked it.
                if let Some(Err(error)) = asked.replies.get(node) {
                    return Err(format!("{node} had the shard all the time, and replies to {number}: {error}"));
                }
            }
            let told = replied.first().map_or_else(|| Err(ClientError::Unknown(String::new())), |reply| Ok(*reply));
            self.told[asked.shard].insert(number, told);
        }
        Ok(())
    }

    fn hear(&mut self) {
        let told = &mut self.told;
        self.asked.retain_mut(|asked| match asked.call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                told[asked.shard].insert(asked.number, result);
                false
            }
        });
    }

    fn is_whole(&self) -> bool {
        let nodes = self.nodes();
        let has_all = |node: &NodeId| {
            let is_whole =
                |shard: &ShardView| shard.complete.len() == self.replicas && shard.members.len() == self.replicas;
            let whole = |view: &View| view.members.len() == nodes.len() && view.shards.iter().all(is_whole);
            self.cluster.view(*node).is_some_and(|view| whole(view))
        };
        nodes.iter().all(has_all)
    }

    /// Waits, with nothing going wrong any more, until all calls have ended and all members are complete.
    fn settle(&mut self) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        while !self.is_whole() || !self.asked.is_empty() || !self.asked_all.is_empty() {
            for node in self.nodes() {
                self.launch(node)?;
                self.cluster.slow_disk(node, Duration::from_micros(50));
            }
            let slice = Duration::from_millis(5);
            self.cluster.run_for(slice);
            self.hear();
            self.hear_all()?;
            waited += slice;
            if waited > PATIENCE {
                let view = |node| (node, self.cluster.view(node).map(|view| view.epoch.0));
                let views: Vec<_> = self.nodes().into_iter().map(view).collect();
                let of_all = self.asked_all.iter().map(|asked| asked.number);
                let asked: Vec<u64> = self.asked.iter().map(|asked| asked.number).chain(of_all).collect();
                return Err(format!("after {PATIENCE:?}, members are {views:?}, and {asked:?} have no answer"));
            }
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), String> {
        let shards = 0..self.told.len();
        shards.into_iter().try_for_each(|shard| self.verify_shard(shard).map_err(|why| format!("shard {shard}: {why}")))
    }

    fn verify_shard(&mut self, shard: usize) -> Result<(), String> {
        self.settle()?;
        let mut reference: Option<ShardState> = None;
        let members = self.cluster.view(NodeId(1)).expect("all serve").shards[shard].members.clone();
        for node in members {
            let read =
                self.groups[node.0 as usize - 1][shard].read(|served| (served.numbers.clone(), served.changes.clone()));
            let Some(Ok(applied)) = self.cluster.wait(PATIENCE, read) else {
                return Err(format!("{node} reads nothing"));
            };
            if reference.as_ref().is_some_and(|reference| *reference != applied) {
                return Err(format!("{node} has applied {applied:?}, and another member {reference:?}"));
            }
            reference = Some(applied);
        }
        let (applied, changes) = reference.expect("there are members");
        let once: BTreeSet<u64> = applied.iter().copied().collect();
        if once.len() != applied.len() {
            let twice = once.iter().find(|number| applied.iter().filter(|other| other == number).count() > 1);
            return Err(format!("command {twice:?} was applied more than once"));
        }
        for (number, told) in &self.told[shard] {
            match told {
                Ok(place) if applied.get(*place as usize - 1) != Some(number) => {
                    let there = applied.get(*place as usize - 1);
                    return Err(format!("command {number} was said to be the {place}th, which is {there:?}"));
                }
                Err(error) if error.is_not_applied() && once.contains(number) => {
                    return Err(format!("command {number} is applied, and its client was told: {error}"));
                }
                Err(ClientError::SessionEnded) => {
                    return Err(format!("the session of command {number} has ended, and no client ended it"));
                }
                _ => {}
            }
        }
        self.verify_watchers(shard, &changes)
    }

    /// Lets all who watch a shard see its changes up to that of a last command, and compares. Views that come meanwhile
    /// change more.
    fn verify_watchers(&mut self, shard: usize, changes: &[(Key, u64)]) -> Result<(), String> {
        let last = changes.iter().rposition(|(_, value)| *value == LAST).map_or(0, |index| index as u64 + 1);
        let mut watchers = std::mem::take(&mut self.watchers);
        let mut of_shard = watchers.iter_mut().filter(|watcher| watcher.shard == shard);
        of_shard.try_for_each(|watcher| self.wait_for(watcher, changes, last))?;
        self.watchers = watchers;
        self.settle()?;
        let members = self.cluster.view(NodeId(1)).expect("all serve").shards[shard].members.clone();
        let read = self.groups[members[0].0 as usize - 1][shard].read(|served| served.changes.clone());
        let Some(Ok(changes)) = self.cluster.wait(PATIENCE, read) else {
            return Err(format!("{} reads nothing", members[0]));
        };
        for watcher in self.watchers.iter().filter(|watcher| watcher.shard == shard) {
            watcher.verify(&changes, self.options.change_bytes)?;
            if !watcher.has_all(&changes, last) {
                return Err(format!("of {} changes: {watcher:?}", changes.len()));
            }
        }
        Ok(())
    }

    /// Waits until one who watches has come to the change with the number `last`.
    fn wait_for(&mut self, watcher: &mut Watcher, changes: &[(Key, u64)], last: u64) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        while !(watcher.has_reached(last, &mut self.cluster, &self.clients)? || watcher.has_all(changes, last)) {
            // A write that was to fail may come only now.
            for node in self.nodes() {
                self.launch(node)?;
            }
            let slice = Duration::from_millis(5);
            self.cluster.run_for(slice);
            waited += slice;
            if waited.subsec_millis() == 0 {
                // A member would send a tick, so that changes of the last view can be told.
                drop(self.clients[0][watcher.shard].submit(&mut self.cluster, &QUIET, PATIENCE));
            }
            if waited > PATIENCE {
                return Err(format!("after {PATIENCE:?}, of {} changes: {watcher:?}", changes.len()));
            }
        }
        Ok(())
    }

    /// Lets some of those who watch go on.
    fn watch(&mut self) -> Result<(), String> {
        let Run { rng, watchers, cluster, clients, told, .. } = self;
        if watchers.len() < 8 && rng.u8(0..4) == 0 {
            watchers.push(Watcher::new(rng, cluster, clients, told.len()));
        }
        for watcher in watchers {
            match rng.u8(0..10) {
                0 => watcher.turn(cluster, clients),
                1..=4 => watcher.take([1, 3, 1000][rng.usize(0..3)], cluster, clients)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Submits a last command to each shard, whose change all who watch wait for.
    fn submit_last(&mut self) {
        for shard in 0..self.told.len() {
            let call = self.clients[0][shard].submit(&mut self.cluster, &LAST, Duration::from_secs(60));
            self.asked.push(Asked { shard, number: LAST, call: Box::pin(call) });
        }
    }

    fn play(&mut self) -> Result<(), String> {
        self.cluster.start().map_err(|error| error.to_string())?;
        for _ in 0..self.rng.usize(20..=80) {
            let most = [1, 10, 60][self.rng.usize(0..3)];
            self.pause(most);
            self.inject()?;
            for node in self.cluster.fallen() {
                if self.rng.bool() {
                    self.launch(node)?;
                }
            }
            for _ in 0..self.rng.usize(0..=6) {
                self.submit();
            }
            self.hear();
            self.hear_all()?;
            self.watch()?;
        }
        self.settle()?;
        self.submit_last();
        self.settle()?;
        self.verify()
    }
}

#[test]
fn each_command_of_a_client_is_applied_once_and_what_it_is_told_is_true() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| Run::new(seed, Mode::Durable).play());
}

#[test]
fn clients_and_watches_of_groups_in_memory_go_on_at_other_members() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| Run::new(seed, Mode::Ordered).play());
}
