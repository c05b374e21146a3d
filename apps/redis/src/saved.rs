//! A replica's state as bytes, for a replica that joins.
//!
//! The bytes hold everything on which a later command could depend. Besides keys and values, that is the order in which
//! they lie (some commands draw places at random), the versions that watching transactions need, and the requests that
//! wait for an element. All numbers are
//! little-endian. A text is its length (4 bytes) and its bytes.

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use crate::{
    Text,
    value::{Hash, List, Set, SortedSet, Value},
};

/// The first bytes of a state, with the version of the format.
pub(crate) const MAGIC: &[u8; 8] = b"sqlkv\0\0\x03";

/// The number of bytes read or written at once. A length is trusted only as far as bytes have arrived.
const AT_ONCE: usize = 1 << 20;

/// Writes a state.
#[derive(Debug, Default)]
pub(crate) struct StateWriter(pub(crate) Vec<u8>);

impl StateWriter {
    /// Hands on the bytes so far, if there are many.
    pub(crate) fn spill(&mut self, to: &mut dyn Write) -> io::Result<()> {
        if self.0.len() < AT_ONCE {
            return Ok(());
        }
        to.write_all(&self.0)?;
        self.0.clear();
        Ok(())
    }

    /// Hands on the rest.
    pub(crate) fn finish(self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&self.0)
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).expect("no text has more than 512 MiB");
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &Text) {
        // The form matters: it cannot be told from the bytes, and clients may ask for it.
        match text {
            Text::Integer(number) => {
                self.byte(1);
                self.number(number.cast_unsigned());
            }
            Text::Short(_) | Text::Fixed(_) => {
                self.byte(0);
                self.bytes(&text.bytes());
            }
            Text::Growing(bytes) => {
                self.byte(2);
                self.bytes(bytes);
            }
        }
    }

    pub(crate) fn value(&mut self, value: &Value) {
        match value {
            Value::Text(text) => {
                self.byte(0);
                self.text(text);
            }
            Value::List(list) => {
                self.byte(1);
                self.number(list.len() as u64);
                list.iter().for_each(|element| self.text(element));
            }
            Value::Hash(hash) => {
                self.byte(2);
                self.number(hash.len() as u64);
                for (field, value) in hash.iter() {
                    self.bytes(field);
                    self.text(value);
                }
            }
            Value::Set(set) => {
                self.byte(3);
                self.number(set.len() as u64);
                set.iter().for_each(|member| self.bytes(member));
            }
            Value::SortedSet(set) => {
                self.byte(if set.places().is_some() { 5 } else { 4 });
                self.number(set.len() as u64);
                let mut scored = |member: &[u8], score: f64| {
                    self.bytes(member);
                    self.number(score.to_bits());
                };
                match set.places() {
                    Some(places) => {
                        (0..places).filter_map(|at| set.at(at)).for_each(|(member, score)| scored(member, score));
                    }
                    None => set.iter().for_each(|(member, score)| scored(member, score)),
                }
            }
        }
    }
}

/// Reads a state.
pub(crate) struct StateReader<'a>(pub(crate) &'a mut dyn Read);

impl StateReader<'_> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn magic(&mut self) -> io::Result<()> {
        if self.array()? == *MAGIC { Ok(()) } else { Err(damaged("it is not that of a store of this version")) }
    }

    pub(crate) fn byte(&mut self) -> io::Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn number(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = u32::from_le_bytes(self.array()?) as usize;
        let mut bytes = Vec::new();
        while rest > 0 {
            let (have, more) = (bytes.len(), rest.min(AT_ONCE));
            bytes.resize(have + more, 0);
            self.0.read_exact(&mut bytes[have..])?;
            rest -= more;
        }
        Ok(bytes)
    }

    fn text(&mut self) -> io::Result<Text> {
        match self.byte()? {
            0 => Ok(Text::plain(&self.bytes()?)),
            1 => Ok(Text::from(self.number()?.cast_signed())),
            2 => Ok(Text::Growing(Arc::new(self.bytes()?))),
            _ => Err(damaged("it has a text of no kind")),
        }
    }

    pub(crate) fn value(&mut self) -> io::Result<Value> {
        let kind = self.byte()?;
        if kind == 0 {
            return self.text().map(Value::Text);
        }
        let elements = self.number()?;
        let value = match kind {
            1 => {
                let list = (0..elements).map(|_| self.text()).collect::<io::Result<List>>()?;
                Value::List(Box::new(list))
            }
            2 => {
                let mut hash = Hash::default();
                for _ in 0..elements {
                    let field = self.bytes()?;
                    hash.set(&field, self.text()?);
                }
                Value::Hash(Box::new(hash))
            }
            3 => {
                let mut set = Set::default();
                for _ in 0..elements {
                    set.insert(&self.bytes()?);
                }
                Value::Set(Box::new(set))
            }
            4 | 5 => {
                let mut set = SortedSet::default();
                if kind == 5 {
                    set.keep_table();
                }
                for _ in 0..elements {
                    let (member, score) = (self.bytes()?, f64::from_bits(self.number()?));
                    if score.is_nan() {
                        return Err(damaged("a score is no number"));
                    }
                    set.insert(&member, score);
                }
                Value::SortedSet(Box::new(set))
            }
            _ => return Err(damaged("it has a value of no type")),
        };
        // No store has collections that are empty, or that have an element twice.
        if elements == 0 || value.elements() as u64 != elements {
            return Err(damaged("a collection's elements are fewer than it says"));
        }
        Ok(value)
    }
}

/// The error of bytes that no store has written. `what` completes a sentence about the state.
pub(crate) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a state that was to be restored is damaged: {what}"))
}
