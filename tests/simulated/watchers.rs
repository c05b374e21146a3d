//! A service that reports changes, and programs that watch them: each sees the changes of its keys once and in order,
//! none that is undone, or is told truly that it is too far behind.

use std::{fmt, io, time::Duration};

use fastrand::Rng;
use rkyv::Archived;
use squall::{
    Applied, ChangePlace, Changes, QueryService, Replicated, Snapshot, ViewChange, Watched,
    client::ClientError,
    sim::{Client, Cluster, SimWatch, WatchFrom},
};

/// The bytes that a group counts for each change of the service, at least.
const CHANGE_BYTES: u64 = 64 + 8;

/// The time that a watch has until it begins: as long as anything goes wrong here.
const LIMIT: Duration = Duration::from_secs(600);

/// A service whose state is its history: the numbers that it was given, and the changes that it has reported, each with
/// its key.
#[derive(Debug, Default)]
pub(crate) struct Reporting {
    pub(crate) numbers: Vec<u64>,
    pub(crate) changes: Vec<(Key, u64)>,
    /// The number of changes that it has reported since it was made or restored.
    reported: usize,
}

/// The key of a change: that of a number, by its remainder, or that of a view.
pub(crate) type Key = u8;

/// The key of views.
const VIEW: Key = 9;

impl Replicated for Reporting {
    type Command = u64;
    /// The number of commands, this one included.
    type Reply = u64;

    fn apply(&mut self, number: &Archived<u64>, _at: &Applied) -> u64 {
        let number = number.to_native();
        self.numbers.push(number);
        // Most commands change one thing, some nothing, and some two.
        for _ in 0..[0, 1, 1, 2][(number / 4 % 4) as usize] {
            self.changes.push(((number % 4) as Key, number));
        }
        self.numbers.len() as u64
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.changes.push((VIEW, change.epoch.0));
    }

    fn snapshot(&self) -> Snapshot {
        let words = |(key, value): &(Key, u64)| [u64::from(*key), *value];
        let words: Vec<u64> = [self.numbers.len() as u64]
            .into_iter()
            .chain(self.numbers.iter().copied())
            .chain(self.changes.iter().flat_map(words))
            .collect();
        Snapshot::of_bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let words: Vec<u64> = crate::numbers::restore(from)?;
        let (count, words) = words.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
        let (numbers, changes) = words.split_at(*count as usize);
        let changes: Vec<(Key, u64)> = changes.chunks(2).map(|pair| (pair[0] as Key, pair[1])).collect();
        *self = Reporting { numbers: numbers.to_vec(), reported: 0, changes };
        Ok(())
    }
}

impl QueryService for Reporting {
    type Query = ();
    type Answer = Vec<(Key, u64)>;

    fn answer(&self, _query: &()) -> Vec<(Key, u64)> {
        self.changes.clone()
    }

    fn take_changes(&mut self, into: &mut Changes) {
        for (key, value) in &self.changes[self.reported..] {
            into.push([*key], value);
        }
        self.reported = self.changes.len();
    }
}

impl Watched for Reporting {
    type Change = u64;
}

/// A program that watches the keys of one shard, by one client.
pub(crate) struct Watcher {
    client: usize,
    pub(crate) shard: usize,
    /// The key that it watches, or all.
    key: Option<Key>,
    window: u64,
    /// Its watch, and whether that has begun; or the place at which it goes on later.
    watch: Result<(SimWatch<Reporting>, bool), ChangePlace>,
    /// The number of changes behind which it knows those of its key.
    since: Option<u64>,
    seen: Vec<(Key, u64)>,
    /// The times that it was too far behind.
    pub(crate) too_far: u64,
    /// The number of the next change, as it was told then.
    needed: Vec<u64>,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Watcher { client, shard, key, window, watch, since, seen, too_far, .. } = self;
        let watch = watch.as_ref().map(|(watch, begun)| (watch.told(), begun));
        let seen = seen.len();
        write!(
            f,
            "client {client} of shard {shard} watches {key:?} since {since:?} with {window} bytes, was {too_far} times too far \
             behind, has seen {seen}, and is at {watch:?}"
        )
    }
}

impl Watcher {
    pub(crate) fn new(
        rng: &mut Rng,
        cluster: &mut Cluster,
        clients: &[Vec<Client<Reporting>>],
        shards: usize,
    ) -> Watcher {
        let (client, shard) = (rng.usize(0..clients.len()), rng.usize(0..shards));
        let key = [None, Some(rng.u8(0..4)), Some(VIEW)][rng.usize(0..3)];
        let window = [1, 100, 1000, 1 << 20][rng.usize(0..4)];
        let from = if rng.bool() { WatchFrom::Now } else { WatchFrom::Query(()) };
        let prefix: Vec<u8> = key.into_iter().collect();
        let watch = clients[client][shard].watch(cluster, prefix, &from, window, LIMIT);
        let (seen, needed) = (Vec::new(), Vec::new());
        Watcher { client, shard, key, window, watch: Ok((watch, false)), since: None, seen, too_far: 0, needed }
    }

    fn is_watched(&self, key: Key) -> bool {
        self.key.is_none_or(|own| own == key)
    }

    fn watch(&mut self, cluster: &mut Cluster, clients: &[Vec<Client<Reporting>>], from: &WatchFrom<()>) {
        let prefix: Vec<u8> = self.key.into_iter().collect();
        let watch = clients[self.client][self.shard].watch(cluster, prefix, from, self.window, LIMIT);
        self.watch = Ok((watch, false));
    }

    /// Puts its watch aside, or goes on with it.
    pub(crate) fn turn(&mut self, cluster: &mut Cluster, clients: &[Vec<Client<Reporting>>]) {
        match &mut self.watch {
            Err(place) => {
                let place = *place;
                self.watch(cluster, clients, &WatchFrom::Place(place));
            }
            Ok((watch, true)) => {
                let place = watch.place();
                if let Ok((watch, _)) = std::mem::replace(&mut self.watch, Err(place)) {
                    watch.end(cluster);
                }
            }
            Ok((_, false)) => {}
        }
    }

    /// Takes at most so many changes.
    pub(crate) fn take(
        &mut self,
        most: usize,
        cluster: &mut Cluster,
        clients: &[Vec<Client<Reporting>>],
    ) -> Result<(), String> {
        let Ok((watch, begun)) = &mut self.watch else { return Ok(()) };
        let mut error = None;
        if !*begun {
            match watch.take_begun() {
                None => return Ok(()),
                Some(Err(why)) => error = Some(why),
                Some(Ok((place, answer))) => {
                    *begun = true;
                    let place = place.number;
                    if let Some(answer) = answer {
                        if answer.len() as u64 != place {
                            return Err(format!("a copy of {} changes is at {place}", answer.len()));
                        }
                        self.since = Some(0);
                        let key = self.key;
                        self.seen = answer.into_iter().filter(|(of, _)| key.is_none_or(|own| own == *of)).collect();
                    } else {
                        self.since.get_or_insert(place);
                    }
                }
            }
        }
        for _ in 0..most {
            let Ok((watch, true)) = &mut self.watch else { break };
            match watch.take_next(cluster) {
                None => break,
                Some(Ok(change)) => self.seen.push((change.key[0], change.change)),
                Some(Err(why)) => {
                    error = Some(why);
                    break;
                }
            }
        }
        match error {
            None => Ok(()),
            Some(ClientError::TooFarBehind { needed, oldest }) if needed < oldest => {
                self.too_far += 1;
                self.needed.push(needed);
                self.watch(cluster, clients, &WatchFrom::Query(()));
                Ok(())
            }
            Some(error) => Err(format!("a watch ended: {error}")),
        }
    }

    /// Tells whether it has come to the change with this number, and takes all that it is told.
    pub(crate) fn has_reached(
        &mut self,
        number: u64,
        cluster: &mut Cluster,
        clients: &[Vec<Client<Reporting>>],
    ) -> Result<bool, String> {
        if self.watch.is_err() {
            self.turn(cluster, clients);
        }
        self.take(usize::MAX, cluster, clients)?;
        Ok(match &mut self.watch {
            Ok((watch, true)) => watch.place().number >= number,
            _ => false,
        })
    }

    /// Compares what it has seen with all changes of its shard.
    pub(crate) fn verify(&self, all: &[(Key, u64)], change_bytes: usize) -> Result<(), String> {
        let since = self.since.ok_or("a watch has not begun")? as usize;
        let expected: Vec<(Key, u64)> = all[since..].iter().copied().filter(|(key, _)| self.is_watched(*key)).collect();
        if !expected.starts_with(&self.seen) {
            let at = self.seen.iter().zip(&expected).take_while(|(seen, expected)| seen == expected).count();
            return Err(format!(
                "watching {:?} since {since}, it saw {:?} as the {at}th change, which is {:?}",
                self.key,
                self.seen.get(at),
                expected.get(at)
            ));
        }
        for needed in &self.needed {
            let behind = all.len() as u64 + 1 - needed;
            if (behind + 1) * (CHANGE_BYTES + 8) <= change_bytes as u64 {
                return Err(format!("a watch that needed {needed} of {} was said to be too far behind", all.len()));
            }
        }
        Ok(())
    }

    /// Tells whether it has seen all changes of its keys, as far as the one with this number.
    pub(crate) fn has_all(&self, all: &[(Key, u64)], number: u64) -> bool {
        let since = self.since.unwrap_or_default() as usize;
        let due = all[since.min(number as usize)..number as usize].iter().filter(|(key, _)| self.is_watched(*key));
        self.seen.len() >= due.count()
    }
}
