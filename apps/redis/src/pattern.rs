//! Glob patterns, as Redis matches them.

/// Whether a glob pattern (`*`, `?`, `[a-z]`, `[^a]`, `\` before a literal) matches all of a text.
///
/// Takes at most (pattern length × text length) steps, since a later `*` makes going back to an earlier one useless.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        match one(&pattern[p..], text[t]) {
            Some(len) => {
                p += len;
                t += 1;
            }
            None => {
                let Some((after, taken)) = star else { return false };
                star = Some((after, taken + 1));
                (p, t) = (after, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// The length of the pattern's first element, if it matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (literal == byte).then_some(2),
        [b'[', ref rest @ ..] => {
            let (negated, set) = match rest {
                [b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            let mut found = false;
            let mut at = 0;
            // An open set ends where the pattern does.
            while at < set.len() && set[at] != b']' {
                let (low, high, len) = match set[at..] {
                    [b'\\', literal, ..] => (literal, literal, 2),
                    [low, b'-', high, ..] => (low.min(high), low.max(high), 3),
                    [literal, ..] => (literal, literal, 1),
                    [] => break,
                };
                found |= (low..=high).contains(&byte);
                at += len;
            }
            let closed = usize::from(at < set.len());
            (found != negated).then_some(1 + usize::from(negated) + at + closed)
        }
        [literal, ..] => (literal == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "abc", true),
            ("", "", true),
            ("", "a", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*c*e", "abcde", true),
            ("a*c*f", "abcde", false),
            ("[a-c]x", "bx", true),
            ("[c-a]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[a\\]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[ab", "a", true),
            ("[a-]x]", "b", false),
            ("[a-]x]", "bx", false),
            ("[Z-]x]", "[", true),
            ("[^", "a", true),
            ("[", "[", false),
            ("\\", "\\", true),
            ("[\\]", "\\", false),
            ("key:*", "key:1", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn a_glob_of_many_stars_takes_no_exponential_time() {
        assert!(!matches(&[&b"a*".repeat(1000)[..], b"b"].concat(), &b"a".repeat(2000)));
    }
}
