//! Limits of the system, as `/proc` shows them.

use std::{fs, path::Path};

/// A soft limit of this process, by its name in `/proc/self/limits`. `u64::MAX` for none; None if the system does not
/// say.
pub(super) fn of_process(name: &str) -> Option<u64> {
    limit(&fs::read_to_string("/proc/self/limits").ok()?, name)
}

fn limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The last number of a file, such as one of `/proc/sys`.
pub(super) fn number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max locked memory         8388608              unlimited            bytes     \n\
                    Max open files            unlimited            1048576              files     \n";
        assert_eq!(limit(text, "Max locked memory"), Some(8 << 20));
        assert_eq!(limit(text, "Max open files"), Some(u64::MAX));
        assert_eq!(limit(text, "Max stack size"), None);
        assert!(of_process("Max open files").is_some(), "this system says it");
    }
}
