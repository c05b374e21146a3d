//! A member that tries to write another member's row, over each fabric.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use squall_fabric::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, RegionKey, RemoteRegion, Source, Target, Time,
    Token,
    net::NetConfig,
    shm::{ShmConfig, ShmFabric},
    sim::{SimConfig, SimNet},
    tcp::{TcpConfig, TcpFabric},
};
use squall_sst::{Counter, Layout, Mesh, Table};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
const HOSTILE: usize = 1;
const OTHER: usize = 2;

/// Node 0, an honest member, and node 1, which has a bare fabric. Node 2 never comes.
struct World<F, P> {
    honest: F,
    hostile: F,
    pass: P,
    layout: Arc<Layout>,
    counter: Counter,
}

/// The honest member's table, and the hostile member's way to it.
struct OpenLink {
    table: Table,
    endpoint: EndpointId,
    remote: Vec<RemoteRegion>,
}

impl<F: Fabric, P: FnMut() -> Time> World<F, P> {
    /// A world in which `pass` lets some time pass and returns the time.
    fn new(honest: F, hostile: F, pass: P) -> World<F, P> {
        let mut layout = Layout::builder();
        let counter = layout.counter("counter");
        World { honest, hostile, pass, layout: layout.build(), counter }
    }

    /// Polls both nodes until `look` finds something, in the hostile node's completions or elsewhere.
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&[Completion]) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut seen = Vec::new();
        loop {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            let now = (self.pass)();
            self.honest.poll(now, &mut Vec::new());
            self.hostile.poll(now, &mut seen);
            if let Some(found) = look(&seen) {
                return found;
            }
            seen.clear();
        }
    }

    fn link(&mut self, epoch: u64) -> OpenLink {
        let tag = GroupTag { layer: 1, group: 0, epoch };
        let table = Table::register(&mut self.honest, Arc::clone(&self.layout), NODES.len(), 0).expect("memory");
        Mesh::connect(&mut self.honest, &NODES, 0, tag, b"", |peer| vec![table.row(peer).clone()]);
        let endpoint = self.hostile.connect(NODES[0], tag, &[], b"");
        let remote = self.until("the connection", |seen| match seen {
            [Completion::Connected { remote, .. }, ..] => Some(remote.clone()),
            _ => None,
        });
        OpenLink { table, endpoint, remote }
    }

    fn write(&mut self, link: &OpenLink, region: RegionKey, offset: usize) {
        let op = Op::Write { source: Source::Inline(&7u64.to_ne_bytes()), target: Target { region, offset } };
        self.hostile.post(link.endpoint, op, Token::UNSIGNALED).expect("it is connected");
    }

    /// Writes the hostile member's row, and then tries to write the other's in several ways.
    fn run(mut self) {
        let row = self.layout.row_bytes();
        for attempt in 0..6 {
            let mut link = self.link(attempt);
            let own = link.remote[0];
            assert_eq!((link.remote.len(), own.bytes), (1, row), "it is given its row, and nothing else");
            self.write(&link, own.key, 0);
            self.until("the write of its own row", |_| (link.table.row(HOSTILE).load(0) == 7).then_some(()));
            let (region, offset) = match attempt {
                0 => (link.table.row(OTHER).key(), 0),
                1 => (link.table.row(0).key(), 0),
                2 => (own.key, row),
                3 => (own.key, OTHER * row),
                4 => (own.key, 4096),
                _ => (own.key, 0usize.wrapping_sub(row)),
            };
            self.write(&link, region, offset);
            let reason = self.until("the end", |seen| match seen {
                [.., Completion::Broken { reason, .. }] => Some(reason.clone()),
                _ => None,
            });
            assert_eq!(reason, BreakReason::Access, "attempt {attempt}");
            link.table.refresh();
            let seen = [0, HOSTILE, OTHER].map(|row| link.table.get(row, self.counter));
            assert_eq!(seen, [0, 7, 0], "attempt {attempt}");
            assert_eq!(link.table.row(0).load(0), 0, "attempt {attempt}: this member's own row");
        }
    }
}

fn cluster() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("hostile-row-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn pass() -> Time {
    std::thread::yield_now();
    Time::boot_clock()
}

#[test]
fn a_member_writes_no_row_but_its_own_in_shared_memory() {
    let cluster = cluster();
    let [honest, hostile] =
        [0, HOSTILE].map(|node| ShmFabric::open(ShmConfig::new(&cluster, NODES[node])).expect("shared memory"));
    World::new(honest, hostile, pass).run();
}

#[test]
fn a_member_writes_no_row_but_its_own_over_tcp() {
    let cluster = cluster();
    let [mut honest, mut hostile] = [0, HOSTILE].map(|node| {
        let mut net = NetConfig::new(cluster.as_str(), NODES[node]);
        net.listen = vec!["127.0.0.1:0".to_owned()];
        TcpFabric::open(TcpConfig::new(net)).expect("sockets")
    });
    let addresses = |fabric: &TcpFabric| fabric.local_addrs().iter().map(ToString::to_string).collect::<Vec<_>>();
    honest.learn(NODES[HOSTILE], &addresses(&hostile));
    hostile.learn(NODES[0], &addresses(&honest));
    World::new(honest, hostile, pass).run();
}

#[test]
fn a_member_writes_no_row_but_its_own_in_the_simulator() {
    let net = SimNet::new(SimConfig::nasty(), 1);
    let [honest, hostile] = [0, HOSTILE].map(|node| net.fabric(NODES[node]));
    World::new(honest, hostile, || net.advance(net.now() + Duration::from_micros(10), &mut Vec::new())).run();
}
