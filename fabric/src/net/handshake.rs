//! TLS up to the point where both sides have shown their certificates, without sockets.
//!
//! A [`Handshake`] takes the bytes that a peer sent and gives the bytes to send to it, until it becomes a [`Session`].
//! Both are driven by the owner of the socket.

use std::sync::Arc;

use rustls::{
    ClientConfig, client::UnbufferedClientConnection, pki_types::ServerName, server::UnbufferedServerConnection,
};

use super::{
    identity::Identity,
    tls::{Connection, MAX_RECORD_BYTES, Session, Step, TlsError, explain, record_len},
    verifier::Wanted,
};

/// The length of a handshake's messages beyond which it is refused.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// A connection before both sides have shown their certificates.
pub(crate) struct Handshake {
    connection: Connection,
    /// Bytes that came and were not used up.
    incoming: Vec<u8>,
    /// The number of bytes of `incoming` that the connection has seen: whole records, so that it never opens those
    /// behind the handshake.
    fed: usize,
    failed: bool,
}

impl Handshake {
    /// The side that dialed. Its hello is in `out`.
    pub(crate) fn dial(identity: &Identity, wanted: Wanted, out: &mut Vec<u8>) -> Result<Handshake, TlsError> {
        let credentials = identity.credentials();
        let name = wanted.server_name(&credentials.label);
        let name = name.ok_or_else(|| TlsError::Protocol("the node has no name".to_owned()))?;
        Self::dial_name(&credentials.client, name, out)
    }

    pub(super) fn dial_name(
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
        out: &mut Vec<u8>,
    ) -> Result<Handshake, TlsError> {
        let client =
            UnbufferedClientConnection::new(Arc::clone(config), name).map_err(|error| explain(&error, false))?;
        let mut handshake = Handshake::new(Connection::Client(client));
        handshake.advance(&[], out)?;
        Ok(handshake)
    }

    /// The side that accepted.
    pub(crate) fn accept(identity: &Identity) -> Result<Handshake, TlsError> {
        let config = Arc::clone(&identity.credentials().server);
        let server = UnbufferedServerConnection::new(config).map_err(|error| explain(&error, false))?;
        Ok(Handshake::new(Connection::Server(server)))
    }

    fn new(connection: Connection) -> Handshake {
        Handshake { connection, incoming: Vec::new(), fed: 0, failed: false }
    }

    /// Takes bytes that the peer sent, and appends to `out` the bytes for the peer, also when this fails (an alert).
    /// Returns true once both sides are known, and [`into_session`](Handshake::into_session) is next.
    pub(crate) fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<bool, TlsError> {
        if self.failed || self.incoming.len() + input.len() > HANDSHAKE_BYTES {
            self.failed = true;
            return Err(TlsError::Protocol(format!("its handshake is longer than {HANDSHAKE_BYTES} bytes")));
        }
        self.incoming.extend_from_slice(input);
        loop {
            let (used, step) = self.connection.step(&mut self.incoming[..self.fed], out, &mut |_| {});
            self.incoming.drain(..used);
            self.fed -= used;
            match step {
                Ok(Step::More) => {}
                Ok(_) if !self.connection.is_handshaking() => {
                    if self.fed == 0 {
                        return Ok(true);
                    }
                    self.failed = true;
                    return Err(TlsError::Protocol("its handshake goes on behind its end".into()));
                }
                Ok(Step::Blocked) => {
                    let rest = &self.incoming[self.fed..];
                    match record_len(rest) {
                        // Bytes that are no record are not waited for.
                        _ if !may_be_record(rest) => self.fed += rest.len(),
                        Some(len) if len <= rest.len() => self.fed += len,
                        _ => return Ok(false),
                    }
                }
                Ok(Step::Opened | Step::Closed) => {
                    self.failed = true;
                    return Err(TlsError::Protocol("it ended the handshake before its time".into()));
                }
                Err(error) => {
                    self.failed = true;
                    self.connection.flush_alert(&mut self.incoming[..self.fed], out);
                    return Err(explain(&error, false));
                }
            }
        }
    }

    /// The session, and the bytes that were read behind the handshake. It may be called once
    /// [`advance`](Handshake::advance) returned true.
    pub(crate) fn into_session(self) -> (Session, Vec<u8>) {
        debug_assert!(!self.failed && !self.connection.is_handshaking());
        (Session::new(self.connection), self.incoming)
    }
}

/// Whether bytes can be the beginning of a record (RFC 8446, §5.1): its type, the version's first byte, its length.
fn may_be_record(bytes: &[u8]) -> bool {
    let starts = bytes.first().is_none_or(|kind| (20..=24).contains(kind));
    starts
        && bytes.get(1).is_none_or(|version| *version == 3)
        && record_len(bytes).is_none_or(|len| len <= MAX_RECORD_BYTES)
}
