//! Records that a cut or a new beginning takes from a log are kept beside it, whole, at whichever step a crash comes.

use fastrand::Rng;
use squall_ordered::log::{Aside, End, Log, Options, Position, SimStorage, WriteError, asides, summary_of};

use super::model::{Kept, Seed, any_options, next_record, open, options, read_all, records, write};
use crate::seeds::seeds;

/// The records of a log that was set aside.
fn kept(storage: &SimStorage, name: &str) -> Vec<Kept> {
    let opened = Log::look(Aside::new(storage.clone(), name), false).expect("it is a log");
    assert_eq!((&opened.damage, &opened.missing), (&vec![], &None));
    let (records, damage) = read_all(&opened.log);
    assert_eq!(damage, []);
    let summary = summary_of(storage, name).expect("the disk is well").expect("it is there");
    let version = |record: Option<&Kept>| record.map(|record| record.version);
    assert_eq!(Some(summary.last), version(records.last()), "{summary:?}");
    assert!(
        version(records.first()).is_some_and(|first| first <= summary.first && summary.first <= first + 1),
        "{summary:?}"
    );
    records
}

fn names(storage: &SimStorage) -> Vec<String> {
    asides(storage).expect("the disk is well")
}

/// A change of a log that takes records away: all behind a place, or all.
#[derive(Clone, Copy, Debug)]
enum Change {
    Cut(Position),
    BeginAnew(End),
}

impl Change {
    /// Whether the change takes any record away.
    fn takes(self, all: &[Kept]) -> bool {
        match self {
            Change::Cut(to) => all.last().is_some_and(|last| last.end() > to),
            Change::BeginAnew(_) => !all.is_empty(),
        }
    }

    fn make(self, log: &mut Log<SimStorage>) -> Result<Option<String>, WriteError> {
        match self {
            Change::Cut(to) => log.cut_to(to).map(|cut| cut.aside),
            Change::BeginAnew(at) => log.begin_anew(at),
        }
    }

    /// The records that stay in the log.
    fn rest(self, all: &[Kept]) -> Vec<Kept> {
        match self {
            Change::Cut(to) => all.iter().filter(|record| record.end() <= to).cloned().collect(),
            Change::BeginAnew(_) => vec![],
        }
    }

    /// Checks that the log is the one before, with nothing set aside, or the one behind the change, with all records
    /// that went.
    fn check(self, storage: &SimStorage, log: &Log<SimStorage>, all: &[Kept]) {
        let found = read_all(log).0;
        if found == all && log.begin() == End::START && self.takes(all) {
            assert_eq!(names(storage), [""; 0], "nothing went");
            return;
        }
        assert_eq!(found, self.rest(all), "{self:?}");
        let names = names(storage);
        assert_eq!(names.len(), usize::from(self.takes(all)), "{self:?}: {names:?}");
        if let Some(name) = names.first() {
            assert!(all.ends_with(&kept(storage, name)), "{self:?}");
            assert!(found.len() + kept(storage, name).len() >= all.len(), "{self:?}: all that went");
        }
    }
}

/// Goes on after the end of the process, with or without a loss of power.
fn come_back(storage: &SimStorage, rng: &mut Rng) {
    if rng.bool() {
        storage.restart();
    } else {
        storage.revive();
    }
}

/// Opens a log; meanwhile another crash may come.
fn open_in_spite_of_crashes(storage: &SimStorage, options: Options, rng: &mut Rng) -> Log<SimStorage> {
    loop {
        storage.crash_at(storage.changes() + rng.u64(..20));
        let opened = Log::open(storage.clone(), options, &mut Rng::with_seed(storage.changes()));
        let crashed = storage.has_crashed();
        come_back(storage, rng);
        match opened {
            Ok(opened) if !crashed => return opened.log,
            Err(error) if !crashed => panic!("{error}"),
            _ => {}
        }
    }
}

#[test]
fn what_goes_is_kept_whichever_step_a_crash_falls_into() {
    for seed in seeds(3000) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let (storage, options, count) = (SimStorage::new(seed), any_options(&mut rng), rng.usize(1..40));
        let all = records(&mut rng, count);
        let mut log = open(&storage, options).log;
        write(&mut log, &all, rng.usize(1..9));
        log.set_acknowledged(rng.u64(..=log.persisted().version));
        let to = all[rng.usize(..all.len())].reached();
        let change = if rng.bool() { Change::Cut(to.position) } else { Change::BeginAnew(to) };
        storage.crash_at(storage.changes() + rng.u64(..30));
        let made = change.make(&mut log);
        come_back(&storage, &mut rng);
        let log = open_in_spite_of_crashes(&storage, options, &mut rng);
        change.check(&storage, &log, &all);
        if let Ok(name) = made {
            assert_eq!((read_all(&log).0, names(&storage)), (change.rest(&all), name.into_iter().collect()));
        }
        storage.restart();
        change.check(&storage, &open(&storage, options).log, &all);
    }
}

#[test]
fn only_the_newest_are_kept_and_never_more_than_the_log_had() {
    let size = |storage: &SimStorage, of: &str| -> usize {
        let image = storage.image();
        let segments = image.iter().filter(|(name, _)| name.starts_with(of) && name.contains("segment-"));
        segments.map(|(_, bytes)| bytes.len()).sum()
    };
    let (mut rng, storage, options) = (Rng::with_seed(3), SimStorage::new(1), options(8192, 4096));
    let mut log = open(&storage, options).log;
    for round in 1..12 {
        let all: Vec<Kept> = (0..rng.usize(4..60))
            .scan(log.persisted(), |end, _| {
                let record = next_record(&mut rng, *end);
                *end = record.reached();
                Some(record)
            })
            .collect();
        write(&mut log, &all, 3);
        let before = size(&storage, "segment-");
        let cut = log.cut_to(all[rng.usize(..all.len() - 1)].end()).expect("the disk is well");
        assert_eq!(cut.aside.as_deref(), Some(&*format!("aside-{round}")));
        let names = names(&storage);
        assert!(names.len() <= 4 && names.last() == cut.aside.as_ref(), "{names:?}");
        assert!(size(&storage, "aside-") <= before, "{names:?}");
        assert_eq!(kept(&storage, &names[names.len() - 1]).last(), all.last());
    }
}

#[test]
fn what_was_never_whole_is_not_kept() {
    let mut torn = 0;
    for seed in seeds(50) {
        let _seed = Seed(seed);
        let (storage, options) = (SimStorage::new(seed), options(1 << 20, 1 << 16));
        let mut log = open(&storage, options).log;
        write(&mut log, &records(&mut Rng::with_seed(5), 10), 10);
        let end = log.persisted().position;
        assert_eq!(log.cut_to(end).expect("the disk is well").aside, None, "nothing goes");
        let mut appender = log.appender();
        for _ in 0..9 {
            next_record(&mut Rng::with_seed(seed), appender.end()).append_to(&mut appender).expect("it fits");
        }
        storage.crash_at(storage.changes());
        log.commit(&mut appender.take_batch().expect("a record")).expect_err("a crash");
        storage.restart();
        torn += usize::from(open(&storage, options).torn.is_some());
        assert_eq!(names(&storage), [""; 0]);
    }
    assert!(torn > 5 || std::env::var_os("SQUALL_SEED").is_some(), "{torn}");
}

#[test]
fn a_log_that_wants_space_takes_it_from_what_was_set_aside() {
    let (storage, options) = (SimStorage::new(1), options(8192, 4096));
    let all = records(&mut Rng::with_seed(5), 60);
    let mut log = open(&storage, options).log;
    write(&mut log, &all, 5);
    log.cut_to(all[2].end()).expect("the disk is well");
    assert_eq!(names(&storage).len(), 1);
    storage.limit(storage.used() + 5000);
    write(&mut log, &all[3..20], 5);
    assert_eq!((names(&storage).len(), read_all(&log).0), (0, all[..20].to_vec()));
}
