//! The clients of one group that are connected to this node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use squall_fabric::sync::Lock;

use super::outbox::Outbox;
use crate::clients::wire::ToClient;

/// The places to which the answers of sessions go. Clients of other nodes are not in it.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    state: Lock<ClientsState>,
}

#[derive(Debug, Default)]
struct ClientsState {
    /// The outboxes by the key of their sessions.
    sessions: BTreeMap<u64, Arc<Outbox>>,
    /// All outboxes.
    connected: Vec<Weak<Outbox>>,
}

impl Clients {
    /// Adds a client.
    pub(crate) fn connect(&self, outbox: &Arc<Outbox>) {
        let mut state = self.state.lock();
        state.connected.retain(|other| other.strong_count() > 0);
        state.connected.push(Arc::downgrade(outbox));
    }

    /// Sends the answers of a session to this client from now on.
    pub(crate) fn attach(&self, key: u64, outbox: &Arc<Outbox>) {
        self.state.lock().sessions.insert(key, Arc::clone(outbox));
    }

    /// Removes a client that has gone. If it has come again meanwhile, on another connection, nothing changes.
    pub(crate) fn detach(&self, key: u64, outbox: &Arc<Outbox>) {
        let mut state = self.state.lock();
        if state.sessions.get(&key).is_some_and(|attached| Arc::ptr_eq(attached, outbox)) {
            state.sessions.remove(&key);
        }
    }

    /// Tells whether the client of a session is connected here.
    pub(crate) fn has(&self, key: u64) -> bool {
        self.state.lock().sessions.contains_key(&key)
    }

    /// Sends a message to the client of a session, if it is connected here. `message` is called only then.
    pub(crate) fn tell(&self, key: u64, message: impl FnOnce() -> ToClient) {
        let outbox = self.state.lock().sessions.get(&key).cloned();
        if let Some(outbox) = outbox {
            outbox.push(message());
        }
    }

    /// Sends a message to all clients.
    pub(crate) fn tell_all(&self, message: &ToClient) {
        let connected: Vec<_> = self.state.lock().connected.iter().filter_map(Weak::upgrade).collect();
        connected.iter().for_each(|outbox| outbox.push(message.clone()));
    }

    /// Sends a message to all clients, and closes their connections.
    pub(crate) fn send_away(&self, message: &ToClient) {
        let connected: Vec<_> = std::mem::take(&mut self.state.lock().connected);
        for outbox in connected.iter().filter_map(Weak::upgrade) {
            outbox.push(message.clone());
            outbox.close();
        }
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use squall_fabric::{Time, share::Holder};

    use super::{super::budget::Budget, *};

    #[test]
    fn a_session_belongs_to_its_latest_connection() {
        let clients = Clients::default();
        let outbox = || Outbox::new(1000, Time::ZERO, Holder::Trusted, Budget::new(1 << 20));
        let [old, new] = [(); 2].map(|()| Arc::new(outbox()));
        clients.attach(7, &old);
        clients.attach(7, &new);
        clients.detach(7, &old);
        clients.tell(7, || ToClient::Pong);
        clients.tell(8, || unreachable!("no client has it"));
        new.close();
        assert_eq!(new.take().map(|messages| messages.len()), Some(1));
    }
}
