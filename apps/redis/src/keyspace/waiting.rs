//! Requests that wait for an element of a list or of a sorted set.
//!
//! All replicas hold the same ones, and serve them in the order in which they came, over all nodes. A key is *ready*
//! once it was set to a value while requests waited for it: behind the command that set it, they are served.
//!
//! No key that a waiting request could take from exists between two commands. So a request that waits for a key has no
//! value of its kind before it, and each key that becomes ready was set.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    ops::Range,
    sync::Arc,
};

use foldhash::fast::FixedState;
use squall::NodeId;

use super::{Keyspace, KeyspaceMut};
use crate::{
    Error, Reply,
    saved::{StateReader, StateWriter, damaged},
    value::Value,
    words,
};

/// The most requests that wait at once, and the most bytes of them.
const MAX_WAITERS: usize = 1 << 16;
const MAX_WAITING_BYTES: usize = 64 << 20;

/// The bytes that a request's place in the queue of one key counts for: about those that a queue of its own takes.
const PLACE_BYTES: usize = 512;

/// The kind of value for whose elements a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The elements of a list.
    List,
    /// The members of a sorted set.
    SortedSet,
}

impl Awaited {
    fn of(value: &Value) -> Option<Awaited> {
        match value {
            Value::List(_) => Some(Awaited::List),
            Value::SortedSet(_) => Some(Awaited::SortedSet),
            Value::Text(_) | Value::Hash(_) | Value::Set(_) => None,
        }
    }
}

/// The identity of a waiting request: the node whose client waits, and the node's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId {
    /// The node that submitted the request.
    pub node: NodeId,
    /// The number, which no other wait of the node's present life has.
    pub ticket: u64,
}

/// The end of a wait, as the node learns it whose client waits.
#[derive(Clone, Debug, PartialEq)]
pub enum WaitEnd {
    /// An element was taken, or the attempt has failed: this is the answer.
    Served(Reply),
    /// The request waits no more, and nothing was taken for it, since a view did not have its node.
    Dropped,
    /// The replica got its state from another one, so it is unknown whether something was taken.
    Lost,
    /// The group goes on without the replica, which does not learn whether something was taken.
    Outside,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// Its place in the order of all that wait.
    number: u64,
    kind: Awaited,
    /// Its words.
    pub(crate) request: Arc<[u8]>,
    /// The places of the words that are keys.
    keys: Range<usize>,
}

impl Waiter {
    /// The keys. None if they are not where they should be, as in a state that is damaged.
    fn keys(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let keys = words::split(&self.request)?.get(self.keys.clone())?.to_vec();
        (!keys.is_empty()).then(|| keys.into_iter())
    }
}

/// The requests that wait for one key, those of each kind in their order.
#[derive(Debug, Default)]
struct KeyQueue {
    lists: BTreeMap<u64, WaiterId>,
    sorted_sets: BTreeMap<u64, WaiterId>,
}

impl KeyQueue {
    fn of_kind(&mut self, kind: Awaited) -> &mut BTreeMap<u64, WaiterId> {
        match kind {
            Awaited::List => &mut self.lists,
            Awaited::SortedSet => &mut self.sorted_sets,
        }
    }
}

/// All requests that wait.
#[derive(Debug, Default)]
pub struct Waiters {
    all: BTreeMap<WaiterId, Waiter>,
    queues: HashMap<Box<[u8]>, KeyQueue, FixedState>,
    /// The keys that were set while requests waited for them, in the order in which they were set.
    ready: VecDeque<Box<[u8]>>,
    /// The number of the next request.
    next: u64,
    /// The bytes of all requests, with their places in queues.
    bytes: usize,
}

impl Waiters {
    /// The number of requests.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The requests' identities.
    pub fn ids(&self) -> impl Iterator<Item = WaiterId> {
        self.all.keys().copied()
    }

    /// Notes that a key was set to a value.
    #[inline]
    pub(super) fn note_set(&mut self, key: &[u8]) {
        if !self.queues.is_empty() && self.queues.contains_key(key) {
            self.ready.push_back(key.into());
        }
    }

    /// Adds a request. False if its keys are not where they should be, or it waits already.
    fn add(&mut self, id: WaiterId, waiter: Waiter) -> bool {
        let Some(keys) = waiter.keys().filter(|_| !self.all.contains_key(&id)) else { return false };
        for key in keys {
            let queue = self.queues.entry(key.into()).or_default();
            queue.of_kind(waiter.kind).insert(waiter.number, id);
        }
        self.bytes += bytes(&waiter.request, &waiter.keys);
        self.all.insert(id, waiter);
        true
    }

    fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.all.remove(&id)?;
        self.bytes -= bytes(&waiter.request, &waiter.keys);
        for key in waiter.keys().expect("they were there when it was added") {
            let Some(queue) = self.queues.get_mut(key) else { continue };
            queue.of_kind(waiter.kind).remove(&waiter.number);
            if queue.lists.is_empty() && queue.sorted_sets.is_empty() {
                self.queues.remove(key);
            }
        }
        Some(waiter)
    }

    /// A copy to be written later.
    pub(super) fn freeze(&self) -> FrozenWaiters {
        FrozenWaiters { all: self.all.clone(), next: self.next }
    }

    /// Reads the requests that were written.
    pub(super) fn read(from: &mut StateReader<'_>) -> io::Result<Waiters> {
        let mut waiters = Waiters { next: from.number()?, ..Waiters::default() };
        for _ in 0..from.number()? {
            let (node, ticket, number) = (from.number()?, from.number()?, from.number()?);
            let node = NodeId(u32::try_from(node).map_err(|_| damaged("a request of no node waits"))?);
            let kind = match from.byte()? {
                0 => Awaited::List,
                1 => Awaited::SortedSet,
                _ => return Err(damaged("a request waits for nothing")),
            };
            let place = |number: u64| usize::try_from(number).map_err(|_| damaged("a request has too many words"));
            let keys = place(from.number()?)?..place(from.number()?)?;
            let request = from.bytes()?.into();
            if number >= waiters.next || !waiters.add(WaiterId { node, ticket }, Waiter { number, kind, request, keys })
            {
                return Err(damaged("a request that waits has no keys, or waits twice"));
            }
        }
        Ok(waiters)
    }
}

/// All requests that wait at a moment, to be written.
pub(super) struct FrozenWaiters {
    all: BTreeMap<WaiterId, Waiter>,
    next: u64,
}

impl FrozenWaiters {
    pub(super) fn write(&self, out: &mut StateWriter, to: &mut dyn io::Write) -> io::Result<()> {
        out.number(self.next);
        out.number(self.all.len() as u64);
        for (id, Waiter { number, kind, request, keys }) in &self.all {
            [u64::from(id.node.0), id.ticket, *number].into_iter().for_each(|number| out.number(number));
            out.byte(u8::from(*kind == Awaited::SortedSet));
            [keys.start, keys.end].into_iter().for_each(|place| out.number(place as u64));
            out.bytes(request);
            out.spill(to)?;
        }
        Ok(())
    }
}

impl Keyspace {
    /// The requests that wait for an element.
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Takes a request out of those that wait. Returns whether it waited.
    pub(crate) fn cancel_wait(&mut self, id: WaiterId) -> bool {
        self.waiters.remove(id).is_some()
    }

    /// Takes the requests of nodes out of those that wait. Returns them.
    pub(crate) fn cancel_waits_of(&mut self, is_gone: impl Fn(NodeId) -> bool) -> Vec<WaiterId> {
        let gone: Vec<_> = self.waiters.ids().filter(|id| is_gone(id.node)).collect();
        gone.iter().for_each(|&id| _ = self.waiters.remove(id));
        gone
    }

    /// Tells this replica's server of the end of a wait of one of its clients.
    pub(crate) fn tell_end_of_wait(&self, ticket: u64, end: WaitEnd) {
        if let Some(publisher) = &self.publisher {
            publisher.end_wait(ticket, end);
        }
    }
}

/// The bytes that a request with these keys counts for while it waits.
fn bytes(request: &[u8], keys: &Range<usize>) -> usize {
    request.len() + keys.len() * PLACE_BYTES
}

impl KeyspaceMut<'_> {
    /// Lets a request wait for the words at these places, which are keys.
    pub(crate) fn wait(
        &mut self,
        id: WaiterId,
        kind: Awaited,
        request: &[u8],
        keys: Range<usize>,
    ) -> Result<(), Error> {
        let waiters = &mut self.keys.waiters;
        if waiters.len() == MAX_WAITERS || waiters.bytes + bytes(request, &keys) > MAX_WAITING_BYTES {
            return Err(Error::new(format!(
                "ERR too many requests wait for an element: all of the group's together may be {MAX_WAITERS}, and have \
                 {MAX_WAITING_BYTES} bytes"
            )));
        }
        let waiter = Waiter { number: waiters.next, kind, request: request.into(), keys };
        if !waiters.add(id, waiter) {
            return Err(Error::fixed("ERR this request waits already"));
        }
        waiters.next += 1;
        Ok(())
    }

    /// Tells this replica's server of the end of a wait of one of its clients.
    pub(crate) fn tell_end_of_wait(&self, ticket: u64, end: WaitEnd) {
        self.keys.tell_end_of_wait(ticket, end);
    }

    /// The key that became ready first. Each is returned once.
    pub(crate) fn next_ready(&mut self) -> Option<Box<[u8]>> {
        self.keys.waiters.ready.pop_front()
    }

    /// Takes out the first request that waits for a key, if the key now holds what it waits for.
    pub(crate) fn take_waiter(&mut self, key: &[u8]) -> Option<(WaiterId, Waiter)> {
        let kind = Awaited::of(self.view().get(key)?)?;
        let waiters = &mut self.keys.waiters;
        let (_, &id) = waiters.queues.get_mut(key)?.of_kind(kind).first_key_value()?;
        Some((id, waiters.remove(id)?))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, VecDeque},
        mem,
        sync::{Arc, Mutex},
    };

    use proptest::{collection::vec, prelude::*};
    use squall::{Epoch, NodeId, Replicated, ViewChange};

    use super::WaitEnd;
    use crate::{Reply, Store, keyspace::Publish, testing::Shell};

    const NODES: [u32; 2] = [1, 2];

    #[derive(Clone, Debug)]
    enum Op {
        Wait {
            node: u32,
            keys: Vec<u8>,
            kind: bool,
        },
        Cancel {
            node: u32,
            ticket: u64,
        },
        Push {
            key: u8,
            count: u32,
            kind: bool,
        },
        Remove {
            key: u8,
        },
        /// A view in which a node is new.
        View {
            node: u32,
        },
        /// A replica goes on with the state that it has saved.
        Save,
    }

    fn op() -> impl Strategy<Value = Op> {
        let node = || prop::sample::select(&NODES[..]);
        prop_oneof![
            5 => (node(), vec(0u8..3, 1..4), any::<bool>()).prop_map(|(node, keys, kind)| Op::Wait { node, keys, kind }),
            1 => (node(), 0u64..30).prop_map(|(node, ticket)| Op::Cancel { node, ticket }),
            4 => (0u8..3, 1u32..4, any::<bool>()).prop_map(|(key, count, kind)| Op::Push { key, count, kind }),
            1 => (0u8..3).prop_map(|key| Op::Remove { key }),
            1 => node().prop_map(|node| Op::View { node }),
            1 => Just(Op::Save),
        ]
    }

    /// The least that has the same effect: all that wait in a row, and the elements of each key.
    #[derive(Default)]
    struct Model {
        keys: BTreeMap<u8, (bool, VecDeque<u32>)>,
        waiting: Vec<(u32, u64, bool, Vec<u8>)>,
        element: u32,
    }

    impl Model {
        fn take(&mut self, key: u8) -> u32 {
            let (_, elements) = self.keys.get_mut(&key).expect("it is there");
            let element = elements.pop_front().expect("no key is empty");
            if elements.is_empty() {
                self.keys.remove(&key);
            }
            element
        }

        /// The element that a request gets at once. An error if a value before it is of the other kind.
        fn wait(&mut self, keys: &[u8], kind: bool) -> Result<Option<(u8, u32)>, ()> {
            match keys.iter().find_map(|key| Some((*key, self.keys.get(key)?.0))) {
                None => Ok(None),
                Some((key, of)) if of == kind => Ok(Some((key, self.take(key)))),
                Some(_) => Err(()),
            }
        }

        /// The requests that are served, with their elements.
        fn push(&mut self, key: u8, count: u32, kind: bool) -> Vec<(u32, u64, u32)> {
            let (of, elements) = self.keys.entry(key).or_insert((kind, VecDeque::new()));
            if *of != kind {
                return Vec::new();
            }
            elements.extend(self.element..self.element + count);
            let mut served = Vec::new();
            while self.keys.contains_key(&key)
                && let Some(at) = self.waiting.iter().position(|(_, _, of, keys)| *of == kind && keys.contains(&key))
            {
                let (node, ticket, ..) = self.waiting.remove(at);
                served.push((node, ticket, self.take(key)));
            }
            served
        }
    }

    #[derive(Default)]
    struct Ends(Mutex<Vec<(u64, WaitEnd)>>);

    impl Publish for Ends {
        fn publish(&self, _: &[u8], _: &[u8]) -> usize {
            0
        }

        fn end_wait(&self, ticket: u64, end: WaitEnd) {
            self.0.lock().expect("no thread panics").push((ticket, end));
        }
    }

    /// Elements are the scores of their own names, so that the lowest comes first in both kinds.
    fn line(key: u8, elements: std::ops::Range<u32>, kind: bool) -> String {
        let all = elements.map(|element| if kind { format!(" {element} {element}") } else { format!(" {element}") });
        format!("{} k{key}{}", if kind { "zadd" } else { "rpush" }, all.collect::<String>())
    }

    fn element(reply: &Reply) -> u32 {
        let Reply::Array(parts) = reply else { panic!("{reply:?}") };
        let Reply::Text(text) = &parts[1] else { panic!("{reply:?}") };
        str::from_utf8(&text.bytes()).expect("digits").parse().expect("a number")
    }

    proptest! {
        #[test]
        fn all_replicas_serve_those_that_wait_in_their_order(ops in vec(op(), 1..60)) {
            let ends: Vec<_> = NODES.iter().map(|_| Arc::<Ends>::default()).collect();
            let open = |place: usize| {
                let mut store = Store::at(NodeId(NODES[place]));
                store.set_publisher(Arc::clone(&ends[place]) as _);
                store
            };
            let mut replicas = [0, 1].map(|place| Shell { store: open(place), ..Shell::new() });
            let (mut model, mut tickets) = (Model::default(), 0);
            for op in ops {
                let mut expected = Vec::new();
                match &op {
                    Op::Wait { node, keys, kind } => {
                        tickets += 1;
                        let keys_line: String = keys.iter().map(|key| format!(" k{key}")).collect();
                        let text = format!("{}{keys_line} 0", if *kind { "bzpopmin" } else { "blpop" });
                        let said = replicas.each_mut().map(|replica| replica.wait(*node, tickets, &text));
                        prop_assert_eq!(&said[0], &said[1]);
                        match model.wait(keys, *kind) {
                            Ok(Some((key, element))) => {
                                prop_assert!(said[0].starts_with(&format!("[\"k{key}\", \"{element}\"")), "{}", said[0]);
                            }
                            Ok(None) => {
                                prop_assert_eq!(&said[0], "waiting");
                                model.waiting.push((*node, tickets, *kind, keys.clone()));
                            }
                            Err(()) => prop_assert!(said[0].starts_with("-WRONGTYPE"), "{}", said[0]),
                        }
                    }
                    Op::Cancel { node, ticket } => {
                        let before = model.waiting.len();
                        model.waiting.retain(|(of, number, ..)| (of, number) != (node, ticket));
                        for replica in &mut replicas {
                            prop_assert_eq!(replica.cancel(*node, *ticket), before > model.waiting.len());
                        }
                    }
                    Op::Push { key, count, kind } => {
                        let text = line(*key, model.element..model.element + count, *kind);
                        let served = model.push(*key, *count, *kind);
                        expected.extend(served.into_iter().map(|(node, ticket, element)| (node, ticket, Some(element))));
                        model.element += count;
                        replicas.iter_mut().for_each(|replica| _ = replica.ask(&text));
                    }
                    Op::Remove { key } => {
                        model.keys.remove(key);
                        replicas.iter_mut().for_each(|replica| _ = replica.ask(&format!("del k{key}")));
                    }
                    Op::View { node } => {
                        let gone = model.waiting.extract_if(.., |(of, ..)| of == node);
                        expected.extend(gone.map(|(node, ticket, ..)| (node, ticket, None)));
                        let (members, joined) = (NODES.map(NodeId).to_vec(), vec![NodeId(*node)]);
                        let change =
                            ViewChange { epoch: Epoch(2), senders: members.clone(), members, left: joined.clone(), joined };
                        replicas.iter_mut().for_each(|replica| replica.store.view_changed(&change));
                    }
                    Op::Save => {
                        let saved = replicas[0].store.save();
                        replicas[0].store = open(0);
                        replicas[0].store.load(&mut &saved[..]).expect("it was just saved");
                    }
                }
                for (ends, node) in ends.iter().zip(NODES) {
                    let told = mem::take(&mut *ends.0.lock().expect("no thread panics"));
                    let told: Vec<_> = told.into_iter().map(|(ticket, end)| match end {
                        WaitEnd::Served(reply) => (node, ticket, Some(element(&reply))),
                        WaitEnd::Dropped => (node, ticket, None),
                        WaitEnd::Lost | WaitEnd::Outside => panic!("nothing is lost"),
                    }).collect();
                    let of_node: Vec<_> = expected.iter().copied().filter(|(of, ..)| *of == node).collect();
                    prop_assert_eq!(told, of_node, "{:?}", op);
                }
                prop_assert!(replicas[0].store.save() == replicas[1].store.save(), "replicas differ after {:?}", op);
                prop_assert_eq!(replicas[0].store.keys().waiters().len(), model.waiting.len());
            }
        }
    }
}
