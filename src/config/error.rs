//! What is wrong with a configuration, where, and what to do about it.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("the configuration file {} can't be read: {cause}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// The text as a whole is not what it should be.
    #[error("{place}: {problem}")]
    Text {
        /// Where.
        place: Place,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A value is missing or not possible.
    #[error("{place}: `{key}` {problem}")]
    Value {
        /// Where.
        place: Place,
        /// The value's name, with the names of its tables before it.
        key: String,
        /// What is wrong, and what to do.
        problem: String,
    },
}

/// Where something stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1; None for what is missing.
        line: Option<usize>,
    },
    /// In a text that came from no file.
    Text {
        /// The line, from 1; None for what is missing.
        line: Option<usize>,
    },
    /// In an environment variable of this name.
    Variable(&'static str),
    /// In a [`ConfigBuilder`](crate::ConfigBuilder).
    Builder,
}

impl Place {
    pub(super) fn text(line: Option<usize>) -> Place {
        Place::Text { line }
    }

    /// A path that stands here: relative to the file, not to where the program was started.
    pub(super) fn beside(&self, path: PathBuf) -> PathBuf {
        match self {
            Place::File { path: file, .. } => file.parent().unwrap_or(Path::new("")).join(path),
            Place::Text { .. } | Place::Variable(_) | Place::Builder => path,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Place::File { path, line } => {
                write!(f, "{}", path.display())?;
                line.map(|line| format!(":{line}"))
            }
            Place::Text { line } => {
                f.write_str("configuration")?;
                line.map(|line| format!(", line {line}"))
            }
            Place::Variable(name) => return write!(f, "environment variable {name}"),
            Place::Builder => return f.write_str("configuration built by the program"),
        };
        f.write_str(&line.unwrap_or_default())
    }
}
