//! One attempt at a transaction over several shards: its votes, its outcome, and the shards that know it.

use squall_fabric::Time;

use super::message::{Refusal, Scope, TransactionCommand, TransactionReply};
use crate::clients::client::ClientError;

/// A reason for which nothing of a transaction takes effect, or for which that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The shard has refused it.
    Refused(Refusal),
    /// The message was not applied, and never will be.
    NotApplied(ClientError),
    /// The shard has not answered, or not to the point.
    Unanswered(String),
}

/// An attempt at a transaction, or the settlement of one whose coordinator does not end it.
///
/// Its outcome is that of the votes. It takes effect if all shards have voted for it, and not if one has not. Votes
/// don't change, so all who ask come to the same outcome.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) scope: Scope,
    places: Vec<Participant>,
    pub(crate) outcome: Option<bool>,
    /// The first shard that did not vote for it, with the reason.
    pub(crate) trouble: Option<(u32, Trouble)>,
    /// The request whose attempt this is, as long as its caller waits. A settlement has none.
    pub(crate) request: Option<u64>,
    pub(crate) is_own: bool,
    /// The time at which it is left to others.
    pub(crate) give_up: Time,
}

#[derive(Debug)]
struct Participant {
    shard: u32,
    step: VoteStep,
    /// The number of messages that were sent again.
    repeats: u32,
    replies: Option<Vec<Vec<u8>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum VoteStep {
    /// The shard is asked to prepare these commands. That is done once.
    Preparing(Vec<Vec<u8>>),
    /// It is asked for its vote, which it then gives, if it has not.
    Asking,
    /// It has voted for the transaction, and must be told the outcome.
    Voted,
    /// It is told the outcome.
    Deciding,
    Ended,
}

/// The next thing to do for a place, after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The place's command must be sent.
    Send(usize),
    /// It must be sent again after a pause, so many times after others.
    Again(usize, u32),
}

impl Participant {
    fn again(&mut self, place: usize) -> Vec<Next> {
        self.repeats += 1;
        vec![Next::Again(place, self.repeats - 1)]
    }
}

impl Round {
    /// Makes an attempt at a transaction of these commands, by place.
    pub(crate) fn attempt(scope: Scope, parts: Vec<Vec<Vec<u8>>>, request: u64, give_up: Time) -> Round {
        let steps = parts.into_iter().map(VoteStep::Preparing);
        Round { request: Some(request), is_own: true, ..Round::new(scope, steps, give_up) }
    }

    /// Makes the settlement of another's transaction.
    pub(crate) fn settlement(scope: Scope, give_up: Time) -> Round {
        Round::new(scope, std::iter::repeat(VoteStep::Asking), give_up)
    }

    fn new(scope: Scope, steps: impl Iterator<Item = VoteStep>, give_up: Time) -> Round {
        let places = scope.shards.iter().zip(steps);
        let places = places.map(|(&shard, step)| Participant { shard, step, repeats: 0, replies: None }).collect();
        Round { scope, places, outcome: None, trouble: None, request: None, is_own: false, give_up }
    }

    /// Returns the command that a place's shard is to be sent, if there is one.
    pub(crate) fn command(&self, place: usize) -> Option<(u32, TransactionCommand)> {
        let Participant { shard, step, .. } = self.places.get(place)?;
        let (scope, id) = (self.scope.clone(), self.scope.id);
        let command = match (step, self.outcome) {
            (VoteStep::Preparing(commands), _) => TransactionCommand::Prepare { scope, commands: commands.clone() },
            (VoteStep::Asking, _) => TransactionCommand::Settle(scope),
            (VoteStep::Deciding, Some(commits)) => TransactionCommand::Decide { id, commits },
            _ => return None,
        };
        Some((*shard, command))
    }

    /// Takes the answer to a place's command, and returns the commands to send now.
    pub(crate) fn heard(&mut self, place: usize, reply: Result<TransactionReply, ClientError>) -> Vec<Next> {
        let Some(at) = self.places.get_mut(place) else { return Vec::new() };
        let shard = at.shard;
        let is_preparing = matches!(at.step, VoteStep::Preparing(_));
        let against = match reply {
            Ok(TransactionReply::Applied(replies)) => {
                // It is a proof, also where a shard that has forgotten the transaction has answered before.
                self.outcome = Some(true);
                (at.step, at.replies) = (VoteStep::Ended, Some(replies));
                None
            }
            _ if matches!(at.step, VoteStep::Voted | VoteStep::Ended) => None,
            // These answer no outcome, but a question before it.
            Ok(
                TransactionReply::Prepared
                | TransactionReply::Committed
                | TransactionReply::Refused(Refusal::Full | Refusal::Expired { .. }),
            ) if at.step == VoteStep::Deciding => {
                return Vec::new();
            }
            Ok(_) if at.step == VoteStep::Deciding => {
                at.step = VoteStep::Ended;
                None
            }
            Ok(TransactionReply::Prepared) => {
                at.step = VoteStep::Voted;
                None
            }
            Ok(TransactionReply::Committed) => {
                self.outcome = Some(true);
                // The replies come with the outcome, and only its coordinator needs them.
                at.step = if self.is_own { VoteStep::Voted } else { VoteStep::Ended };
                None
            }
            // The shard could not keep its vote, so it has none yet.
            Ok(TransactionReply::Refused(Refusal::Full | Refusal::Expired { .. })) if !is_preparing => {
                return at.again(place);
            }
            Ok(TransactionReply::Refused(refusal)) => Some(Trouble::Refused(refusal)),
            Ok(TransactionReply::Done | TransactionReply::Gone) => Some(Trouble::Unanswered(GONE.to_owned())),
            // No copy of the only message with which the shard could vote for it is left.
            Err(error) if is_preparing && error.is_not_applied() => Some(Trouble::NotApplied(error)),
            Err(ClientError::NoReply | ClientError::Reply(_)) if at.step == VoteStep::Deciding => {
                at.step = VoteStep::Ended;
                None
            }
            Err(_) => {
                if is_preparing {
                    at.step = VoteStep::Asking;
                }
                return at.again(place);
            }
        };
        if let Some(trouble) = against {
            at.step = VoteStep::Ended;
            self.outcome.get_or_insert(false);
            self.trouble.get_or_insert((shard, trouble));
        }
        self.decide()
    }

    /// Tells the outcome, as soon as there is one, to those that wait for it.
    fn decide(&mut self) -> Vec<Next> {
        if self.outcome.is_none() && self.places.iter().all(|place| place.step == VoteStep::Voted) {
            self.outcome = Some(true);
        }
        if self.outcome.is_none() {
            return Vec::new();
        }
        let voted = self.places.iter_mut().enumerate().filter(|(_, place)| place.step == VoteStep::Voted);
        voted
            .map(|(index, place)| {
                place.step = VoteStep::Deciding;
                Next::Send(index)
            })
            .collect()
    }

    /// Whether all shards know the outcome.
    pub(crate) fn is_over(&self) -> bool {
        self.places.iter().all(|place| place.step == VoteStep::Ended)
    }

    /// Takes the replies of all places. It is an error, with the shard, if one has none.
    pub(crate) fn take_replies(&mut self) -> Result<Vec<Vec<Vec<u8>>>, u32> {
        self.places.iter_mut().map(|place| place.replies.take().ok_or(place.shard)).collect()
    }

    /// Returns a shard that has not answered yet.
    pub(crate) fn open(&self) -> Option<u32> {
        let is_open = |place: &&Participant| !matches!(place.step, VoteStep::Voted | VoteStep::Ended);
        self.places.iter().find(is_open).map(|place| place.shard)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

const GONE: &str = "the transaction has expired, and the shard does not remember it any more";
