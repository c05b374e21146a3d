//! Frames over a stream of bytes, encrypted or not, without a socket.

use super::{
    handshake::Handshake,
    tls::{Session, TlsError},
    wire::frame_len,
};
use crate::wire::Malformed;

/// The reason for which a connection can't go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PipeError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

#[derive(Default)]
enum Protection {
    #[default]
    None,
    Shaking(Box<Handshake>),
    Sealed(Session),
}

/// A converter: it takes the bytes that come, and gives frames; it takes frames, and gives the bytes that go.
#[derive(Default)]
pub(super) struct Pipe {
    protection: Protection,
    /// Bytes that came and are not opened yet (without protection, they never have to be).
    raw: Vec<u8>,
    /// Opened bytes.
    plain: Vec<u8>,
    /// The number of bytes of `plain` (without protection, of `raw`) that were given away in frames since the rest was
    /// moved to its beginning. Moving the rest behind each of many short frames would take its time.
    given: usize,
    /// Bytes to be sent.
    pub(super) out: Vec<u8>,
    /// Frames that wait for the end of the handshake.
    held: Vec<u8>,
}

impl Pipe {
    pub(super) fn plain() -> Pipe {
        Pipe::default()
    }

    /// A pipe in its handshake, which has `out` to send already.
    pub(super) fn shaking(handshake: Handshake, out: Vec<u8>) -> Pipe {
        Pipe { protection: Protection::Shaking(Box::new(handshake)), out, ..Pipe::plain() }
    }

    /// Whether the two sides don't know each other yet.
    pub(super) fn is_shaking(&self) -> bool {
        matches!(self.protection, Protection::Shaking(_))
    }

    pub(super) fn session(&self) -> Option<&Session> {
        match &self.protection {
            Protection::Sealed(session) => Some(session),
            _ => None,
        }
    }

    /// Takes bytes that came. After an error, too, there may be something to send.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), PipeError> {
        let Protection::Shaking(handshake) = &mut self.protection else {
            self.raw.extend_from_slice(bytes);
            return Ok(());
        };
        if handshake.advance(bytes, &mut self.out)? {
            if let Protection::Shaking(handshake) = std::mem::replace(&mut self.protection, Protection::None) {
                let (session, early) = handshake.into_session();
                self.protection = Protection::Sealed(session);
                self.raw = early;
            }
            let held = std::mem::take(&mut self.held);
            self.send(&held)?;
        }
        Ok(())
    }

    /// Sends a frame, once the handshake is done.
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), TlsError> {
        match &mut self.protection {
            Protection::None => self.out.extend_from_slice(frame),
            Protection::Shaking(_) => self.held.extend_from_slice(frame),
            Protection::Sealed(session) => session.seal(frame, &mut self.out)?,
        }
        Ok(())
    }

    /// The next frame that has come whole, without its length, which is at most `most`.
    pub(super) fn next_frame(&mut self, most: usize) -> Result<Option<Vec<u8>>, PipeError> {
        loop {
            let source = match &mut self.protection {
                Protection::None => &mut self.raw,
                Protection::Shaking(_) => return Ok(None),
                Protection::Sealed(_) => &mut self.plain,
            };
            let left = &source[self.given..];
            if let Some(len) = frame_len(left, most)?
                && let Some(frame) = left.get(4..len)
            {
                self.given += len;
                return Ok(Some(frame.to_vec()));
            }
            source.drain(..self.given);
            self.given = 0;
            let Protection::Sealed(session) = &mut self.protection else { return Ok(None) };
            let plain = &mut self.plain;
            // Records are opened one at a time: bytes behind the last greeting are handed on as they came.
            match session.open_record(&mut self.raw, &mut |bytes| plain.extend_from_slice(bytes)) {
                Ok(0) => return Ok(None),
                Ok(used) => drop(self.raw.drain(..used)),
                Err(error) => {
                    session.farewell(&mut self.out);
                    return Err(error.into());
                }
            }
        }
    }

    /// Says that nothing follows.
    pub(super) fn farewell(&mut self) {
        if let Protection::Sealed(session) = &mut self.protection {
            session.farewell(&mut self.out);
        }
    }

    /// The session, and the bytes behind the last frame, as they came.
    pub(super) fn into_parts(mut self) -> Result<(Option<Session>, Vec<u8>), Malformed> {
        match self.protection {
            Protection::None => {
                self.raw.drain(..self.given);
                Ok((None, self.raw))
            }
            Protection::Sealed(_) if self.plain.len() > self.given => {
                Err(Malformed("a record holds more than its greeting"))
            }
            Protection::Sealed(session) => Ok((Some(session), self.raw)),
            Protection::Shaking(_) => Err(Malformed("the handshake is not done")),
        }
    }
}
