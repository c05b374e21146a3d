//! The choice of connections by their properties.

use std::net::SocketAddr;

use super::connected_client::ConnectedClient;
use crate::Error;

/// The connections that `CLIENT LIST` and `CLIENT KILL` are about.
#[derive(Default)]
pub(super) struct ClientFilter {
    pub(super) id: Option<u64>,
    pub(super) peer: Option<Vec<u8>>,
    pub(super) here: Option<Vec<u8>>,
    pub(super) kind: Option<ClientKind>,
    pub(super) skip_own: bool,
}

impl ClientFilter {
    pub(super) fn has(&self, client: &ConnectedClient) -> bool {
        let is = |address: SocketAddr, asked: &Option<Vec<u8>>| {
            asked.as_ref().is_none_or(|asked| address.to_string().as_bytes() == asked)
        };
        self.id.is_none_or(|id| id == client.id)
            && is(client.peer(), &self.peer)
            && is(client.here, &self.here)
            && self.kind.is_none_or(|kind| kind.is_of(client))
    }
}

/// A client's type, as Redis has them.
#[derive(Clone, Copy)]
pub(super) enum ClientKind {
    Normal,
    Listener,
    /// A type that only a Redis has.
    Replication,
}

impl ClientKind {
    pub(super) fn read(word: &[u8]) -> Result<ClientKind, Error> {
        match &*word.to_ascii_lowercase() {
            b"normal" => Ok(ClientKind::Normal),
            b"pubsub" => Ok(ClientKind::Listener),
            b"master" | b"replica" | b"slave" => Ok(ClientKind::Replication),
            _ => Err(Error::new(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(word)))),
        }
    }

    pub(super) fn is_of(self, client: &ConnectedClient) -> bool {
        match self {
            ClientKind::Normal => !client.is_listener(),
            ClientKind::Listener => client.is_listener(),
            ClientKind::Replication => false,
        }
    }
}
