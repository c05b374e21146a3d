//! Messages between nodes, for protocols that cope with losses: each is sent when asked for, and no caller waits.
//!
//! Each peer has one stream, whichever side dialed it, to which both sides write. It is dialed when there is something
//! to send, and again when it breaks. A peer has a writing thread while there is something to write, and each stream
//! has a reading thread. Streams block (see the [crate](super)), and a peer that does not read must not hold up the
//! others.

use std::{
    collections::HashMap,
    fmt,
    io::BufReader,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use squall_fabric::{
    NodeId,
    net::{Principal, Role},
    sync::Lock,
};

use super::{Caller, ControlStream, DialTarget, StreamReader, frame, peer::Peer};

/// The longest message, in bytes.
const MESSAGE_BYTES: usize = 8 << 20;

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSender {
    /// The node.
    pub node: NodeId,
    /// Whether its certificate is that of a witness, which may vote and not be a member.
    pub only_votes: bool,
}

impl MessageSender {
    fn of(stream: &ControlStream) -> MessageSender {
        let role = stream.access.principal().map(Principal::role);
        MessageSender { node: stream.peer, only_votes: role == Some(Role::Witness) }
    }
}

/// A function that takes a message and its sender. It is called on the thread that reads the peer's stream, which waits
/// for it.
pub(crate) type Deliver = Box<dyn Fn(MessageSender, Vec<u8>) + Send + Sync>;

/// A sender and receiver of messages. They may be lost, come twice, or out of their order. Dropping it closes all
/// streams.
pub struct Messenger {
    shared: Arc<MessengerShared>,
}

struct MessengerShared {
    caller: Caller,
    deliver: Deliver,
    /// The peers, each by its id alone, or by its addresses as long as its id is not known.
    peers: Lock<HashMap<DialTarget, Arc<Peer>>>,
    closed: AtomicBool,
}

impl Messenger {
    /// Makes a messenger that dials as `caller`, and hands received messages to `deliver`.
    pub fn new(caller: Caller, deliver: Deliver) -> Messenger {
        let (peers, closed) = (Lock::default(), AtomicBool::new(false));
        Messenger { shared: Arc::new(MessengerShared { caller, deliver, peers, closed }) }
    }

    /// Queues a message to send soon, without waiting. A peer that takes none for long loses the oldest.
    pub fn send(&self, to: &DialTarget, message: Vec<u8>) {
        if message.len() > MESSAGE_BYTES {
            return tracing::error!(bytes = message.len(), ?to, "a message is too long to be sent");
        }
        let peer = self.shared.peer(to.node.map_or_else(|| to.clone(), DialTarget::on_host), to);
        if peer.push(to, message) {
            let (shared, writer) = (Arc::clone(&self.shared), Arc::clone(&peer));
            let name = format!("squall-log-to-{}", to.node.map_or("?".to_owned(), |node| node.0.to_string()));
            if let Err(error) = thread::Builder::new().name(name).spawn(move || shared.write(&writer)) {
                tracing::warn!(%error, "there is no thread to send a message");
                peer.no_thread();
            }
        }
    }

    /// Takes a stream that a peer has dialed, and reads it until it ends.
    pub fn serve(&self, stream: ControlStream) {
        let (node, sender) = (stream.peer, MessageSender::of(&stream));
        let peer = self.shared.peer(DialTarget::on_host(node), &DialTarget::on_host(node));
        match peer.attach(stream.writer) {
            Ok(number) => self.shared.read(&peer, sender, number, stream.reader),
            Err(error) => tracing::debug!(%node, %error, "a stream could not be used"),
        }
    }
}

impl Drop for Messenger {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.peers.lock().drain().for_each(|(_, peer)| peer.close());
    }
}

impl MessengerShared {
    fn peer(&self, key: DialTarget, contact: &DialTarget) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(&key) {
            return Arc::clone(peer);
        }
        // Peers that were left, or were never reached, are removed.
        peers.retain(|_, peer| !peer.is_idle());
        let peer = Arc::new(Peer::new(contact.clone()));
        if !self.closed.load(Ordering::Acquire) {
            peers.insert(key, Arc::clone(&peer));
        } else {
            peer.close();
        }
        peer
    }

    /// Runs the thread that writes to a peer.
    fn write(self: &Arc<Self>, peer: &Arc<Peer>) {
        while let Some(contact) = peer.work(&self.caller) {
            match peer.dial(&self.caller, &contact) {
                Ok(stream) => self.adopt(peer, stream),
                Err(error) => tracing::debug!(?contact, %error, "a peer can't be reached"),
            }
        }
    }

    /// Takes a stream that was dialed by this side.
    fn adopt(self: &Arc<Self>, peer: &Arc<Peer>, stream: ControlStream) {
        let (node, sender) = (stream.peer, MessageSender::of(&stream));
        // A peer that was known by its addresses can now be written to by its id.
        self.peers.lock().entry(DialTarget::on_host(node)).or_insert_with(|| Arc::clone(peer));
        let read = peer.attach(stream.writer).and_then(|number| {
            let (shared, of_thread) = (Arc::clone(self), Arc::clone(peer));
            let read = move || shared.read(&of_thread, sender, number, stream.reader);
            let spawned = thread::Builder::new().name(format!("squall-log-of-{}", node.0)).spawn(read);
            spawned.map(drop).inspect_err(|_| peer.detach(number))
        });
        if let Err(error) = read {
            tracing::warn!(%node, %error, "a stream could not be used");
        }
    }

    /// Hands on the messages of a stream until it ends.
    fn read(&self, peer: &Peer, sender: MessageSender, number: u64, reader: StreamReader) {
        let mut reader = BufReader::new(reader);
        let ended = loop {
            match frame::read_bytes(&mut reader, MESSAGE_BYTES) {
                Ok(_) if self.closed.load(Ordering::Acquire) => break None,
                Ok(message) => {
                    peer.heard();
                    (self.deliver)(sender, message);
                }
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = ended {
            tracing::debug!(node = %sender.node, %error, "a stream has ended");
        }
        peer.detach(number);
    }
}

impl fmt::Debug for Messenger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messenger").field("caller", &self.shared.caller).finish_non_exhaustive()
    }
}
