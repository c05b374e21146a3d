//! A group as the threads that serve its clients see it, whatever its commands are.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use rkyv::{Archived, rancor, util::AlignedVec};
use squall_fabric::sync::Lock;

use super::{budget::Permit, outbox::Outbox, served::Served};
use crate::{
    calls::{
        envelope::Envelope,
        error::{ReadError, SubmitError},
        read::Read,
        session::{SessionId, Trailer},
        submit::Sending,
    },
    clients::{
        changes::ChangePlace,
        query::{JsonForm, QueryService},
        wire::{Consistency, Members, ToClient},
    },
    group::handle::Group,
};

/// The requests that clients' threads make of a group.
pub(crate) trait Backend: Send + Sync {
    /// Sends a message once there is room; the result then resolves.
    fn sending(&self, command: &[u8], trailer: Trailer) -> Sending;

    /// Sends a message, and waits until it is accepted.
    fn send(&self, command: &[u8], trailer: Trailer) -> Result<(), SubmitError> {
        self.sending(command, trailer).wait()
    }

    /// Sends a message that is nothing but a trailer, if there is room.
    fn try_send(&self, trailer: Trailer) -> Result<(), SubmitError>;

    /// Makes the replica answer a query. The answer is queued whenever it comes.
    fn query(&self, query: Query);

    /// Tells a listener the answers of a session, from the number `first` on, that were given here. `permit` is held
    /// until then.
    fn answers(&self, session: SessionId, first: u64, outbox: Arc<Outbox>, permit: Permit);

    /// Makes the replica answer a query, linearizably. The answer is handed on whenever it comes, with the place of the
    /// last change that it shows.
    fn query_at_place(&self, query: Vec<u8>, then: Then<(QueryResult, ChangePlace)>);

    /// Returns each session with the number of its messages that were delivered here.
    fn acts(&self) -> Read<Vec<(SessionId, u64)>>;

    /// Returns the form in JSON of the group's messages, if it has one.
    fn json(&self) -> Option<JsonForm> {
        None
    }
}

/// A query, and the place of its answer.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) number: u64,
    pub(crate) consistency: Consistency,
    pub(crate) query: Vec<u8>,
    pub(crate) outbox: Arc<Outbox>,
    /// Its part of the budget, given back with the answer.
    pub(crate) permit: Permit,
}

impl<R: QueryService> Backend for Group<Served<R>> {
    fn sending(&self, command: &[u8], trailer: Trailer) -> Sending {
        Sending::new(&self.shared().admission, Ok(Envelope::bytes(command).with_trailer(&trailer)))
    }

    fn try_send(&self, trailer: Trailer) -> Result<(), SubmitError> {
        self.shared().admission.try_send(Envelope::bytes(&[]).with_trailer(&trailer))
    }

    fn query(&self, query: Query) {
        let Query { number, consistency, query, outbox, permit } = query;
        ask(self, consistency, query, move |answer| {
            drop(permit);
            match answer {
                Ok(answer) => outbox.answer(number, answer),
                Err(error @ (ReadError::Unordered | ReadError::Panicked)) => {
                    outbox.answer(number, Err(error.to_string()));
                }
                // Another member may succeed.
                Err(error) => {
                    outbox.push(ToClient::Away { why: error.to_string(), members: Members::default() });
                    outbox.close();
                }
            }
        });
    }

    fn answers(&self, session: SessionId, first: u64, outbox: Arc<Outbox>, permit: Permit) {
        // A read shows the session to which its client has been told, and waits for the disks of a durable group.
        let read = self.read(move |served| served.answers(session, first));
        let then = move |answers: Result<Vec<ToClient>, ReadError>| {
            drop(permit);
            outbox.end_ask();
            match answers {
                Ok(answers) => answers.into_iter().for_each(|answer| outbox.push(answer)),
                Err(error) => {
                    outbox.push(ToClient::Away { why: error.to_string(), members: Members::default() });
                    outbox.close();
                }
            }
        };
        Asking::begin(read, Box::new(then));
    }

    fn query_at_place(&self, query: Vec<u8>, then: Then<(QueryResult, ChangePlace)>) {
        Asking::begin(self.read(move |served| (answer(&**served, &query), served.place())), then);
    }

    fn acts(&self) -> Read<Vec<(SessionId, u64)>> {
        self.peek(|served| served.sessions().acts().collect())
    }

    fn json(&self) -> Option<JsonForm> {
        R::JSON
    }
}

/// A replica's answer to a query: the answer's bytes, or the reason for which there are none.
pub(crate) type QueryResult = Result<Vec<u8>, String>;

/// Makes this node's replica answer a query, and hands on the answer whenever it comes.
pub(crate) fn ask<R: QueryService>(
    group: &Group<Served<R>>,
    consistency: Consistency,
    query: Vec<u8>,
    then: impl FnOnce(Result<QueryResult, ReadError>) + Send + 'static,
) {
    let look = move |served: &Served<R>| answer(&**served, &query);
    let read = match consistency {
        Consistency::Linearizable => group.read(look),
        Consistency::Local => group.peek(look),
    };
    Asking::begin(read, Box::new(then));
}

fn answer<R: QueryService>(replica: &R, query: &[u8]) -> QueryResult {
    let mut aligned: AlignedVec = AlignedVec::with_capacity(query.len());
    aligned.extend_from_slice(query);
    let query = rkyv::access::<Archived<R::Query>, rancor::Error>(&aligned)
        .map_err(|error| format!("it is no query of this group: {error}"))?;
    let answer = rkyv::to_bytes::<rancor::Error>(&replica.answer(query));
    answer.map(|bytes| bytes.to_vec()).map_err(|error| format!("the answer could not be serialized: {error}"))
}

/// A read that waits for its answer, on no thread: the thread that wakes it polls it. None once the answer has come.
struct Asking<T>(Lock<Option<(Read<T>, Then<T>)>>);

/// A function that takes an answer.
pub(super) type Then<T> = Box<dyn FnOnce(Result<T, ReadError>) + Send>;

impl<T: Send + 'static> Asking<T> {
    fn begin(read: Read<T>, then: Then<T>) {
        Arc::new(Asking(Lock::new(Some((read, then))))).wake();
    }
}

impl<T: Send + 'static> Wake for Asking<T> {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut asking = self.0.lock();
        let Some((read, _)) = &mut *asking else { return };
        let Poll::Ready(answer) = read.poll_answer(&Context::from_waker(&waker)) else { return };
        let asked = asking.take();
        drop(asking);
        if let Some((_, then)) = asked {
            then(answer);
        }
    }
}
