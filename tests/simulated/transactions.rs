//! Transactions over shards in simulated clusters, in memory and durable, whose members fail, are cut off, lose power
//! all at once, and come back, so that shards move; and whose clients vanish in the midst of transactions. What clients
//! saw is strictly serializable, and nothing stays locked.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use squall::{
    Config, Mode, NodeId, ServeOptions, ShardView, View,
    sim::{
        Cluster, Ledger, LedgerCommand, LedgerCounts, LedgerFate, LedgerQuery, LedgerRecord, LedgerState, NotStarted,
        Options, Transactions, ViewLogKind, check_ledger,
    },
    transactions::{TransactionError, Transactional},
};

use crate::seeds;

/// The number of seeds that run here.
const SEEDS: u64 = 30;

/// The time within which all is over and all members serve, once nothing goes wrong any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time between two turns of clients.
const TURN: Duration = Duration::from_micros(300);

/// A transaction under way, or over.
struct Asked {
    writer: u64,
    submitted: u64,
    commands: Vec<(u32, LedgerCommand)>,
}

#[derive(Default)]
struct ClientSide {
    transactions: Option<Transactions<Ledger>>,
    asked: BTreeMap<u64, Asked>,
}

struct Run {
    rng: Rng,
    cluster: Cluster,
    mode: Mode,
    members: u32,
    shards: u32,
    /// The clients. The first makes no transactions of its own, and settles those of others as members do.
    clients: Vec<ClientSide>,
    is_careless: bool,
    writers: u64,
    records: Vec<LedgerRecord>,
}

fn global(shard: u32, key: u64) -> u64 {
    u64::from(shard) << 32 | key
}

fn declare(cluster: &mut Cluster, node: NodeId) {
    cluster.serve_sharded(
        node,
        "ledger",
        |shard| Transactional::new(shard, Ledger::default()),
        ServeOptions::default(),
    );
}

impl Run {
    fn new(seed: u64, is_careless: bool) -> Result<Run, String> {
        let mut rng = Rng::with_seed(seed);
        let (members, shards) = (rng.u32(3..=5), rng.u32(2..=3));
        let mode = if rng.bool() { Mode::Durable } else { Mode::Ordered };
        let config = Config::builder("transactions", 1)
            .members(1..=members)
            .failure_timeout(Duration::from_millis(20))
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("ledger", |group| _ = group.mode(mode).shards(shards).replicas(1, Some(2)))
            .build()
            .expect("the configuration is valid");
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        (1..=members).for_each(|node| declare(&mut cluster, NodeId(node)));
        cluster.start().map_err(|error| error.to_string())?;
        let (clients, records) = (Vec::new(), Vec::new());
        let mut run = Run { rng, cluster, mode, members, shards, clients, is_careless, writers: 0, records };
        for _ in 0..run.rng.usize(3..=5) {
            let transactions = Some(run.cluster.transactions("ledger"));
            run.clients.push(ClientSide { transactions, ..ClientSide::default() });
        }
        Ok(run)
    }

    fn now(&self) -> u64 {
        self.cluster.now().as_nanos()
    }

    fn launch(&mut self, node: NodeId) -> Result<(), String> {
        if self.cluster.is_up(node) {
            return Ok(());
        }
        declare(&mut self.cluster, node);
        match self.cluster.launch(node) {
            Ok(()) => Ok(()),
            Err(NotStarted::Disk { why, .. }) => Err(format!("{node} did not start: {why}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Lets time pass, in which clients take their turns.
    fn pass(&mut self, time: Duration) {
        let until = self.cluster.now() + time;
        while self.cluster.now() < until {
            self.cluster.run_for(TURN);
            if self.rng.u16(0..300) == 0
                && let Some(transactions) = &mut self.clients[0].transactions
            {
                transactions.watch();
            }
            for client in 0..self.clients.len() {
                let Some(transactions) = &mut self.clients[client].transactions else { continue };
                for (number, result) in transactions.turn(&mut self.cluster) {
                    let Some(asked) = self.clients[client].asked.remove(&number) else { continue };
                    self.end(asked, result);
                }
            }
        }
    }

    fn end(&mut self, asked: Asked, result: Result<Vec<LedgerState>, TransactionError<LedgerState>>) {
        let fate = match result {
            Ok(replies) => {
                let keys = asked.commands.iter().map(|(shard, command)| global(*shard, command.key));
                LedgerFate::Applied(keys.zip(replies).collect())
            }
            Err(TransactionError::Aborted { command, reply, .. }) => {
                let (shard, command) = &asked.commands[command];
                LedgerFate::Refused(Some((global(*shard, command.key), reply)))
            }
            Err(TransactionError::NoReplies { .. }) => LedgerFate::Applied(Vec::new()),
            Err(error) if error.is_not_applied() => LedgerFate::Refused(None),
            Err(_) => LedgerFate::Unknown,
        };
        let ended = (fate != LedgerFate::Unknown).then(|| self.now());
        self.record(asked, ended, fate);
    }

    fn record(&mut self, asked: Asked, ended: Option<u64>, fate: LedgerFate) {
        let writes = asked.commands.iter().filter(|(_, command)| command.writer.is_some());
        let writes = writes.map(|(shard, command)| global(*shard, command.key)).collect();
        let (writer, submitted) = (asked.writer, asked.submitted);
        self.records.push(LedgerRecord { writer, submitted, ended, writes, fate });
    }

    fn submit(&mut self) {
        let client = self.rng.usize(1..self.clients.len());
        self.writers += 1;
        let mut keys = BTreeMap::new();
        for _ in 0..self.rng.usize(1..=4) {
            let key = (self.rng.u32(0..self.shards), self.rng.u64(0..3));
            let writes = self.rng.bool();
            let expects = (self.rng.u8(0..8) == 0).then(|| self.rng.u64(0..4));
            let (writer, is_careless) = (writes.then_some(self.writers), self.is_careless && !writes);
            keys.insert(key, LedgerCommand { key: key.1, writer, expects, is_careless });
        }
        let commands: Vec<_> = keys.into_iter().map(|((shard, _), command)| (shard, command)).collect();
        let limit = Duration::from_millis([20, 500, 5_000][self.rng.usize(0..3)]);
        let submitted = self.now();
        let ClientSide { transactions: Some(transactions), asked } = &mut self.clients[client] else { return };
        let number = transactions.submit(&mut self.cluster, &commands, limit);
        asked.insert(number, Asked { writer: self.writers, submitted, commands });
    }

    /// Has a client ask for a key of each shard, one after the other.
    fn look(&mut self) {
        let (client, first) = (self.rng.usize(1..self.clients.len()), self.rng.u32(0..self.shards));
        for shard in (0..self.shards).map(|shard| (first + shard) % self.shards) {
            let (key, submitted) = (self.rng.u64(0..3), self.now());
            let Some(transactions) = &self.clients[client].transactions else { return };
            let query = LedgerQuery { key: Some(key) };
            let answer = transactions.query(&mut self.cluster, shard, &query, Duration::from_millis(5));
            let Some(answer) = answer else { continue };
            self.writers += 1;
            let (ended, fate) = (Some(self.now()), LedgerFate::Applied(vec![(global(shard, key), answer.state)]));
            self.records.push(LedgerRecord { writer: self.writers, submitted, ended, writes: Vec::new(), fate });
        }
    }

    /// Ends a client's process, and starts another.
    fn replace_client(&mut self) {
        let client = self.rng.usize(1..self.clients.len());
        let gone = std::mem::take(&mut self.clients[client]);
        gone.asked.into_values().for_each(|asked| self.record(asked, None, LedgerFate::Unknown));
        self.clients[client].transactions = Some(self.cluster.transactions("ledger"));
    }

    fn is_whole(&self) -> bool {
        let has_all = |shard: &ShardView| shard.complete.len() == 2 && shard.members.len() == 2;
        let whole = |view: &View| view.members.len() == self.members as usize && view.shards.iter().all(has_all);
        let view = |node| self.cluster.view(NodeId(node)).filter(|_| self.cluster.is_up(NodeId(node)));
        (1..=self.members).all(|node| view(node).is_some_and(|view| whole(view)))
    }

    /// Makes something go wrong, or well again.
    fn inject(&mut self) -> Result<(), String> {
        let node = NodeId(self.rng.u32(1..=self.members));
        // A shard in memory survives the loss of one replica.
        let may_end = self.mode == Mode::Durable || self.is_whole();
        match self.rng.u8(0..24) {
            0 | 1 if may_end => self.cluster.crash(node),
            2 if may_end => self.cluster.kill(node),
            3 if self.mode == Mode::Durable => {
                (1..=self.members).for_each(|node| self.cluster.crash(NodeId(node)));
                for node in 1..=self.members {
                    let pause = Duration::from_micros(self.rng.u64(0..20_000));
                    self.pass(pause);
                    self.launch(NodeId(node))?;
                }
            }
            4 if self.mode == Mode::Durable => {
                let pace = [50, 2_000, 20_000][self.rng.usize(0..3)];
                self.cluster.slow_disk(node, Duration::from_micros(pace));
            }
            5 if may_end => {
                self.cluster.pause(node);
                let pause = Duration::from_micros(self.rng.u64(0..40_000));
                self.pass(pause);
                self.cluster.resume(node);
                if self.mode != Mode::Durable {
                    // It may have been dropped, with its memory, and the views do not say so yet.
                    self.pass(Duration::from_millis(100));
                }
            }
            6 => {
                let client = self.rng.usize(0..self.clients.len());
                let shard = self.rng.usize(0..self.shards as usize);
                if let Some(transactions) = &self.clients[client].transactions {
                    self.cluster.break_connection(&transactions.shards()[shard]);
                }
            }
            7 | 8 => self.replace_client(),
            9 if self.mode == Mode::Durable => {
                let other = NodeId(self.rng.u32(1..=self.members));
                if node != other {
                    self.cluster.net().cut_one_way(node, other);
                    let pause = Duration::from_micros(self.rng.u64(0..60_000));
                    self.pass(pause);
                    self.cluster.net().heal(node, other);
                }
            }
            10..=15 => (1..=self.members).try_for_each(|node| self.launch(NodeId(node)))?,
            _ => {}
        }
        Ok(())
    }

    /// The writers of each key, once no transaction has locked one.
    fn final_writers(&mut self) -> Result<BTreeMap<u64, Vec<u64>>, String> {
        let mut all = BTreeMap::new();
        for shard in 0..self.shards {
            let until = self.cluster.now() + PATIENCE;
            let answer = loop {
                let Some(transactions) = &self.clients[0].transactions else { return Err("it is gone".to_owned()) };
                let query = LedgerQuery { key: None };
                match transactions.query(&mut self.cluster, shard, &query, PATIENCE) {
                    Some(answer) => break answer,
                    None if self.cluster.now() > until => return Err(format!("shard {shard} stays locked")),
                    None => self.pass(Duration::from_millis(50)),
                }
            };
            all.extend(answer.writers.into_iter().map(|(key, writers)| (global(shard, key), writers)));
        }
        Ok(all)
    }

    fn play(mut self) -> Result<LedgerCounts, String> {
        for _ in 0..40 {
            self.inject()?;
            for _ in 0..self.rng.usize(0..=12) {
                self.submit();
                if self.rng.u8(0..4) == 0 {
                    self.look();
                }
                let pause = Duration::from_micros(self.rng.u64(0..4_000));
                self.pass(pause);
            }
        }
        (1..=self.members).for_each(|node| self.cluster.slow_disk(NodeId(node), Duration::from_micros(50)));
        let until = self.cluster.now() + PATIENCE;
        while !self.is_whole() || self.clients.iter().any(|client| !client.asked.is_empty()) {
            // A node that was dropped may learn it late, and is started again then.
            (1..=self.members).try_for_each(|node| self.launch(NodeId(node)))?;
            self.pass(Duration::from_millis(20));
            if self.cluster.now() > until {
                let asked: Vec<_> = self.clients.iter().map(|client| client.asked.len()).collect();
                let views: Vec<_> = (1..=self.members).map(|node| self.cluster.view(NodeId(node))).collect();
                return Err(format!("not all is over in time: {asked:?} transactions of clients, {views:?}"));
            }
        }
        // Locks of clients that are gone are settled.
        self.pass(Duration::from_millis(500));
        let writers = self.final_writers()?;
        check_ledger(&self.records, &writers)
    }
}

#[test]
fn transactions_are_strictly_serializable_whatever_fails() {
    let counts = seeds::run_all(seeds::seeds(SEEDS), |seed| Run::new(seed, false)?.play());
    let applied: usize = counts.iter().map(|counts| counts.applied).sum();
    assert!(applied > 10 * counts.len(), "only {applied} transactions took effect: {counts:?}");
}

#[test]
fn reads_without_locks_are_noticed() {
    let is_noticed = |seed| {
        let end = Run::new(seed, true).and_then(Run::play);
        end.is_err_and(|why| why.contains("no order explains") || why.contains("a state of key"))
    };
    assert!((0..SEEDS).any(is_noticed));
}
