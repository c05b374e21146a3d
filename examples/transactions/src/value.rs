//! Keys, and their values.

use serde::{Deserialize, Serialize};

/// The name of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Value {
    /// Any bytes.
    Bytes(Vec<u8>),
    /// A number, which can be [added to](crate::Operation::Add).
    Number(i64),
}

impl Key {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Key {
        Key(name.to_owned())
    }
}

impl From<String> for Key {
    fn from(name: String) -> Key {
        Key(name)
    }
}

impl Value {
    /// The length, in bytes; 0 for a number.
    pub(crate) fn len(&self) -> usize {
        match self {
            Value::Bytes(bytes) => bytes.len(),
            Value::Number(_) => 0,
        }
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Bytes(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        Value::Bytes(bytes)
    }
}
