//! The chain: a digest of all records up to one, the same in all members' logs.

use ring::digest::{Context, SHA256};
use squall_membership::{ClusterId, ShardId};

use super::{End, record::RecordHeader};

/// The first bytes of a chain's hash, so that it is not mistaken for another hash of the same bytes.
const BEGIN: &[u8; 16] = b"squall log chain";

/// A digest (SHA-256) of all records that a log holds, from the beginning of its chain up to a position.
///
/// It depends on the records' contents alone. Logs of two members that have the same value at the same [`End`] hold the
/// same records, whatever their batches and segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, derive_more::Debug, derive_more::Display)]
#[debug("{self}")]
#[display("{}", hex(_0))]
pub struct ChainValue(pub [u8; 32]);

impl ChainValue {
    /// Returns the chain's value before the first record behind `begin`.
    pub fn begin(cluster: ClusterId, shard: ShardId, begin: End) -> ChainValue {
        let mut context = Context::new(&SHA256);
        context.update(BEGIN);
        context.update(&cluster.0.to_le_bytes());
        context.update(&u64::from(shard.0).to_le_bytes());
        context.update(&end_bytes(begin));
        ChainValue::finish(context)
    }

    /// Returns the chain's value behind a record.
    pub(crate) fn behind(self, header: &RecordHeader, payload: &[u8]) -> ChainValue {
        let mut context = Context::new(&SHA256);
        context.update(&self.0);
        context.update(&header.shared());
        context.update(payload);
        ChainValue::finish(context)
    }

    fn finish(context: Context) -> ChainValue {
        ChainValue(context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// Returns the bytes of an end, as a signature covers it and a file holds it.
pub(crate) fn end_bytes(end: End) -> [u8; 32] {
    let End { position, version, time } = end;
    let mut bytes = [0; 32];
    for (word, into) in [position.epoch.0, position.seq.0, version, time.0].iter().zip(bytes.as_chunks_mut::<8>().0) {
        *into = word.to_le_bytes();
    }
    bytes
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;
    use squall_membership::{Epoch, Seq};

    use super::{
        super::{Hlc, Position, record::RecordKind},
        *,
    };

    /// The digests that docs/src/internals/log-format.md describes, as another program computes them.
    #[test]
    fn the_format_is_what_it_was() {
        let begin = ChainValue::begin(ClusterId(7), ShardId(3), End::START);
        assert_eq!(begin.to_string(), "0d2eced49fa90d12a7d113fac5576a6a222ac65f00b55d2f4359bea7fc8ded69");
        let header = RecordHeader {
            kind: RecordKind::Message,
            payload_bytes: 3,
            position: Position::new(Epoch(2), Seq(9)),
            time: Hlc(1000),
            version: 5,
            sender: NodeId(4),
            batch: 4096,
            acknowledged: 0,
            payload_checksum: 1,
        };
        let next = begin.behind(&header, b"abc");
        assert_eq!(next.to_string(), "153db5a22725714ac1f254a5cbc5370ebfed8b07382e7641acd343758b527ad7");
        let elsewhere = RecordHeader { batch: 8192, acknowledged: 4, payload_checksum: 2, ..header };
        assert_eq!(begin.behind(&elsewhere, b"abc"), next, "where it lies is no matter");
    }
}
