//! A search for any order that explains a history, by an independent checker that knows nothing of time stamps.

use std::{borrow::Cow, time::Duration};

use porcupine_rs::{CheckResult, Model, check_operations_timeout};
use squall_transactions::{Keyspace, Moment, Placement, Reply, Transaction, history::Record};

/// More time than any history here needs, even on a busy machine.
const CHECK_LIMIT: Duration = Duration::from_secs(60);

/// A store that carries out one transaction after the other.
#[derive(Clone, Debug)]
struct Serial;

#[derive(Clone, Debug)]
struct Tried {
    transaction: Transaction,
    placement: Placement,
    /// `None` if no client was told.
    replies: Option<Vec<Reply>>,
}

impl Model for Serial {
    type State = Keyspace;
    type Op = Tried;
    type Metadata = ();

    fn init() -> Keyspace {
        Keyspace::default()
    }

    fn step(state: &Keyspace, tried: &Tried) -> (bool, Keyspace) {
        let mut after = state.clone();
        let replies = after.apply(&tried.transaction, &tried.placement);
        (tried.replies.as_ref().is_none_or(|told| *told == replies), after)
    }
}

/// Whether some order of these transactions, each between its submission and its end, gives all their replies.
pub(crate) fn is_explained(entries: &[(Cow<'_, Record>, Option<Moment>)], placement: &Placement) -> bool {
    let operation = |(record, _): &(Cow<'_, Record>, _)| porcupine_rs::Operation {
        client_id: Some(record.client as u32),
        call_time: record.submitted as i64,
        return_time: i64::try_from(record.ended).unwrap_or(i64::MAX),
        op: Tried {
            transaction: record.transaction.clone(),
            placement: placement.clone(),
            replies: record.replies().map(<[Reply]>::to_vec),
        },
        metadata: None,
    };
    let operations: Vec<porcupine_rs::Operation<Serial>> = entries.iter().map(operation).collect();
    match check_operations_timeout(&operations, CHECK_LIMIT) {
        CheckResult::Ok => true,
        CheckResult::Illegal => false,
        CheckResult::Unknown => panic!("not decided within {CHECK_LIMIT:?}: {} transactions", entries.len()),
    }
}
