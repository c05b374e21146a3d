//! The operations on two elements.

use std::{marker::PhantomData, sync::Arc};

use crate::{CollectiveError, Element, schedule::OperandOrder};

/// The built-in operations. Integers wrap around. Of floats, `Min` and `Max` keep the first of two equals, and the
/// first where they can't be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// a + b
    Sum,
    /// a · b
    Product,
    /// The less of the two.
    Min,
    /// The greater of the two.
    Max,
    /// Bit by bit; integers only.
    And,
    /// Bit by bit; integers only.
    Or,
    /// Bit by bit; integers only.
    Xor,
}

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

/// A function that combines the elements of the second slice into the first: bytes of equal length, aligned to their
/// type.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Combine(pub(crate) fn(&mut [u8], &[u8], OperandOrder));

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

impl Builtin {
    /// Combines the elements of a slice into those of another of the same length, as a reduction of two ranks does.
    ///
    /// Does nothing where the operation is not defined: on bits of floats.
    pub fn combine<T: Element>(self, into: &mut [T], with: &[T]) {
        if let Some(combine) = T::builtin(self) {
            combine.0(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(with), OperandOrder::MineFirst);
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

#[inline]
pub(crate) fn combine_by<T: Element>(into: &mut [u8], with: &[u8], order: OperandOrder, combine: impl Fn(T, T) -> T) {
    let (into, with): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(with));
    let pairs = into.iter_mut().zip(with);
    match order {
        OperandOrder::MineFirst => pairs.for_each(|(mine, theirs)| *mine = combine(*mine, *theirs)),
        OperandOrder::TheirsFirst => pairs.for_each(|(mine, theirs)| *mine = combine(*theirs, *mine)),
    }
}
