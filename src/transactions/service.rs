//! The trait of services that take part in transactions.

use rkyv::Archived;

use super::keys::Keys;
use crate::clients::query::QueryService;

/// A service whose commands can be parts of transactions over several shards. A group serves it as
/// [`Transactional`](super::Transactional).
///
/// # To ensure correctness
///
/// [`keys`](TransactionService::keys) names all of the state that a command reads or writes, and follows from the
/// command alone. Two commands without a key in common, or that both only read, have the same replies and effects in
/// either order.
///
/// No key may stand for state that [`view_changed`](crate::Replicated::view_changed) changes: that comes while keys are
/// locked, too. [`woken`](crate::Replicated::woken) comes only while none is.
pub trait TransactionService: QueryService {
    /// Adds the keys that a command reads and writes.
    fn keys(command: &Archived<Self::Command>, keys: &mut Keys);

    /// Adds the keys that a query reads.
    fn query_keys(query: &Archived<Self::Query>, keys: &mut Keys);

    /// Says whether a command can be carried out, with the keys as they are. A command with which
    /// [`apply`](crate::Replicated::apply) would panic should be refused here. The state stays so until the command is
    /// [applied](crate::Replicated::apply). The error is the reply that the caller gets; the transaction has no effect
    /// then, in no shard.
    fn check(&self, _command: &Archived<Self::Command>) -> Result<(), Self::Reply> {
        Ok(())
    }
}
