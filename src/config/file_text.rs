//! The text of a configuration file, and the places in it that errors name.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{ConfigError, ValuePlace};

/// A file's text.
pub(super) struct File<'a> {
    text: &'a str,
    place: &'a dyn Fn(Option<usize>) -> ValuePlace,
}

impl<'a> File<'a> {
    /// A text; `place` makes a place of a line.
    pub(super) fn new(text: &'a str, place: &'a dyn Fn(Option<usize>) -> ValuePlace) -> File<'a> {
        File { text, place }
    }

    /// Returns a value that must be a table.
    pub(super) fn table<'v>(&self, value: &'v Spanned<DeValue<'v>>) -> Result<&'v DeTable<'v>, ConfigError> {
        let problem = || format!("invalid type: {}, expected a table", value.get_ref().type_str());
        value.get_ref().as_table().ok_or_else(|| self.error(&problem(), Some(value.span())))
    }

    /// The place of a part of the text.
    pub(super) fn at(&self, span: Range<usize>) -> ValuePlace {
        (self.place)(Some(line_of(self.text.as_bytes(), span.start)))
    }

    /// Returns the error of a text that is no configuration.
    pub(super) fn error(&self, problem: &str, span: Option<Range<usize>>) -> ConfigError {
        let line = span.as_ref().map(|span| line_of(self.text.as_bytes(), span.start));
        let mut problem = problem.trim_end().replace('\n', ", ");
        // The message does not name the key, but the line does.
        let source = line.and_then(|line| self.text.lines().nth(line - 1));
        if let Some(source) = source.filter(|source| !source.trim().is_empty()) {
            let start: String = source.trim().chars().take(SHOWN).collect();
            problem.push_str(&format!(", in `{start}`"));
        }
        // An error at the very end, or on a last line without its newline, mostly means that the rest was not written.
        let last_line = self.text.trim_end().rfind('\n').map_or(0, |at| at + 1);
        if span.is_none_or(|span| span.start >= last_line) && !self.text.ends_with('\n') {
            problem.push_str("; the text ends in the middle of a line, so the file may be only half written");
        }
        ConfigError::Text { place: (self.place)(line), problem }
    }
}

/// The number of characters that are shown of a wrong line.
const SHOWN: usize = 60;

/// Returns the line, from 1, of the byte at `offset`.
pub(super) fn line_of(text: &[u8], offset: usize) -> usize {
    1 + text[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}
