//! The password that clients must say, where there is one.

use std::{fmt, hint::black_box, io, path::Path};

/// A password. It is not shown in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Box<[u8]>);

/// Why a password can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// The file can't be read.
    #[error("{path} can't be read for the password: {error}")]
    Io {
        /// Which.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// There is nothing in it: that would let in everybody.
    #[error("the password is empty: give one, or leave the option out to serve everybody")]
    Empty,
}

impl Password {
    /// A password, which must not be empty.
    pub fn new(password: impl AsRef<[u8]>) -> Result<Password, PasswordError> {
        let password = password.as_ref();
        if password.is_empty() { Err(PasswordError::Empty) } else { Ok(Password(password.into())) }
    }

    /// The first line of a file.
    pub fn load(path: &Path) -> Result<Password, PasswordError> {
        let io = |error| PasswordError::Io { path: path.display().to_string(), error };
        let text = std::fs::read(path).map_err(io)?;
        let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        Password::new(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Whether these are the same words. How long it takes tells only how long the words are that were said.
    pub(super) fn is(&self, said: &[u8]) -> bool {
        let mut differences = self.0.len() ^ said.len();
        for (place, byte) in said.iter().enumerate() {
            differences |= usize::from(black_box(byte ^ self.0[place % self.0.len()]));
        }
        black_box(differences) == 0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_words_are_the_password() {
        let password = Password::new("secret").expect("it is not empty");
        assert!(password.is(b"secret"));
        for other in ["", "s", "secre", "secreT", "secretsecret", "secrets"] {
            assert!(!password.is(other.as_bytes()), "{other}");
        }
        assert!(matches!(Password::new(""), Err(PasswordError::Empty)));
    }
}
