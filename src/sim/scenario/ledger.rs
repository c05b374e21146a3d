//! The replica that scenarios run, which keeps a log of all that it applied, and the messages for it, of all lengths.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    sync::{Arc, MutexGuard},
};

use fastrand::Rng;
use rkyv::{Archive, Archived, Deserialize, Serialize};
use squall_fabric::{NodeId, sync::Lock};
use squall_membership::Epoch;

use crate::{
    replica::{
        replicated::{self, Replicated},
        snapshot::Snapshot,
        view_change::ViewChange,
    },
    sim::check::{Applied, Book},
};

/// The command that a client submits.
#[derive(Archive, Serialize, Deserialize)]
pub(super) struct Append {
    pub(super) client: u32,
    pub(super) number: u64,
    pub(super) padding: Vec<u8>,
}

/// The padding of a message, which follows from its sender, client and number.
pub(super) fn padding(sender: NodeId, client: u32, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(u64::from(sender.0) << 48 ^ u64::from(client) << 40 ^ number).fill(&mut bytes);
    bytes
}

/// The record of all that one replica has seen. It outlives the replica.
#[derive(Clone)]
pub(super) struct Log(Arc<Lock<Book>>);

impl Log {
    /// An empty record, for a group that is durable or not.
    pub(super) fn new(durable: bool) -> Log {
        Log(Arc::new(Lock::new(Book { told: durable.then_some(0), ..Book::default() })))
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock()
    }
}

pub(super) struct Ledger(pub(super) Log);

impl Ledger {
    /// The number of entries that it has.
    pub(super) fn len(&self) -> u64 {
        self.0.book().entries.len() as u64
    }
}

impl Replicated for Ledger {
    type Command = Append;
    /// The number of entries of the log, this one included.
    type Reply = u64;

    fn apply(&mut self, append: &Archived<Append>, at: &replicated::Applied) -> u64 {
        let (client, number) = (append.client.to_native(), append.number.to_native());
        let intact = append.padding == padding(at.sender, client, number, append.padding.len());
        let mut book = self.0.book();
        book.entries.push(Applied { sender: at.sender, client, number, intact });
        book.times.push(at.time.0);
        book.entries.len() as u64
    }

    fn snapshot(&self) -> Snapshot {
        let book = self.0.book();
        let mut words = vec![book.views.len() as u64];
        words.extend(book.views.iter().flat_map(|(epoch, &at)| [epoch.0, at as u64]));
        words.push(book.entries.len() as u64);
        for (entry, &time) in book.entries.iter().zip(&book.times) {
            let Applied { sender, client, number, intact } = *entry;
            words.extend([u64::from(sender.0), u64::from(client), number, u64::from(intact), time]);
        }
        Snapshot::of_bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Takes each entry as it comes, so that a transfer that breaks off leaves half a state.
    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut word = || {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
        };
        let mut views = BTreeMap::new();
        for _ in 0..word()? {
            views.insert(Epoch(word()?), word()? as usize);
        }
        let entries = word()?;
        let before = self.0.book().begin_replacing(views);
        for _ in 0..entries {
            let (sender, client) = (NodeId(word()? as u32), word()? as u32);
            let entry = Applied { sender, client, number: word()?, intact: word()? != 0 };
            let (time, mut book) = (word()?, self.0.book());
            book.entries.push(entry);
            book.times.push(time);
        }
        self.0.book().end_replacing(&before);
        Ok(())
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.0.book().view(change.epoch);
    }
}

/// The lengths of messages, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The largest length of small messages.
    small: usize,
    /// The length around which messages become bulk messages.
    threshold: usize,
    /// The largest length of any message. It is that of small messages if there are no bulk messages.
    largest: usize,
    /// The share of messages, of 256, with a length drawn from all lengths. As many have one from around the threshold.
    bulk: u8,
}

impl Sizes {
    /// The lengths for a group with rings of `ring_bytes` bytes and a bulk reserve of `reserve` bytes.
    pub(super) fn random(ring_bytes: usize, threshold: usize, reserve: usize, rng: &mut Rng) -> Sizes {
        let quarter = ring_bytes / 4 - ENVELOPE;
        let (small, bulk) = (SMALL.min(quarter), [2, 20, 100][rng.usize(0..3)]);
        let largest = if reserve == 0 { small } else { reserve - ENVELOPE };
        Sizes { small, threshold: threshold.min(largest), largest, bulk: if reserve == 0 { 0 } else { bulk } }
    }

    pub(super) fn length(&self, rng: &mut Rng) -> usize {
        match rng.u8(..) {
            any if any < self.bulk => rng.usize(0..=self.largest),
            near if near < 2 * self.bulk => {
                (self.threshold + rng.usize(0..=ENVELOPE)).saturating_sub(ENVELOPE).min(self.largest)
            }
            _ => rng.usize(0..=self.small.min(self.largest)),
        }
    }
}

/// The bytes that a message takes besides its padding, at most.
const ENVELOPE: usize = 64;

/// The largest length of small messages, in bytes, whatever the ring takes. It keeps runs short.
const SMALL: usize = 2000;
