//! The byte form of the table of sessions, in a copy of a group's state.
//!
//! ```text
//!  version u8 = 3 │ opened u64 │ sessions u32 │ session …
//!   session:  number u64 │ key u64 │ holder u64 │ window u32 │ reply_bytes u32 │ acknowledged u64 │ acts u64 │
//!             answers u32 │ answer …
//!  answer:   number u64 │ kind u8 (0 reply, 1 no command, 2 no reply, 3 skipped) │ length u32 │ reply …
//! ```
//!
//! Behind the table stand the changes that watches are told (`src/clients/serve/history.rs`). Version 2 has none behind
//! it, and is read as of a group in which nothing has changed. Version 1 has no holders either, and is read as if all
//! were trusted. Everything is little-endian, sessions and answers are
//! in the order of their numbers: equal tables have equal bytes.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read, Write},
    sync::Arc,
};

use super::table::{MAX_WINDOW, RequestOutcome, Session, Sessions};

const VERSION: u8 = 3;

/// The version without changes behind it.
const WITHOUT_CHANGES: u8 = 2;

/// The version without holders.
const WITHOUT_HOLDERS: u8 = 1;

/// A reason for which a copy of the table can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionsError {
    #[error("the sessions in a copy of the state could not be read: {0}")]
    Read(#[from] io::Error),
    #[error(
        "the sessions in a copy of the state are of version {0}, this program knows {VERSION}: run one version everywhere"
    )]
    Version(u8),
    #[error("the sessions in a copy of the state are damaged: {0}")]
    Damaged(&'static str),
}

impl Sessions {
    pub(crate) fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&[VERSION])?;
        to.write_all(&self.opened.to_le_bytes())?;
        to.write_all(&(self.open.len() as u32).to_le_bytes())?;
        for (number, session) in &self.open {
            to.write_all(&[*number, session.key, session.holder].map(u64::to_le_bytes).concat())?;
            to.write_all(&[session.window, session.reply_bytes].map(u32::to_le_bytes).concat())?;
            to.write_all(&[session.acknowledged, session.acts].map(u64::to_le_bytes).concat())?;
            to.write_all(&(session.kept().count() as u32).to_le_bytes())?;
            for (number, answer) in session.kept() {
                let (kind, bytes): (u8, &[u8]) = match answer {
                    RequestOutcome::Reply(bytes) => (0, bytes),
                    RequestOutcome::NoCommand => (1, &[]),
                    RequestOutcome::NoReply => (2, &[]),
                    RequestOutcome::Skipped => (3, &[]),
                };
                to.write_all(&number.to_le_bytes())?;
                to.write_all(&[kind])?;
                to.write_all(&(bytes.len() as u32).to_le_bytes())?;
                to.write_all(bytes)?;
            }
        }
        Ok(())
    }

    /// Reads a table, and tells whether the changes stand behind it.
    pub(crate) fn read(from: &mut dyn Read) -> Result<(Sessions, bool), SessionsError> {
        let [version] = take(from)?;
        if ![VERSION, WITHOUT_CHANGES, WITHOUT_HOLDERS].contains(&version) {
            return Err(SessionsError::Version(version));
        }
        let opened = u64::from_le_bytes(take(from)?);
        let count = u32::from_le_bytes(take(from)?);
        let mut open = BTreeMap::new();
        let mut last = 0;
        for _ in 0..count {
            let number = u64::from_le_bytes(take(from)?);
            if number <= last || number > opened {
                return Err(SessionsError::Damaged("the numbers of sessions do not ascend"));
            }
            last = number;
            open.insert(number, read_session(from, version)?);
        }
        Ok((Sessions { opened, open }, version == VERSION))
    }
}

fn read_session(from: &mut dyn Read, version: u8) -> Result<Session, SessionsError> {
    let key = u64::from_le_bytes(take(from)?);
    let holder = if version == WITHOUT_HOLDERS { 0 } else { u64::from_le_bytes(take(from)?) };
    let window = u32::from_le_bytes(take(from)?);
    let reply_bytes = u32::from_le_bytes(take(from)?);
    let acknowledged = u64::from_le_bytes(take(from)?);
    let acts = u64::from_le_bytes(take(from)?);
    let count = u32::from_le_bytes(take(from)?);
    if !(1..=MAX_WINDOW).contains(&window) || count > window {
        return Err(SessionsError::Damaged("a window is impossible"));
    }
    let (answers, kept_bytes) = (VecDeque::new(), 0);
    let mut session = Session { key, holder, window, reply_bytes, acknowledged, answers, kept_bytes, acts };
    for _ in 0..count {
        let number = u64::from_le_bytes(take(from)?);
        let index = number.checked_sub(acknowledged).filter(|&index| index < u64::from(window));
        let index = index.ok_or(SessionsError::Damaged("an answer lies outside the window"))? as usize;
        if index < session.answers.len() {
            return Err(SessionsError::Damaged("the numbers of answers do not ascend"));
        }
        let [kind] = take(from)?;
        let len = u32::from_le_bytes(take(from)?);
        let answer = match kind {
            0 if len <= reply_bytes => {
                let mut bytes = Vec::new();
                // Memory is taken as bytes arrive, not as they are announced.
                if from.take(u64::from(len)).read_to_end(&mut bytes)? < len as usize {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                RequestOutcome::Reply(Arc::from(bytes))
            }
            1 if len == 0 => RequestOutcome::NoCommand,
            2 if len == 0 => RequestOutcome::NoReply,
            3 if len == 0 => RequestOutcome::Skipped,
            _ => return Err(SessionsError::Damaged("an answer is of no known kind")),
        };
        session.kept_bytes += u64::from(len);
        session.answers.resize(index, None);
        session.answers.push_back(Some(answer));
    }
    Ok(session)
}

fn take<const N: usize>(from: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
