//! The errors of requests, in Redis' words, which clients look at.

// The types that rkyv derives have no documentation.
#![allow(missing_docs)]

use std::borrow::Cow;

use rkyv::{Archive, Deserialize, Serialize, with::AsOwned};

/// An error reply: a code in capital letters, a space, and a text.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(#[rkyv(with = AsOwned)] Cow<'static, str>);

impl Error {
    /// The value is of another type.
    pub const WRONG_TYPE: Error = Error::fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// The words make no sense together.
    pub const SYNTAX: Error = Error::fixed("ERR syntax error");
    /// A word or a value is no whole number of 64 bits.
    pub const NOT_AN_INTEGER: Error = Error::fixed("ERR value is not an integer or out of range");
    /// A word or a value is no number.
    pub const NOT_A_FLOAT: Error = Error::fixed("ERR value is not a valid float");
    /// A sum exceeds 64 bits.
    pub const OVERFLOW: Error = Error::fixed("ERR increment or decrement would overflow");
    /// A number is outside of its range.
    pub const OUT_OF_RANGE: Error = Error::fixed("ERR value is out of range");
    /// A count is negative.
    pub const NOT_POSITIVE: Error = Error::fixed("ERR value is out of range, must be positive");
    /// A value would be longer than the limit.
    pub const TOO_LONG: Error = Error::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    /// The command needs a key that exists.
    pub const NO_SUCH_KEY: Error = Error::fixed("ERR no such key");

    /// An error with a fixed text.
    pub const fn fixed(text: &'static str) -> Error {
        Error(Cow::Borrowed(text))
    }

    /// An error that repeats a part of the request.
    pub fn new(text: String) -> Error {
        Error(Cow::Owned(text))
    }

    /// The error of a command with too few words, or too many. `name` is as in the table, in small letters.
    pub fn arity(name: &str) -> Error {
        Error::new(format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// The error for a subcommand that `command`, given in capital letters, does not have.
    pub fn unknown_subcommand(command: &str, word: &[u8]) -> Error {
        Error::new(format!("ERR unknown subcommand '{}'. Try {command} HELP.", excerpt(word)))
    }

    /// The error for a subcommand with words that it does not take.
    pub fn wrong_subcommand(command: &str, word: &[u8]) -> Error {
        let name = excerpt(word);
        let text = "ERR unknown subcommand or wrong number of arguments for";
        Error::new(format!("{text} '{name}'. Try {command} HELP."))
    }

    /// The code and the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The most bytes of a client's own words that an error repeats.
pub(crate) const EXCERPT_BYTES: usize = 128;

/// The part of a client's word that an error repeats.
pub(crate) fn excerpt(word: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&word[..word.len().min(EXCERPT_BYTES)])
}
