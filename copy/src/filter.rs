//! The names that a copy leaves out, by patterns.
//!
//! A pattern is compared with the end of a path, at any depth: `*.o`, `target`, `src/gen`. With a slash in front, it is
//! compared with the whole path, from the name under which something is pushed: `/release/tmp`. With a slash at the
//! end, it is compared with directories only. `*` and `?` stand for no slash, `**` for any path. What lies in a
//! directory that is left out is left out too.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};
use squall_services::frame::at_most;

/// The most patterns of either kind.
const PATTERNS: usize = 1024;

/// Patterns, as they are given and sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patterns {
    /// Names that are left out.
    #[serde(deserialize_with = "at_most::<PATTERNS, _, _>")]
    pub exclude: Vec<String>,
    /// Names that are copied all the same.
    #[serde(deserialize_with = "at_most::<PATTERNS, _, _>")]
    pub include: Vec<String>,
}

/// A pattern that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is no pattern: {why}")]
pub struct BadPattern {
    /// The pattern.
    pub pattern: String,
    /// The problem.
    pub why: String,
}

/// Patterns, ready to be compared.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    exclude: Set,
    include: Set,
}

#[derive(Clone, Debug)]
struct Set {
    all: GlobSet,
    directories: GlobSet,
}

impl Filter {
    /// Prepares patterns; there may be 1024 of either kind.
    pub(crate) fn new(patterns: &Patterns) -> Result<Filter, BadPattern> {
        if let Some(pattern) = patterns.exclude.get(PATTERNS).or(patterns.include.get(PATTERNS)) {
            let why = format!("there are {PATTERNS} before it, and may be no more");
            return Err(BadPattern { pattern: pattern.clone(), why });
        }
        Ok(Filter { exclude: Set::new(&patterns.exclude)?, include: Set::new(&patterns.include)? })
    }

    /// Tells whether a name is left out, given its path. What it lies in is not looked at.
    pub(crate) fn leaves_out(&self, path: &[u8], is_directory: bool) -> bool {
        self.exclude.has(path, is_directory) && !self.include.has(path, is_directory)
    }
}

impl Set {
    fn new(patterns: &[String]) -> Result<Set, BadPattern> {
        let (mut all, mut directories) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let bad = |why: String| BadPattern { pattern: pattern.clone(), why };
            let (name, builder) = match pattern.strip_suffix('/') {
                Some(name) => (name, &mut directories),
                None => (pattern.as_str(), &mut all),
            };
            if name.is_empty() {
                return Err(bad("it is empty".to_owned()));
            }
            let glob = name.strip_prefix('/').map_or_else(|| format!("**/{name}"), str::to_owned);
            let glob = GlobBuilder::new(&glob).literal_separator(true).backslash_escape(true).build();
            builder.add(glob.map_err(|error| bad(error.kind().to_string()))?);
        }
        let build = |builder: GlobSetBuilder| {
            builder.build().map_err(|error| BadPattern { pattern: patterns.join(" "), why: error.kind().to_string() })
        };
        Ok(Set { all: build(all)?, directories: build(directories)? })
    }

    fn has(&self, path: &[u8], is_directory: bool) -> bool {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let path = OsStr::from_bytes(path);
        self.all.is_match(path) || is_directory && self.directories.is_match(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(exclude: &[&str], include: &[&str]) -> Filter {
        let owned = |patterns: &[&str]| patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        Filter::new(&Patterns { exclude: owned(exclude), include: owned(include) }).unwrap()
    }

    #[test]
    fn patterns_leave_out_what_they_say() {
        for (pattern, out, stays) in [
            ("*.o", &["a.o", "x/b.o"][..], &["a.o.txt", "o"][..]),
            ("target", &["target", "a/b/target"], &["targets", "target/x"]),
            ("src/gen", &["src/gen", "a/src/gen"], &["gen", "src/x/gen"]),
            ("/release/tmp", &["release/tmp"], &["a/release/tmp", "tmp"]),
            ("a?c", &["abc"], &["a/c", "abbc"]),
            ("/a/**/z", &["a/z", "a/b/c/z"], &["z", "b/a/z"]),
            ("[ab].txt", &["a.txt"], &["c.txt"]),
        ] {
            let filter = filter(&[pattern], &[]);
            for name in out {
                assert!(filter.leaves_out(name.as_bytes(), false), "{pattern} leaves {name} out");
            }
            for name in stays {
                assert!(!filter.leaves_out(name.as_bytes(), false), "{pattern} does not leave {name} out");
            }
        }
    }

    #[test]
    fn a_slash_at_the_end_means_directories_and_an_included_name_is_copied() {
        let filter = filter(&["cache/", "*.log"], &["keep.log"]);
        assert!(filter.leaves_out(b"a/cache", true) && !filter.leaves_out(b"a/cache", false));
        assert!(filter.leaves_out(b"x.log", false) && !filter.leaves_out(b"a/keep.log", false));
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let patterns = |exclude: &str| Patterns { exclude: vec![exclude.to_owned()], include: Vec::new() };
        assert!(Filter::new(&patterns("a[")).unwrap_err().to_string().contains("\"a[\" is no pattern"));
        assert!(Filter::new(&patterns("/")).is_err());
    }
}
