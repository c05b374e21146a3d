//! Broadcasts of long vectors by RDMC, in a group for each root.
//!
//! The group of a root is made when the first long vector is broadcast from it, which is the same operation on all
//! ranks. Its messages are that root's long broadcasts in their order; so the k-th that a rank starts is message k.
//!
//! A receiver provides memory of the vector's length when it starts the operation, and the group has no other memory:
//! before that, it is sent no block of the vector (rendezvous). The root's vector is copied into registered memory
//! once, and each receiver's out of it once. An operation is over at the root when no rank needs its memory any more,
//! and at a receiver when the vector is there; the receiver goes on to pass blocks to others.

mod pool;

use std::{collections::VecDeque, sync::Arc};

use squall_fabric::{Completion, Fabric};
use squall_rdmc::{
    Buffer, Event, GroupConfig, GroupId, Rdmc,
    block::{Medium, Network},
    schedule::{Racks, Rank},
};

use self::pool::Pool;
use crate::{
    Algorithm, Collective, CollectiveError, CommunicatorConfig,
    group_name::{self, group_id},
    lane::Lane,
};

/// The long broadcasts of one communicator, at one rank.
#[derive(Debug)]
pub(crate) struct LongBroadcasts {
    groups: Rdmc,
    /// The broadcasts of each root, indexed by root.
    casts: Vec<Option<Casts>>,
    pool: Pool,
    /// The number of vectors that are over here, and that this rank still passes on. At most as many as there are
    /// lanes: the next whole vector waits, so that one rank that lags does not fill the others' memory.
    relayed: usize,
    most_relayed: usize,
    /// The rank that one of the groups thinks to have failed.
    suspect: Option<usize>,
    events: Vec<(GroupId, Event)>,
}

/// The broadcasts of one root that are under way: messages of its group.
#[derive(Debug)]
struct Casts {
    config: GroupConfig,
    /// The messages that the group has not released; the first has the number `base`.
    messages: VecDeque<Cast>,
    base: u64,
    /// A message that is longer than the memory that was provided for it: ranks differ in what they started.
    unplaced: Option<u64>,
}

#[derive(Debug)]
struct Cast {
    /// The operation's lane, until the operation is over.
    lane: Option<usize>,
    /// The memory of the vector, once it is whole, and its length in bytes.
    whole: Option<(Arc<Buffer>, usize)>,
}

impl LongBroadcasts {
    pub(crate) fn new(config: &CommunicatorConfig) -> LongBroadcasts {
        LongBroadcasts {
            groups: Rdmc::new(),
            casts: config.ranks.iter().map(|_| None).collect(),
            pool: Pool::new(config.lanes),
            relayed: 0,
            most_relayed: config.lanes,
            suspect: None,
            events: Vec::new(),
        }
    }

    /// Begins the operation of a lane: sends `vector`, or provides memory for one as long.
    pub(crate) fn start(
        &mut self,
        fabric: &mut impl Fabric,
        config: &CommunicatorConfig,
        (root, me): (usize, usize),
        lane: usize,
        vector: &[u8],
    ) -> Result<(), CollectiveError> {
        let LongBroadcasts { groups, casts, pool, .. } = self;
        let casts = match &mut casts[root] {
            Some(casts) => casts,
            none => {
                let group = group_config(config, root, vector.len());
                groups.create(fabric, group.clone())?;
                none.insert(Casts { config: group, messages: VecDeque::new(), base: 0, unplaced: None })
            }
        };
        let Some(blocks) = casts.config.blocks(vector.len()) else {
            return Err(CollectiveError::Algorithm { collective: Collective::Broadcast, algorithm: Algorithm::Rdmc });
        };
        // Whole blocks, since a receiver does not know the last one's length before it comes.
        let mut buffer = pool.take(fabric, blocks as usize * casts.config.block_bytes)?;
        let group = groups.group(casts.config.id).expect("groups are not removed");
        let mut cast = Cast { lane: Some(lane), whole: None };
        // A group refuses only when it has failed: the communicator hears of that, and ends the operation.
        if me == root {
            buffer[..vector.len()].copy_from_slice(vector);
            let memory = Arc::new(buffer);
            cast.whole = Some((Arc::clone(&memory), vector.len()));
            _ = group.send(memory, vector.len());
        } else if let Some(message) = casts.unplaced.take() {
            casts.unplaced = group.accept(message, buffer).err().map(|_| message);
        } else {
            group.provide(buffer);
        }
        casts.messages.push_back(cast);
        Ok(())
    }

    /// Takes note of a completion. Returns whether it is one of these groups'.
    pub(crate) fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion) -> bool {
        self.groups.on_completion(fabric, completion)
    }

    /// Makes the progress that is possible, and ends operations of `lanes` that are over. Returns whether there was any
    /// progress.
    pub(crate) fn step(
        &mut self,
        fabric: &mut impl Fabric,
        config: &CommunicatorConfig,
        me: usize,
        lanes: &mut [Lane],
    ) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let mut progress = false;
        while self.groups.step(fabric, &mut events) {
            progress = true;
            for (id, event) in events.drain(..) {
                self.on_event(config, me, lanes, group_name::root(id), event);
            }
        }
        self.events = events;
        progress
    }

    fn on_event(&mut self, config: &CommunicatorConfig, me: usize, lanes: &mut [Lane], root: usize, event: Event) {
        let Some(casts) = &mut self.casts[root] else { return };
        match event {
            Event::Incoming { message, .. } => casts.unplaced = Some(message),
            Event::Received { message, buffer, len } => {
                if let Some(cast) = casts.messages.get_mut((message - casts.base) as usize) {
                    cast.whole = Some((buffer, len));
                }
                self.deliver(lanes, me);
            }
            Event::Released { .. } => {
                let Some(cast) = casts.messages.pop_front() else { return };
                casts.base += 1;
                match (cast.lane, &cast.whole) {
                    (Some(lane), Some((memory, len))) if root != me => lanes[lane].receive(&memory[..*len]),
                    (Some(lane), _) => lanes[lane].over(),
                    (None, _) => self.relayed -= 1,
                }
                // The group has dropped its handle.
                self.pool.put(cast.whole.and_then(|(memory, _)| Arc::into_inner(memory)));
                self.deliver(lanes, me);
            }
            Event::Failed(failure) => {
                let suspect = failure.suspect.and_then(|node| config.ranks.iter().position(|rank| *rank == node));
                self.suspect.get_or_insert(suspect.unwrap_or(root));
            }
            // No rank destroys the groups: the communicator's farewells take the place of that.
            Event::Connected | Event::Destroyed => {}
        }
    }

    /// Ends receivers' operations whose vectors are whole.
    fn deliver(&mut self, lanes: &mut [Lane], me: usize) {
        for (root, casts) in self.casts.iter_mut().enumerate() {
            let Some(casts) = casts.as_mut().filter(|_| root != me) else { continue };
            for cast in &mut casts.messages {
                let room = self.relayed < self.most_relayed;
                let Some((memory, len)) = cast.whole.as_ref().filter(|_| room) else { break };
                if let Some(lane) = cast.lane.take() {
                    lanes[lane].receive(&memory[..*len]);
                    self.relayed += 1;
                }
            }
        }
    }

    /// Whether no other rank needs this one for an operation that was started here.
    pub(crate) fn is_idle(&self) -> bool {
        self.casts.iter().flatten().all(|casts| casts.messages.is_empty())
    }

    /// Takes the rank that a failed group thinks to be the cause.
    pub(crate) fn take_suspect(&mut self) -> Option<usize> {
        self.suspect.take()
    }

    /// Closes all connections.
    pub(crate) fn disconnect(mut self, fabric: &mut impl Fabric) {
        for casts in self.casts.iter().flatten() {
            if let Some(group) = self.groups.group(casts.config.id) {
                group.disconnect(fabric);
            }
        }
    }
}

/// The group of a root whose first long vector has so many bytes: the same on all ranks.
fn group_config(config: &CommunicatorConfig, root: usize, bytes: usize) -> GroupConfig {
    let ranks = config.ranks.len();
    // The root is a group's first member.
    let by_rank = || (root..root + ranks).map(|at| at % ranks);
    let members = by_rank().map(|rank| config.ranks[rank]).collect();
    let mut medium = config.medium.clone();
    if let Medium::Network(Network { racks: Some(racks), .. }) = &mut medium
        && racks.members() == ranks
    {
        let names: Vec<usize> = by_rank().map(|rank| racks.rack_of(Rank(rank as u32))).collect();
        *racks = Racks::new(&names, racks.outer()).expect("a communicator has a rank");
    }
    let group = GroupConfig::new(group_id(config.tag, root), members).suited_to(&medium, bytes as u64);
    let block_bytes = config.block_bytes.unwrap_or(group.block_bytes);
    GroupConfig { block_bytes, first_block_memory: false, ..group }
}
