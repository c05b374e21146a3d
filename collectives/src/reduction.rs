//! The reductions: operations on two elements, built in or the user's.

use std::{marker::PhantomData, sync::Arc};

use crate::{
    CollectiveError, Element,
    combine::{Builtin, Combine, OperandOrder, combine_by},
};

/// An operation on elements of type `T`, built in or the user's. It must be associative. Floats, whose operations are
/// only nearly so, get the same result on every rank nevertheless.
#[derive(Clone, derive_more::Debug)]
#[debug("{kind:?}")]
pub struct Reduction<T> {
    kind: ReductionKind<T>,
}

#[derive(Clone, derive_more::Debug)]
enum ReductionKind<T> {
    #[debug("{_0:?}")]
    Builtin(Builtin),
    #[debug("User {{ commutative: {commutative} }}")]
    User { commutative: bool, combine: Arc<UserCombine>, of: PhantomData<T> },
}

type UserCombine = dyn Fn(&mut [u8], &[u8], OperandOrder) + Send + Sync;

/// The operation that a lane calls, without the element's type.
#[derive(Clone, derive_more::Debug)]
pub(crate) enum Operator {
    #[debug("Builtin")]
    Builtin(Combine),
    #[debug("User")]
    User(Arc<UserCombine>),
}

impl Operator {
    #[inline]
    pub(crate) fn combine(&self, into: &mut [u8], with: &[u8], order: OperandOrder) {
        match self {
            Operator::Builtin(combine) => combine.0(into, with, order),
            Operator::User(combine) => combine(into, with, order),
        }
    }
}

impl<T: Element> Reduction<T> {
    /// An operation of the user's: `combine(a, b)`, where `a` comes from lower ranks than `b`.
    ///
    /// It must be associative, and give the same on every rank. An operation that is not `commutative` is never carried
    /// out by the [ring](crate::Algorithm::Ring).
    pub fn user(commutative: bool, combine: impl Fn(T, T) -> T + Send + Sync + 'static) -> Reduction<T> {
        let combine: Arc<UserCombine> =
            Arc::new(move |into: &mut [u8], with: &[u8], order| combine_by(into, with, order, &combine));
        Reduction { kind: ReductionKind::User { commutative, combine, of: PhantomData } }
    }

    pub(crate) fn is_commutative(&self) -> bool {
        match self.kind {
            ReductionKind::Builtin(_) => true,
            ReductionKind::User { commutative, .. } => commutative,
        }
    }

    pub(crate) fn operator(&self) -> Result<Operator, CollectiveError> {
        match &self.kind {
            ReductionKind::Builtin(builtin) => T::builtin(*builtin)
                .map(Operator::Builtin)
                .ok_or(CollectiveError::Undefined { builtin: *builtin, element: T::NAME }),
            ReductionKind::User { combine, .. } => Ok(Operator::User(Arc::clone(combine))),
        }
    }
}

impl<T> From<Builtin> for Reduction<T> {
    fn from(builtin: Builtin) -> Reduction<T> {
        Reduction { kind: ReductionKind::Builtin(builtin) }
    }
}
