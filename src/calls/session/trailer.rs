//! The trailer behind the command in a message of a group that serves clients.
//!
//! ```text
//!  kind 0, plain     command…                                             │ 0
//!  kind 1, request   command… │ number │ acknowledged │ session │ key     │ 1
//!  kind 2, open      key │ sessions u32 │ window u32 │ reply_bytes u32    │ 2   (of a trusted holder)
//!  kind 3, touch     acknowledged │ session │ key                         │ 3
//!  kind 4, close     session │ key                                        │ 4
//!  kind 5, expire    acts │ session │ key                                 │ 5
//!  kind 6, open      holder │ key │ sessions u32 │ window u32 │ reply_bytes │ 6
//!  kind 7, tick                                                           │ 7
//!  kind 8, follow-up  command… │ number                                   │ 8
//! ```
//!
//! Fields without a type are `u64`, the kind is a byte, all are little-endian. The trailer stands behind the command so
//! that the command begins where the message does, and is aligned.

use super::{Opening, SessionId};

/// The kind of a message, with the fields that its trailer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trailer {
    /// A member's own command.
    Plain,
    /// A client's command.
    Request { session: SessionId, number: u64, acknowledged: u64 },
    /// Opens a session.
    Open(Opening),
    /// A sign that a client is alive.
    Touch { session: SessionId, acknowledged: u64 },
    /// The end of a session, at its client's wish.
    Close(SessionId),
    /// The end of a session that seems to be idle, if no more than `acts` of its messages were delivered.
    Expire { session: SessionId, acts: u64 },
    /// The group's time, and nothing else.
    Tick,
    /// A command that the state asked for under this number.
    FollowUp { number: u64 },
}

/// The error that a message's bytes do not end in a trailer.
#[derive(Debug, thiserror::Error)]
#[error("a message of {bytes} bytes does not end as one of a group that serves clients does")]
pub(crate) struct BadTrailer {
    bytes: usize,
}

/// A message that is a tick.
pub(crate) const TICK: &[u8] = &[7];

/// The longest trailer, in bytes.
const LONGEST: usize = 4 * 8 + 1;

impl Trailer {
    /// Returns the trailer's bytes, and their number.
    pub(crate) fn bytes(&self) -> ([u8; LONGEST], usize) {
        let mut bytes = [0; LONGEST];
        let mut len = 0;
        let mut put = |field: &[u8]| {
            bytes[len..len + field.len()].copy_from_slice(field);
            len += field.len();
        };
        let kind = match *self {
            Trailer::Plain => 0,
            Trailer::Request { session, number, acknowledged } => {
                [number, acknowledged, session.number, session.key].iter().for_each(|word| put(&word.to_le_bytes()));
                1
            }
            Trailer::Open(Opening { key, sessions, holder, window, reply_bytes }) => {
                if holder != 0 {
                    put(&holder.to_le_bytes());
                }
                put(&key.to_le_bytes());
                [sessions, window, reply_bytes].iter().for_each(|limit| put(&limit.to_le_bytes()));
                if holder == 0 { 2 } else { 6 }
            }
            Trailer::Touch { session, acknowledged } => {
                [acknowledged, session.number, session.key].iter().for_each(|word| put(&word.to_le_bytes()));
                3
            }
            Trailer::Close(session) => {
                [session.number, session.key].iter().for_each(|word| put(&word.to_le_bytes()));
                4
            }
            Trailer::Tick => 7,
            Trailer::FollowUp { number } => {
                put(&number.to_le_bytes());
                8
            }
            Trailer::Expire { session, acts } => {
                [acts, session.number, session.key].iter().for_each(|word| put(&word.to_le_bytes()));
                5
            }
        };
        put(&[kind]);
        (bytes, len)
    }

    /// Splits a message into the command, which plain messages, requests and follow-ups have, and the trailer.
    pub(crate) fn split(message: &[u8]) -> Result<(&[u8], Trailer), BadTrailer> {
        Trailer::parse(message).ok_or(BadTrailer { bytes: message.len() })
    }

    fn parse(message: &[u8]) -> Option<(&[u8], Trailer)> {
        let (&kind, mut rest) = message.split_last()?;
        // Fields are read from the end backwards.
        let mut word = || take_last(&mut rest).map(u64::from_le_bytes);
        let mut session = || word().zip(word()).map(|(key, number)| SessionId { number, key });
        let trailer = match kind {
            0 => return Some((rest, Trailer::Plain)),
            1 => {
                let (session, acknowledged, number) = (session()?, word()?, word()?);
                return Some((rest, Trailer::Request { session, number, acknowledged }));
            }
            2 | 6 => {
                let mut limit = || take_last(&mut rest).map(u32::from_le_bytes);
                let (reply_bytes, window, sessions) = (limit()?, limit()?, limit()?);
                let key = u64::from_le_bytes(take_last(&mut rest)?);
                let holder = if kind == 2 { 0 } else { u64::from_le_bytes(take_last(&mut rest)?) };
                Trailer::Open(Opening { key, sessions, holder, window, reply_bytes })
            }
            3 => Trailer::Touch { session: session()?, acknowledged: word()? },
            4 => Trailer::Close(session()?),
            5 => Trailer::Expire { session: session()?, acts: word()? },
            7 => Trailer::Tick,
            8 => {
                let number = word()?;
                return Some((rest, Trailer::FollowUp { number }));
            }
            _ => return None,
        };
        rest.is_empty().then_some((rest, trailer))
    }
}

fn take_last<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (rest, last) = bytes.split_last_chunk()?;
    *bytes = rest;
    Some(*last)
}
