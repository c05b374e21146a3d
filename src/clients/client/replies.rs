//! The replies of all members of a shard to one command.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use squall_fabric::NodeId;
use squall_runtime::blocking;

use super::{call::decode, error::ClientError, gathering::Gathering};
use crate::clients::query::Portable;

/// A command for all members under way, and the [`Replies`] that will come.
///
/// It is a future for any executor; a plain thread calls [`wait`](SubmitAll::wait). It resolves once the command was
/// sent, since the members that answer are known then, and by its deadline at the latest. Dropping it withdraws
/// nothing.
#[derive(derive_more::Debug)]
#[debug("SubmitAll")]
#[must_use = "only the replies say whether the command was applied"]
pub struct SubmitAll<T> {
    gathering: Arc<Gathering>,
    reply: PhantomData<fn() -> T>,
}

impl<T: Portable> SubmitAll<T> {
    pub(crate) fn new() -> (SubmitAll<T>, Arc<Gathering>) {
        let gathering = Arc::<Gathering>::default();
        (SubmitAll { gathering: Arc::clone(&gathering), reply: PhantomData }, gathering)
    }

    /// Blocks this thread until the command was sent. Inside `apply`, or a read's closure, it fails with
    /// [`ClientError::InsideApply`] instead.
    pub fn wait(mut self) -> Result<Replies<T>, ClientError> {
        blocking::block_on(None, |context| Pin::new(&mut self).poll(context)).expect("there is no deadline")
    }
}

impl<T: Portable> Future for SubmitAll<T> {
    type Output = Result<Replies<T>, ClientError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Replies<T>, ClientError>> {
        let members = ready!(self.gathering.poll_members(context))?;
        let gathering = Arc::clone(&self.gathering);
        Poll::Ready(Ok(Replies { gathering, members, decode: Arc::new(|bytes| decode(bytes)) }))
    }
}

/// The replies of all members to one command, each as it comes.
///
/// A member's own replica gives each, after it has applied the command. In a durable group it comes once the command is
/// on all disks that count, as for one reply. A member that leaves before it has answered, or that has got the command
/// with another's state, gives none: [`ClientError::Gone`] stands in its place. By the deadline of the call each member
/// has a reply or an error.
#[derive(derive_more::Debug)]
#[debug("Replies({members:?})")]
pub struct Replies<T> {
    gathering: Arc<Gathering>,
    members: Vec<NodeId>,
    decode: Arc<Decode<T>>,
}

type Decode<T> = dyn Fn(&[u8]) -> Result<T, ClientError> + Send + Sync;

impl<T> Replies<T> {
    /// Returns the members that answer, by rank: those that had the shard's whole state in the view in which the
    /// command was sent.
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// Waits for the next reply, in the order in which they come. Returns None once each member has one. Inside
    /// `apply`, or a read's closure, those that have not come are [`ClientError::InsideApply`].
    pub async fn next(&mut self) -> Option<(NodeId, Result<T, ClientError>)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Blocks this thread until the [`next`](Replies::next) reply has come.
    pub fn wait_next(&mut self) -> Option<(NodeId, Result<T, ClientError>)> {
        blocking::block_on(None, |context| self.poll_next(context)).expect("there is no deadline")
    }

    /// Waits for all replies that have not been taken.
    pub async fn all(mut self) -> BTreeMap<NodeId, Result<T, ClientError>> {
        let mut all = BTreeMap::new();
        while let Some((node, reply)) = self.next().await {
            all.insert(node, reply);
        }
        all
    }

    /// Blocks this thread until all replies have come that have not been taken.
    pub fn wait_all(mut self) -> BTreeMap<NodeId, Result<T, ClientError>> {
        std::iter::from_fn(|| self.wait_next()).collect()
    }

    /// Waits for all replies that have not been taken, and returns the one that they all are. Members without a reply
    /// do not count.
    pub async fn agreed(self) -> Result<T, AgreementError>
    where
        T: PartialEq,
    {
        agree(self.all().await)
    }

    /// Blocks this thread until all replies have come, and returns the one that they are, as
    /// [`agreed`](Replies::agreed) does.
    pub fn wait_agreed(self) -> Result<T, AgreementError>
    where
        T: PartialEq,
    {
        agree(self.wait_all())
    }

    /// Takes the result of a method out of each reply. None is an error.
    pub(crate) fn typed<U: 'static>(self, typed: fn(T) -> Option<U>, none: fn() -> ClientError) -> Replies<U>
    where
        T: 'static,
    {
        let Replies { gathering, members, decode } = self;
        let decode = move |bytes: &[u8]| typed(decode(bytes)?).ok_or_else(none);
        Replies { gathering, members, decode: Arc::new(decode) }
    }

    fn poll_next(&self, context: &Context<'_>) -> Poll<Option<(NodeId, Result<T, ClientError>)>> {
        let next = ready!(self.gathering.poll_next(context));
        Poll::Ready(next.map(|(node, reply)| (node, reply.and_then(|bytes| (self.decode)(&bytes)))))
    }
}

/// A reason for which the replies of members are not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AgreementError {
    /// Replicas differ: the service's `apply` depends on more than the replica, the command and its place.
    #[error("the replicas differ: the members {} replied differently", listed(groups))]
    Differ {
        /// The members with the same reply together, most first.
        groups: Vec<Vec<NodeId>>,
    },
    /// No member replied. This is the error of one of them, if there was any.
    #[error("no member replied: {}", error.as_ref().map_or_else(|| "there was none".to_owned(), ToString::to_string))]
    NoReply {
        /// The error of a member.
        error: Option<ClientError>,
    },
}

fn listed(groups: &[Vec<NodeId>]) -> String {
    let names = |group: &Vec<NodeId>| group.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ");
    groups.iter().map(names).collect::<Vec<_>>().join(" | ")
}

fn agree<T: PartialEq>(replies: BTreeMap<NodeId, Result<T, ClientError>>) -> Result<T, AgreementError> {
    let mut groups: Vec<(T, Vec<NodeId>)> = Vec::new();
    let mut error = None;
    for (node, reply) in replies {
        match reply {
            Ok(reply) => match groups.iter_mut().find(|(of, _)| *of == reply) {
                Some((_, members)) => members.push(node),
                None => groups.push((reply, vec![node])),
            },
            Err(why) => error = error.or(Some(why)),
        }
    }
    groups.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    if groups.len() > 1 {
        return Err(AgreementError::Differ { groups: groups.into_iter().map(|(_, members)| members).collect() });
    }
    groups.pop().map(|(reply, _)| reply).ok_or(AgreementError::NoReply { error })
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn replies(replies: &[(u32, Option<i64>)]) -> BTreeMap<NodeId, Result<i64, ClientError>> {
        let reply = |reply: Option<i64>| reply.ok_or_else(|| ClientError::Gone("it has left".to_owned()));
        replies.iter().map(|&(node, of)| (NodeId(node), reply(of))).collect()
    }

    #[test]
    fn members_that_differ_are_named_and_those_without_a_reply_do_not_count() {
        assert_eq!(agree(replies(&[(1, Some(7)), (2, None), (3, Some(7))])), Ok(7));
        let error = agree(replies(&[(1, Some(8)), (2, Some(7)), (3, Some(7))])).unwrap_err();
        assert_eq!(error, AgreementError::Differ { groups: vec![vec![NodeId(2), NodeId(3)], vec![NodeId(1)]] });
        assert!(error.to_string().ends_with("2, 3 | 1 replied differently"), "{error}");
        assert!(matches!(agree(replies(&[(1, None)])), Err(AgreementError::NoReply { error: Some(_) })));
    }

    #[test]
    fn each_member_has_one_reply_and_a_failure_ends_the_wait_for_the_rest() {
        let (call, gathering) = SubmitAll::<i64>::new();
        gathering.sent([1, 2, 3].map(NodeId).to_vec());
        let mut replies = call.wait().unwrap();
        assert_eq!(replies.members(), [1, 2, 3].map(NodeId));
        gathering.reply(NodeId(2), Err(ClientError::Invalid));
        gathering.reply(NodeId(2), Err(ClientError::NoReply));
        gathering.reply(NodeId(9), Err(ClientError::NoReply));
        assert_eq!(replies.wait_next(), Some((NodeId(2), Err(ClientError::Invalid))));
        gathering.fail(&ClientError::SessionEnded);
        let rest = replies.wait_all();
        assert_eq!(rest, [1, 3].map(|node| (NodeId(node), Err(ClientError::SessionEnded))).into());
    }

    #[test]
    fn a_command_that_was_not_sent_has_no_replies() {
        let (call, gathering) = SubmitAll::<i64>::new();
        gathering.fail(&ClientError::Full { max: 1 });
        assert_eq!(call.wait().map(|replies| replies.members().len()), Err(ClientError::Full { max: 1 }));
    }
}
