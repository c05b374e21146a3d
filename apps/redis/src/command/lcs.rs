//! The longest common subsequence of two strings.

use std::cmp::max;

use super::{Group, Spec, integer, is, read};
use crate::{Error, Reply, Text, keyspace::View, value::Typed};

pub(super) const COMMANDS: &[Spec] = &Group("string").of([read("lcs", -3, lcs)
    .doc("7.0.0", "Finds the longest sequence of bytes that two values have in common.")
    .keys(1, 2, 1)]);

/// The most lengths of common parts that are computed. A replica delivers nothing while it looks.
const MAX_LENGTHS: usize = 16 << 20;

/// The options behind the keys.
#[derive(Default)]
struct LcsOptions {
    len: bool,
    idx: bool,
    with_match_len: bool,
    min_match_len: usize,
}

impl LcsOptions {
    fn parse(words: &[&[u8]]) -> Result<LcsOptions, Error> {
        let mut options = LcsOptions::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if is(word, "len") {
                options.len = true;
            } else if is(word, "idx") {
                options.idx = true;
            } else if is(word, "withmatchlen") {
                options.with_match_len = true;
            } else if is(word, "minmatchlen") {
                let least = integer(words.next().ok_or(Error::SYNTAX)?)?;
                options.min_match_len = usize::try_from(least).unwrap_or(0);
            } else {
                return Err(Error::SYNTAX);
            }
        }
        if options.len && options.idx {
            return Err(Error::fixed("ERR If you want both the length and indexes, please just use IDX."));
        }
        Ok(options)
    }
}

fn lcs(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let text = |key| match keys.get(key) {
        None => Ok(Text::default()),
        Some(value) => {
            Text::of(value).cloned().ok_or(Error::fixed("ERR The specified keys must contain string values"))
        }
    };
    let (left, right) = (text(words[1])?, text(words[2])?);
    let options = LcsOptions::parse(&words[3..])?;
    let (left, right) = (left.bytes(), right.bytes());
    if (left.len() + 1).saturating_mul(right.len() + 1) > MAX_LENGTHS {
        return Err(Error::new(format!(
            "ERR strings of {} and {} bytes are too long for LCS: the product of both lengths may be {MAX_LENGTHS}",
            left.len(),
            right.len()
        )));
    }
    let table = CommonLengths::new(&left, &right);
    if options.len {
        return Ok(Reply::count(table.all()));
    }
    let common = table.common();
    if !options.idx {
        let bytes: Vec<u8> = common.iter().rev().map(|&(at, _)| left[at]).collect();
        return Ok(Reply::Bytes(bytes.into()));
    }
    let range = |from: usize, len: usize| Reply::Array(vec![Reply::count(from), Reply::count(from + len - 1)]);
    let matches = runs(&common).into_iter().filter(|run| run.len >= options.min_match_len).map(|run| {
        let mut shown = vec![range(run.left, run.len), range(run.right, run.len)];
        if options.with_match_len {
            shown.push(Reply::count(run.len));
        }
        Reply::Array(shown)
    });
    let matches = Reply::Array(matches.collect());
    Ok(Reply::Map(vec![(Reply::bytes("matches"), matches), (Reply::bytes("len"), Reply::count(table.all()))]))
}

/// The length of the longest common part of each two beginnings.
struct CommonLengths<'a> {
    left: &'a [u8],
    right: &'a [u8],
    /// The lengths, row by row: one row for each length of the left beginning.
    lengths: Vec<u32>,
}

impl<'a> CommonLengths<'a> {
    fn new(left: &'a [u8], right: &'a [u8]) -> CommonLengths<'a> {
        let width = right.len() + 1;
        let mut lengths = vec![0; (left.len() + 1) * width];
        for (row, byte) in left.iter().enumerate() {
            let (above, here) = lengths[row * width..].split_at_mut(width);
            for (column, other) in right.iter().enumerate() {
                here[column + 1] = if byte == other { above[column] + 1 } else { max(above[column + 1], here[column]) };
            }
        }
        CommonLengths { left, right, lengths }
    }

    fn of(&self, left: usize, right: usize) -> u32 {
        self.lengths[left * (self.right.len() + 1) + right]
    }

    fn all(&self) -> usize {
        self.of(self.left.len(), self.right.len()) as usize
    }

    /// The places of the common bytes in both strings, the last first. Of several choices, it makes that of Redis.
    fn common(&self) -> Vec<(usize, usize)> {
        let (mut left, mut right) = (self.left.len(), self.right.len());
        let mut common = Vec::with_capacity(self.all());
        while left > 0 && right > 0 {
            if self.left[left - 1] == self.right[right - 1] {
                (left, right) = (left - 1, right - 1);
                common.push((left, right));
            } else if self.of(left - 1, right) > self.of(left, right - 1) {
                left -= 1;
            } else {
                right -= 1;
            }
        }
        common
    }
}

/// Common bytes that follow each other in both strings.
#[derive(Debug, PartialEq, Eq)]
struct CommonRun {
    left: usize,
    right: usize,
    len: usize,
}

/// The runs of common bytes, the last first.
fn runs(common: &[(usize, usize)]) -> Vec<CommonRun> {
    let mut runs: Vec<CommonRun> = Vec::new();
    for &(left, right) in common {
        match runs.last_mut() {
            Some(run) if run.left == left + 1 && run.right == right + 1 => {
                *run = CommonRun { left, right, len: run.len + 1 };
            }
            _ => runs.push(CommonRun { left, right, len: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn what_two_strings_have_in_common_is_found() {
        let mut shell = Shell::new();
        shell.ask("mset a ohmytext b mynewtext");
        assert_eq!(shell.ask("lcs a b"), "\"mytext\"");
        assert_eq!(shell.ask("lcs a b len"), ":6");
        let ranges = "{\"matches\": [[[:4, :7], [:5, :8]], [[:2, :3], [:0, :1]]], \"len\": :6}";
        assert_eq!(shell.ask("lcs a b idx"), ranges);
        let long = "{\"matches\": [[[:4, :7], [:5, :8], :4]], \"len\": :6}";
        assert_eq!(shell.ask("lcs a b idx minmatchlen 4 withmatchlen"), long);
        assert_eq!(shell.ask("lcs a none"), "\"\"");
    }

    #[test]
    fn long_strings_are_refused() {
        let mut shell = Shell::new();
        shell.ask("setrange a 100000 x");
        shell.ask("set b 1234");
        assert_eq!(shell.ask("lcs a b len"), ":0");
        assert!(shell.ask("lcs a a").starts_with("-ERR strings of 100001 and 100001 bytes are too long for LCS"));
    }
}
