//! Checks of drawings that a command wrote.

use std::path::PathBuf;

use tempfile::TempDir;

/// A file in a directory that is removed after the test.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
    _directory: TempDir,
}

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let directory = tempfile::tempdir().expect("a directory can be made");
        Scratch { path: directory.path().join(name), _directory: directory }
    }

    pub(crate) fn name(&self) -> &str {
        self.path.to_str().expect("a path of ASCII")
    }
}

/// Checks that elements nest and end, and that text has no markup of its own.
pub(crate) fn check_markup(svg: &str) {
    let mut open = Vec::new();
    for (i, piece) in svg.split('<').enumerate().skip(1) {
        let (tag, rest) = piece.split_once('>').unwrap_or_else(|| panic!("element {i} does not end: {piece}"));
        assert!(!rest.contains('>') && tag.matches('"').count().is_multiple_of(2), "{piece}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().expect("a name");
        if let Some(ended) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(ended), "an element ends that is not open");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "not ended: {open:?}");
}
