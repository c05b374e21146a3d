//! Commands that the member that leads submits because of what all replicas have applied, in groups whose members fail,
//! join and lose power: each is applied once, in its turn.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Applied, Config, Group, Mode, NodeId, ServeOptions, Served, Snapshot, SubmitError,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::seeds;

/// The number of seeds that run here.
const SEEDS: u64 = 20;

const PATIENCE: Duration = Duration::from_secs(20);

/// Orders, each of which is shipped once, with a number that only the member that leads can know.
#[derive(Debug, Default)]
struct Shop {
    orders: u64,
    /// For each shipment, the order and the number of its parcel.
    shipped: Vec<[u64; 2]>,
    /// The number of times that this replica was asked for a shipment.
    asked: AtomicU64,
    /// The number of orders for which any replica has packed a parcel, in all its lives.
    packed: Arc<AtomicU64>,
}

#[squall::service]
impl Shop {
    #[command]
    fn order(&mut self, count: u64) -> u64 {
        self.orders += count;
        self.orders
    }

    /// Ships an order, if the member that leads says so in its turn.
    #[command]
    fn ship(&mut self, order: u64, parcel: u64, at: &Applied) {
        if at.follow_up == Some(order) {
            self.shipped.push([order, parcel]);
        }
    }

    #[follow_ups]
    fn unshipped(&self) -> Range<u64> {
        self.shipped.len() as u64..self.orders
    }

    /// Finds a parcel for every second time that it is asked.
    #[follow_up]
    fn pack(&self, order: u64) -> Option<ShopCommand> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        asked.is_multiple_of(2).then(|| {
            self.packed.fetch_max(order + 1, Ordering::Relaxed);
            ShopCommand::Ship(order, fastrand::u64(..))
        })
    }

    #[snapshot]
    fn save(&self) -> Snapshot {
        let words = [self.orders].into_iter().chain(self.shipped.iter().copied().flatten());
        Snapshot::of_bytes(words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    #[restore]
    fn load(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let (&orders, rest) = words.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
        (self.orders, self.shipped) = (orders, rest.as_chunks().0.to_vec());
        Ok(())
    }
}

struct Run {
    rng: Rng,
    cluster: Cluster,
    groups: Vec<Group<Served<Shop>>>,
    mode: Mode,
    packed: Arc<AtomicU64>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::with_seed(seed);
        let mode = if rng.bool() { Mode::Durable } else { Mode::Ordered };
        let config = Config::builder("follow-ups", 1)
            .members(1..=3)
            .failure_timeout(Duration::from_millis(20))
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("shop", |group| _ = group.mode(mode));
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config.build().expect("it is valid"), options, rng.u64(..));
        let packed = Arc::default();
        let groups = (1..=3).map(|node| declare(&mut cluster, node, &packed)).collect();
        cluster.start().expect("it starts");
        Run { rng, cluster, groups, mode, packed }
    }

    fn launch(&mut self, node: u32) {
        if !self.cluster.is_up(NodeId(node)) {
            self.groups[node as usize - 1] = declare(&mut self.cluster, node, &self.packed);
            self.cluster.launch(NodeId(node)).expect("it starts");
        }
    }

    /// The orders and shipments that a node shows to linearizable reads.
    fn state(&mut self, node: u32) -> (u64, Vec<[u64; 2]>) {
        for _ in 0..200 {
            let read = self.groups[node as usize - 1].read(|shop| (shop.orders, shop.shipped.clone()));
            if let Some(Ok(state)) = self.cluster.wait(PATIENCE, read) {
                return state;
            }
            self.cluster.run_for(Duration::from_millis(50));
        }
        panic!("{node} does not serve: {:?}", self.cluster.view(NodeId(node)));
    }

    /// Whether all nodes hold the state, so that a group in memory survives the loss of one.
    fn is_whole(&self) -> bool {
        let view = |node| self.cluster.view(NodeId(node)).filter(|_| self.cluster.is_up(NodeId(node)));
        (1..=3).all(|node| view(node).is_some_and(|view| view.shards[0].complete.len() == 3))
    }

    /// Makes something go wrong, or well again.
    fn inject(&mut self) {
        let node = self.rng.u32(1..=3);
        match self.rng.u8(0..8) {
            0 | 1 if self.mode == Mode::Durable || self.is_whole() => self.cluster.crash(NodeId(node)),
            2 if self.mode == Mode::Durable => {
                (1..=3).for_each(|node| self.cluster.crash(NodeId(node)));
                (1..=3).for_each(|node| self.launch(node));
            }
            3 | 4 => {
                // A member that does not run keeps what it has under way, while others may go on without it.
                self.cluster.pause(NodeId(node));
                let micros = self.rng.u64(0..60_000);
                self.cluster.run_for(Duration::from_micros(micros));
                self.cluster.resume(NodeId(node));
            }
            5 => {
                // Without a majority nothing goes on, and all keep what they have under way.
                let pairs = [(1, 2), (1, 3), (2, 3)].map(|(one, other)| (NodeId(one), NodeId(other)));
                pairs.iter().for_each(|&(one, other)| self.cluster.net().cut(one, other));
                let micros = self.rng.u64(0..200_000);
                self.cluster.run_for(Duration::from_micros(micros));
                pairs.iter().for_each(|&(one, other)| self.cluster.net().heal(one, other));
            }
            _ => {
                (1..=3).for_each(|node| self.launch(node));
                let count = if self.rng.u8(0..8) == 0 { 200 } else { 1 };
                let group = &self.groups[node as usize - 1];
                drop(group.submit(&ShopCommand::Order(count)));
                // One that is no follow-up ships nothing.
                drop(group.submit(&ShopCommand::Ship(self.rng.u64(0..1000), 7)));
            }
        }
    }
}

fn declare(cluster: &mut Cluster, node: u32, packed: &Arc<AtomicU64>) -> Group<Served<Shop>> {
    let shop = Shop { packed: Arc::clone(packed), ..Shop::default() };
    cluster.serve(NodeId(node), "shop", shop, ServeOptions::default())
}

#[test]
fn each_follow_up_is_applied_once_whatever_fails() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| {
        let mut run = Run::new(seed);
        let mut known: Vec<[u64; 2]> = Vec::new();
        for _ in 0..30 {
            run.inject();
            let micros = run.rng.u64(0..40_000);
            run.cluster.run_for(Duration::from_micros(micros));
            let node = run.rng.u32(1..=3);
            let read = run.groups[node as usize - 1].read(|shop| shop.shipped.clone());
            if let Some(Ok(shipped)) = run.cluster.wait(Duration::from_millis(1), read) {
                let common = known.len().min(shipped.len());
                assert_eq!(shipped[..common], known[..common], "seed {seed}: what a reader was shown is undone");
                known = if shipped.len() > known.len() { shipped } else { known };
            }
        }
        (1..=3).for_each(|node| run.launch(node));
        run.cluster.run_for(Duration::from_secs(3));
        let (orders, shipped) = run.state(1);
        assert!(shipped.starts_with(&known), "seed {seed}: what a reader was shown is undone");
        assert!(shipped.iter().map(|&[order, _]| order).eq(0..orders), "seed {seed}: of {orders}: {shipped:?}");
        let packed = run.packed.load(Ordering::Relaxed);
        assert!(packed <= orders, "seed {seed}: {packed} parcels were packed for {orders} orders: some are undone");
        (2..=3).for_each(|node| assert_eq!(run.state(node), (orders, shipped.clone()), "seed {seed}"));
        Ok(())
    });
}

#[test]
fn only_the_member_that_leads_is_asked_for_follow_ups() -> Result<(), SubmitError> {
    let mut run = Run::new(1);
    let submitted = run.groups[1].submit(&ShopCommand::Order(3));
    run.cluster.wait(PATIENCE, submitted).expect("it is applied")?;
    run.cluster.run_for(Duration::from_millis(200));
    let (orders, shipped) = run.state(2);
    assert_eq!((orders, shipped.len()), (3, 3));
    for node in 2..=3 {
        let read = run.groups[node - 1].read(|shop| shop.asked.load(Ordering::Relaxed));
        assert_eq!(run.cluster.wait(PATIENCE, read), Some(Ok(0)), "{node}");
    }
    Ok(())
}

/// A service whose first follow-up lies behind the end of those that are due.
#[derive(Default)]
struct Overdue(u64);

#[squall::service]
impl Overdue {
    #[command]
    fn add(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    #[follow_ups]
    fn due(&self) -> Range<u64> {
        u64::MAX..self.0
    }

    #[follow_up]
    fn make(&self, _number: u64) -> Option<OverdueCommand> {
        None
    }

    #[snapshot]
    fn save(&self) -> Snapshot {
        Snapshot::of_bytes(self.0.to_le_bytes())
    }

    #[restore]
    fn load(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }
}

#[test]
fn a_range_that_ends_before_it_begins_is_empty() {
    let config = Config::builder("overdue", 1).members([1]).storage("simulated");
    let config = config.group("overdue", |group| _ = group.mode(Mode::Durable)).build().expect("it is valid");
    let mut cluster = Cluster::new(config, Options::default(), 1);
    let group = cluster.serve(NodeId(1), "overdue", Overdue::default(), ServeOptions::default());
    cluster.start().expect("it starts");
    for count in 1..=3 {
        let submitted = group.submit(&OverdueCommand::Add);
        let reply = cluster.wait(PATIENCE, submitted).expect("it is applied");
        let count_of = |reply| if let OverdueReply::Add(count) = reply { count } else { 0 };
        assert_eq!(reply.map(count_of), Ok(count));
    }
}
