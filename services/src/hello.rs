//! The first bytes of a stream, each way: the speaker, its version, and the service.
//!
//! ```text
//!  0        8         12        16       20       24
//! ┌────────┬─────────┬─────────┬────────┬────────┐
//! │squallct│ version │ service │  from  │   to   │   caller
//! ├────────┼─────────┼─────────┼────────┼────────┤
//! │squallct│ version │ verdict │  from  │   0    │   node that answers
//! └────────┴─────────┴─────────┴────────┴────────┘
//!   8 bytes   all others u32 LE
//! ```

use std::io::{Read, Write};

use squall_fabric::NodeId;

use super::{ControlError, ControlStream, Service};

/// The version of this exchange.
const VERSION: u32 = 5;

const MAGIC: [u8; 8] = *b"squallct";

const BYTES: usize = 24;

/// The answer of a node to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Welcome = 0,
    NoService = 1,
    Busy = 2,
    OtherNode = 3,
}

fn encode(numbers: [u32; 3]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    for (place, number) in bytes[8..].chunks_exact_mut(4).zip([VERSION].into_iter().chain(numbers)) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Reads a hello. `node` is the node that is thought to be there.
fn read(stream: &mut ControlStream, node: Option<NodeId>) -> Result<[u32; 3], ControlError> {
    let cut = |cause| ControlError::Cut { node, cause };
    let mut bytes = [0; BYTES];
    // A process that is no node may send fewer bytes than a node does, so the magic is read first.
    stream.reader.read_exact(&mut bytes[..8]).map_err(cut)?;
    if bytes[..8] != MAGIC {
        return Err(ControlError::NoSquall { node });
    }
    stream.reader.read_exact(&mut bytes[8..]).map_err(cut)?;
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    match number(8) {
        VERSION => Ok([number(12), number(16), number(20)]),
        theirs => Err(ControlError::Version { ours: VERSION, theirs }),
    }
}

/// Sends the service that this side wants, and waits until the other side agrees. The stream's peer is the node that
/// must be there: the port has checked it, or its name on this host says so.
pub(super) fn call(stream: &mut ControlStream, me: NodeId, service: Service) -> Result<(), ControlError> {
    let node = stream.peer;
    let hello = encode([service as u32, me.0, node.0]);
    stream.writer.write_all(&hello).map_err(|cause| ControlError::Cut { node: Some(node), cause })?;
    let [verdict, from, _] = read(stream, Some(node))?;
    match verdict {
        v if v == Verdict::OtherNode as u32 || NodeId(from) != node => {
            Err(ControlError::OtherNode { node, found: NodeId(from) })
        }
        v if v == Verdict::Welcome as u32 => Ok(()),
        v if v == Verdict::NoService as u32 => Err(ControlError::NoService { node, service: service.id() }),
        v if v == Verdict::Busy as u32 => Err(ControlError::Busy { node, service: service.id() }),
        _ => Err(ControlError::NoSquall { node: Some(node) }),
    }
}

/// A call that came in.
pub(super) struct IncomingCall {
    /// The number of a service.
    pub(super) service: u32,
    pub(super) from: NodeId,
    /// Whether the call is for another node.
    pub(super) is_astray: bool,
}

/// Waits for the request of the process that dialed.
pub(super) fn hear(stream: &mut ControlStream, me: NodeId) -> Result<IncomingCall, ControlError> {
    let [service, from, to] = read(stream, None)?;
    Ok(IncomingCall { service, from: NodeId(from), is_astray: NodeId(to) != me })
}

/// Answers a call.
pub(super) fn answer(stream: &mut ControlStream, me: NodeId, verdict: Verdict) -> Result<(), ControlError> {
    let cut = |cause| ControlError::Cut { node: None, cause };
    stream.writer.write_all(&encode([verdict as u32, me.0, 0])).map_err(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_of_clients_stands_in_the_page_on_their_protocol() {
        let page = include_str!("../../docs/src/internals/client-protocol.md");
        for numbers in [[Service::Clients as u32, 3_000_000_000, 1], [Verdict::Welcome as u32, 1, 0]] {
            let bytes = encode(numbers).map(|byte| format!("{byte:02x}")).join(" ");
            assert!(page.contains(&format!("\n{bytes}\n")), "the page is to have this: {bytes}");
        }
    }
}
