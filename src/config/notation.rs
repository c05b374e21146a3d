//! The notations of values: each is read by one function, from a file and from a variable of the environment.

use std::{
    ffi::OsString,
    num::{IntErrorKind, ParseIntError},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IntoDeserializer},
};
use squall_ordered::Mode;
use squall_units::TimeUnit;
use toml::{Spanned, de::DeValue};

use super::{Backend, ConfigError, Spin, ValuePlace, file_text::File, security::Protection};

/// A value as it is written, of the setting with this key.
pub(super) struct Written<'a> {
    pub(super) key: &'a str,
    pub(super) place: &'a ValuePlace,
    pub(super) form: Form<'a>,
}

/// The form in which a source has a value.
pub(super) enum Form<'a> {
    Toml(&'a File<'a>, &'a Spanned<DeValue<'a>>),
    Variable(OsString),
}

/// A value of a file that has one of two types.
#[derive(Deserialize)]
#[serde(untagged)]
enum Either<A, B> {
    One(A),
    Other(B),
}

impl Written<'_> {
    /// Reads the value as a file has it; `parse` makes the same of a variable's text. `expected` is the error of
    /// another type in a file; None for TOML's own.
    fn read<T: DeserializeOwned>(
        &self,
        expected: Option<&str>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        match &self.form {
            Form::Toml(file, value) => T::deserialize((*value).clone().into_deserializer())
                .map_err(|error| file.error(expected.unwrap_or(error.message()), error.span().or(Some(value.span())))),
            Form::Variable(raw) => {
                let text = raw.to_str().ok_or_else(|| self.error("is not UTF-8"))?;
                parse(text.trim()).map_err(|problem| self.error(problem))
            }
        }
    }

    fn error(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError::value(self.place, self.key, problem)
    }
}

pub(super) fn text(written: &Written) -> Result<String, ConfigError> {
    written.read(None, |text| Ok(text.to_owned()))
}

pub(super) fn path(written: &Written) -> Result<PathBuf, ConfigError> {
    written.read(None, |text| Ok(text.into()))
}

pub(super) fn number<T: DeserializeOwned + FromStr<Err = ParseIntError>>(written: &Written) -> Result<T, ConfigError> {
    written.read(None, |text| parse(text, "a whole number"))
}

pub(super) fn id(written: &Written) -> Result<u32, ConfigError> {
    written.read(None, |text| parse(text, "the id of a node"))
}

pub(super) fn ids(written: &Written) -> Result<Vec<u32>, ConfigError> {
    written.read(None, |text| list(text, ',').iter().map(|id| parse(id, "ids of nodes, such as `1,2,3`")).collect())
}

/// Names, such as those of racks.
pub(super) fn names(written: &Written) -> Result<Vec<String>, ConfigError> {
    written.read(None, |text| Ok(list(text, ',')))
}

/// `true` or `false`.
pub(super) fn truth(written: &Written) -> Result<bool, ConfigError> {
    written.read(None, |text| text.parse().map_err(|_| format!("is {text:?}: give true or false")))
}

/// Members' ids, each with its addresses if it has some: only a variable has both.
pub(super) fn members(written: &Written) -> Result<Vec<(u32, Vec<String>)>, ConfigError> {
    let member = |entry: &str| {
        let (id, addresses) = entry.split_once('=').unwrap_or((entry, ""));
        let what = "the ids of all nodes, such as `1,2,3`, or `1=10.0.0.1:7700,2=10.0.0.2:7700+[fd00::2]:7700`";
        Ok((parse(id, what)?, list(addresses, '+')))
    };
    written.read(None, |text| text.split(',').map(member).collect())
}

/// A number of milliseconds, or a text such as "5s".
pub(super) fn millis(written: &Written) -> Result<Duration, ConfigError> {
    time(written, "expected a number of milliseconds, or a time such as \"5s\"", TimeUnit::Milliseconds)
}

/// A number of microseconds, or a text such as "5ms".
pub(super) fn micros(written: &Written) -> Result<Duration, ConfigError> {
    time(written, "expected a number of microseconds, or a time such as \"5ms\"", TimeUnit::Microseconds)
}

fn time(written: &Written, expected: &str, unit: TimeUnit) -> Result<Duration, ConfigError> {
    let text = match written.read(Some(expected), |text| Ok(Either::Other(text.to_owned())))? {
        Either::One(number) => u64::to_string(&number),
        Either::Other(text) => text,
    };
    squall_units::time(&text, unit).map_err(|remedy| written.error(format!("is {text:?}: {remedy}")))
}

/// A number of bytes, or a text such as "4MiB".
pub(super) fn size(written: &Written) -> Result<usize, ConfigError> {
    let expected = "expected a number of bytes, or a size such as \"4MiB\"";
    match written.read(Some(expected), |text| Ok(Either::Other(text.to_owned())))? {
        Either::One(bytes) => Ok(bytes),
        Either::Other(text) => {
            squall_units::size_in_memory(&text).map_err(|remedy| written.error(format!("is {text:?}: {remedy}")))
        }
    }
}

/// Addresses, or a single one.
pub(super) fn addresses(written: &Written) -> Result<Vec<String>, ConfigError> {
    let expected = "expected an address such as \"10.0.0.1:7700\", or a list of such";
    Ok(match written.read(Some(expected), |text| Ok(Either::Other(list(text, ','))))? {
        Either::One(address) => vec![address],
        Either::Other(addresses) => addresses,
    })
}

/// Addresses and ids, or a single one.
pub(super) fn contacts(written: &Written) -> Result<Vec<String>, ConfigError> {
    let expected = "expected an address such as \"10.0.0.1:7700\", an id, or a list of such";
    let parse = |text: &str| Ok(Either::Other(list(text, ',').into_iter().map(Either::Other).collect::<Vec<_>>()));
    let text = |contact: Either<u32, String>| match contact {
        Either::One(id) => id.to_string(),
        Either::Other(address) => address,
    };
    Ok(match written.read(Some(expected), parse)? {
        Either::One(contact) => vec![text(contact)],
        Either::Other(contacts) => contacts.into_iter().map(text).collect(),
    })
}

pub(super) fn spin(written: &Written) -> Result<Spin, ConfigError> {
    word(written, [("auto", Spin::Auto), ("always", Spin::Always), ("never", Spin::Never)])
}

pub(super) fn mode(written: &Written) -> Result<Mode, ConfigError> {
    word(written, [("ordered", Mode::Ordered), ("unordered", Mode::Unordered), ("durable", Mode::Durable)])
}

pub(super) fn backend(written: &Written) -> Result<Backend, ConfigError> {
    let [auto, shm] = [("auto", Backend::Auto), ("shm", Backend::Shm)];
    match word(written, [auto, shm, ("tcp", Backend::Tcp), ("verbs", Backend::Verbs)])? {
        Backend::Verbs if !cfg!(feature = "verbs") => Err(written.error(
            "is \"verbs\", which this program was built without: build it with squall's feature `verbs` (which \
             needs libibverbs), or give \"tcp\"",
        )),
        backend => Ok(backend),
    }
}

pub(super) fn protection(written: &Written) -> Result<Protection, ConfigError> {
    let expected = "expected \"none\", or a table with `ca`, `certificate` and `key`";
    let text = written.read(Some(expected), |text| Ok(text.to_owned()))?;
    match &*text {
        "none" => Ok(Protection::None),
        "tls" => Ok(Protection::Tls),
        _ => Err(written.error(format!(
            "is {text:?}: give \"tls\" with `ca`, `certificate` and `key` (`squall keys` makes them), or \"none\" if only this \
             cluster is on the network"
        ))),
    }
}

/// Reads one of several words.
fn word<T: Copy, const N: usize>(written: &Written, words: [(&str, T); N]) -> Result<T, ConfigError> {
    let text = text(written)?;
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known = words.map(|(word, _)| format!("{word:?}")).join(", ");
        let (others, last) = known.rsplit_once(", ").unwrap_or_default();
        written.error(format!("is {text:?}: give {others} or {last}"))
    })
}

/// Splits a list. An empty text is an empty list.
fn list(text: &str, separator: char) -> Vec<String> {
    if text.is_empty() { Vec::new() } else { text.split(separator).map(|item| item.trim().to_owned()).collect() }
}

fn parse<T: FromStr<Err = ParseIntError>>(text: &str, what: &str) -> Result<T, String> {
    text.trim().parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => format!("is {text:?}, which is too large: give {what}"),
        _ => format!("is {text:?}: give {what}"),
    })
}
