//! A replica's state on its way to a member that joins, while the members that send it die.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rkyv::Archived;
use squall::{Applied, Config, Group, Node, NodeId, Replicated, Snapshot, View};

const PATIENCE: Duration = Duration::from_secs(60);

/// The number of bytes of a state that are written out before its source is killed.
const MIDDLE: u64 = 8 << 20;

/// The length of a state whose end is never written.
const ENDLESS: u64 = u64::MAX;

/// The number of sources that are to die.
const DOOMED: u32 = 2;

/// The counters that the replicas of the test share.
struct Fate {
    /// The number of states that were captured.
    captured: AtomicU32,
    /// The channel that gets each source that is to die, when it has written the middle of its state.
    dying: Sender<u32>,
}

/// A sum, and a long part of which only the length counts.
struct Long {
    node: u32,
    sum: u64,
    fate: Arc<Fate>,
}

impl Replicated for Long {
    type Command = u64;
    type Reply = u64;

    fn apply(&mut self, add: &Archived<u64>, _at: &Applied) -> u64 {
        self.sum += add.to_native();
        self.sum
    }

    fn snapshot(&self) -> Snapshot {
        let (node, sum, fate) = (self.node, self.sum, Arc::clone(&self.fate));
        let is_doomed = fate.captured.fetch_add(1, Ordering::SeqCst) < DOOMED;
        let len = if is_doomed { ENDLESS } else { 2 * MIDDLE };
        let snapshot = Snapshot::new(move |to| {
            to.write_all(&sum.to_le_bytes())?;
            to.write_all(&len.to_le_bytes())?;
            let block = [7; 64 << 10];
            let mut written = 0;
            while written < len {
                to.write_all(&block)?;
                written += block.len() as u64;
                if is_doomed && written == MIDDLE {
                    fate.dying.send(node).expect("the test waits");
                }
            }
            Ok(())
        });
        snapshot.of_about(len)
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut words = [[0; 8]; 2];
        words.iter_mut().try_for_each(|word| from.read_exact(word))?;
        let [sum, len] = words.map(u64::from_le_bytes);
        // Set before the end, as an application may: then a state that breaks off is half there.
        self.sum = sum;
        if io::copy(&mut from.take(len), &mut io::sink())? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

fn start(config: Config, fate: &Arc<Fate>) -> (Node, Group<Long>) {
    let long = Long { node: config.id().0, sum: 0, fate: Arc::clone(fate) };
    let mut node = Node::builder(config);
    let group = node.group("long", long);
    (node.start().expect("it becomes a member"), group)
}

#[test]
fn who_joins_gets_the_state_though_one_source_after_the_other_dies_in_the_middle() {
    let (dying, in_the_middle) = mpsc::channel();
    let fate = Arc::new(Fate { captured: AtomicU32::new(0), dying });
    let cluster = format!("transfer-{}", std::process::id());
    // A member that dies is missed at once; one that only gets no turn for long stays a member.
    let builder = |id| Config::builder(&cluster, id).formation_timeout(PATIENCE).failure_timeout(PATIENCE);
    // Enough members for five voters, of which two may die at once.
    let mut nodes: Vec<_> = thread::scope(|scope| {
        let config = |id| builder(id).members(1..=5).build().expect("it is valid");
        let starting: Vec<_> = (1..=5)
            .map(|id| {
                scope.spawn({
                    let fate = &fate;
                    move || start(config(id), fate)
                })
            })
            .collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    });
    assert_eq!(nodes[0].1.submit(&5).wait(), Ok(5));
    let (node, group) = start(builder(9).join(["1"]).build().expect("it is valid"), &fate);

    for killed in 0..DOOMED {
        let source = in_the_middle.recv_timeout(PATIENCE).expect("a source is asked");
        assert!(group.submit(&1).wait().is_err(), "it has no state");
        // The status shows the bytes that have come.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let fetching = node.status().expect("it runs").groups[0].fetching;
            if fetching.is_some_and(|it| it.source.0 == source && it.received > 0 && it.bytes == Some(ENDLESS)) {
                break;
            }
            assert!(Instant::now() < deadline, "{fetching:?}");
            thread::yield_now();
        }
        let index = nodes.iter().position(|(node, _)| node.id().0 == source).expect("it runs");
        drop(nodes.remove(index));
        // The others go on meanwhile.
        let without = |view: &View| view.members.len() == 5 - killed as usize && view.rank_of(NodeId(source)).is_none();
        assert!(nodes[0].0.wait_view(PATIENCE, without).expect("its part is not over").is_some());
        assert_eq!(nodes[0].1.submit(&1).wait(), Ok(6 + u64::from(killed)));
    }

    let complete = |view: &View| view.members.len() == 4 && view.shards[0].senders.len() == 4;
    let view = node.wait_view(PATIENCE, complete).expect("its part is not over");
    assert!(view.is_some(), "{:?}", node.view());
    assert_eq!(fate.captured.load(Ordering::SeqCst), DOOMED + 1, "a state that arrived is not fetched again");
    assert_eq!(node.status().expect("it runs").groups[0].fetching, None);
    assert_eq!(group.submit(&1).wait(), Ok(8));
    assert_eq!(nodes[0].1.read(|long| long.sum).wait(), Ok(8));
}
