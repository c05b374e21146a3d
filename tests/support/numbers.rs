//! Replicas that keep the numbers that they were given.

// Each test uses only a part of this module.
#![allow(dead_code)]

use std::{collections::BTreeSet, io};

use rkyv::Archived;
use squall::{Applied, Replicated, Snapshot};

/// The numbers that it was given.
#[derive(Debug, Default)]
pub(crate) struct Numbers(pub(crate) BTreeSet<u64>);

impl Replicated for Numbers {
    type Command = u64;
    type Reply = ();

    fn apply(&mut self, number: &Archived<u64>, _at: &Applied) {
        self.0.insert(number.to_native());
    }

    fn snapshot(&self) -> Snapshot {
        snapshot(&self.0)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        self.0 = restore(from)?;
        Ok(())
    }
}

/// The numbers that it was given, in their order.
#[derive(Debug, Default)]
pub(crate) struct Sequence(pub(crate) Vec<u64>);

impl Replicated for Sequence {
    type Command = u64;
    /// The number of commands, this one included.
    type Reply = u64;

    fn apply(&mut self, number: &Archived<u64>, _at: &Applied) -> u64 {
        self.0.push(number.to_native());
        self.0.len() as u64
    }

    fn snapshot(&self) -> Snapshot {
        snapshot(&self.0)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        self.0 = restore(from)?;
        Ok(())
    }
}

/// A state that is some numbers.
pub(crate) fn snapshot<'n>(numbers: impl IntoIterator<Item = &'n u64>) -> Snapshot {
    Snapshot::of_bytes(numbers.into_iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
}

/// The numbers of such a state.
pub(crate) fn restore<C: FromIterator<u64>>(from: &mut dyn io::Read) -> io::Result<C> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    Ok(bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().expect("8 bytes"))).collect())
}
