//! TLS for clients' connections.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustls::{
    RootCertStore, ServerConfig, ServerConnection,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::connected_client::ConnectedClient;

/// The certificate and the key with which a server talks TLS to its clients. They are not shown in debug output.
#[derive(Clone, derive_more::Debug)]
#[debug("ClientTls(..)")]
pub struct ClientTls {
    config: Arc<ServerConfig>,
    asks_certificates: bool,
}

/// The reason why a server can't talk TLS.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// A file can't be read, or is not what it should be.
    #[error("{} can't be used for TLS with clients: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: String,
    },
    /// The certificate and the key don't belong together, or are of a kind that is not known.
    #[error("the certificate {} and its key can't be used for TLS with clients: {cause}", path.display())]
    Pair {
        /// The certificate's file.
        path: PathBuf,
        /// The reason.
        cause: rustls::Error,
    },
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientTlsError> {
    let bad = |cause: String| ClientTlsError::File { path: path.to_owned(), cause };
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match certificates {
        Ok(none) if none.is_empty() => Err(bad("it has no certificate".to_owned())),
        certificates => certificates.map_err(|error| bad(error.to_string())),
    }
}

impl ClientTls {
    /// Reads the server's certificate, with those between it and its CA behind it, and its key. With `ca`, clients must
    /// show a certificate of one of the CAs in that file. All files have the PEM form.
    pub fn load(certificate: &Path, key: &Path, ca: Option<&Path>) -> Result<ClientTls, ClientTlsError> {
        let own = certificates(certificate)?;
        let bad = |path: &Path, cause: String| ClientTlsError::File { path: path.to_owned(), cause };
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, error.to_string()))?;
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ClientCertVerifier> = match ca {
            None => Arc::new(NoClientAuth),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(ca)? {
                    roots.add(root).map_err(|error| bad(ca, error.to_string()))?;
                }
                let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
                built.map_err(|error| bad(ca, error.to_string()))?
            }
        };
        let pair = |cause| ClientTlsError::Pair { path: certificate.to_owned(), cause };
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(pair)?.with_client_cert_verifier(verifier);
        let config = Arc::new(config.with_single_cert(own, private).map_err(pair)?);
        Ok(ClientTls { config, asks_certificates: ca.is_some() })
    }

    /// Whether clients must show a certificate.
    pub fn asks_certificates(&self) -> bool {
        self.asks_certificates
    }

    /// Takes part in the handshake of a client. Fails if the client does not talk TLS, lacks a certificate that it must
    /// have, or leaves, and if it is sent away.
    pub(super) async fn accept(&self, tcp: TcpStream, client: &ConnectedClient) -> io::Result<TlsStream> {
        let session = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        let mut stream = TlsStream { tcp, session };
        let shaken = std::future::poll_fn(|context| {
            client.bell().register(context);
            if client.is_leaving() || client.is_killed() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            stream.poll_handshake(context)
        });
        shaken.await?;
        Ok(stream)
    }
}

/// A stream to a client that is protected by TLS.
pub(super) struct TlsStream {
    tcp: TcpStream,
    session: ServerConnection,
}

/// A socket for code that does not know of tasks: what is not ready would block.
struct Blocking<'a, 'b>(&'a mut TcpStream, &'a mut Context<'b>);

fn blocking<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for Blocking<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        blocking(Pin::new(&mut *self.0).poll_read(self.1, &mut buffer))?;
        Ok(buffer.filled().len())
    }
}

impl Write for Blocking<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        blocking(Pin::new(&mut *self.0).poll_write(self.1, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn polled<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

impl TlsStream {
    /// The socket below.
    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Sends the sealed bytes that are left.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            ready!(polled(self.session.write_tls(&mut Blocking(&mut self.tcp, context))))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Receives some sealed bytes. Returns false at their end.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let received = ready!(polled(self.session.read_tls(&mut Blocking(&mut self.tcp, context))))?;
        if let Err(error) = self.session.process_new_packets() {
            // The alert is sent, if the client takes it.
            let _ = self.poll_send(context)?;
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        Poll::Ready(Ok(received > 0))
    }

    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_send(context))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if !ready!(self.poll_receive(context))? {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.session.reader().read(buffer.initialize_unfilled()) {
                Ok(bytes) => {
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                // Many clients leave without a farewell, which is no loss: a request is whole or it is none.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            ready!(self.poll_receive(context))?;
            // New keys, for example. What does not go now goes with the next bytes.
            let _ = self.poll_send(context)?;
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(context))?;
        let taken = self.session.writer().write(bytes)?;
        let _ = self.poll_send(context)?;
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A second farewell has no effect.
        self.session.send_close_notify();
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpStream as StdTcpStream, thread, time::Duration};

    use rustls::{ClientConfig, ClientConnection, pki_types::ServerName};
    use squall::{
        NodeId,
        keys::{Authority, Files, Principal},
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::server::wake::{Bell, Bells};

    const CLUSTER: &str = "tls";

    struct Keys {
        directory: tempfile::TempDir,
    }

    impl Keys {
        fn new() -> Keys {
            let directory = tempfile::tempdir().expect("a directory can be made");
            let files = Files::in_directory(directory.path());
            let ca = Authority::create(CLUSTER).expect("a CA");
            ca.save(&files, false).expect("the directory is new");
            ca.issue(NodeId(1), 1).and_then(|keys| keys.save(&files, false)).expect("keys");
            Keys { directory }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn server(&self, ca: Option<&Keys>) -> ClientTls {
            let ca = ca.map(|ca| ca.path("ca.pem"));
            ClientTls::load(&self.path("node-1.pem"), &self.path("node-1.key"), ca.as_deref()).expect("they are good")
        }

        /// The settings of a client that trusts the server's CA, with or without a certificate of its own.
        fn client(&self, own: Option<&Keys>) -> ClientConfig {
            let mut roots = RootCertStore::empty();
            certificates(&self.path("ca.pem"))
                .expect("a CA")
                .into_iter()
                .for_each(|root| roots.add(root).expect("it is one"));
            let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let config =
                config.with_safe_default_protocol_versions().expect("there is one").with_root_certificates(roots);
            match own {
                None => config.with_no_client_auth(),
                Some(own) => {
                    let key = PrivateKeyDer::from_pem_file(own.path("node-1.key")).expect("a key");
                    let chain = certificates(&own.path("node-1.pem")).expect("a certificate");
                    config.with_client_auth_cert(chain, key).expect("they belong together")
                }
            }
        }
    }

    fn someone(bells: &Arc<Bells>) -> ConnectedClient {
        let somewhere = "127.0.0.1:1".parse().expect("it is an address");
        ConnectedClient::new(7, somewhere, somewhere, Bell::new(bells))
    }

    /// Has a client send bytes to a server that sends them back, and returns what came.
    fn echo(server: &ClientTls, client: ClientConfig, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?;
            let client = thread::spawn(move || {
                let name = ServerName::try_from(Principal::Member(NodeId(1)).dns_name(CLUSTER)).expect("it is a name");
                let session = ClientConnection::new(Arc::new(client), name).expect("good settings");
                let mut stream = rustls::StreamOwned::new(session, StdTcpStream::connect(address)?);
                stream.write_all(&bytes)?;
                let mut back = vec![0; bytes.len()];
                stream.read_exact(&mut back)?;
                Ok(back)
            });
            let (tcp, _) = listener.accept().await?;
            let served = async {
                let mut stream = server.accept(tcp, &someone(&Arc::default())).await?;
                let mut buffer = [0; 70_000];
                while let bytes @ 1.. = stream.read(&mut buffer).await? {
                    stream.write_all(&buffer[..bytes]).await?;
                    stream.flush().await?;
                }
                stream.shutdown().await
            };
            let served = served.await;
            let back = client.join().expect("it does not panic");
            served.and(back)
        })
    }

    #[test]
    fn what_a_client_sends_comes_out_and_goes_back() {
        let keys = Keys::new();
        let bytes: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
        for length in [1, 300_000] {
            let back = echo(&keys.server(None), keys.client(None), bytes[..length].to_vec());
            assert!(back.expect("it comes back") == bytes[..length]);
        }
    }

    #[test]
    fn a_client_that_is_sent_away_does_not_end_its_handshake_first() -> io::Result<()> {
        let (keys, bells) = (Keys::new(), Arc::<Bells>::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let error = runtime.block_on(async {
            tokio::spawn(Arc::clone(&bells).run());
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let _mute = StdTcpStream::connect(listener.local_addr()?)?;
            let (tcp, _) = listener.accept().await?;
            let (server, client) = (keys.server(None), someone(&bells));
            let sent_away = async {
                tokio::task::yield_now().await;
                client.leave();
            };
            let shaken = tokio::time::timeout(Duration::from_secs(10), server.accept(tcp, &client));
            io::Result::Ok(tokio::join!(shaken, sent_away).0.expect("it ends").err())
        })?;
        assert_eq!(error.map(|error| error.kind()), Some(io::ErrorKind::ConnectionAborted));
        Ok(())
    }

    #[test]
    fn clients_must_have_a_certificate_where_a_ca_is_given() {
        let (keys, others) = (Keys::new(), Keys::new());
        let server = keys.server(Some(&keys));
        assert!(server.asks_certificates());
        assert!(echo(&server, keys.client(Some(&keys)), vec![7]).is_ok());
        assert!(echo(&server, keys.client(None), vec![7]).is_err());
        assert!(echo(&server, keys.client(Some(&others)), vec![7]).is_err());
    }

    #[test]
    fn files_that_are_not_good_are_named() {
        let (keys, others) = (Keys::new(), Keys::new());
        let load =
            |certificate: PathBuf, key: PathBuf| ClientTls::load(&certificate, &key, None).unwrap_err().to_string();
        let missing = load(keys.path("no.pem"), keys.path("node-1.key"));
        assert!(missing.contains("no.pem can't be used for TLS"), "{missing}");
        let empty = load(keys.path("node-1.key"), keys.path("node-1.key"));
        assert!(empty.contains("it has no certificate"), "{empty}");
        let pair = load(keys.path("node-1.pem"), others.path("node-1.key"));
        assert!(pair.contains("and its key can't be used"), "{pair}");
    }
}
