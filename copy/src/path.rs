//! Paths below a receiver's directory that can't name anything outside it.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

/// Returns a name for people: what is no UTF-8, and control characters, which could do things to a terminal, as escape
/// sequences.
pub(crate) fn shown(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            if char.is_control() || char == '\\' { out.extend(char.escape_default()) } else { out.push(char) }
        }
        out.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    out
}

/// The directory in which receivers keep what is not complete yet. No file of a transfer may lie there.
pub(crate) const STAGING: &str = ".squall-cp";

/// The longest name that Linux filesystems take, in bytes (`NAME_MAX`).
const NAME_BYTES: usize = 255;

/// The longest path, and target of a link, in bytes: `PATH_MAX` without its NUL.
pub(crate) const PATH_BYTES: usize = 4095;

/// A reason for which a name can't be the path of a file below a receiver's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPath {
    /// The name is empty, or has nothing between two slashes, or a slash at the end.
    #[error("it has an empty component")]
    Empty,
    /// The name begins at the root of the filesystem.
    #[error("it is absolute")]
    Absolute,
    /// A component is `.` or `..`.
    #[error("it has a component `.` or `..`")]
    Dots,
    /// The name has a NUL byte.
    #[error("it has a NUL byte")]
    Nul,
    /// A component is longer than filesystems take.
    #[error("it has a component of more than {NAME_BYTES} bytes")]
    LongName,
    /// The name is longer than the system takes.
    #[error("it has more than {PATH_BYTES} bytes")]
    LongPath,
    /// The name is in the directory that receivers use themselves.
    #[error("it is in {STAGING}, which receivers use themselves")]
    Staging,
}

/// A relative path of normal components, as raw bytes: no `.`, no `..`, no empty component, no component or path that
/// is too long.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Debug, derive_more::Display)]
#[debug("\"{self}\"")]
#[display("{}", shown(_0))]
pub(crate) struct RelPath(Box<[u8]>);

impl RelPath {
    /// Checks a name, whatever its origin.
    pub(crate) fn new(bytes: impl Into<Box<[u8]>>) -> Result<RelPath, BadPath> {
        let bytes = bytes.into();
        if bytes.contains(&0) {
            return Err(BadPath::Nul);
        }
        if bytes.first() == Some(&b'/') {
            return Err(BadPath::Absolute);
        }
        if bytes.len() > PATH_BYTES {
            return Err(BadPath::LongPath);
        }
        for (depth, name) in bytes.split(|&byte| byte == b'/').enumerate() {
            match name {
                b"" => return Err(BadPath::Empty),
                b"." | b".." => return Err(BadPath::Dots),
                _ if name.len() > NAME_BYTES => return Err(BadPath::LongName),
                _ if depth == 0 && name == STAGING.as_bytes() => return Err(BadPath::Staging),
                _ => {}
            }
        }
        Ok(RelPath(bytes))
    }

    /// Returns its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns it for the system's calls.
    pub(crate) fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Returns the directory that it lies in, None for the receiver's own; and its last component.
    pub(crate) fn split(&self) -> (Option<&OsStr>, &OsStr) {
        match self.0.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (Some(OsStr::from_bytes(&self.0[..slash])), OsStr::from_bytes(&self.0[slash + 1..])),
            None => (None, self.as_os_str()),
        }
    }

    /// Returns the number of directories that it lies in, below the receiver's.
    pub(crate) fn depth(&self) -> usize {
        self.0.iter().filter(|&&byte| byte == b'/').count()
    }

    /// Tells whether a symbolic link here with this target stays inside what is copied.
    ///
    /// `..` counts as inside only in front, where it counts from the link's own directory, which is no link. Behind a
    /// name it would count from the target of that name, if the name is a link itself.
    pub(crate) fn stays_inside(&self, target: &[u8]) -> bool {
        if target.is_empty() || target[0] == b'/' || target.contains(&0) || target.len() > PATH_BYTES {
            return false;
        }
        let names = || target.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let up = names().take_while(|name| *name == b"..").count();
        up <= self.depth() && !names().skip(up).any(|name| name == b"..")
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = "x".repeat(256);
        for (name, why) in [
            ("", BadPath::Empty),
            ("a//b", BadPath::Empty),
            ("a/", BadPath::Empty),
            ("/etc/passwd", BadPath::Absolute),
            ("../x", BadPath::Dots),
            ("a/../../x", BadPath::Dots),
            ("a/./x", BadPath::Dots),
            ("a\0b", BadPath::Nul),
            (long.as_str(), BadPath::LongName),
            (".squall-cp/x", BadPath::Staging),
            (".squall-cp", BadPath::Staging),
        ] {
            assert_eq!(RelPath::new(name.as_bytes()), Err(why), "{name:?}");
        }
        let deep = "x/".repeat(2048);
        assert_eq!(RelPath::new(deep.as_bytes()), Err(BadPath::LongPath));
    }

    #[test]
    fn names_are_shown_without_control_characters() {
        for (name, text) in [
            (&b"a b"[..], "a b"),
            ("Käse".as_bytes(), "Käse"),
            (b"\x1b[31m", "\\u{1b}[31m"),
            (b"a\nb\\", "a\\nb\\\\"),
            (b"\xff", "\\xff"),
        ] {
            assert_eq!(shown(name), text);
        }
    }

    #[test]
    fn a_link_stays_inside_whatever_its_names_are_links_to() {
        let link = RelPath::new(*b"a/b/link").unwrap();
        for target in ["x", "x/y", "./x", "..", "../..", "../../x", "x//y/"] {
            assert!(link.stays_inside(target.as_bytes()), "{target}");
        }
        for target in ["", "/etc", "../../..", "../../../x", "x/..", "../x/../..", "x\0"] {
            assert!(!link.stays_inside(target.as_bytes()), "{target}");
        }
    }

    proptest! {
        #[test]
        fn what_passes_has_only_normal_components(
            names in proptest::collection::vec(prop_oneof![
                Just(".".to_owned()), Just("..".to_owned()), Just(String::new()), Just(STAGING.to_owned()),
                Just("\0".to_owned()), "[a-z.\0]{1,4}", Just("n".repeat(256)),
            ], 0..6),
            absolute in any::<bool>(),
        ) {
            let text = format!("{}{}", if absolute { "/" } else { "" }, names.join("/"));
            if let Ok(path) = RelPath::new(text.as_bytes()) {
                let path = Path::new(path.as_os_str());
                prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
                prop_assert_eq!(path.components().count(), names.len());
                prop_assert!(!path.starts_with(STAGING));
                prop_assert!(names.iter().all(|name| name.len() <= 255 && !name.contains('\0')));
            }
        }

        #[test]
        fn any_bytes_are_checked_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            if let Ok(path) = RelPath::new(bytes.as_slice()) {
                prop_assert_eq!(path.as_bytes(), &bytes[..]);
            }
        }
    }
}
