//! A connection's transaction: the requests that it has queued, and the keys that it watches.

use std::{collections::HashMap, mem};

use foldhash::fast::RandomState;

use crate::{
    Error, Reply,
    command::{CommandFn, Spec},
    message::{AnsweredBy, StoreCommand, WatchedKey},
};

/// The bytes that a queued request, and a watched key, take in the group's message besides their own.
const REQUEST_OVERHEAD: usize = 8;
const WATCHED_OVERHEAD: usize = 32;

/// The bytes that the message itself takes.
const MESSAGE_OVERHEAD: usize = 64;

/// The most queued requests that the server itself answers: a short one, such as `CLIENT LIST`, may have a long answer.
const MAX_LOCALS: usize = 1024;

/// A transaction; see the module.
#[derive(Debug)]
pub(super) struct Transaction {
    queue: Option<QueuedCommands>,
    watched: HashMap<Vec<u8>, WatchedKey, RandomState>,
    watched_bytes: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct QueuedCommands {
    requests: Vec<Vec<u8>>,
    locals: Locals,
    /// The commands of all requests, in their order.
    specs: Vec<&'static Spec>,
    bytes: usize,
    is_broken: bool,
}

/// The queued requests that the server itself answers.
#[derive(Debug, Default)]
pub(super) struct Locals(Vec<(usize, Vec<u8>)>);

/// The work of `EXEC`.
#[derive(Debug)]
pub(super) enum Exec {
    /// A command for the group.
    Command {
        command: StoreCommand,
        /// The bytes of the requests.
        bytes: usize,
        locals: Locals,
    },
    /// The server answers all requests by itself.
    Locals(Locals),
}

impl Transaction {
    /// A transaction that is not open. `max_bytes` is the longest message that the group takes.
    pub(super) fn new(max_bytes: usize) -> Transaction {
        Transaction { queue: None, watched: HashMap::default(), watched_bytes: 0, max_bytes }
    }

    /// Whether requests are queued.
    pub(super) fn is_open(&self) -> bool {
        self.queue.is_some()
    }

    /// The number of queued requests, if it is open.
    pub(super) fn queued(&self) -> Option<usize> {
        self.queue.as_ref().map(|queue| queue.requests.len() + queue.locals.0.len())
    }

    /// The bytes that it keeps; an estimate.
    pub(super) fn bytes(&self) -> usize {
        self.watched_bytes + self.queue.as_ref().filter(|queue| !queue.is_broken).map_or(0, |queue| queue.bytes)
    }

    /// Whether a queued request may need memory.
    pub(super) fn needs_memory(&self) -> bool {
        self.has(|spec| spec.flags.denies_oom)
    }

    /// Whether a queued request may change the state.
    pub(super) fn writes(&self) -> bool {
        self.has(|spec| matches!(spec.run, CommandFn::Write(_) | CommandFn::Block(_)))
    }

    fn has(&self, property: impl Fn(&Spec) -> bool) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.specs.iter().any(|spec| property(spec)))
    }

    /// The queued requests with their commands, in their order.
    pub(super) fn requests(&self) -> impl Iterator<Item = (&'static Spec, &[u8])> {
        self.queue.iter().flat_map(|queue| {
            let (mut of_group, mut of_server) = (queue.requests.iter(), queue.locals.0.iter());
            queue.specs.iter().filter_map(move |&spec| {
                let request = match spec.run {
                    CommandFn::Local => of_server.next().map(|(_, request)| request),
                    _ => of_group.next(),
                };
                Some((spec, &**request?))
            })
        })
    }

    /// Takes out the commands of the queued requests, none if it is not open.
    pub(super) fn take_specs(&mut self) -> Vec<&'static Spec> {
        self.queue.as_mut().map(|queue| mem::take(&mut queue.specs)).unwrap_or_default()
    }

    pub(super) fn open(&mut self) -> Result<(), Error> {
        if self.is_open() {
            return Err(Error::fixed("ERR MULTI calls can not be nested"));
        }
        self.queue = Some(QueuedCommands::default());
        Ok(())
    }

    /// Notes that a request was refused, so that nothing will be carried out.
    pub(super) fn break_off(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.is_broken = true;
        }
    }

    /// Queues a request, which is taken out of the buffer. Nothing is kept of one that will not be carried out.
    ///
    /// # Panics
    ///
    /// If the transaction is not open.
    pub(super) fn queue(&mut self, request: &mut Vec<u8>, spec: &'static Spec) -> Result<(), Error> {
        let is_local = matches!(spec.run, CommandFn::Local);
        let queue = self.queue.as_mut().expect("requests are queued in an open transaction");
        queue.bytes += request.len() + REQUEST_OVERHEAD;
        if queue.bytes + self.watched_bytes + MESSAGE_OVERHEAD > self.max_bytes {
            *queue = QueuedCommands { is_broken: true, bytes: queue.bytes, ..QueuedCommands::default() };
            return Err(self.too_large());
        }
        if queue.is_broken {
            return Ok(());
        }
        if is_local && queue.locals.0.len() == MAX_LOCALS {
            *queue = QueuedCommands { is_broken: true, bytes: queue.bytes, ..QueuedCommands::default() };
            return Err(Error::new(format!(
                "ERR a transaction may have {MAX_LOCALS} requests that do not concern the data"
            )));
        }
        queue.specs.push(spec);
        let request = mem::take(request);
        if is_local {
            queue.locals.0.push((queue.requests.len() + queue.locals.0.len(), request));
        } else {
            queue.requests.push(request);
        }
        Ok(())
    }

    /// Watches more keys. A key that was watched before keeps its older state.
    pub(super) fn watch(&mut self, keys: Vec<WatchedKey>) -> Result<(), Error> {
        for watched in keys {
            if self.watched.contains_key(&watched.key) {
                continue;
            }
            let bytes = self.watched_bytes + watched.key.len() + WATCHED_OVERHEAD;
            if bytes + MESSAGE_OVERHEAD > self.max_bytes {
                return Err(self.too_large());
            }
            self.watched_bytes = bytes;
            self.watched.insert(watched.key.clone(), watched);
        }
        Ok(())
    }

    fn too_large(&self) -> Error {
        Error::new(format!(
            "ERR a transaction can't be replicated in whole: with the keys it watches it may have {} bytes, a quarter of a \
             replica's ring (ring_bytes)",
            self.max_bytes
        ))
    }

    /// Stops watching all keys.
    pub(super) fn unwatch(&mut self) {
        self.watched = HashMap::default();
        self.watched_bytes = 0;
    }

    /// Drops the queued requests, and stops watching all keys.
    pub(super) fn discard(&mut self) -> Result<(), Error> {
        self.queue.take().ok_or(Error::fixed("ERR DISCARD without MULTI"))?;
        self.unwatch();
        Ok(())
    }

    /// Takes out all requests, to be carried out at a time.
    pub(super) fn exec(&mut self, at_ms: u64, answered_by: AnsweredBy) -> Result<Exec, Error> {
        let queue = self.queue.take().ok_or(Error::fixed("ERR EXEC without MULTI"))?;
        let watched: Vec<_> = mem::take(&mut self.watched).into_values().collect();
        let bytes = queue.bytes + mem::take(&mut self.watched_bytes);
        if queue.is_broken {
            return Err(Error::fixed("EXECABORT Transaction discarded because of previous errors."));
        }
        if queue.requests.is_empty() && watched.is_empty() {
            return Ok(Exec::Locals(queue.locals));
        }
        let command = StoreCommand::Transaction { at_ms, watched, requests: queue.requests, answered_by };
        Ok(Exec::Command { command, bytes, locals: queue.locals })
    }
}

impl Locals {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Inserts the server's own answers at their places among those of the group.
    pub(super) fn join(self, reply: Reply, mut answer: impl FnMut(&[u8]) -> Reply) -> Reply {
        let Reply::Array(replies) = reply else { return reply };
        let mut all = Vec::with_capacity(replies.len() + self.0.len());
        let mut replies = replies.into_iter();
        for (place, request) in self.0 {
            all.extend(replies.by_ref().take(place - all.len()));
            all.push(answer(&request));
        }
        all.extend(replies);
        Reply::Array(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> &'static Spec {
        crate::command::find(name.as_bytes()).expect("there is such a command")
    }

    #[test]
    fn local_answers_take_their_places() {
        let mut transaction = Transaction::new(1000);
        transaction.open().expect("it is not open");
        for (request, is_local) in [("a", true), ("b", false), ("c", false), ("d", true), ("e", true), ("f", false)] {
            let spec = spec(if is_local { "ping" } else { "get" });
            transaction.queue(&mut request.into(), spec).expect("there is room");
        }
        let Ok(Exec::Command { command: StoreCommand::Transaction { requests, .. }, locals, .. }) =
            transaction.exec(1, AnsweredBy::Sender)
        else {
            panic!("the group must be asked");
        };
        let replies = requests.iter().map(Reply::bytes).collect();
        let joined = locals.join(Reply::Array(replies), |request| Reply::bytes(request));
        assert_eq!(joined, Reply::array_of_bytes(["a", "b", "c", "d", "e", "f"]));
    }

    #[test]
    fn a_transaction_beyond_one_message_is_refused_and_aborted() {
        let mut transaction = Transaction::new(1000);
        transaction.open().expect("it is not open");
        transaction.queue(&mut vec![0; 500], spec("get")).expect("there is room");
        assert!(transaction.queue(&mut vec![0; 500], spec("get")).is_err());
        assert!(transaction.exec(1, AnsweredBy::Sender).expect_err("it is broken").as_str().starts_with("EXECABORT "));
        assert!(!transaction.is_open());
    }

    #[test]
    fn a_transaction_has_few_requests_of_the_servers_own() {
        let mut transaction = Transaction::new(1 << 20);
        transaction.open().expect("it is not open");
        for _ in 0..MAX_LOCALS {
            transaction.queue(&mut b"ping".to_vec(), spec("ping")).expect("there is room");
        }
        assert!(transaction.queue(&mut b"ping".to_vec(), spec("ping")).is_err());
        assert!(transaction.exec(1, AnsweredBy::Sender).expect_err("it is broken").as_str().starts_with("EXECABORT "));
    }

    #[test]
    fn a_key_is_watched_since_it_was_first() {
        let key = |version| WatchedKey { key: b"k".to_vec(), present: true, version };
        let mut transaction = Transaction::new(1000);
        transaction.watch(vec![key(1)]).expect("there is room");
        transaction.watch(vec![key(2)]).expect("there is room");
        transaction.open().expect("it is not open");
        let Ok(Exec::Command { command: StoreCommand::Transaction { watched, .. }, .. }) =
            transaction.exec(1, AnsweredBy::Sender)
        else {
            panic!("the group must be asked");
        };
        assert_eq!(watched, [key(1)]);
    }
}
