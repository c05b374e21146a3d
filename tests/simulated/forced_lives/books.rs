//! The books of each life of the group: the numbers with which it began, those acknowledged in it, and those shown of
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use rkyv::Archived;
use squall::{Applied, NodeId, Replicated, Snapshot, ViewChange};

use crate::numbers;

/// The numbers that a shard was given, in order, and the epoch of the last view.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) list: Vec<u64>,
    epoch: u64,
}

impl Replicated for Numbers {
    type Command = u64;
    /// The epoch in which it was applied.
    type Reply = u64;

    fn apply(&mut self, number: &Archived<u64>, at: &Applied) -> u64 {
        self.list.push(number.to_native());
        at.epoch.0
    }

    fn snapshot(&self) -> Snapshot {
        numbers::snapshot([&self.epoch].into_iter().chain(&self.list))
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut words = numbers::restore::<Vec<u64>>(from)?.into_iter();
        self.epoch = words.next().unwrap_or_default();
        self.list = words.collect();
        Ok(())
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.epoch = change.epoch.0;
    }
}

/// The origin of a life that an operator forced.
#[derive(Clone, Debug)]
pub(crate) struct Forced {
    pub(crate) node: NodeId,
    /// The life before.
    pub(crate) parent: u64,
    /// The shards that start anew, as the operator was told.
    pub(crate) anew: Vec<u32>,
}

/// One life of the group.
#[derive(Debug, Default)]
struct Life {
    /// By shard, the numbers that it has from the life before.
    kept: Vec<BTreeSet<u64>>,
    /// By shard, the numbers that were acknowledged in it, and the members that held each then.
    acknowledged: Vec<BTreeMap<u64, BTreeSet<NodeId>>>,
    /// By shard, the longest list that was shown.
    shown: Vec<Vec<u64>>,
}

/// All lives of a group, each with books of its own.
#[derive(Debug)]
pub(crate) struct Books {
    shards: usize,
    lives: BTreeMap<u64, Life>,
}

impl Books {
    pub(crate) fn new(shards: usize) -> Books {
        Books { shards, lives: BTreeMap::new() }
    }

    pub(crate) fn knows(&self, life: u64) -> bool {
        self.lives.contains_key(&life)
    }

    /// The number of the last life: it is greater than those before.
    pub(crate) fn newest(&self) -> u64 {
        self.lives.last_key_value().map_or(0, |(&life, _)| life)
    }

    /// The number of lives.
    pub(crate) fn len(&self) -> usize {
        self.lives.len()
    }

    /// Opens the books of a life that was seen for the first time. It must keep the numbers that the forced node held
    /// of the life before.
    pub(crate) fn begin(&mut self, life: u64, forced: Option<&Forced>) {
        let mut begun = Life {
            kept: vec![BTreeSet::new(); self.shards],
            acknowledged: vec![BTreeMap::new(); self.shards],
            shown: vec![Vec::new(); self.shards],
        };
        if let Some((forced, parent)) = forced.and_then(|forced| Some((forced, self.lives.get(&forced.parent)?))) {
            for shard in (0..self.shards).filter(|&shard| !forced.anew.contains(&(shard as u32))) {
                let held = parent.acknowledged[shard].iter().filter(|(_, holders)| holders.contains(&forced.node));
                begun.kept[shard] = held.map(|(&number, _)| number).chain(parent.kept[shard].iter().copied()).collect();
            }
        }
        self.lives.insert(life, begun);
    }

    pub(crate) fn acknowledge(&mut self, life: u64, shard: usize, number: u64, holders: BTreeSet<NodeId>) {
        if let Some(life) = self.lives.get_mut(&life) {
            life.acknowledged[shard].insert(number, holders);
        }
    }

    /// Returns the numbers that a read that begins now must show.
    pub(crate) fn must_show(&self, life: u64, shard: usize) -> Vec<u64> {
        let Some(life) = self.lives.get(&life) else { return Vec::new() };
        life.kept[shard].iter().chain(life.acknowledged[shard].keys()).chain(&life.shown[shard]).copied().collect()
    }

    /// Checks and notes a list that a read has shown, of a shard of a life.
    pub(crate) fn show(&mut self, life: u64, shard: usize, must: &[u64], list: Vec<u64>) -> Result<(), String> {
        let all: BTreeSet<u64> = list.iter().copied().collect();
        if all.len() < list.len() {
            return Err(format!("some number is shown twice: {list:?}"));
        }
        if let Some(lost) = must.iter().find(|number| !all.contains(number)) {
            return Err(format!("{} numbers are shown, and not {lost}, of {}", list.len(), must.len()));
        }
        let Some(life) = self.lives.get_mut(&life) else { return Ok(()) };
        let before = &mut life.shown[shard];
        let len = before.len().min(list.len());
        if before[..len] != list[..len] {
            return Err(format!("{list:?} is shown, and {before:?} was shown in the same life"));
        }
        if list.len() > before.len() {
            *before = list;
        }
        Ok(())
    }
}
