//! What a node shows to prove who it is.

/// A node's certificate, its key, and the CA whose certificates it accepts.
#[derive(Clone, Debug)]
pub struct Identity;
