//! The errors of a configuration: the problem, its place, and advice.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// A reason for which there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("the configuration file {} can't be read: {cause}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
    /// The text as a whole is not valid.
    #[error("{place}: {problem}")]
    Text {
        /// The place.
        place: ValuePlace,
        /// The problem, with advice.
        problem: String,
    },
    /// A value is missing or not possible.
    #[error("{place}: `{key}` {problem}")]
    Value {
        /// The place.
        place: ValuePlace,
        /// The value's name, with the names of its tables before it.
        key: String,
        /// The problem, with advice.
        problem: String,
    },
}

/// The place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePlace {
    /// A place in a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1; None for a value that is missing.
        line: Option<usize>,
    },
    /// A place in a text that came from no file.
    Text {
        /// The line, from 1; None for a value that is missing.
        line: Option<usize>,
    },
    /// An environment variable of this name.
    Variable(&'static str),
    /// A value of a [`ConfigBuilder`](crate::ConfigBuilder).
    Builder,
}

impl ConfigError {
    pub(super) fn value(place: &ValuePlace, key: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::Value { place: place.clone(), key: key.to_owned(), problem: problem.into() }
    }
}

impl ValuePlace {
    pub(super) fn text(line: Option<usize>) -> ValuePlace {
        ValuePlace::Text { line }
    }

    /// Resolves a path that is written here: it is relative to the file, not to the program's directory.
    pub(super) fn beside(&self, path: PathBuf) -> PathBuf {
        let ValuePlace::File { path: file, .. } = self else { return path };
        file.parent().unwrap_or(Path::new("")).join(path)
    }
}

impl fmt::Display for ValuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValuePlace::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            ValuePlace::File { path, line: None } => write!(f, "{}", path.display()),
            ValuePlace::Text { line: Some(line) } => write!(f, "configuration, line {line}"),
            ValuePlace::Text { line: None } => f.write_str("configuration"),
            ValuePlace::Variable(name) => write!(f, "environment variable {name}"),
            ValuePlace::Builder => f.write_str("configuration built by the program"),
        }
    }
}
