//! The password that clients must give, if there is one.

use std::{fs, hint::black_box, io, os::unix::fs::PermissionsExt, path::Path};

use super::resp::UNAUTHENTICATED_BULK_BYTES;

/// A password. It is not shown in debug output.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("Password(..)")]
pub struct Password(Box<[u8]>);

/// The reason why a password can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// The file can't be read.
    #[error("{path} can't be read for the password: {error}")]
    Io {
        /// The file.
        path: String,
        /// The reason.
        error: io::Error,
    },
    /// The password is empty, which would let in every client.
    #[error(
        "the password in {place} is empty: give one; to serve every client, give no --password-file, and unset \
         SQUALL_REDIS_PASSWORD"
    )]
    Empty {
        /// The file, or the variable.
        place: String,
    },
    /// The password is longer than any word that a client may send before it has given the password.
    #[error("the password in {place} has {bytes} bytes: give one of at most {UNAUTHENTICATED_BULK_BYTES}")]
    TooLong {
        /// The file, or the variable.
        place: String,
        /// The password's length, in bytes.
        bytes: usize,
    },
}

impl Password {
    /// A password, which must not be empty, nor have more than 16 KiB. `place` says in errors where it comes from.
    pub fn new(password: impl AsRef<[u8]>, place: impl Into<String>) -> Result<Password, PasswordError> {
        match password.as_ref() {
            [] => Err(PasswordError::Empty { place: place.into() }),
            long if long.len() > UNAUTHENTICATED_BULK_BYTES => {
                Err(PasswordError::TooLong { place: place.into(), bytes: long.len() })
            }
            password => Ok(Password(password.into())),
        }
    }

    /// The password in the first line of a file, without the line's end. If all users of the host can read the file, a
    /// warning is logged.
    pub fn load(path: &Path) -> Result<Password, PasswordError> {
        let io = |error| PasswordError::Io { path: path.display().to_string(), error };
        let text = fs::read(path).map_err(io)?;
        if fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o004 != 0) {
            tracing::warn!(path = %path.display(), "every user of this host can read the password: chmod o-r helps");
        }
        let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        Password::new(line.strip_suffix(b"\r").unwrap_or(line), path.display().to_string())
    }

    /// Whether these bytes are the password. The time that the comparison takes reveals only the length of `said`.
    pub(super) fn is(&self, said: &[u8]) -> bool {
        let mut differences = self.0.len() ^ said.len();
        for (place, byte) in said.iter().enumerate() {
            differences |= usize::from(black_box(byte ^ self.0[place % self.0.len()]));
        }
        black_box(differences) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_words_are_the_password() {
        let password = Password::new("secret", "a test").expect("it is not empty");
        assert!(password.is(b"secret"));
        for other in ["", "s", "secre", "secreT", "secretsecret", "secrets"] {
            assert!(!password.is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn nobody_can_be_asked_for_nothing_or_for_too_much() {
        assert!(matches!(Password::new("", "a test"), Err(PasswordError::Empty { .. })));
        let long = vec![b'x'; UNAUTHENTICATED_BULK_BYTES + 1];
        assert!(matches!(Password::new(&long, "a test"), Err(PasswordError::TooLong { bytes: 16385, .. })));
        assert!(Password::new(&long[1..], "a test").is_ok());
    }
}
