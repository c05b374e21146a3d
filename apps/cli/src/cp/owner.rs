//! The owner that a copy's files get, as it is given.

use std::fs;

/// Reads `USER` or `USER:GROUP`, by names of this host or by ids. Without a group it is that of the user's own.
pub(super) fn owner(text: &str) -> Result<(u32, u32), String> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let passwd = || fs::read_to_string("/etc/passwd").unwrap_or_default();
    let (user, own_group) = match user.parse() {
        Ok(id) => (id, field(&passwd(), 2, user, 3)),
        Err(_) => {
            let id =
                field(&passwd(), 0, user, 2).ok_or_else(|| format!("there is no user {user:?} here: give an id"))?;
            (id, field(&passwd(), 0, user, 3))
        }
    };
    let group = match group {
        "" => {
            own_group.ok_or_else(|| format!("the group of user {user} is not known here: give it as {user}:GROUP"))?
        }
        group => match group.parse() {
            Ok(id) => id,
            Err(_) => {
                let groups = fs::read_to_string("/etc/group").unwrap_or_default();
                field(&groups, 0, group, 2).ok_or_else(|| format!("there is no group {group:?} here: give an id"))?
            }
        },
    };
    Ok((user, group))
}

/// Returns the number in a field of the line whose field `by` is `key`.
fn field(lines: &str, by: usize, key: &str, wanted: usize) -> Option<u32> {
    let mut fields = lines.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let line = fields.find(|fields| fields.get(by) == Some(&key))?;
    line.get(wanted)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_ids_or_names_of_this_host() {
        assert_eq!(owner("7000000:8000000"), Ok((7_000_000, 8_000_000)));
        assert_eq!(owner("root"), Ok((0, 0)));
        assert_eq!(owner("0"), Ok((0, 0)));
        assert_eq!(owner("root:12"), Ok((0, 12)));
        assert!(owner("nobody-of-this-name").unwrap_err().contains("give an id"));
        assert!(owner("7000000").unwrap_err().contains("7000000:GROUP"));
        assert!(owner("root:no-such-group").unwrap_err().contains("give an id"));
    }
}
