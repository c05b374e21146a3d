//! Crashes at any write: acknowledged records are there, and the records that are there are a prefix of those written.

use fastrand::Rng;
use squall_ordered::log::{Appender, Batch, Log, Options, Position, SimStorage, WriteError};

use super::model::{Kept, Seed, any_options, next_record, open, read_all};
use crate::seeds::seeds;

/// A log on a disk, and the records that it should hold.
struct World {
    rng: Rng,
    storage: SimStorage,
    options: Options,
    log: Log<SimStorage>,
    appender: Appender,
    /// A batch that is committed later, while the next one fills.
    batch: Option<Batch>,
    /// All records that were appended, from the last known beginning of the log.
    written: Vec<Kept>,
    /// The end of the records that were acknowledged.
    acknowledged: Position,
    /// The place of a cut that was not finished.
    cutting: Option<Position>,
    trimming: Option<Position>,
    /// The number of times that there was no room for a segment.
    full: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let (storage, options) = (SimStorage::new(rng.u64(..)), any_options(&mut rng));
        let log = open(&storage, options).log;
        let (appender, acknowledged) = (log.appender(), log.persisted().position);
        World {
            rng,
            storage,
            options,
            log,
            appender,
            batch: None,
            written: Vec::new(),
            acknowledged,
            cutting: None,
            trimming: None,
            full: 0,
        }
    }

    fn act(&mut self) -> Result<(), WriteError> {
        match self.rng.u32(..101) {
            0..55 => self.append(),
            55..80 => self.commit()?,
            80..90 => self.log.prepare()?,
            90..93 => self.check_range(),
            93..95 => self.check_time(),
            95..97 => self.cut()?,
            97..99 => self.trim()?,
            99 => {
                self.log.save_acknowledged()?;
            }
            _ => self.log.raise_generation(self.log.generation() + 1)?,
        }
        Ok(())
    }

    fn append(&mut self) {
        let record = next_record(&mut self.rng, self.appender.end());
        if record.append_to(&mut self.appender).is_ok() {
            self.written.push(record);
        }
    }

    fn commit(&mut self) -> Result<(), WriteError> {
        if self.batch.is_none() {
            self.batch = self.appender.take_batch();
        }
        if let Some(mut batch) = self.batch.take() {
            let persisted = match self.log.commit(&mut batch) {
                Err(error @ WriteError::NoRoom { .. }) => {
                    // It is committed again, and what has room of it is there already.
                    self.batch = Some(batch);
                    self.acknowledged = self.log.persisted().position;
                    return Err(error);
                }
                committed => committed?,
            };
            assert_eq!((persisted, self.log.persisted()), (batch.end(), batch.end()));
            self.acknowledged = persisted.position;
            self.log.set_acknowledged(self.rng.u64(..=persisted.version + 3));
            self.appender.give_back(batch);
        }
        Ok(())
    }

    fn some_position(&mut self) -> Position {
        let nth = self.rng.usize(..self.written.len().max(1));
        let record = self.written.get(nth).map_or(Position::START, Kept::end);
        record.max(self.log.begin().position)
    }

    fn cut(&mut self) -> Result<(), WriteError> {
        let to = self.some_position();
        // Records that are not committed go, too.
        self.written.retain(|record| record.end() <= self.acknowledged);
        self.batch = None;
        self.acknowledged = self.acknowledged.min(to);
        self.cutting = Some(to);
        self.log.cut_to(to)?;
        self.cutting = None;
        self.written.retain(|record| record.end() <= to);
        self.acknowledged = self.log.persisted().position;
        self.appender = self.log.appender();
        self.check_all();
        Ok(())
    }

    fn trim(&mut self) -> Result<(), WriteError> {
        let before = self.some_position();
        self.trimming = Some(before);
        let begin = self.log.trim_before(before)?.position;
        self.trimming = None;
        assert!(begin <= before);
        self.written.retain(|record| record.end() > begin);
        Ok(())
    }

    fn durable(&self) -> Vec<Kept> {
        let persisted = self.log.persisted().position;
        self.written.iter().filter(|record| record.end() <= persisted).cloned().collect()
    }

    fn check_all(&mut self) {
        let (found, damage) = read_all(&self.log);
        assert_eq!(damage, []);
        assert_eq!(found, self.durable());
        let verified = self.log.verify(|_| {}).expect("it can be read");
        assert_eq!((verified.records, verified.damage), (found.len() as u64, vec![]));
    }

    fn check_range(&mut self) {
        let (from, to) = (self.some_position(), self.some_position());
        let mut reader = self.log.read(from, to).expect("from behind its beginning");
        let mut found = Vec::new();
        while let Some(record) = reader.next_record().expect("it is well") {
            found.push(Kept::of(&record));
        }
        let mut expected = self.durable();
        expected.retain(|record| record.end() > from && record.end() <= to);
        assert_eq!(found, expected, "{from} to {to}");
    }

    fn check_time(&mut self) {
        let durable = self.durable();
        let nth = self.rng.usize(..durable.len().max(1));
        if let Some(record) = durable.get(nth) {
            assert_eq!(self.log.at_time(record.time).expect("it is well"), record.reached(), "at {}", record.time);
            let same = durable[nth..].iter().take_while(|later| later.version == record.version);
            let last = same.last().map(Kept::reached);
            let found = self.log.at_version(record.version).expect("it is well");
            assert_eq!(Some(found), last, "at version {}", record.version);
        }
    }

    /// Ends the process, at any write, with or without the power; and opens the log again.
    fn crash(&mut self) {
        self.storage.crash_at(self.storage.changes() + self.rng.u64(..12));
        while !self.storage.has_crashed() && self.act().is_ok() {}
        if self.rng.bool() {
            self.storage.restart();
        } else {
            self.storage.revive();
        }
        self.reopen();
    }

    /// Fails a sync, after which the log must refuse everything; then the process ends.
    fn fail_a_sync(&mut self) {
        self.storage.fail_sync(self.rng.u64(..4));
        let error = loop {
            if let Err(error) = self.act() {
                break error;
            }
        };
        assert!(matches!(error, WriteError::Io { .. }), "{error}");
        for again in [self.log.prepare(), self.log.cut_to(self.log.begin().position).map(drop)] {
            assert!(matches!(again, Err(WriteError::Poisoned(_))), "{again:?}");
        }
        if self.rng.bool() {
            self.storage.restart();
        } else {
            self.storage.revive();
        }
        self.reopen();
    }

    /// Fills the disk for a while.
    fn fill_up(&mut self) {
        self.storage.limit(self.storage.used() + self.rng.u64(..10_000));
        let failed = (0..200).find_map(|_| match self.act() {
            Err(WriteError::NoRoom { .. }) => {
                self.full += 1;
                None
            }
            acted => acted.err(),
        });
        self.storage.limit(u64::MAX);
        if let Some(error) = failed {
            // A manifest found no room. Goes on as a process does that leaves its view.
            assert!(matches!(error, WriteError::Io { .. }), "{error}");
            self.storage.revive();
            self.reopen();
        } else {
            self.commit().expect("there is room");
            self.check_all();
        }
    }

    fn reopen(&mut self) {
        let generation = self.log.generation();
        let opened = open(&self.storage, Options { generation, ..self.options });
        assert_eq!((&opened.damage, &opened.missing, &opened.healed), (&vec![], &None, &vec![]));
        assert!(opened.log.acknowledged() <= opened.log.persisted().version);
        self.log = opened.log;
        let (found, damage) = read_all(&self.log);
        assert_eq!(damage, []);

        if let Some(to) = self.cutting.take()
            && self.log.persisted().position <= to
        {
            self.written.retain(|record| record.end() <= to);
        }
        let begin = self.log.begin().position;
        let (first, trimming) = (self.written.first().map(Kept::end), self.trimming.take());
        assert!(trimming.is_some_and(|before| begin <= before) || first.is_none_or(|first| begin <= first));
        self.written.retain(|record| record.end() > begin);

        let whole = self.written.get(..found.len()).expect("no more than was written");
        assert_eq!(found, whole, "a prefix");
        let lost = self.written.get(found.len());
        assert!(lost.is_none_or(|lost| lost.end() > self.acknowledged), "{lost:?} was acknowledged");

        // Records that were shown once stay.
        self.storage.restart();
        self.log = open(&self.storage, self.options).log;
        assert_eq!(read_all(&self.log).0, found, "after another crash");
        self.written.truncate(found.len());
        (self.appender, self.batch) = (self.log.appender(), None);
        self.acknowledged = self.log.persisted().position;
    }
}

#[test]
fn what_was_acknowledged_survives_any_crash_and_what_is_there_is_a_prefix() {
    let mut full = 0;
    for seed in seeds(1000) {
        let _seed = Seed(seed);
        let mut world = World::new(seed);
        for _ in 0..6 {
            for _ in 0..world.rng.u32(..150) {
                world.act().expect("the disk is well");
            }
            world.check_all();
            match world.rng.u32(..10) {
                0..7 => world.crash(),
                7..9 => world.fail_a_sync(),
                _ => world.fill_up(),
            }
        }
        world.check_all();
        full += world.full;
    }
    assert!(full > 20 || std::env::var_os("SQUALL_SEED").is_some(), "there was no room {full} times");
}
