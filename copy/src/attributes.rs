//! Extended attributes, and access control lists among them, as Linux has them.
//!
//! A set of attributes is one string of bytes, sorted by name: for each, the length of its name (u8), the length of its
//! value (u32, little-endian), the name, the value. So a set takes as much memory as it has in a frame.

use std::{collections::BTreeMap, os::fd::BorrowedFd};

use rustix::{
    fs::{XattrFlags, flistxattr_query, getxattr, listxattr, removexattr, setxattr},
    io::Errno,
};
use serde::{Deserialize, Serialize};

/// The access control list of a file.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The access control list that new files of a directory get.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// The capabilities that a program gets.
const CAPABILITY: &[u8] = b"security.capability";

/// Tags of the entries of an access control list (`linux/posix_acl.h`): a user, the file's group, a group, and the
/// mask.
const USER: u16 = 0x02;
const GROUP_OBJECT: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;

/// The kinds of attributes that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttributeKinds {
    /// Access control lists.
    pub(crate) lists: bool,
    /// All others: of users, capabilities, trusted ones.
    pub(crate) others: bool,
}

impl AttributeKinds {
    /// Tells whether an attribute of a name is kept.
    fn keep(self, name: &[u8]) -> bool {
        if is_list(name) {
            return self.lists;
        }
        // Labels of security modules are each host's own.
        self.others && !name.starts_with(b"system.") && (!name.starts_with(b"security.") || name == CAPABILITY)
    }
}

/// Tells whether an attribute is the list by which access to the file itself is controlled.
pub(crate) fn is_access_list(name: &[u8]) -> bool {
    name == ACCESS_LIST
}

/// Tells whether an attribute is an access control list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == ACCESS_LIST || name == DEFAULT_LIST
}

/// The extended attributes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    /// Takes attributes as they were sent.
    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Attributes {
        Attributes(bytes)
    }

    fn new(all: &BTreeMap<Vec<u8>, Vec<u8>>) -> Attributes {
        let mut bytes = Vec::new();
        for (name, value) in all {
            let (Ok(name_len), Ok(value_len)) = (u8::try_from(name.len()), u32::try_from(value.len())) else {
                continue;
            };
            bytes.push(name_len);
            bytes.extend_from_slice(&value_len.to_le_bytes());
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(value);
        }
        Attributes(bytes)
    }

    /// Tells whether nothing of it is cut off, and every name could be one.
    pub(crate) fn is_well_formed(&self) -> bool {
        let mut rest = &self.0[..];
        while !rest.is_empty() {
            match next(rest) {
                Some((name, _, after)) if !name.is_empty() && !name.contains(&0) => rest = after,
                _ => return false,
            }
        }
        true
    }

    /// Returns each name with its value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (name, value, after) = next(rest)?;
            rest = after;
            Some((name, value))
        })
    }

    fn get(&self, wanted: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value)
    }

    /// Reads the attributes of a file by its path; of a link, those of what it leads to.
    pub(crate) fn read(path: &std::path::Path, kinds: AttributeKinds) -> Result<Attributes, Errno> {
        Ok(Attributes::new(&read(path, kinds)?))
    }

    /// Tells whether a program gets capabilities.
    pub(crate) fn has_capability(&self) -> bool {
        self.get(CAPABILITY).is_some()
    }

    /// Returns the mode with no more rights than a file has by its list, which is not kept: with a list, the mode's
    /// group bits are the list's mask, not what the group may do.
    pub(crate) fn mode_without_list(&self, mode: u32) -> u32 {
        self.get(ACCESS_LIST).map_or(mode, |list| without_list(list, mode))
    }

    /// Gives a file these attributes, and takes others from it that are of the kinds that are kept; from a file in the
    /// staging directory, `is_own`, all others. Returns those that
    /// could not be set, by name.
    pub(crate) fn apply(
        &self,
        file: BorrowedFd<'_>,
        kinds: AttributeKinds,
        is_own: bool,
    ) -> Result<Vec<(Vec<u8>, Errno)>, Errno> {
        use std::os::fd::AsRawFd;
        // By this path also a file that its owner may not open is reached.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // What is not kept goes from what was left behind by another push, too.
        let all = AttributeKinds { lists: true, others: true };
        let here = match flistxattr_query(file) {
            Ok(0) => Ok(BTreeMap::new()),
            // There are some; or it is open for its owner and mode only.
            _ => read(std::path::Path::new(&path), if is_own { all } else { kinds }),
        };
        let here = match here {
            Ok(here) => here,
            Err(Errno::NOTSUP) => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let mut failed = Vec::new();
        for name in here.keys().filter(|name| self.get(name).is_none() && is_removable(name)) {
            if let Err(error) = removexattr(&*path, name.as_slice()) {
                failed.push((name.clone(), error));
            }
        }
        for (name, value) in self.iter().filter(|(name, _)| kinds.keep(name)) {
            if here.get(name).is_some_and(|here| here == value) {
                continue;
            }
            if let Err(error) = setxattr(&*path, name, value, XattrFlags::empty()) {
                failed.push((name.to_vec(), error));
            }
        }
        Ok(failed)
    }
}

/// Tells whether an attribute that the source's file does not have is taken away.
fn is_removable(name: &[u8]) -> bool {
    is_list(name) || name.starts_with(b"user.") || name == CAPABILITY
}

fn without_list(list: &[u8], mode: u32) -> u32 {
    // A version (u32), then entries of tag (u16), rights (u16) and id (u32), all little-endian.
    let entries = || {
        let entries = list.get(4..).unwrap_or_default().as_chunks::<8>().0;
        let half = |entry: &[u8; 8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        entries.iter().map(move |entry| (half(entry, 0), u32::from(half(entry, 2) & 7)))
    };
    let of = |wanted: u16| entries().find(|(tag, _)| *tag == wanted).map(|(_, rights)| rights);
    let mask = of(MASK).unwrap_or(7);
    // Whom the list gives less than the others, that is not told from the others any more.
    let least =
        entries().filter(|(tag, _)| matches!(*tag, USER | GROUP)).fold(7, |least, (_, rights)| least & rights & mask);
    let group = of(GROUP_OBJECT).unwrap_or(0) & mask & least;
    mode & !0o077 | (group << 3) | (mode & 0o007 & least)
}

/// Splits the first attribute off: its name, its value, and the rest.
fn next(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&name_len, rest) = bytes.split_first()?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(usize::from(name_len))?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
    Some((name, value, rest))
}

fn read(path: &std::path::Path, kinds: AttributeKinds) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
    if !kinds.lists && !kinds.others {
        return Ok(BTreeMap::new());
    }
    let names = grown(|buffer| listxattr(path, buffer))?;
    let mut all = BTreeMap::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty() && kinds.keep(name)) {
        match grown(|buffer| getxattr(path, name, buffer)) {
            Ok(value) => _ = all.insert(name.to_vec(), value),
            // It was removed meanwhile, or only others may read it.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Calls for a buffer that is large enough.
fn grown(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match call(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(4 * buffer.len(), 0),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_are_what_was_put_in() {
        let all: BTreeMap<Vec<u8>, Vec<u8>> =
            [(b"user.a".to_vec(), vec![1, 2]), (b"user.b".to_vec(), Vec::new())].into();
        let attributes = Attributes::new(&all);
        assert!(attributes.is_well_formed());
        assert_eq!(
            attributes.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect::<BTreeMap<_, _>>(),
            all
        );
    }

    #[test]
    fn a_mode_without_its_list_gives_the_group_no_more_than_the_list() {
        let list = |entries: &[(u16, u16)]| {
            let mut list = 2_u32.to_le_bytes().to_vec();
            for (tag, rights) in entries {
                list.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
                list.extend(u32::MAX.to_le_bytes());
            }
            Attributes::new(&[(ACCESS_LIST.to_vec(), list)].into())
        };
        // user::rw-, user:1000:rw-, group::r--, mask::rw-, other::---
        let attributes = list(&[(1, 6), (2, 6), (4, 4), (0x10, 6), (0x20, 0)]);
        assert_eq!(attributes.mode_without_list(0o660), 0o640);
        assert_eq!(list(&[(4, 6), (0x10, 4)]).mode_without_list(0o4640), 0o4640);
        // user::rw-, user:bob:---, group::r--, mask::r--, other::r--
        let denied = list(&[(1, 6), (2, 0), (4, 4), (0x10, 4), (0x20, 4)]);
        assert_eq!(denied.mode_without_list(0o644), 0o600, "bob must not read it as one of the others");
        assert_eq!(list(&[]).mode_without_list(0o770), 0o700, "a list that says nothing gives nothing");
        assert_eq!(Attributes::default().mode_without_list(0o660), 0o660);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let attributes = Attributes(bytes);
            let _ = attributes.is_well_formed();
            let _ = attributes.iter().count();
            let _ = attributes.mode_without_list(0o777);
        }
    }
}
