//! The numbers that vectors consist of.

use bytemuck::Pod;

use crate::combine::{Builtin, Combine, OperandOrder, combine_by};

/// A number that operations work on: `u8`, `i32`, `u32`, `i64`, `u64`, `f32` or `f64`.
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// The type's name, for messages.
    const NAME: &'static str;

    #[doc(hidden)]
    fn builtin(builtin: Builtin) -> Option<Combine>;

    #[doc(hidden)]
    fn wrap(vector: Vec<Self>) -> Vector;

    #[doc(hidden)]
    fn unwrap(vector: Vector) -> Option<Vec<Self>>;
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

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($element:ident $variant:ident $combines:ident),*) => {
        /// A vector of any of the types.
        #[doc(hidden)]
        #[derive(Debug)]
        pub enum Vector {
            $(
                #[allow(missing_docs, reason = "it is one of the elements")]
                $variant(Vec<$element>),
            )*
        }

        impl Vector {
            pub(crate) fn bytes(&self) -> &[u8] {
                match self {
                    $(Vector::$variant(vector) => bytemuck::cast_slice(vector),)*
                }
            }

            pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
                match self {
                    $(Vector::$variant(vector) => bytemuck::cast_slice_mut(vector),)*
                }
            }
        }

        $(
            impl sealed::Sealed for $element {}

            impl Element for $element {
                const NAME: &'static str = stringify!($element);

                fn builtin(builtin: Builtin) -> Option<Combine> {
                    $combines!($element, builtin)
                }

                fn wrap(vector: Vec<$element>) -> Vector {
                    Vector::$variant(vector)
                }

                fn unwrap(vector: Vector) -> Option<Vec<$element>> {
                    match vector {
                        Vector::$variant(vector) => Some(vector),
                        _ => None,
                    }
                }
            }
        )*
    };
}

macro_rules! integer {
    ($element:ident, $builtin:ident) => {
        Some(Combine(match $builtin {
            Builtin::Sum => |into, with, order| combine_by(into, with, order, $element::wrapping_add),
            Builtin::Product => |into, with, order| combine_by(into, with, order, $element::wrapping_mul),
            Builtin::Min => |into, with, order| combine_by::<$element>(into, with, order, Ord::min),
            Builtin::Max => |into, with, order| combine_by::<$element>(into, with, order, Ord::max),
            Builtin::And => |into, with, order| combine_by::<$element>(into, with, order, |a, b| a & b),
            Builtin::Or => |into, with, order| combine_by::<$element>(into, with, order, |a, b| a | b),
            Builtin::Xor => |into, with, order| combine_by::<$element>(into, with, order, |a, b| a ^ b),
        }))
    };
}

// Written out, since `f64::min` leaves open which of two zeros it gives: ranks would differ.
macro_rules! float {
    ($element:ident, $builtin:ident) => {
        Some(Combine(match $builtin {
            Builtin::Sum => |into, with, order| combine_by::<$element>(into, with, order, |a, b| a + b),
            Builtin::Product => |into, with, order| combine_by::<$element>(into, with, order, |a, b| a * b),
            Builtin::Min => {
                |into, with, order| combine_by::<$element>(into, with, order, |a, b| if b < a { b } else { a })
            }
            Builtin::Max => {
                |into, with, order| combine_by::<$element>(into, with, order, |a, b| if b > a { b } else { a })
            }
            Builtin::And | Builtin::Or | Builtin::Xor => return None,
        }))
    };
}

elements!(
    u8 U8 integer,
    i32 I32 integer,
    u32 U32 integer,
    i64 I64 integer,
    u64 U64 integer,
    f32 F32 float,
    f64 F64 float
);
