//! The operations of clients on a key, and the model that must explain them.

use std::pin::Pin;

use porcupine_rs::Model;
use squall::Group;
use squall_redis::{
    Reply, Store,
    message::{AnsweredBy, StoreCommand},
    words,
};

/// An operation on a key. `None` stands for a result that no client was told, and for an absent value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Get(Option<i64>),
    Set(i64),
    /// The value before, and the value now.
    Swap(Option<Option<i64>>, i64),
    /// The sum.
    Incr(Option<i64>),
}

#[derive(Clone, Debug)]
pub(super) struct Register;

impl Model for Register {
    type State = Option<i64>;
    type Op = Step;
    type Metadata = ();

    fn init() -> Option<i64> {
        None
    }

    fn step(state: &Option<i64>, step: &Step) -> (bool, Option<i64>) {
        match *step {
            Step::Get(seen) => (seen == *state, *state),
            Step::Set(value) => (true, Some(value)),
            Step::Swap(old, new) => (old.is_none_or(|old| old == *state), Some(new)),
            Step::Incr(told) => {
                let sum = state.unwrap_or(0) + 1;
                (told.is_none_or(|told| told == sum), Some(sum))
            }
        }
    }
}

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

pub(super) fn number(reply: &Reply) -> Option<i64> {
    match reply {
        Reply::Integer(number) => Some(*number),
        Reply::Text(text) => Some(text.integer().expect("only numbers are set")),
        Reply::Null => None,
        other => panic!("{other:?} in the place of a number"),
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
