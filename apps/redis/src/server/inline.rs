//! Inline requests, which a user types by hand: the words of a line.

use crate::words;

/// Appends the words of a line to a request. They are split as a shell does: words between spaces, "..." with escapes,
/// '...' without. Returns their number; `None` if a quote stays open or is closed in the middle of a word.
pub(super) fn split_line(line: &[u8], request: &mut Vec<u8>) -> Option<usize> {
    let is_space = |byte: u8| byte.is_ascii_whitespace() || byte == 0x0b || byte == 0;
    let (mut rest, mut count) = (line, 0);
    let mut word = Vec::new();
    while let Some(begin) = rest.iter().position(|&byte| !is_space(byte)) {
        rest = &rest[begin..];
        word.clear();
        loop {
            match *rest {
                [b'"', ref quoted @ ..] => {
                    rest = double_quoted(quoted, &mut word)?;
                    break;
                }
                [b'\'', ref quoted @ ..] => {
                    rest = single_quoted(quoted, &mut word)?;
                    break;
                }
                [byte, ref more @ ..] if !is_space(byte) => {
                    word.push(byte);
                    rest = more;
                }
                _ => break,
            }
        }
        if rest.first().is_some_and(|&byte| !is_space(byte)) {
            return None;
        }
        words::push(request, &word);
        count += 1;
    }
    Some(count)
}

fn double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let hex = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    loop {
        match *rest {
            [] => return None,
            [b'"', ref more @ ..] => return Some(more),
            [b'\\', b'x', high, low, ref more @ ..] if hex(high).is_some() && hex(low).is_some() => {
                word.push(hex(high)? << 4 | hex(low)?);
                rest = more;
            }
            [b'\\', escaped, ref more @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
                rest = more;
            }
            [byte, ref more @ ..] => {
                word.push(byte);
                rest = more;
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match *rest {
            [] => return None,
            [b'\'', ref more @ ..] => return Some(more),
            [b'\\', b'\'', ref more @ ..] => {
                word.push(b'\'');
                rest = more;
            }
            [byte, ref more @ ..] => {
                word.push(byte);
                rest = more;
            }
        }
    }
}
