//! Crashes, cuts, trims and new beginnings of a signed log: whenever it is open, it passes the check, and is signed up
//! to its end.

use fastrand::Rng;
use squall_ordered::log::{ChainValue, End, Log, Options, Position, SimStorage, WriteError};

use super::model::{
    Kept, SIGNER, Seed, any_options, chain_at_start, chain_of, key, known, next_record, open, options, write,
};
use crate::seeds::seeds;

struct World {
    storage: SimStorage,
    options: Options,
    log: Log<SimStorage>,
    rng: Rng,
    /// All records that the log holds, or held before it was trimmed.
    all: Vec<Kept>,
}

/// The chain of a log that holds these records from its start on.
fn chain_behind(all: &[Kept]) -> ChainValue {
    let mut log = open(&SimStorage::new(0), options(1 << 20, 1 << 20)).log;
    write(&mut log, all, usize::MAX);
    chain_of(&log, chain_at_start())
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let (storage, options) = (SimStorage::new(seed), any_options(&mut rng));
        let mut log = open(&storage, options).log;
        log.sign_with(SIGNER, key(1)).expect("the disk is well");
        World { storage, options, log, rng, all: Vec::new() }
    }

    fn act(&mut self) -> Result<(), WriteError> {
        match self.rng.u32(..100) {
            0..80 => self.commit(),
            80..90 => self.log.prepare(),
            90..93 => self.cut(),
            93..98 => self.trim(),
            _ => self.begin_anew(),
        }
    }

    fn commit(&mut self) -> Result<(), WriteError> {
        let mut appender = self.log.appender();
        for _ in 0..self.rng.u32(1..12) {
            let record = next_record(&mut self.rng, appender.end());
            if record.append_to(&mut appender).is_ok() {
                self.all.push(record);
            }
        }
        self.log.commit(&mut appender.take_batch().expect("one fits")).map(drop)
    }

    /// A random end that the log has, or had.
    fn some_end(&mut self) -> (usize, End) {
        let count = self.rng.usize(..=self.all.len());
        (count, count.checked_sub(1).map_or(End::START, |last| self.all[last].reached()))
    }

    fn cut(&mut self) -> Result<(), WriteError> {
        let (_, to) = self.some_end();
        let to = to.position.max(self.log.begin().position);
        self.log.cut_to(to)?;
        self.all.retain(|record| record.end() <= to);
        Ok(())
    }

    fn trim(&mut self) -> Result<(), WriteError> {
        let (_, before) = self.some_end();
        self.log.trim_before(before.position).map(drop)
    }

    fn begin_anew(&mut self) -> Result<(), WriteError> {
        let (count, at) = self.some_end();
        self.log.begin_anew_with(at, Some(chain_behind(&self.all[..count])))?;
        self.all.truncate(count);
        Ok(())
    }

    fn check(&self) {
        let found = self.log.verify_signed(&[known(SIGNER, 1)], |_| {}).expect("it can be read");
        assert_eq!((found.damage, found.flaws), (vec![], vec![]));
        assert_eq!(self.log.persisted(), self.all.last().map_or(End::START, Kept::reached));
        if let Some(signed) = found.signed.first() {
            assert_eq!(signed.to, self.log.persisted());
        }
        assert_eq!(found.chain, Some(chain_behind(&self.all)));
        assert!(found.chain == self.log.chain_at(Position::MAX).expect("it is well"));
    }

    /// Ends the process, at any write or without one, with or without the power; and opens the log again.
    fn crash(&mut self) {
        self.storage.crash_at(self.storage.changes() + self.rng.u64(..15));
        while !self.storage.has_crashed() && self.act().is_ok() {}
        for _ in 0..2 {
            if self.rng.bool() {
                self.storage.restart();
            } else {
                self.storage.revive();
            }
            self.log = open(&self.storage, self.options).log;
            let persisted = self.log.persisted().position;
            self.all.retain(|record| record.end() <= persisted);
            // Records without a signature are no flaw before they are signed again.
            let found = self.log.verify_signed(&[known(SIGNER, 1)], |_| {}).expect("it can be read");
            assert_eq!((found.damage, found.flaws), (vec![], vec![]));
            self.log.sign_with(SIGNER, key(1)).unwrap_or_else(|error| panic!("{error}"));
            self.check();
        }
    }
}

#[test]
fn a_log_passes_whatever_crash_it_comes_from() {
    for seed in seeds(100) {
        let _seed = Seed(seed);
        let mut world = World::new(seed);
        for _ in 0..6 {
            for _ in 0..world.rng.u32(..20) {
                world.act().expect("the disk is well");
            }
            world.check();
            world.crash();
        }
    }
}
