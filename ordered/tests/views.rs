//! Many views of one cluster, one after another, on the fabrics of real nodes: a view's resources go when it ends. A
//! test prints the time that connecting a view takes.

use std::{
    sync::{
        Barrier, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use squall_fabric::{
    Completion, Fabric, GroupTag, NodeId, Time, Wait,
    net::{Identity, NetConfig, Security, certificate_name},
    shm::{ShmConfig, ShmFabric},
    tcp::{TcpConfig, TcpFabric},
};
use squall_membership::{ClusterId, Epoch, Incarnation, Member, ShardId, ShardView, View};
use squall_ordered::{Deliver, Deliverer, Message, Shard, ShardConfig, Submitter, Tag};
use squall_sst::{Layout, Mesh, Table};

const MEMBERS: u32 = 3;
const SHARD: ShardId = ShardId(0);

/// The time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes the lock under which the tests run one after another, since the resources of the process are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cluster() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("views-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn nodes() -> Vec<NodeId> {
    (1..=MEMBERS).map(NodeId).collect()
}

fn shared_memory() -> Vec<ShmFabric> {
    let cluster = cluster();
    nodes().into_iter().map(|node| ShmFabric::open(ShmConfig::new(&cluster, node)).expect("shared memory")).collect()
}

/// Fabrics over TCP, without protection or with TLS.
fn sockets(protected: bool) -> Vec<TcpFabric> {
    let cluster = cluster();
    let ca = KeyPair::generate().and_then(|key| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, key)
    });
    let ca = ca.expect("a CA");
    let identity = |node| {
        let (key, names) = (KeyPair::generate().expect("a key"), vec![certificate_name(&cluster, node)]);
        let certificate = CertificateParams::new(names).and_then(|params| params.signed_by(&key, &ca));
        Identity::from_pem(&ca.pem(), &certificate.expect("a certificate").pem(), &key.serialize_pem())
    };
    let open = |node| {
        let mut net = NetConfig::new(&cluster, node);
        if protected {
            net.security = Security::Tls(identity(node).expect("keys that fit"));
        }
        net.listen = vec!["127.0.0.1:0".to_owned()];
        TcpFabric::open(TcpConfig::new(net)).expect("a free port")
    };
    let mut fabrics: Vec<TcpFabric> = nodes().into_iter().map(open).collect();
    let addresses: Vec<_> =
        fabrics.iter().map(|fabric| (fabric.node(), vec![fabric.local_addrs()[0].to_string()])).collect();
    for fabric in &mut fabrics {
        addresses.iter().for_each(|(peer, addresses)| fabric.learn(*peer, addresses));
    }
    fabrics
}

fn view(epoch: u64) -> View {
    View {
        life: ClusterId(1),
        epoch: Epoch(epoch),
        members: nodes().into_iter().map(|node| Member::new(node, Incarnation(1))).collect(),
        shards: vec![ShardView::whole(SHARD, nodes(), nodes())],
        joined: Vec::new(),
        left: Vec::new(),
        preferred: Default::default(),
    }
}

/// The number of messages that were delivered.
#[derive(Default)]
struct Count(usize);

impl Deliver for Count {
    fn deliver(&mut self, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.payload.copy_to(&mut bytes);
        self.0 += 1;
    }

    fn answer(&mut self, _count: u64) {}
}

/// A node's part in a view: a table among all members, as membership has one, and a shard.
struct InstalledView {
    mesh: Mesh,
    _table: Table,
    submitter: Submitter,
    shard: Shard,
    deliverer: Deliverer,
    delivered: Count,
}

impl InstalledView {
    fn install(fabric: &mut impl Fabric, epoch: u64, config: &ShardConfig) -> InstalledView {
        let nodes = nodes();
        let me = nodes.iter().position(|&node| node == fabric.node()).expect("a member");
        let mut layout = Layout::builder();
        layout.counters("heartbeat", nodes.len());
        let layout = layout.build();
        let table = Table::register(fabric, layout, nodes.len(), me).expect("memory");
        let tag = GroupTag { layer: 1, group: 0, epoch };
        let mesh = Mesh::connect(fabric, &nodes, me, tag, &[], |peer| vec![table.row(peer).clone()]);
        let (submitter, shard, deliverer) =
            squall_ordered::create(fabric, &view(epoch), SHARD, config).expect("a valid shard");
        InstalledView { mesh, _table: table, submitter, shard, deliverer, delivered: Count::default() }
    }

    fn is_complete(&self) -> bool {
        self.mesh.is_complete() && self.shard.is_complete()
    }

    /// Returns whether there was anything to do.
    fn step(&mut self, fabric: &mut impl Fabric, completions: &mut Vec<Completion>) -> bool {
        let now = Time::boot_clock();
        fabric.poll(now, completions);
        let mut busy = !completions.is_empty();
        for completion in completions.drain(..) {
            let lost = self.shard.on_completion(fabric, &completion);
            assert_eq!(lost, None);
            self.mesh.on_completion(fabric, &completion);
        }
        busy |= self.shard.step(fabric, now).busy;
        if self.deliverer.is_due() {
            self.deliverer.run(64, &mut self.delivered).expect("sound messages");
            busy = true;
        }
        busy
    }

    /// Steps as an engine does where nodes share cores: it yields a few times, then sleeps.
    fn run_until(
        &mut self,
        fabric: &mut (impl Fabric + Wait),
        what: &str,
        mut done: impl FnMut(&InstalledView) -> bool,
    ) {
        let deadline = Instant::now() + PATIENCE;
        let (mut completions, mut idle) = (Vec::new(), 0);
        while !done(self) {
            assert!(Instant::now() < deadline, "in vain waited {} for {what}: {:?}", fabric.node(), self.shard);
            if self.step(fabric, &mut completions) {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < 4 {
                thread::yield_now();
                continue;
            }
            fabric.arm();
            if self.step(fabric, &mut completions) {
                fabric.disarm();
            } else {
                // Not for long, since the other nodes' writes come without a signal.
                fabric.wait(Time::boot_clock() + Duration::from_millis(1));
            }
        }
    }

    fn end(mut self, fabric: &mut impl Fabric) {
        self.shard.wedge();
        self.shard.abandon();
        self.shard.undelivered().expect("no thread is completing a message");
        self.shard.disconnect(fabric);
        self.mesh.disconnect(fabric);
        drop(self);
        fabric.poll(Time::boot_clock(), &mut Vec::new());
    }
}

/// Lets the nodes, each on its thread, install `views` views one after another. In each, all send a small message and a
/// bulk message, and deliver all. Returns, for each view, the time that connecting took for the slowest member.
fn install<F: Fabric + Wait + Send>(
    fabrics: &mut [F],
    first: u64,
    views: usize,
    config: &ShardConfig,
) -> Vec<Duration> {
    let (barrier, connected, delivered) = (Barrier::new(fabrics.len()), AtomicUsize::new(0), AtomicUsize::new(0));
    let one = |fabric: &mut F| {
        let mut took = Vec::new();
        for number in 0..views {
            barrier.wait();
            let began = Instant::now();
            let mut view = InstalledView::install(fabric, first + number as u64, config);
            view.run_until(fabric, "the connections", InstalledView::is_complete);
            took.push(began.elapsed());
            connected.fetch_add(1, Ordering::AcqRel);
            let all = (number + 1) * MEMBERS as usize;
            view.run_until(fabric, "all to be connected", |_| connected.load(Ordering::Acquire) == all);
            view.submitter.submit(&[1; 100], Tag::default()).expect("there is room");
            view.submitter.submit(&[2; 100_000], Tag::default()).expect("there is room");
            view.run_until(fabric, "all messages", |view| view.delivered.0 == 2 * MEMBERS as usize);
            delivered.fetch_add(1, Ordering::AcqRel);
            view.run_until(fabric, "all to deliver", |_| delivered.load(Ordering::Acquire) == all);
            barrier.wait();
            view.end(fabric);
        }
        took
    };
    let took: Vec<Vec<Duration>> = thread::scope(|scope| {
        let threads: Vec<_> = fabrics.iter_mut().map(|fabric| scope.spawn(|| one(fabric))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a node")).collect()
    });
    (0..views).map(|view| took.iter().map(|member| member[view]).max().expect("members")).collect()
}

/// The resources that this process holds.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    descriptors: usize,
    mappings: usize,
    resident_bytes: usize,
}

impl Holdings {
    fn now() -> Holdings {
        let read = |path: &str| std::fs::read_to_string(path).expect("the system tells");
        let status = read("/proc/self/status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line about it");
        let kib: usize = resident.trim().trim_end_matches(" kB").parse().expect("a number");
        Holdings {
            descriptors: std::fs::read_dir("/proc/self/fd").expect("the system tells").count(),
            mappings: read("/proc/self/maps").lines().count(),
            resident_bytes: kib << 10,
        }
    }
}

/// The memory that an allocator may keep for itself. A single view takes more.
const SLACK_BYTES: usize = 4 << 20;
const SLACK_MAPPINGS: usize = 16;

/// Lets 40 views come and go, and then 200 more, after which the process must hold no more than before.
fn leaves_nothing<F: Fabric + Wait + Send>(mut fabrics: Vec<F>, mut views: impl FnMut(&mut [F], u64, usize)) {
    let _alone = alone();
    views(&mut fabrics, 1, 40);
    let before = settled(&mut fabrics);
    views(&mut fabrics, 41, 200);
    let mut after = settled(&mut fabrics);
    let deadline = Instant::now() + PATIENCE;
    let is_more = |after: Holdings| {
        after.descriptors > before.descriptors
            || after.mappings > before.mappings + SLACK_MAPPINGS
            || after.resident_bytes > before.resident_bytes + SLACK_BYTES
    };
    while is_more(after) {
        assert!(Instant::now() < deadline, "200 views left something behind: {before:?}, then {after:?}");
        after = settled(&mut fabrics);
    }
}

/// Steps all views that there are until `done` holds.
fn run_all<F: Fabric>(
    fabrics: &mut [F],
    installed: &mut [Option<InstalledView>],
    what: &str,
    mut done: impl FnMut(&[Option<InstalledView>]) -> bool,
) {
    let (deadline, mut completions) = (Instant::now() + PATIENCE, Vec::new());
    while !done(installed) {
        assert!(Instant::now() < deadline, "in vain waited for {what}");
        for (fabric, view) in fabrics.iter_mut().zip(installed.iter_mut()) {
            match view {
                Some(view) => drop(view.step(fabric, &mut completions)),
                None => fabric.poll(Time::boot_clock(), &mut Vec::new()),
            }
        }
        thread::yield_now();
    }
}

/// Runs views in which one member is late, so that the others have been connected for a while, or does not come at all.
/// Each view ends while messages are under way.
fn uneven<F: Fabric>(fabrics: &mut [F], first: u64, views: usize) {
    let config = small_reserve();
    for epoch in first..first + views as u64 {
        let (late, comes) = (epoch as usize % fabrics.len(), epoch % 2 == 0);
        let mut installed: Vec<Option<InstalledView>> = fabrics
            .iter_mut()
            .enumerate()
            .map(|(i, fabric)| (i != late).then(|| InstalledView::install(fabric, epoch, &config)))
            .collect();
        let meets = |installed: &[Option<InstalledView>], i: usize| {
            installed[i].as_ref().is_none_or(|view| {
                (0..installed.len()).all(|other| other == i || other == late || view.mesh.link(other).is_some())
            })
        };
        run_all(fabrics, &mut installed, "the others", |installed| (0..installed.len()).all(|i| meets(installed, i)));
        if comes {
            installed[late] = Some(InstalledView::install(&mut fabrics[late], epoch, &config));
            run_all(fabrics, &mut installed, "the member that is late", |installed| {
                installed.iter().flatten().all(InstalledView::is_complete)
            });
        }
        for view in installed.iter().flatten() {
            view.submitter.submit(&[1; 100], Tag::default()).expect("there is room");
            view.submitter.submit(&[2; 300_000], Tag::default()).expect("there is room");
        }
        let mut steps = epoch % 8;
        run_all(fabrics, &mut installed, "a few steps", |_| {
            steps = steps.wrapping_sub(1);
            steps > 8
        });
        for (fabric, view) in fabrics.iter_mut().zip(installed) {
            if let Some(view) = view {
                view.end(fabric);
            }
        }
    }
}

fn small_reserve() -> ShardConfig {
    ShardConfig { bulk_reserve_bytes: 1 << 20, ..ShardConfig::default() }
}

/// Returns the holdings once the nodes have learned of the connections that the others closed.
fn settled<F: Fabric>(fabrics: &mut [F]) -> Holdings {
    for _ in 0..200 {
        fabrics.iter_mut().for_each(|fabric| fabric.poll(Time::boot_clock(), &mut Vec::new()));
        thread::yield_now();
    }
    Holdings::now()
}

fn even<F: Fabric + Wait + Send>(fabrics: &mut [F], first: u64, views: usize) {
    install(fabrics, first, views, &small_reserve());
}

#[test]
fn views_leave_nothing_behind_in_shared_memory() {
    leaves_nothing(shared_memory(), even);
}

#[test]
fn views_leave_nothing_behind_over_tcp() {
    leaves_nothing(sockets(false), even);
}

#[test]
fn views_that_fail_leave_nothing_behind_in_shared_memory() {
    leaves_nothing(shared_memory(), uneven);
}

#[test]
fn views_that_fail_leave_nothing_behind_over_tcp() {
    leaves_nothing(sockets(true), uneven);
}

fn figures<F: Fabric + Wait + Send>(name: &str, mut fabrics: Vec<F>) {
    let _alone = alone();
    for (what, reserve) in [("with bulk messages", 64 << 20), ("without", 0)] {
        let config = ShardConfig { bulk_reserve_bytes: reserve, ..ShardConfig::default() };
        let first = if reserve == 0 { 1000 } else { 1 };
        let mut took = install(&mut fabrics, first, 50, &config);
        took.sort_unstable();
        eprintln!("{name} {what}: median {:?}, of 50 the slowest {:?}", took[25], took[49]);
    }
}

#[test]
#[ignore = "prints figures; run it alone, in release"]
fn how_long_connecting_a_view_takes() {
    figures("shared memory", shared_memory());
    figures("tcp", sockets(false));
    figures("tcp with TLS", sockets(true));
}
