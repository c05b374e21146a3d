//! The schema of a log's payloads, as the log's owner names it.

/// The longest text, in bytes.
const MAX_BYTES: usize = 160;

/// The schema of a log's payloads in words, of at most 160 bytes. The log does not interpret it.
#[derive(Clone, Copy, PartialEq, Eq, derive_more::Debug)]
#[debug("{:?}", self.as_str())]
pub struct SchemaText {
    len: u8,
    /// Zeros behind the text.
    bytes: [u8; MAX_BYTES],
}

impl SchemaText {
    /// The text of a log to which none was given.
    pub const NONE: SchemaText = SchemaText { len: 0, bytes: [0; MAX_BYTES] };

    /// Makes a text of `text`, cut off at the end of the last character that there is room for.
    pub fn new(text: &str) -> SchemaText {
        let len = text.floor_char_boundary(MAX_BYTES);
        let mut bytes = [0; MAX_BYTES];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        SchemaText { len: len as u8, bytes }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Checked when the text was made.
        str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Returns the length and the text as a file holds them.
    pub(crate) fn to_bytes(self) -> ([u8; 8], [u8; MAX_BYTES]) {
        (u64::from(self.len).to_le_bytes(), self.bytes)
    }

    /// Reads a text as a file holds it. None if the bytes are no text.
    pub(crate) fn from_bytes(len: u64, bytes: &[u8; MAX_BYTES]) -> Option<SchemaText> {
        let text = bytes.get(..usize::try_from(len).ok()?)?;
        str::from_utf8(text).ok().map(SchemaText::new)
    }
}
