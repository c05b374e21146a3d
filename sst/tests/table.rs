//! Tables on a network that does the worst that the fabric's contract permits.

use squall_fabric::{
    Completion, Fabric, GroupTag, NodeId, RegionKey, Time,
    sim::{Sabotage, SimConfig, SimFabric, SimNet},
};
use squall_sst::{Bytes, Counter, Flag, Layout, Mesh, MeshEvent, Table};

const MEMBERS: usize = 3;
/// The count at which each member ends.
const END: u64 = 200;

#[derive(Clone, Copy)]
struct Columns {
    name: Bytes,
    /// Announces the name, and counts from then on.
    first: Counter,
    /// Follows `first`: a value of it was pushed with, or after, the `first` of that time.
    second: Counter,
    done: Flag,
}

struct Member {
    me: usize,
    fabric: SimFabric,
    mesh: Mesh,
    table: Table,
    columns: Columns,
    remote: Vec<Option<RegionKey>>,
}

fn name(member: usize) -> [u8; 20] {
    [0x40 + member as u8; 20]
}

impl Member {
    fn new(net: &SimNet, me: usize) -> Member {
        let mut layout = Layout::builder();
        let columns = Columns {
            first: layout.counter("first"),
            name: layout.bytes("name", 20),
            second: layout.counter("second"),
            done: layout.flag("done"),
        };
        let layout = layout.build();
        let mut fabric = net.fabric(NodeId(me as u32));
        let hello = layout.fingerprint().to_le_bytes();
        let table = Table::register(&mut fabric, layout, MEMBERS, me).expect("memory");
        let members: Vec<NodeId> = (0..MEMBERS as u32).map(NodeId).collect();
        let tag = GroupTag { layer: 9, group: 0, epoch: 1 };
        let mesh = Mesh::connect(&mut fabric, &members, me, tag, &hello, |peer| vec![table.row(peer).clone()]);
        Member { me, fabric, mesh, table, columns, remote: vec![None; MEMBERS] }
    }

    /// Counts one on if `count` is set, reads the others' rows, and pushes. Returns the first error in the rows.
    fn step(&mut self, now: Time, count: bool) -> Result<(), String> {
        let mut completions = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            match self.mesh.on_completion(&mut self.fabric, completion) {
                Some(MeshEvent::Up(peer)) => {
                    let Completion::Connected { remote, .. } = completion else { unreachable!() };
                    self.remote[peer] = Some(remote[0].key);
                }
                Some(MeshEvent::Down(peer, reason)) => panic!("{peer} broke: {reason}"),
                Some(MeshEvent::Room(_)) | None => {}
            }
        }
        let Columns { name: bytes, first, second, done } = self.columns;
        let value = self.table.get(self.me, first) + u64::from(count);
        if count && value <= END {
            if value == 1 {
                self.table.write_bytes(bytes, &name(self.me));
            }
            self.table.set(first, value);
            self.table.set(second, value);
            if value == END {
                self.table.raise(done);
            }
        }
        self.table.refresh();
        for (peer, remote) in self.remote.iter().enumerate() {
            if let Some(remote) = *remote {
                self.table.push(&mut self.fabric, &self.mesh, peer, remote);
            }
        }
        (0..MEMBERS).try_for_each(|row| self.check(row))
    }

    fn check(&self, row: usize) -> Result<(), String> {
        let Columns { name: bytes, first, second, done } = self.columns;
        let mut copy = [0; 20];
        self.table.read_bytes(row, bytes, &mut copy);
        let [first, second] = [first, second].map(|counter| self.table.get(row, counter));
        if first.max(second) > 0 && copy != name(row) {
            return Err(format!("a counter of row {row} was seen, and its bytes not"));
        }
        if first.max(second) > END {
            return Err(format!("row {row} says {first}, {second}, which was never written"));
        }
        if self.table.is_set(row, done) && (first, second) != (END, END) {
            return Err(format!("the flag of row {row} was seen, and its counters not: {first}, {second}"));
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        (0..MEMBERS).all(|row| self.table.is_set(row, self.columns.done))
    }
}

fn run(config: SimConfig, seed: u64) -> Result<(), String> {
    let net = SimNet::new(config, seed);
    let mut members: Vec<Member> = (0..MEMBERS).map(|me| Member::new(&net, me)).collect();
    let mut turn = seed as usize;
    let (mut ready, mut now) = (Vec::new(), Time::ZERO);
    while !members.iter().all(Member::is_done) {
        if now > Time::from_nanos(1_000_000_000) {
            return Err("not done within a second".into());
        }
        // A member counts every microsecond, whatever happens.
        let tick = Time::from_nanos(now.as_nanos() + 1000);
        now = net.advance(tick, &mut ready);
        for node in ready.drain(..) {
            members[node.0 as usize].step(now, false)?;
        }
        if now == tick {
            turn += 1;
            members[turn % MEMBERS].step(now, true)?;
        }
    }
    Ok(())
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let given = std::env::var("SQUALL_SEED").ok().map(|seed| seed.parse().expect("SQUALL_SEED is a number"));
    given.map_or(0..count, |seed| seed..seed + 1)
}

#[test]
fn rows_are_seen_in_the_order_in_which_they_were_written() {
    for seed in seeds(200) {
        let config = if seed.is_multiple_of(2) { SimConfig::nasty() } else { SimConfig::fast() };
        if let Err(wrong) = run(config, seed) {
            panic!("SQUALL_SEED={seed}: {wrong}");
        }
    }
}

/// The checks above work: a network that breaks the guarantee which tables rest on is found out.
#[test]
fn a_network_that_breaks_its_word_is_found_out() {
    let broken = |seed| run(SimConfig { sabotage: Some(Sabotage::Overtake), ..SimConfig::nasty() }, seed).is_err();
    assert!((0..200).any(broken), "writes that overtake others were not noticed");
}
