//! Writing and reading the fields of a frame: without padding, numbers little-endian, a text behind its length.

use std::str;

use crate::{BreakReason, GroupTag};

/// The length beyond which texts are cut when they are written, and refused when they are read.
pub(crate) const TEXT_BYTES: usize = 512;

/// A frame that no node of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sent a malformed frame: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The error of a reason that no side has to close an endpoint.
pub(crate) const UNKNOWN_REASON: Malformed = Malformed("an endpoint was closed for no known reason");

/// Appends fields to a frame.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(&mut self, n: u8) -> &mut Writer {
        self.bytes(&[n])
    }

    pub(crate) fn u32(&mut self, n: u32) -> &mut Writer {
        self.bytes(&n.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, n: u64) -> &mut Writer {
        self.bytes(&n.to_le_bytes())
    }

    /// Appends at most 65,535 bytes, behind their number.
    pub(crate) fn sized(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes(&(bytes.len() as u16).to_le_bytes()).bytes(bytes)
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Writer {
        let mut end = text.len().min(TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.sized(&text.as_bytes()[..end])
    }

    pub(crate) fn tag(&mut self, tag: GroupTag) -> &mut Writer {
        self.u32(tag.layer).u32(tag.group).u64(tag.epoch)
    }

    /// Appends the reason for which a side has closed an endpoint: its code u8, and a text.
    pub(crate) fn reason(&mut self, reason: &BreakReason) -> &mut Writer {
        let (code, text) = match reason {
            BreakReason::PeerClosed => (0, ""),
            BreakReason::Access => (1, ""),
            BreakReason::ReceiverNotReady => (2, ""),
            BreakReason::Refused(text) => (3, text.as_str()),
            BreakReason::Failed(text) => (4, text.as_str()),
            BreakReason::Lost(text) => (5, text.as_str()),
            // A peer that is unreachable for this side was given up by it.
            BreakReason::Unreachable | BreakReason::GivenUp => (6, ""),
            // No side that tells a reason breaks an endpoint for these.
            BreakReason::ProcessGone | BreakReason::TagInUse => (0, ""),
        };
        self.u8(code).text(text)
    }
}

/// Takes fields from the beginning of a frame, which may hold anything.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Malformed("it is shorter than its fields"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn sized(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len > most {
            return Err(Malformed("a text is too long"));
        }
        self.bytes(len)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let text = str::from_utf8(self.sized(TEXT_BYTES)?).map_err(|_| Malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    pub(crate) fn tag(&mut self) -> Result<GroupTag, Malformed> {
        Ok(GroupTag { layer: self.u32()?, group: self.u32()?, epoch: self.u64()? })
    }

    pub(crate) fn reason(&mut self) -> Result<BreakReason, Malformed> {
        let code = self.u8()?;
        let text = self.text()?;
        Ok(match code {
            0 => BreakReason::PeerClosed,
            1 => BreakReason::Access,
            2 => BreakReason::ReceiverNotReady,
            3 => BreakReason::Refused(text),
            4 => BreakReason::Failed(text),
            5 => BreakReason::Lost(text),
            6 => BreakReason::GivenUp,
            _ => return Err(UNKNOWN_REASON),
        })
    }

    /// Checks that nothing is left behind the last field.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("it is longer than its fields")) }
    }
}
