//! A single number for settings that members must agree on.

/// A hash of texts and numbers in order, alike on every build and machine (64-bit FNV-1a).
///
/// It finds honest mistakes; it is no defence against an adversary that looks for a collision.
#[derive(Clone, Debug)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Takes a text.
    pub fn text(&mut self, text: &str) -> &mut Fingerprint {
        self.bytes(text.as_bytes());
        self.number(text.len() as u64)
    }

    /// Takes a number.
    pub fn number(&mut self, number: u64) -> &mut Fingerprint {
        self.bytes(&number.to_le_bytes());
        self
    }

    /// The number for all that was taken so far.
    pub fn value(&self) -> u64 {
        self.0
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
