//! One node's part in a message whose receivers all map the pages of one copy.

use squall::Time;
use squall_fabric::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKind, Slice, Token, Wait,
    shm::{SealedMemory, SharedCopy, ShmFabric},
};

use super::contents::MessageContents;
use crate::{job::BulkJob, parent::Stopped};

/// A layer number that no layer of Squall uses.
const LAYER: u32 = u32::MAX;

/// The token of a receive. Each receiver has one receive posted at a time.
const RECEIVE: Token = Token(0);

pub(super) struct Sharing {
    /// The endpoints to each receiver, at the root; at a receiver, the one to the root.
    ends: Vec<EndpointId>,
    size_bytes: usize,
    /// The region that receives are posted into. Nothing is ever placed in it.
    nowhere: Region,
    held: RoundMessage,
    /// The time at which the message was here, by the boot clock.
    received: Option<u64>,
}

/// The message of this round, as far as it exists.
enum RoundMessage {
    Nothing,
    Filled(Region),
    Sealed {
        memory: SealedMemory,
        /// The root's own copy.
        copy: Option<SharedCopy>,
    },
    Taken(SharedCopy),
}

impl Sharing {
    /// Connects the root, which is node 0, with each receiver. `rest` lets time pass when there is nothing to do.
    ///
    /// Nothing else may use the fabric yet, since completions of other endpoints would be counted or lost.
    pub(super) fn connect(
        job: &BulkJob,
        fabric: &mut ShmFabric,
        mut rest: impl FnMut(&mut ShmFabric) -> Result<(), Stopped>,
    ) -> Result<Sharing, Stopped> {
        let nowhere = fabric.register(RegionKind::Bulk, 1).map_err(|error| error.to_string())?;
        let peers = if job.node == 0 { 1..job.nodes } else { 0..1 };
        let tag = GroupTag { layer: LAYER, group: 0, epoch: 1 };
        let ends: Vec<_> = peers.map(|peer| fabric.connect(NodeId(peer), tag, &[], &[])).collect();
        let mut sharing =
            Sharing { ends, size_bytes: job.size_bytes, nowhere, held: RoundMessage::Nothing, received: None };
        if job.node > 0 {
            sharing.receive(fabric)?;
        }
        let mut missing = sharing.ends.len();
        let mut happened = Vec::new();
        while missing > 0 {
            fabric.arm();
            fabric.poll(Time::boot_clock(), &mut happened);
            if happened.is_empty() {
                rest(fabric)?;
            } else {
                fabric.disarm();
            }
            for completion in happened.drain(..) {
                match completion {
                    Completion::Connected { .. } => missing -= 1,
                    Completion::Broken { peer, reason, .. } => {
                        return Err(format!("node {} could not be connected: {reason}", peer.0).into());
                    }
                    _ => {}
                }
            }
        }
        Ok(sharing)
    }

    fn receive(&mut self, fabric: &mut ShmFabric) -> Result<(), String> {
        let into = Slice { region: &self.nowhere, offset: 0, len: 1 };
        fabric.post(self.ends[0], Op::Recv { into }, RECEIVE).map_err(|error| error.to_string())
    }

    /// Gives up the last round's message. The root makes a new one, in memory that was never used.
    pub(super) fn renew(&mut self, fabric: &mut ShmFabric, contents: Option<MessageContents>) -> Result<(), String> {
        (self.held, self.received) = (RoundMessage::Nothing, None);
        if let Some(contents) = contents {
            let region = fabric.register(RegionKind::Bulk, self.size_bytes).map_err(|error| error.to_string())?;
            contents.each_word(self.size_bytes, |at, word| region.write(at, word));
            self.held = RoundMessage::Filled(region);
        }
        Ok(())
    }

    /// Seals the root's message and shares it with all receivers. Returns the time at which it was sealed.
    pub(super) fn share(&mut self, fabric: &mut ShmFabric) -> Result<Option<u64>, String> {
        let RoundMessage::Filled(region) = std::mem::replace(&mut self.held, RoundMessage::Nothing) else {
            return Ok(None);
        };
        let memory = fabric.seal(region).map_err(|error| error.to_string())?;
        let sealed = Time::boot_clock().as_nanos();
        for &end in &self.ends {
            fabric.share(end, &memory, None, Token::UNSIGNALED).map_err(|error| error.to_string())?;
        }
        self.held = RoundMessage::Sealed { memory, copy: None };
        Ok(Some(sealed))
    }

    /// Takes a message that has come. To be called after each poll.
    pub(super) fn take(&mut self, fabric: &mut ShmFabric) -> Result<(), String> {
        let Some(copy) = fabric.take_shared(self.ends[0], RECEIVE) else { return Ok(()) };
        self.received = Some(Time::boot_clock().as_nanos());
        if copy.len() != self.size_bytes {
            return Err(format!("{} bytes were shared: this is a bug of Squall", copy.len()));
        }
        self.held = RoundMessage::Taken(copy);
        self.receive(fabric)
    }

    /// Whether this node's part is done. The root's is done once it has shared.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.held, RoundMessage::Sealed { .. } | RoundMessage::Taken(_))
    }

    /// The time at which a receiver had the message.
    pub(super) fn received(&self) -> Option<u64> {
        self.received
    }

    /// The copy that a receiver has taken.
    pub(super) fn copy(&mut self) -> Option<&mut [u8]> {
        match &mut self.held {
            RoundMessage::Taken(copy) => Some(copy),
            _ => None,
        }
    }

    /// Writes other contents over this node's own copy; the root takes a copy for it.
    pub(super) fn write(&mut self, own: MessageContents) -> Result<(), String> {
        match &mut self.held {
            RoundMessage::Sealed { memory, copy } => {
                let new = memory.to_copy().map_err(|cause| format!("sealed memory could not be mapped: {cause}"))?;
                own.write(copy.insert(new));
            }
            RoundMessage::Taken(copy) => own.write(copy),
            RoundMessage::Nothing | RoundMessage::Filled(_) => {}
        }
        Ok(())
    }

    /// The first offset at which the root's sealed memory is not as it was shared, or this node's copy is not as it
    /// wrote it.
    pub(super) fn first_change(&self, own: MessageContents, shared: MessageContents) -> Option<usize> {
        match &self.held {
            RoundMessage::Sealed { memory, copy } => {
                shared.first_difference(memory).or_else(|| own.first_difference(copy.as_ref()?))
            }
            RoundMessage::Taken(copy) => own.first_difference(copy),
            RoundMessage::Nothing | RoundMessage::Filled(_) => None,
        }
    }
}
