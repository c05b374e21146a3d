//! The replicated state machine.

use std::{
    io::{self, Read},
    sync::Arc,
};

use rkyv::Archived;
use squall::{Applied, Epoch, NodeId, QueryService, Replicated, Schema, Seq, Snapshot, ViewChange};

use crate::{
    Error, Reply,
    command::{self, CommandFn, ReadFn},
    keyspace::{Keyspace, Lookups, Publish, WaitEnd, WaiterId, Watch},
    message::{AnsweredBy, Query, QueryAnswer, StoreCommand, WatchedKey},
    saved::{MAGIC, StateReader, StateWriter},
    words,
};

/// The most elements of expired keys that a command removes besides its own work, so that no command takes long.
const EXPIRE_AT_ONCE: usize = 32;

/// The most elements that a [`StoreCommand::Tick`] removes, which does nothing else.
const EXPIRE_AT_TICK: usize = 1000;

/// The memory of a transaction's answers, in bytes, beyond which its other requests that only look are refused. A few
/// words can ask for any value, and can be repeated a thousand times.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The bytes of the answers to a front end's requests after which the other requests are left for later.
const MAX_LOOK_BYTES: usize = 1 << 20;

/// One replica's state.
#[derive(Debug, Default)]
pub struct Store {
    keys: Keyspace,
    now_ms: u64,
    applied: Option<(Epoch, Seq)>,
    /// The node whose replica this is; see [`Store::at`].
    node: Option<NodeId>,
}

impl Store {
    /// The replica of a node. It skips the requests of other senders that only look.
    pub fn at(node: NodeId) -> Store {
        Store { node: Some(node), ..Store::default() }
    }

    /// Sets the destination of published messages.
    pub fn set_publisher(&mut self, publisher: Arc<dyn Publish>) {
        self.keys.set_publisher(publisher);
    }

    /// The keys, read-only.
    pub fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// The place of the last command that was applied: its view, and its sequence number there.
    pub fn applied(&self) -> Option<(Epoch, Seq)> {
        self.applied
    }

    /// The store's time for a reader whose clock says `clock_ms`.
    pub fn time_ms(&self, clock_ms: u64) -> u64 {
        self.now_ms.max(clock_ms)
    }

    /// Answers a request that only looks. `clock_ms` is the reader's clock.
    pub fn look(&self, request: &[u8], clock_ms: u64) -> Reply {
        let looked = parse(request).and_then(|(words, run)| match run {
            CommandFn::Read(read) => self.read(read, &words, self.time_ms(clock_ms)),
            CommandFn::Write(_) | CommandFn::Block(_) | CommandFn::Local => Err(malformed()),
        });
        looked.into()
    }

    /// Notes the state of a key for a transaction.
    pub fn watch(&self, key: &[u8], clock_ms: u64) -> WatchedKey {
        let (present, version) = match self.keys.view(self.time_ms(clock_ms)).watch(key) {
            Watch::Present(version) => (true, version),
            Watch::Absent(version) => (false, version),
        };
        WatchedKey { key: key.to_vec(), present, version }
    }

    /// The state as bytes, for another replica to [load](Store::load).
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.keys.freeze().write(self.head(), &mut bytes).expect("there is memory");
        bytes
    }

    /// The saved bytes that precede the keys.
    fn head(&self) -> StateWriter {
        let mut out = StateWriter(MAGIC.to_vec());
        out.number(self.now_ms);
        let (epoch, seq) = self.applied.unwrap_or((Epoch(0), Seq(0)));
        [epoch.0, seq.0].into_iter().for_each(|number| out.number(number));
        out
    }

    /// Replaces the state by one that another replica saved. After an error, the state is unchanged.
    pub fn load(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut from = StateReader(from);
        from.magic()?;
        let now_ms = from.number()?;
        let (epoch, seq) = (Epoch(from.number()?), Seq(from.number()?));
        self.keys.load(&mut from)?;
        self.now_ms = now_ms;
        self.applied = (epoch.0 > 0).then_some((epoch, seq));
        Ok(())
    }

    fn read(&self, read: ReadFn, words: &[&[u8]], now_ms: u64) -> Result<Reply, Error> {
        let lookups = Lookups::default();
        let answer = read(&self.keys.view(now_ms).counting(&lookups), words);
        self.keys.tell_of_lookups(&lookups);
        answer
    }

    fn run(&mut self, request: &[u8], seed: u64, looks: Looks) -> Reply {
        let ran = parse(request).and_then(|(words, run)| match run {
            CommandFn::Write(write) => write(&mut self.keys.change(self.now_ms, seed), &words),
            CommandFn::Read(read) => match looks {
                Looks::Answered => self.read(read, &words, self.now_ms),
                Looks::Refused => Err(Error::fixed("ERR this transaction's answers are too large already")),
                Looks::Skipped => Ok(Reply::Null),
            },
            CommandFn::Block(read) => read(&words)?.run(&mut self.keys.change(self.now_ms, seed), &words),
            CommandFn::Local => Err(malformed()),
        });
        ran.into()
    }

    /// Carries out a request that may wait.
    fn run_or_wait(&mut self, request: &[u8], id: WaiterId, seed: u64) -> Reply {
        let ran = parse(request).and_then(|(words, run)| match run {
            CommandFn::Block(read) => {
                read(&words)?.run_or_wait(&mut self.keys.change(self.now_ms, seed), &words, id, request)
            }
            CommandFn::Write(_) | CommandFn::Read(_) | CommandFn::Local => Err(malformed()),
        });
        ran.into()
    }

    /// Serves the requests that wait for keys that a command has set.
    fn serve_ready(&mut self, seed: u64) {
        command::serve_ready(&mut self.keys.change(self.now_ms, seed), self.node);
    }

    /// Carries out a transaction, unless a watched key has changed.
    fn transact(
        &mut self,
        watched: &Archived<Vec<WatchedKey>>,
        requests: &Archived<Vec<Vec<u8>>>,
        seed: u64,
        mut looks: Looks,
    ) -> Reply {
        let view = self.keys.view(self.now_ms);
        let unchanged = watched.iter().all(|watched| {
            let version = watched.version.to_native();
            let since = if watched.present { Watch::Present(version) } else { Watch::Absent(version) };
            view.is_unchanged(&watched.key, since)
        });
        if !unchanged {
            return Reply::NullArray;
        }
        let seeds = (0u64..).map(|place| seed ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93));
        let mut bytes = 0;
        let answer = |(request, seed): (&Archived<Vec<u8>>, u64)| {
            let reply = self.run(request, seed, looks);
            bytes += reply.memory_bytes();
            if bytes > MAX_ANSWER_BYTES && matches!(looks, Looks::Answered) {
                looks = Looks::Refused;
            }
            reply
        };
        Reply::Array(requests.iter().zip(seeds).map(answer).collect())
    }
}

/// The treatment of a request that only looks. None changes the state, so replicas may differ.
#[derive(Clone, Copy, Debug)]
enum Looks {
    Answered,
    Refused,
    /// A command whose answer no client would see.
    Skipped,
}

impl Replicated for Store {
    type Command = StoreCommand;
    type Reply = Reply;

    const SCHEMA: Schema = Schema::new("squall-kv", 3);

    fn apply(&mut self, command: &Archived<StoreCommand>, at: &Applied) -> Reply {
        let (Archived::<StoreCommand>::Run { at_ms, .. }
        | Archived::<StoreCommand>::Transaction { at_ms, .. }
        | Archived::<StoreCommand>::Wait { at_ms, .. }
        | Archived::<StoreCommand>::CancelWaits { at_ms, .. }
        | Archived::<StoreCommand>::Tick { at_ms }) = command;
        self.now_ms = self.now_ms.max(at_ms.to_native());
        self.applied = Some((at.epoch, at.seq));
        let is_tick = matches!(command, Archived::<StoreCommand>::Tick { .. });
        self.keys.expire(self.now_ms, if is_tick { EXPIRE_AT_TICK } else { EXPIRE_AT_ONCE });
        // The place in the order is the same at all replicas, and no two commands have the same.
        let seed = at.seq.0 ^ at.epoch.0.rotate_left(48);
        let looks = |answered_by: &Archived<AnsweredBy>| match answered_by {
            Archived::<AnsweredBy>::Sender if self.node.is_some_and(|node| node != at.sender) => Looks::Skipped,
            Archived::<AnsweredBy>::Sender | Archived::<AnsweredBy>::All => Looks::Answered,
        };
        let id = |ticket: u64| WaiterId { node: at.sender, ticket };
        let reply = match command {
            Archived::<StoreCommand>::Run { request, answered_by, .. } => {
                let looks = looks(answered_by);
                self.run(request, seed, looks)
            }
            Archived::<StoreCommand>::Transaction { watched, requests, answered_by, .. } => {
                let looks = looks(answered_by);
                self.transact(watched, requests, seed, looks)
            }
            Archived::<StoreCommand>::Wait { ticket, request, .. } => {
                self.run_or_wait(request, id(ticket.to_native()), seed)
            }
            Archived::<StoreCommand>::CancelWaits { tickets, .. } => {
                let ended = tickets.iter().filter(|ticket| self.keys.cancel_wait(id(ticket.to_native())));
                Reply::count(ended.count())
            }
            Archived::<StoreCommand>::Tick { .. } => Reply::OK,
        };
        self.serve_ready(seed);
        reply
    }

    fn snapshot(&self) -> Snapshot {
        let (head, keys) = (self.head(), self.keys.freeze());
        Snapshot::new(move |to| keys.write(head, to))
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        self.load(from)?;
        self.keys.tell_of_gap();
        Ok(())
    }

    /// Ends the waits at nodes that are gone, and those of earlier lives.
    fn view_changed(&mut self, change: &ViewChange) {
        let is_gone = |node| !change.members.contains(&node) || change.joined.contains(&node);
        for WaiterId { node, ticket } in self.keys.cancel_waits_of(is_gone) {
            if self.node == Some(node) {
                self.keys.tell_end_of_wait(ticket, WaitEnd::Dropped);
            }
        }
    }
}

impl QueryService for Store {
    type Query = Query;
    type Answer = QueryAnswer;

    fn answer(&self, query: &Archived<Query>) -> QueryAnswer {
        match query {
            Archived::<Query>::Look { clock_ms, requests } => {
                let mut bytes = 0;
                let look = |request: &Archived<Vec<u8>>| {
                    let is_enough = bytes >= MAX_LOOK_BYTES;
                    (!is_enough).then(|| {
                        let reply = self.look(request, clock_ms.to_native());
                        bytes += reply.payload_bytes();
                        reply
                    })
                };
                QueryAnswer::Looked(requests.iter().map_while(look).collect())
            }
            Archived::<Query>::Watch { clock_ms, keys } => {
                QueryAnswer::Watched(keys.iter().map(|key| self.watch(key, clock_ms.to_native())).collect())
            }
            Archived::<Query>::Memory => QueryAnswer::Memory { is_exceeded: self.keys.is_out_of_memory() },
        }
    }
}

/// The words of a request, and the function that carries it out.
fn parse(request: &[u8]) -> Result<(words::Split<'_>, CommandFn), Error> {
    let words = words::split(request).ok_or_else(malformed)?;
    let run = command::check(&words)?.run;
    Ok((words, run))
}

/// The answer to a request that no replica of this version sends.
fn malformed() -> Error {
    Error::fixed("ERR the request is none that replicas exchange: they run different versions of this program")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Shell, show};

    fn transaction(shell: &mut Shell, lines: &[String]) -> Vec<Reply> {
        let requests = lines.iter().map(|line| words::join(line.split(' '))).collect();
        let answered_by = AnsweredBy::Sender;
        let command = StoreCommand::Transaction { at_ms: shell.now_ms, watched: Vec::new(), requests, answered_by };
        let Reply::Array(replies) = shell.apply(&command) else { panic!("nothing is watched") };
        replies
    }

    #[test]
    fn a_transaction_asks_for_no_endless_answer_and_changes_all_the_same() {
        let mut shell = Shell::new();
        shell.ask("setrange k 1048575 x");
        for look in ["get k", "getrange k 0 -2", "mget k"] {
            let mut lines = vec![look.to_owned(); 70];
            lines.push("incr n".to_owned());
            let replies = transaction(&mut shell, &lines);
            let refused = replies.iter().filter(|reply| matches!(reply, Reply::Error(_))).count();
            assert!((5..10).contains(&refused), "{look}: {refused} of 70 refused");
            assert!(matches!(replies[70], Reply::Integer(_)), "{look}");
        }
        shell.ask("rpush l a a a a a a a a a a");
        let replies = transaction(&mut shell, &vec!["lpos l a count 0".to_owned(); 300_000]);
        assert!(matches!(replies.last(), Some(Reply::Error(_))), "numbers take memory too");
    }

    fn is_same(one: &Store, other: &Store) -> bool {
        one.save() == other.save()
    }

    #[test]
    fn a_replica_that_was_loaded_goes_on_as_the_one_that_was_saved() {
        let mut shell = Shell::new();
        (0..200).for_each(|n| _ = shell.ask(&format!("set key{n} {} px {}", n * n, 1000 + n)));
        (0..50).for_each(|n| _ = shell.ask(&format!("del key{}", n * 3)));
        (0..100).for_each(|n| _ = shell.ask(&format!("zadd many {} m{n}", n % 7)));
        (0..80).for_each(|n| _ = shell.ask(&format!("zrem many m{n}")));
        for line in [
            "append digits 12",
            "append digits 3",
            "rpush list a 2 c",
            "hset hash f 1 g x",
            "sadd set a b c d e f g",
            "srem set b",
            "zadd few 1 a -2.5 b inf c",
            "setrange gap 10 x",
            "set empty ",
        ] {
            shell.ask(line);
        }
        let mut other = Shell { store: Store::at(NodeId(2)), ..Shell::new() };
        other.ask("set old x");
        let saved = shell.store.save();
        other.store.load(&mut &saved[..]).expect("it is whole");
        assert!(is_same(&shell.store, &other.store));
        (other.now_ms, other.applied) = (shell.now_ms, shell.applied);
        // Commands that draw places at random, watch, expire, and depend on the values' forms.
        for line in ["spop set", "spop set 2", "object encoding digits", "incr digits", "randomkey", "lrem list 0 2"] {
            let (one, two) = (shell.ask(line), other.ask(line));
            assert!(one == two || line == "randomkey", "{line}: {one} {two}");
        }
        (shell.now_ms, other.now_ms) = (shell.now_ms + 1100, other.now_ms + 1100);
        shell.ask("set late 1");
        other.ask("set late 1");
        assert!(is_same(&shell.store, &other.store));
    }

    #[test]
    fn a_state_is_written_as_it_was_captured_whatever_changes_meanwhile() {
        let mut shell = Shell::new();
        (0..500).for_each(|n| _ = shell.ask(&format!("set key{n} {n}")));
        (0..50).for_each(|n| _ = shell.ask(&format!("zadd many {n} m{n}")));
        let (saved, captured) = (shell.store.save(), shell.store.keys.freeze());
        let head = shell.store.head();
        (0..300).for_each(|n| _ = shell.ask(&format!("del key{n}")));
        (200..900).for_each(|n| _ = shell.ask(&format!("incr key{n}")));
        (0..20).for_each(|n| _ = shell.ask(&format!("zrem many m{n}")));
        let mut written = Vec::new();
        captured.write(head, &mut written).expect("there is memory");
        assert!(written == saved);
        assert!(shell.store.save() != saved);
    }

    #[test]
    fn damaged_states_are_refused_and_change_nothing() {
        let mut shell = Shell::new();
        for line in ["set a 1", "rpush l a b", "zadd z 1 a 2 b", "hset h f v", "sadd s x y", "set b 2 px 1000"] {
            shell.ask(line);
        }
        let saved = shell.store.save();
        let mut other = Store::default();
        let before = other.save();
        let mut random = fastrand::Rng::with_seed(7);
        for len in 0..saved.len() {
            assert!(other.load(&mut &saved[..len]).is_err(), "the first {len} bytes are no state");
            assert_eq!(other.save(), before);
            let mut damaged = saved.clone();
            damaged[len] ^= random.u8(1..);
            // The result may be a valid state of other values. But nothing panics, and no length is trusted.
            let _ = Store::default().load(&mut &damaged[..]);
        }
    }

    #[test]
    fn a_tick_removes_many_keys() {
        let mut shell = Shell::new();
        (0..1000).for_each(|key| _ = shell.ask(&format!("set {key} v px 1")));
        shell.now_ms += 1;
        assert_eq!(show(&shell.apply(&StoreCommand::Tick { at_ms: shell.now_ms })), "OK");
        assert!(shell.store.keys().is_empty());
    }
}
