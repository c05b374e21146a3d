//! The clients of one group that are connected to this node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use squall_fabric::sync::Lock;

use super::{change_hub::ChangeHub, outbox::Outbox};
use crate::clients::wire::ToClient;

/// The places to which the answers of sessions go. Clients of other nodes are not in it.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    state: Lock<ClientsState>,
    pub(super) changes: ChangeHub,
}

#[derive(Debug, Default)]
struct ClientsState {
    /// The outboxes by the key of their sessions.
    sessions: BTreeMap<u64, Arc<Outbox>>,
    /// The outboxes that get the answers of this node besides, whichever node the session's client talks to.
    listeners: BTreeMap<u64, Vec<Arc<Outbox>>>,
    /// All outboxes.
    connected: Vec<Weak<Outbox>>,
}

impl Clients {
    /// Makes the clients of a group that keeps changes of so many bytes. `durable` says whether its messages can be
    /// undone at first.
    pub(crate) fn new(change_bytes: usize, durable: bool) -> Clients {
        Clients { state: Lock::default(), changes: ChangeHub::new(change_bytes, durable) }
    }

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

    /// Sends the answers that this node gives in a session to this listener, too.
    pub(crate) fn listen(&self, key: u64, outbox: &Arc<Outbox>) {
        self.state.lock().listeners.entry(key).or_default().push(Arc::clone(outbox));
    }

    /// Removes a listener.
    pub(crate) fn unlisten(&self, key: u64, outbox: &Arc<Outbox>) {
        let mut state = self.state.lock();
        let Some(listeners) = state.listeners.get_mut(&key) else { return };
        listeners.retain(|listener| !Arc::ptr_eq(listener, outbox));
        if listeners.is_empty() {
            state.listeners.remove(&key);
        }
    }

    /// Tells whether the client of a session, or a listener, is connected here.
    pub(crate) fn has(&self, key: u64) -> bool {
        let state = self.state.lock();
        state.sessions.contains_key(&key) || state.listeners.contains_key(&key)
    }

    /// Tells whether a session has listeners here.
    pub(crate) fn has_listeners(&self, key: u64) -> bool {
        self.state.lock().listeners.contains_key(&key)
    }

    /// Sends a message to the client of a session, if it is connected here. `message` is called only then.
    pub(crate) fn tell(&self, key: u64, message: impl FnOnce() -> ToClient) {
        let outbox = self.state.lock().sessions.get(&key).cloned();
        if let Some(outbox) = outbox {
            outbox.push(message());
        }
    }

    /// Sends a message to the listeners of a session.
    pub(crate) fn tell_listeners(&self, key: u64, message: &ToClient) {
        let listeners = self.state.lock().listeners.get(&key).cloned();
        listeners.iter().flatten().for_each(|outbox| outbox.push(message.clone()));
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

    #[test]
    fn a_listener_and_the_client_itself_do_not_displace_each_other() {
        let clients = Clients::default();
        let outbox = || Outbox::new(1000, Time::ZERO, Holder::Trusted, Budget::new(1 << 20));
        let [client, listener] = [(); 2].map(|()| Arc::new(outbox()));
        clients.listen(7, &listener);
        assert!(clients.has(7) && !clients.has(8));
        clients.attach(7, &client);
        clients.tell(7, || ToClient::Pong);
        clients.tell_listeners(7, &ToClient::Pong);
        clients.unlisten(7, &listener);
        clients.tell_listeners(7, &ToClient::Pong);
        [&client, &listener].iter().for_each(|outbox| outbox.close());
        assert_eq!([client, listener].map(|outbox| outbox.take().map(|messages| messages.len())), [Some(1); 2]);
    }
}
