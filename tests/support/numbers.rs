//! A replica that keeps the numbers that it was given.

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
        Snapshot::of_bytes(self.0.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        self.0 = bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().expect("8 bytes"))).collect();
        Ok(())
    }
}
