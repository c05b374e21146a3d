//! The replica of a service that takes part in transactions.

use std::{
    fmt,
    io::{self, Read},
    ops::Deref,
};

use rkyv::{Archived, rancor, util::AlignedVec};
use squall_membership::MAX_SHARDS;
use squall_ordered::log::Hlc;

use super::{
    keys::Keys,
    message::{
        Refusal, Scope, TransactionAnswer, TransactionCommand, TransactionId, TransactionQuery, TransactionReply,
    },
    service::TransactionService,
    table::{Table, TransactionRecord},
};
use crate::{
    clients::{partition::Partitioned, query::QueryService},
    replica::{
        command::Command,
        replicated::{Applied, Replicated},
        schema::Schema,
        snapshot::Snapshot,
        view_change::ViewChange,
    },
};

/// A shard of a service whose commands can be parts of transactions: the service, and the transactions that the shard
/// has voted on. It derefs to the service.
pub struct Transactional<S> {
    shard: u32,
    service: S,
    table: Table,
}

impl<S: TransactionService> Transactional<S> {
    /// Makes a shard without transactions. `shard` is its number, as
    /// [`serve_sharded`](crate::NodeBuilder::serve_sharded) gives it.
    pub fn new(shard: u32, service: S) -> Transactional<S> {
        Transactional { shard, service, table: Table::default() }
    }

    /// Whether a transaction names shards that can settle it: several, each once, and this one among them.
    fn is_settled_by(&self, shards: &[u32]) -> bool {
        (2..=MAX_SHARDS as usize).contains(&shards.len())
            && shards.is_sorted_by(|one, next| one < next)
            && shards.binary_search(&self.shard).is_ok()
    }

    /// Applies commands of this shard alone, all or none of them.
    fn apply_alone(&mut self, commands: &[Vec<u8>], at: &Applied) -> TransactionReply {
        match self.admit(commands) {
            Ok(_) => TransactionReply::Applied(self.carry_out(commands, at)),
            Err(refusal) => TransactionReply::Refused(refusal),
        }
    }

    fn prepare(&mut self, scope: Scope, commands: Vec<Vec<u8>>, at: &Applied) -> TransactionReply {
        // A timer that is due comes before further locks, which would hold it up for ever.
        self.wake_service(at);
        if self.service.wake_at().is_some_and(|wake_at| wake_at <= at.time)
            && let Some(holder) = self.table.oldest()
        {
            return self.table.vote(&scope).unwrap_or(TransactionReply::Refused(Refusal::Busy(holder)));
        }
        if let Err(reply) = self.table.admit(&scope, &commands) {
            return reply;
        }
        match self.admit(&commands) {
            Ok(keys) => {
                self.table.prepare(scope, commands, &keys);
                TransactionReply::Prepared
            }
            Err(refusal) => TransactionReply::Refused(refusal),
        }
    }

    /// Checks that commands can be carried out now, and returns their keys.
    fn admit(&self, commands: &[Vec<u8>]) -> Result<Keys, Refusal> {
        let mut all = Keys::default();
        for (place, bytes) in (0..).zip(commands) {
            let mut keys = Keys::default();
            with::<S::Command, _>(bytes, |command| S::keys(command, &mut keys)).ok_or(Refusal::Invalid)?;
            if keys.has_written_by(&all) {
                // The check of this command would not see what the earlier one does.
                return Err(Refusal::Overlap { command: place });
            }
            all.join(keys);
        }
        if let Some(holder) = self.table.conflict(&all) {
            return Err(Refusal::Busy(holder));
        }
        for (place, bytes) in (0..).zip(commands) {
            let checked =
                with::<S::Command, _>(bytes, |command| self.service.check(command)).ok_or(Refusal::Invalid)?;
            checked.map_err(|reply| Refusal::Service { command: place, reply: encode(&reply) })?;
        }
        Ok(all)
    }

    fn decide(&mut self, id: TransactionId, commits: bool, at: &Applied) -> TransactionReply {
        let (scope, commands) = match self.table.decide(id) {
            Ok(prepared) => prepared,
            Err(reply) => return reply,
        };
        self.table.unlock(id, &keys_of::<S>(&commands));
        if !commits {
            return TransactionReply::Done;
        }
        let replies = self.carry_out(&commands, at);
        self.table.applied(scope, replies.clone());
        TransactionReply::Applied(replies)
    }

    /// Applies commands that were admitted, which are therefore commands.
    fn carry_out(&mut self, commands: &[Vec<u8>], at: &Applied) -> Vec<Vec<u8>> {
        let service = &mut self.service;
        let apply = |bytes: &Vec<u8>| with::<S::Command, _>(bytes, |command| encode(&service.apply(command, at)));
        commands.iter().map(apply).map(Option::unwrap_or_default).collect()
    }

    fn ask(&self, query: &[u8], ignores_locks: bool) -> TransactionAnswer {
        let answered = with::<S::Query, _>(query, |query| {
            let mut keys = Keys::default();
            S::query_keys(query, &mut keys);
            match self.table.conflict(&keys).filter(|_| !ignores_locks) {
                Some(holder) => TransactionAnswer::Busy(holder),
                None => TransactionAnswer::Answered(encode(&self.service.answer(query))),
            }
        });
        answered.unwrap_or(TransactionAnswer::Invalid)
    }
}

/// The keys of a part's commands.
fn keys_of<S: TransactionService>(commands: &[Vec<u8>]) -> Keys {
    let mut keys = Keys::default();
    for bytes in commands {
        with::<S::Command, _>(bytes, |command| S::keys(command, &mut keys));
    }
    keys
}

/// Calls `run` with the value that the bytes are, if they are one.
fn with<C: Command, T>(bytes: &[u8], run: impl FnOnce(&Archived<C>) -> T) -> Option<T> {
    let mut aligned: AlignedVec = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    rkyv::access::<Archived<C>, rancor::Error>(&aligned).ok().map(run)
}

/// Encodes a reply or an answer. One that can't be encoded becomes bytes that can't be decoded.
fn encode(value: &impl Command) -> Vec<u8> {
    rkyv::to_bytes::<rancor::Error>(value).map(|bytes| bytes.to_vec()).unwrap_or_default()
}

impl<S: TransactionService> Replicated for Transactional<S> {
    type Command = TransactionCommand;
    type Reply = TransactionReply;

    const SCHEMA: Schema = S::SCHEMA.in_transactions_of::<S::Command>();

    fn apply(&mut self, command: &Archived<TransactionCommand>, at: &Applied) -> TransactionReply {
        self.table.advance(at.time.0);
        let Ok(command) = rkyv::deserialize::<TransactionCommand, rancor::Error>(command) else {
            return TransactionReply::Refused(Refusal::Invalid);
        };
        match command {
            TransactionCommand::Prepare { scope, .. } | TransactionCommand::Settle(scope)
                if !self.is_settled_by(&scope.shards) =>
            {
                TransactionReply::Refused(Refusal::Invalid)
            }
            TransactionCommand::Apply(commands) => self.apply_alone(&commands, at),
            TransactionCommand::Prepare { scope, commands } => self.prepare(scope, commands, at),
            TransactionCommand::Decide { id, commits } => self.decide(id, commits, at),
            TransactionCommand::Settle(scope) => self.table.settle(scope),
            TransactionCommand::Forget { ids, by_coordinator } => {
                ids.into_iter().for_each(|id| self.table.forget(id, by_coordinator));
                TransactionReply::Done
            }
        }
    }

    /// The table comes first, behind its length.
    fn snapshot(&self) -> Snapshot {
        let (now, records) = self.table.save();
        self.service.snapshot().behind(move |to| {
            let table = rkyv::to_bytes::<rancor::Error>(&(now, records)).map_err(io::Error::other)?;
            to.write_all(&(table.len() as u64).to_le_bytes())?;
            to.write_all(&table)
        })
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut len = [0; 8];
        from.read_exact(&mut len)?;
        let mut bytes = Vec::new();
        let len = u64::from_le_bytes(len);
        if Read::take(&mut *from, len).read_to_end(&mut bytes)? as u64 != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut aligned: AlignedVec = AlignedVec::with_capacity(bytes.len());
        aligned.extend_from_slice(&bytes);
        let table = rkyv::from_bytes::<(u64, Vec<TransactionRecord>), rancor::Error>(&aligned);
        let (now, records) = table.map_err(io::Error::other)?;
        self.service.restore(from)?;
        self.table = Table::restore(now, records, keys_of::<S>);
        Ok(())
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.service.view_changed(change);
    }

    /// A service's timer waits while keys are locked, since it may change what the keys stand for.
    fn wake_at(&self) -> Option<Hlc> {
        let service = self.service_wake_at();
        service.into_iter().chain(self.table.wake_at().map(Hlc)).min()
    }

    fn woken(&mut self, at: &Applied) {
        self.table.advance(at.time.0);
        self.wake_service(at);
    }
}

impl<S: TransactionService> Transactional<S> {
    /// The number of transactions that it remembers.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.table.save().1.len()
    }

    #[cfg(test)]
    pub(crate) fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    fn service_wake_at(&self) -> Option<Hlc> {
        if self.table.is_unlocked() { self.service.wake_at() } else { None }
    }

    fn wake_service(&mut self, at: &Applied) {
        if self.service_wake_at().is_some_and(|wake_at| wake_at <= at.time) {
            self.service.woken(at);
        }
    }
}

impl<S: TransactionService> QueryService for Transactional<S> {
    type Query = TransactionQuery;
    type Answer = TransactionAnswer;

    fn answer(&self, query: &Archived<TransactionQuery>) -> TransactionAnswer {
        match query {
            Archived::<TransactionQuery>::Ask { query, ignores_locks } => self.ask(query, *ignores_locks),
            Archived::<TransactionQuery>::Stale { start } => {
                TransactionAnswer::Stale(self.table.stale(start.to_native()))
            }
        }
    }
}

impl<S: TransactionService + Partitioned> Partitioned for Transactional<S> {
    type Key = S::Key;

    fn shard_of(key: &S::Key, shards: u32) -> u32 {
        S::shard_of(key, shards)
    }
}

impl<S> Deref for Transactional<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.service
    }
}

impl<S> fmt::Debug for Transactional<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactional").field("table", &self.table).finish_non_exhaustive()
    }
}
