//! The operations on two elements that are built in, and their combination of whole vectors.

use bytemuck::Pod;

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

/// The operand that comes first when a received chunk is combined: operands stand in rank order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperandOrder {
    MineFirst,
    TheirsFirst,
}

/// A function that combines the elements of the second slice into the first: bytes of equal length, aligned to their
/// type.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Combine(pub(crate) fn(&mut [u8], &[u8], OperandOrder));

#[inline]
pub(crate) fn combine_by<T: Pod>(into: &mut [u8], with: &[u8], order: OperandOrder, combine: impl Fn(T, T) -> T) {
    let (into, with): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(with));
    let pairs = into.iter_mut().zip(with);
    match order {
        OperandOrder::MineFirst => pairs.for_each(|(mine, theirs)| *mine = combine(*mine, *theirs)),
        OperandOrder::TheirsFirst => pairs.for_each(|(mine, theirs)| *mine = combine(*theirs, *mine)),
    }
}
