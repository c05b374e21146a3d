//! Requests as `MONITOR` shows them, and the words that are shown to nobody.

use std::{fmt::Write, net::SocketAddr};

use super::mail::MAX_MAIL_BYTES;
use crate::{command::Spec, words::Split};

/// The word in place of a secret, as in Redis.
const REDACTED: &[u8] = b"(redacted)";

/// The words of a request, without its passwords. `None` if it has none.
pub(super) fn redacted<'a>(spec: &Spec, words: &[&'a [u8]]) -> Option<Split<'a>> {
    if !spec.flags.needs_no_auth {
        return None;
    }
    let secret = match spec.name {
        "auth" => 1..words.len(),
        // A client's name may be `auth`, and `AUTH` may come twice: what stands behind the first may be a password.
        "hello" => words.iter().skip(1).position(|word| word.eq_ignore_ascii_case(b"auth"))? + 2..words.len(),
        _ => return None,
    };
    let mut shown = Split::from(words);
    shown.get_mut(secret)?.fill(REDACTED);
    Some(shown)
}

/// A request of a client as one line, at a time in microseconds since 1970. `None` if it is too long for any monitor.
pub(super) fn line(now_us: u64, peer: SocketAddr, words: &[&[u8]]) -> Option<String> {
    let mut line = String::new();
    let (seconds, micros) = (now_us / 1_000_000, now_us % 1_000_000);
    write!(line, "{seconds}.{micros:06} [0 {peer}]").ok()?;
    for word in words {
        line.push_str(" \"");
        for byte in *word {
            match byte {
                b'\\' | b'"' => line.extend(['\\', char::from(*byte)]),
                b'\n' => line.push_str("\\n"),
                b'\r' => line.push_str("\\r"),
                b'\t' => line.push_str("\\t"),
                7 => line.push_str("\\a"),
                8 => line.push_str("\\b"),
                b' '..=b'~' => line.push(char::from(*byte)),
                _ => write!(line, "\\x{byte:02x}").ok()?,
            }
            if line.len() > MAX_MAIL_BYTES {
                return None;
            }
        }
        line.push('"');
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;

    fn shown(words: &[&[u8]]) -> Option<String> {
        let peer = "127.0.0.1:60866".parse().expect("it is an address");
        let spec = command::check(words).expect("it is a request");
        let hidden = redacted(spec, words);
        line(1_339_518_083_000_412, peer, hidden.as_deref().unwrap_or(words))
    }

    #[test]
    fn a_request_is_shown_as_redis_shows_it() {
        let keys = r#"1339518083.000412 [0 127.0.0.1:60866] "keys" "*""#;
        assert_eq!(shown(&[b"keys", b"*"]).as_deref(), Some(keys));
        let odd = shown(&[b"set", b"a\"\\\n\r\t\x07\x08\x00\xff ~", b""]).expect("it is short");
        assert!(odd.ends_with(r#" "set" "a\"\\\n\r\t\a\b\x00\xff ~" """#), "{odd}");
        assert_eq!(shown(&[b"get", &vec![0; MAX_MAIL_BYTES / 4]]), None);
    }

    #[test]
    fn passwords_are_shown_to_nobody() {
        for (words, expected) in [
            (&[&b"AUTH"[..], b"secret"][..], r#""AUTH" "(redacted)""#),
            (&[b"auth", b"user", b"secret"], r#""auth" "(redacted)" "(redacted)""#),
            (
                &[b"hello", b"3", b"setname", b"me", b"AUTH", b"user", b"secret"],
                r#""hello" "3" "setname" "me" "AUTH" "(redacted)" "(redacted)""#,
            ),
            (&[b"hello", b"3", b"auth", b"secret"], r#""hello" "3" "auth" "(redacted)""#),
            (&[b"hello", b"3", b"auth"], r#""hello" "3" "auth""#),
            (
                &[b"hello", b"3", b"setname", b"auth", b"auth", b"user", b"secret"],
                r#""hello" "3" "setname" "auth" "(redacted)" "(redacted)" "(redacted)""#,
            ),
            (&[b"hello", b"auth", b"user", b"secret"], r#""hello" "auth" "(redacted)" "(redacted)""#),
            (&[b"hello"], r#""hello""#),
            (&[b"echo", b"auth"], r#""echo" "auth""#),
        ] {
            let shown = shown(words).expect("it is short");
            assert_eq!(shown.split_once("] ").map(|(_, words)| words), Some(expected));
        }
    }
}
