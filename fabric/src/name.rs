//! The rule for names of clusters, groups, racks and receivers of copies.

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// The refusal of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give a name of 1 to {most} letters, digits, `.`, `_` and `-` (ASCII) that begins with a letter or a digit")]
pub struct NameError {
    /// The longest name, in bytes.
    most: usize,
}

/// Checks the name of a cluster, a group or a rack: 1 to 64 ASCII letters, digits, `.`, `_` and `-`, of which the first
/// is a letter or a digit. Such a name may be a part of a path, of a socket's name, or a word of a command line. No
/// such name is `..`, has a separator in it, or looks like an option.
///
/// Fails with the rule that the name breaks.
pub fn check_name(name: &str) -> Result<(), NameError> {
    check_name_within(name, MAX_NAME_BYTES)
}

/// Checks a name that may have at most `most` bytes. Fails with the rule that the name breaks.
pub fn check_name_within(name: &str, most: usize) -> Result<(), NameError> {
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= most && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        return Ok(());
    }
    Err(NameError { most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_path_and_no_option() {
        for name in ["a", "bank", "7", "kv-1_b.c", &"x".repeat(MAX_NAME_BYTES)] {
            assert_eq!(check_name(name), Ok(()), "{name:?}");
        }
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for name in ["", ".", "..", "../x", "/", "a/b", "a\0", "a b", ".hidden", "-x", "_x", "ä", "a\n", &long] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
