use squall_fabric::sim::{SimConfig, SimFabric, SimNet};
use squall_membership::ShardId;
use squall_sst::Layout;

use super::*;

/// A member of a shard of two, as far as bulk messages are concerned.
struct BulkMember {
    fabric: SimFabric,
    bulk: ShardBulk,
    table: Table,
    held: Counters,
    faulty: Vec<(NodeId, String)>,
}

const SENDER: NodeId = NodeId(0);
const RECEIVER: NodeId = NodeId(1);
const BLOCK: usize = 64;

impl BulkMember {
    fn new(net: &SimNet, me: NodeId, reserve_blocks: usize) -> BulkMember {
        let shard = ShardView::whole(ShardId(0), vec![SENDER, RECEIVER], vec![SENDER]);
        let (bulk_reserve_bytes, bulk_block_bytes) = (reserve_blocks * BLOCK, BLOCK);
        let config = ShardConfig { bulk_reserve_bytes, bulk_block_bytes, ..ShardConfig::default() };
        let mut fabric = net.fabric(me);
        let BulkParts { bulk, .. } = reserve(&mut fabric, Epoch::FIRST, &shard, &config, None).expect("memory");
        let mut layout = Layout::builder();
        let held = layout.counters("bulk", 1);
        let layout = layout.build();
        let table = Table::register(&mut fabric, layout, 2, me.0 as usize).expect("memory");
        BulkMember { fabric, bulk, table, held, faulty: Vec::new() }
    }

    fn step(&mut self, now: Time) {
        let mut completions = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            self.bulk.on_completion(&mut self.fabric, completion);
        }
        while self.bulk.step(&mut self.fabric, now, &mut self.table, self.held, &mut self.faulty) {}
    }
}

#[test]
fn a_sender_of_more_than_its_reserve_is_faulty_and_what_it_did_is_said() {
    let net = SimNet::new(SimConfig::fast(), 1);
    let mut members = [BulkMember::new(&net, SENDER, 2), BulkMember::new(&net, RECEIVER, 2)];
    for BulkMember { fabric, bulk, faulty, .. } in &mut members {
        bulk.connect(fabric, 0, faulty);
    }
    let BulkMember { fabric, bulk, .. } = &mut members[0];
    let message = Arc::new(Buffer::register(fabric, 3 * BLOCK).expect("memory"));
    let group = bulk.lanes[0].group.id().expect("there are two members");
    bulk.rdmc.group(group).expect("was created").send(message, 3 * BLOCK).expect("to RDMC it is a message");
    bulk.active = 1;
    let mut ready = Vec::new();
    loop {
        let now = net.advance(Time::MAX, &mut ready);
        members.iter_mut().for_each(|member| member.step(now));
        if ready.drain(..).count() == 0 {
            break;
        }
    }
    assert!(members[0].faulty.is_empty(), "{:?}", members[0].faulty);
    let [(node, why)] = &members[1].faulty[..] else { panic!("not one blamed: {:?}", members[1].faulty) };
    assert_eq!(*node, SENDER);
    assert!(why.starts_with("its bulk message 0 takes up to 192 bytes, and 128 are reserved"), "{why}");
}
