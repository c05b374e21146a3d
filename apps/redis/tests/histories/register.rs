//! The operations of clients on a key.

use std::pin::Pin;

use squall::Group;
use squall_redis::{
    Reply, Store,
    message::{AnsweredBy, StoreCommand},
    words,
};

use super::model::{Step, number};

/// An operation that a client asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    Get,
    Set(i64),
    Swap(i64),
    Incr,
}

impl Wish {
    /// The operation, with the result in the answer.
    pub(super) fn answered(self, reply: &Reply) -> Step {
        match self {
            Wish::Get => Step::Get(number(reply)),
            Wish::Set(value) => Step::Set(value),
            Wish::Swap(value) => Step::Swap(Some(number(reply)), value),
            Wish::Incr => Step::Incr(number(reply)),
        }
    }

    /// The operation without its result; `None` for a read, which then does not matter.
    pub(super) fn unanswered(self) -> Option<Step> {
        match self {
            Wish::Get => None,
            Wish::Set(value) => Some(Step::Set(value)),
            Wish::Swap(value) => Some(Step::Swap(None, value)),
            Wish::Incr => Some(Step::Incr(None)),
        }
    }
}

/// The reason for which there is no answer.
pub(super) enum Failed {
    /// Nothing was changed, for certain.
    NotApplied,
    Unknown,
}

pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Reply, Failed>>>>;

pub(super) fn ask(group: &Group<Store>, key: usize, wish: Wish) -> Answer {
    let line = match wish {
        Wish::Get => format!("get k{key}"),
        Wish::Set(value) => format!("set k{key} {value}"),
        Wish::Swap(value) => format!("set k{key} {value} get"),
        Wish::Incr => format!("incr k{key}"),
    };
    let request = words::join(line.split(' '));
    if matches!(wish, Wish::Get) {
        let read = group.read(move |store| store.look(&request, 1));
        return Box::pin(async move { read.await.map_err(|_| Failed::NotApplied) });
    }
    let submit = group.submit(&StoreCommand::Run { at_ms: 1, request, answered_by: AnsweredBy::Sender });
    Box::pin(async move {
        submit.await.map_err(|error| if error.is_not_applied() { Failed::NotApplied } else { Failed::Unknown })
    })
}
