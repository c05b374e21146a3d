//! The properties that must hold in every state.

use stateright::Property;

use super::{
    steps::Group,
    world::{Life, Node, World},
};

pub(crate) const ONE_SUCCESSOR: &str = "each epoch has one view";
pub(crate) const ONE_ORDER: &str = "all deliver prefixes of one order";
pub(crate) const WITHIN_TRIM: &str = "what anyone delivered is within the trim, and who cleans up has it";
pub(crate) const SYNCHRONY: &str = "members that go on together delivered the same before";
pub(crate) const NOTHING_LOST: &str = "who goes on with the state has all that anyone delivered before";
pub(crate) const NOTHING_TWICE: &str = "no message is delivered twice";
pub(crate) const NO_STALE_READ: &str = "nobody who may still read lacks what another delivered";
pub(crate) const GOES_ON: &str = "where half of a view is alive and connected, it installs the next and delivers";

pub(crate) fn all() -> Vec<Property<Group>> {
    vec![
        Property::always(ONE_SUCCESSOR, |_, world: &World| world.nodes.iter().all(|node| is_decided(world, node))),
        Property::always(ONE_ORDER, |_, world: &World| pairs(world).all(|(a, b)| is_prefix(&a.applied, &b.applied))),
        Property::always(WITHIN_TRIM, |_, world: &World| world.nodes.iter().all(|node| is_within_trim(world, node))),
        Property::always(SYNCHRONY, |_, world: &World| {
            pairs(world).all(|(a, b)| !together(a, b) || before(a) == before(b))
        }),
        Property::always(NOTHING_LOST, |_, world: &World| {
            pairs(world).all(|(a, b)| lost_nothing(a, b) && lost_nothing(b, a))
        }),
        Property::always(NOTHING_TWICE, |_, world: &World| {
            world.nodes.iter().all(|node| is_without_doubles(&node.applied))
        }),
        Property::always(NO_STALE_READ, |_, world: &World| {
            (0..world.nodes.len()).all(|n| reads_nothing_stale(world, n))
        }),
        Property::always(GOES_ON, |group: &Group, world: &World| has_gone_on(world) || !group.steps(world).is_empty()),
    ]
}

fn pairs(world: &World) -> impl Iterator<Item = (&Node, &Node)> {
    let after = |i: usize| world.nodes[i + 1..].iter();
    world.nodes.iter().enumerate().flat_map(move |(i, a)| after(i).map(move |b| (a, b)))
}

/// Whether one is a prefix of the other, whichever is shorter.
fn is_prefix(a: &[usize], b: &[usize]) -> bool {
    a.iter().zip(b).all(|(a, b)| a == b)
}

fn is_without_doubles(messages: &[usize]) -> bool {
    messages.iter().enumerate().all(|(i, message)| !messages[..i].contains(message))
}

/// Whether its view is the one that was decided, if one was.
fn is_decided(world: &World, node: &Node) -> bool {
    let decided = world.log.view(node.epoch());
    node.view.is_none() || decided.is_none() || decided == node.view.as_ref()
}

fn is_within_trim(world: &World, node: &Node) -> bool {
    let trim = world.log.view(node.epoch() + 1).and_then(|next| next.trim());
    !node.fell_short && !trim.is_some_and(|trim| node.row.complete && node.delivered > trim)
}

/// The messages that a member had delivered when it installed its view.
fn before(node: &Node) -> &[usize] {
    &node.applied[..node.began_with]
}

/// Whether both are in the same view, and hold its state.
fn together(a: &Node, b: &Node) -> bool {
    a.epoch() == b.epoch() && a.row.complete && b.row.complete
}

/// Whether a node that holds the state of a later view has the messages that another delivered in an earlier one.
fn lost_nothing(earlier: &Node, later: &Node) -> bool {
    let holds = later.row.complete && earlier.epoch() < later.epoch();
    !holds || before(later).starts_with(&earlier.applied)
}

/// Whether a member that may read has everything that was delivered. It may read until it is wedged, or some other has
/// waited for its lease to end.
fn reads_nothing_stale(world: &World, n: usize) -> bool {
    let node = &world.nodes[n];
    let Some(view) = node.view.as_ref().filter(|_| node.runs() && node.row.complete) else { return true };
    let is_over = view.nodes().any(|other| other != n && world.nodes[other].waited >= node.epoch());
    let received = node.applied.len() + world.delivered(view, node.delivered, node.row.received).len();
    is_over || world.nodes.iter().all(|other| other.applied.len() <= received)
}

/// Whether all that belong to a live, connected half of the last view have installed it and have delivered all their
/// messages. This holds in states where nothing more can happen.
fn has_gone_on(world: &World) -> bool {
    let last = world.log.last();
    let members: Vec<usize> = last.nodes().collect();
    let is_alive = |&n: &usize| matches!(world.nodes[n].life, Life::Member | Life::Outside);
    let is_connected = |half: &[usize]| half.iter().all(|&a| half.iter().all(|&b| a == b || !world.is_cut(a, b)));
    let subsets = (1..1u32 << members.len())
        .map(|set| members.iter().copied().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, n)| n).collect())
        .filter(|half: &Vec<usize>| 2 * half.len() >= members.len() && half.iter().all(is_alive) && is_connected(half));
    let works = !last.shard().complete.is_empty();
    let is_done = |&n: &usize| {
        let node = &world.nodes[n];
        node.view.as_ref() == Some(last) && node.runs() && !(works && last.holds(n) && node.pending)
    };
    subsets.flatten().all(|n| is_done(&n))
}
