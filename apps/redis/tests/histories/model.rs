//! The model that must explain the history of a key.

use porcupine_rs::Model;
use squall_redis::Reply;

/// An operation on a key. `None` stands for a result that no client was told, and for an absent value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Get(Option<i64>),
    Set(i64),
    /// The value before, and the value now.
    Swap(Option<Option<i64>>, i64),
    /// The sum.
    Incr(Option<i64>),
    /// Whether there was a value.
    Del(bool),
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
            Step::Del(existed) => (existed == state.is_some(), None),
        }
    }
}

/// The number in an answer, if there is one.
pub(super) fn number(reply: &Reply) -> Option<i64> {
    match reply {
        Reply::Integer(number) => Some(*number),
        Reply::Text(text) => Some(text.integer().expect("only numbers are set")),
        Reply::Null => None,
        other => panic!("{other:?} in the place of a number"),
    }
}
