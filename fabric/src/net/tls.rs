//! Sealing and opening bytes once both sides have shown their certificates: TLS 1.3, without sockets.

use rustls::{
    CertificateError, Error,
    client::UnbufferedClientConnection,
    pki_types::CertificateDer,
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic},
};

use super::{
    principal::{Principal, cluster_label},
    revoked::Revoked,
    verifier::owner,
};
use crate::NodeId;

/// The most plain bytes that a record holds.
pub(crate) const RECORD_BYTES: usize = 16 << 10;

/// The number of bytes that a record adds to its plain bytes.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;

/// The longest record that the standard allows, with its header.
pub(super) const MAX_RECORD_BYTES: usize = 5 + RECORD_BYTES + 256;

/// The remedy where a certificate is refused.
const ONE_CA: &str = "both sides need certificates of one CA, valid today (`squall keys show`)";

/// The reason for which an encrypted connection can't go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TlsError {
    /// The peer's certificate is not one that this node accepts, or it showed none.
    #[error("its certificate was refused: {0}")]
    PeerCertificate(String),
    /// A peer whose certificate is good does not accept this node's.
    #[error("it refuses this node's certificate: {0}; {ONE_CA}")]
    OwnCertificate(String),
    /// A peer, whose own certificate was not seen, does not know the CA of this node's.
    #[error(
        "it does not know the CA of this node's certificate: the peer's is signed by another cluster's CA; {ONE_CA}"
    )]
    UnknownCa,
    /// The bytes violate the protocol.
    #[error("{0}")]
    Protocol(String),
}

/// One side of a connection, in any phase.
pub(super) enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// The state that the records have brought a connection to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A stop before the end: there may be more in the records that it was given.
    More,
    /// The end of a record whose bytes it gave out. There may be more.
    Opened,
    /// A need of more records.
    Blocked,
    /// The peer has said that nothing follows.
    Closed,
}

fn step_of<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
    take: &mut dyn FnMut(&[u8]),
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Err(error) => return (discard, Err(error)),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        take(record.payload);
                    }
                    Err(error) => return (discard, Err(error)),
                }
            }
            Step::Opened
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let start = out.len();
            let mut room = 1024;
            loop {
                out.resize(start + room, 0);
                match data.encode(&mut out[start..]) {
                    Ok(len) => {
                        out.truncate(start + len);
                        break Step::More;
                    }
                    Err(EncodeError::InsufficientSize(error)) => room = error.required_size,
                    Err(EncodeError::AlreadyEncoded) => {
                        out.truncate(start);
                        break Step::More;
                    }
                }
            }
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Step::More
        }
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Step::Closed,
        // Early data is never offered, and states that a later rustls adds were not asked for.
        Ok(_) => Step::Blocked,
    };
    (discard, Ok(step))
}

fn encrypt<Data>(mut traffic: WriteTraffic<'_, Data>, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
    let start = out.len();
    let mut room = plain.len() + RECORD_OVERHEAD;
    loop {
        out.resize(start + room, 0);
        match traffic.encrypt(plain, &mut out[start..]) {
            Ok(len) => {
                out.truncate(start + len);
                return Ok(());
            }
            // An update of the keys goes before it.
            Err(EncryptError::InsufficientSize(error)) if error.required_size > room => room = error.required_size,
            Err(error) => {
                out.truncate(start);
                return Err(TlsError::Protocol(format!("a record could not be sealed: {error}")));
            }
        }
    }
}

impl Connection {
    /// Takes the next step in `input`, appends bytes to send, and gives away opened bytes. Also returns the number of
    /// bytes of `input` that are used up: the rest has to come again, as it is now.
    pub(super) fn step(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
        take: &mut dyn FnMut(&[u8]),
    ) -> (usize, Result<Step, Error>) {
        match self {
            Connection::Client(client) => step_of(client.process_tls_records(input), out, take),
            Connection::Server(server) => step_of(server.process_tls_records(input), out, take),
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match self {
            Connection::Client(client) => client.is_handshaking(),
            Connection::Server(server) => server.is_handshaking(),
        }
    }

    fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Connection::Client(client) => client.peer_certificates()?.first(),
            Connection::Server(server) => server.peer_certificates()?.first(),
        }
    }

    fn has_unsent(&self) -> bool {
        match self {
            Connection::Client(client) => client.wants_write(),
            Connection::Server(server) => server.wants_write(),
        }
    }

    /// Appends the alert that an error has left. `input` is the input of the failed step, without the bytes that it
    /// used up.
    pub(super) fn flush_alert(&mut self, mut input: &mut [u8], out: &mut Vec<u8>) {
        // A step that has nothing to send looks at the input again, and must not.
        while self.has_unsent() {
            let (used, _) = self.step(input, out, &mut |_| {});
            input = &mut input[used..];
        }
    }
}

/// The meaning of an error for code outside the connection.
pub(super) fn explain(error: &Error, authenticated: bool) -> TlsError {
    use rustls::AlertDescription as Alert;
    match error {
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => TlsError::PeerCertificate(error.to_string()),
        // Its issuer may have the same name and another key.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            TlsError::PeerCertificate(format!("it is signed by another cluster's CA; {ONE_CA}"))
        }
        Error::InvalidCertificate(_) => TlsError::PeerCertificate(format!("{error}; {ONE_CA}")),
        Error::NoCertificatesPresented => TlsError::PeerCertificate("it showed none".into()),
        Error::AlertReceived(
            alert @ (Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::CertificateRequired
            | Alert::AccessDenied
            // It was signed by a CA of the same name, with another key.
            | Alert::DecryptError),
        ) if authenticated => TlsError::OwnCertificate(match alert {
            Alert::UnknownCA | Alert::DecryptError => "it is signed by another cluster's CA".to_owned(),
            alert => format!("{alert:?}"),
        }),
        Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => TlsError::UnknownCa,
        _ => TlsError::Protocol(error.to_string()),
    }
}

/// The length of the record at the beginning of `bytes`, header included, once its header is there.
pub(super) fn record_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..5)?;
    Some(5 + usize::from(u16::from_be_bytes([header[3], header[4]])))
}

/// One side of an encrypted connection that passed the handshake.
pub(crate) struct Session {
    connection: Box<Connection>,
    /// The alert by which the peer learns of an error.
    alert: Vec<u8>,
    closed: bool,
    failed: Option<TlsError>,
}

impl Session {
    pub(super) fn new(connection: Connection) -> Session {
        Session { connection: Box::new(connection), alert: Vec::new(), closed: false, failed: None }
    }

    /// Appends `plain` to `out`, in records of at most [`RECORD_BYTES`]; appends nothing for no bytes.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        for chunk in plain.chunks(RECORD_BYTES) {
            loop {
                let sealed = match &mut *self.connection {
                    Connection::Client(client) => seal_step(client.process_tls_records(&mut []), chunk, out)?,
                    Connection::Server(server) => seal_step(server.process_tls_records(&mut []), chunk, out)?,
                };
                if sealed {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Decrypts the whole records at the beginning of `input` in place, and gives their bytes to `take`. Returns their
    /// length: the bytes behind are a record's beginning.
    pub(crate) fn open(&mut self, input: &mut [u8], take: &mut dyn FnMut(&[u8])) -> Result<usize, TlsError> {
        let mut used = 0;
        while let Some((len, _)) = self.open_next(&mut input[used..], take)? {
            used += len;
        }
        Ok(used)
    }

    /// Opens as [`open`](Session::open) does, but leaves the bytes behind the first record with bytes in it.
    pub(crate) fn open_record(&mut self, input: &mut [u8], take: &mut dyn FnMut(&[u8])) -> Result<usize, TlsError> {
        let mut used = 0;
        while let Some((len, opened)) = self.open_next(&mut input[used..], take)? {
            used += len;
            if opened {
                break;
            }
        }
        Ok(used)
    }

    /// The length of the record at the beginning of `input`, if it was whole, and whether it had bytes in it.
    #[inline]
    fn open_next(&mut self, input: &mut [u8], take: &mut dyn FnMut(&[u8])) -> Result<Option<(usize, bool)>, TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.closed {
            // Bytes that a peer sends behind its end are ignored.
            return Ok((!input.is_empty()).then_some((input.len(), false)));
        }
        let Some(len) = record_len(input) else { return Ok(None) };
        if len > MAX_RECORD_BYTES {
            return Err(self.fail(TlsError::Protocol(format!("a record of {len} bytes is longer than any"))));
        }
        let Some(mut record) = input.get_mut(..len) else { return Ok(None) };
        let mut opened = false;
        loop {
            let mut unsent = Vec::new();
            let (used, step) = self.connection.step(record, &mut unsent, take);
            record = &mut record[used..];
            match step {
                Ok(Step::More) => {}
                Ok(Step::Opened) => opened = true,
                Ok(Step::Closed) => self.closed = true,
                Ok(Step::Blocked) => {}
                Err(error) => {
                    self.connection.flush_alert(record, &mut self.alert);
                    return Err(self.fail(explain(&error, true)));
                }
            }
            if record.is_empty() || self.closed {
                return Ok(Some((len, opened)));
            }
            if step == Ok(Step::Blocked) {
                // rustls would keep the place of its beginning in a buffer that is not its own.
                let text = "a message behind the handshake goes on in another record";
                return Err(self.fail(TlsError::Protocol(text.into())));
            }
        }
    }

    fn fail(&mut self, error: TlsError) -> TlsError {
        self.failed = Some(error.clone());
        error
    }

    /// Whether the peer has said that nothing follows. Without that, the end of its bytes may be a stranger's work.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Appends to `out` the last records for the peer: the notice that nothing follows, or the alert of an error.
    pub(crate) fn farewell(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.alert);
        if self.failed.is_some() {
            return;
        }
        let start = out.len();
        out.resize(start + 2 + RECORD_OVERHEAD, 0);
        let len = match &mut *self.connection {
            Connection::Client(client) => close_notify(client.process_tls_records(&mut []), &mut out[start..]),
            Connection::Server(server) => close_notify(server.process_tls_records(&mut []), &mut out[start..]),
        };
        out.truncate(start + len);
    }

    /// Checks that the peer may call itself `node`: that its certificate is that node's, or that of a client or an
    /// operator, which has no id. (It is one of the cluster's CA in any case.) Returns the certificate's owner.
    pub(crate) fn verify_peer(&self, cluster: &str, node: NodeId) -> Result<Principal, TlsError> {
        let wrong = |error: String| TlsError::PeerCertificate(format!("it is not that of {node}: {error}"));
        let certificate = self.connection.peer_certificate().ok_or_else(|| wrong("there is none".into()))?;
        let certificate = webpki::EndEntityCert::try_from(certificate).map_err(|error| wrong(error.to_string()))?;
        let (principal, label) = owner(&certificate).ok_or_else(|| wrong("it names no owner".into()))?;
        if label != cluster_label(cluster) {
            return Err(wrong("it is for another cluster".into()));
        }
        match principal.node() {
            Some(named) if named != node => Err(wrong(format!("it is that of {principal}"))),
            _ => Ok(principal),
        }
    }

    /// The owner of the peer's certificate, if it is one of the cluster's.
    pub(super) fn peer_owner(&self, cluster: &str) -> Option<Principal> {
        let certificate = webpki::EndEntityCert::try_from(self.connection.peer_certificate()?).ok()?;
        owner(&certificate).filter(|(_, label)| *label == cluster_label(cluster)).map(|(principal, _)| principal)
    }

    /// Whether the peer's certificate is among these.
    pub(super) fn is_revoked(&self, revoked: &Revoked) -> bool {
        self.connection.peer_certificate().is_some_and(|certificate| revoked.contain(certificate))
    }

    /// Changes the keys, as happens by itself after many records.
    #[cfg(test)]
    pub(crate) fn refresh_keys(&mut self) {
        let state = match &mut *self.connection {
            Connection::Client(client) => match client.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(traffic)) => traffic.refresh_traffic_keys(),
                other => panic!("{other:?}"),
            },
            Connection::Server(server) => match server.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(traffic)) => traffic.refresh_traffic_keys(),
                other => panic!("{other:?}"),
            },
        };
        state.unwrap();
    }
}

/// Whether the bytes were sealed; else there was another step to take.
fn seal_step<Data>(status: UnbufferedStatus<'_, '_, Data>, plain: &[u8], out: &mut Vec<u8>) -> Result<bool, TlsError> {
    match status.state {
        Ok(ConnectionState::WriteTraffic(traffic)) => encrypt(traffic, plain, out).map(|()| true),
        state => {
            let status = UnbufferedStatus { discard: status.discard, state };
            match step_of(status, out, &mut |_| {}) {
                // A peer that sends nothing more can still receive.
                (_, Ok(Step::More | Step::Closed)) => Ok(false),
                (_, Ok(Step::Opened | Step::Blocked)) => Err(TlsError::Protocol("the session can't be used".into())),
                (_, Err(error)) => Err(explain(&error, true)),
            }
        }
    }
}

fn close_notify<Data>(status: UnbufferedStatus<'_, '_, Data>, out: &mut [u8]) -> usize {
    match status.state {
        Ok(ConnectionState::WriteTraffic(mut traffic)) => traffic.queue_close_notify(out).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
