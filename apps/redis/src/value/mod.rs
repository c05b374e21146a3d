//! The values of keys: one type in each module.

mod hash;
mod list;
mod ranked;
mod room;
mod set;
mod sorted_set;

pub use hash::Hash;
pub use list::{List, ListEnd};
pub(crate) use ranked::order;
pub use set::Set;
pub use sorted_set::SortedSet;

use crate::Text;

/// The longest value, in bytes (Redis' `proto-max-bulk-len`).
pub const MAX_VALUE_BYTES: usize = 512 << 20;

/// A key's value.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string.
    Text(Text),
    /// Strings in a row.
    List(Box<List>),
    /// Strings under names.
    Hash(Box<Hash>),
    /// Different strings.
    Set(Box<Set>),
    /// Different strings, each with a score, in its order.
    SortedSet(Box<SortedSet>),
}

impl Value {
    /// The type's name, as `TYPE` answers it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Text(_) => "string",
            Value::List(_) => "list",
            Value::Hash(_) => "hash",
            Value::Set(_) => "set",
            Value::SortedSet(_) => "zset",
        }
    }

    /// The number of elements; 1 for a string.
    pub fn elements(&self) -> usize {
        match self {
            Value::Text(_) => 1,
            Value::List(list) => list.len(),
            Value::Hash(hash) => hash.len(),
            Value::Set(set) => set.len(),
            Value::SortedSet(set) => set.len(),
        }
    }

    /// Bytes of memory beyond the value itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::Text(text) => text.heap_bytes(),
            Value::List(list) => size_of_val(&**list) + list.heap_bytes(),
            Value::Hash(hash) => size_of_val(&**hash) + hash.heap_bytes(),
            Value::Set(set) => size_of_val(&**set) + set.heap_bytes(),
            Value::SortedSet(set) => size_of_val(&**set) + set.heap_bytes(),
        }
    }
}

/// A type of values. A command that changes an absent key begins with the type's `Default`.
pub trait Typed: Default {
    /// The value, if it is of this type.
    fn of(value: &Value) -> Option<&Self>;

    /// The value, to change it, if it is of this type.
    fn of_mut(value: &mut Value) -> Option<&mut Self>;

    /// The value of a key that has this type.
    fn into_value(self) -> Value;

    /// Whether a key with this value ceases to exist, as with collections without elements.
    fn is_gone(&self) -> bool;
}

impl Default for Text {
    fn default() -> Text {
        Text::from(&b""[..])
    }
}

impl Typed for Text {
    fn of(value: &Value) -> Option<&Text> {
        if let Value::Text(text) = value { Some(text) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Text> {
        if let Value::Text(text) = value { Some(text) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Text(self)
    }

    fn is_gone(&self) -> bool {
        false
    }
}

macro_rules! collection {
    ($type:ident) => {
        impl Typed for $type {
            fn of(value: &Value) -> Option<&$type> {
                if let Value::$type(inner) = value { Some(inner) } else { None }
            }

            fn of_mut(value: &mut Value) -> Option<&mut $type> {
                if let Value::$type(inner) = value { Some(inner) } else { None }
            }

            fn into_value(self) -> Value {
                Value::$type(Box::new(self))
            }

            fn is_gone(&self) -> bool {
                self.is_empty()
            }
        }
    };
}

collection!(List);
collection!(Hash);
collection!(Set);
collection!(SortedSet);
