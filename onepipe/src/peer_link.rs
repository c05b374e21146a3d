//! The link to a peer, and posts on it.

use squall_fabric::{EndpointId, Fabric, Op, PostError, RegionKey, Token};

/// A peer that is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerLink {
    pub(crate) endpoint: EndpointId,
    /// This rank's region in the peer's memory.
    pub(crate) region: RegionKey,
}

impl PeerLink {
    /// Posts an operation, whose completion is not reported. Returns whether it was posted; if not, it may be later, or
    /// a completion will say that it can't.
    ///
    /// # Panics
    ///
    /// On an error that says that the post itself is wrong, which a bug in this crate would be.
    #[inline]
    pub(crate) fn post(&self, fabric: &mut impl Fabric, op: Op<'_>) -> bool {
        match fabric.post(self.endpoint, op, Token::UNSIGNALED) {
            Ok(()) => true,
            Err(PostError::Full | PostError::Broken | PostError::NotConnected) => false,
            Err(error) => panic!("a message of 1Pipe could not be posted: {error}"),
        }
    }
}
