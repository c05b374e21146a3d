//! The smallest service that has a state to lose.

use std::io;

use rkyv::Archived;
use squall::{Applied, Replicated, Snapshot};

/// The sum of the numbers that it applied.
#[derive(Debug, Default)]
pub(crate) struct Sum(pub(crate) u64);

impl Replicated for Sum {
    type Command = u64;
    type Reply = u64;

    fn apply(&mut self, add: &Archived<u64>, _at: &Applied) -> u64 {
        self.0 += add.to_native();
        self.0
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.0.to_le_bytes())
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }
}
