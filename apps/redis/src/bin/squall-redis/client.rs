//! A client of one replica, for the program's own checks. Every failure is a sentence.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use redis_protocol::resp2::{
    decode::decode,
    encode::encode_borrowed,
    types::{BorrowedFrame, OwnedFrame},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

/// The time that any single answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection that speaks RESP2.
pub(crate) struct RespClient {
    pub(crate) address: SocketAddr,
    stream: TcpStream,
    received: Vec<u8>,
}

impl RespClient {
    pub(crate) async fn connect(address: SocketAddr) -> Result<RespClient, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| format!("connecting to {address}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| format!("connecting to {address}: {error}"))?;
        Ok(RespClient { address, stream, received: Vec::new() })
    }

    /// Connects to each of these addresses.
    pub(crate) async fn connect_to_all(addresses: &[SocketAddr]) -> Result<Vec<RespClient>, String> {
        let mut clients = Vec::new();
        for &address in addresses {
            clients.push(RespClient::connect(address).await?);
        }
        Ok(clients)
    }

    /// Sends a request, and waits for the answer.
    pub(crate) async fn call(&mut self, words: &[&str]) -> Result<OwnedFrame, String> {
        self.send(&request(words)).await?;
        self.answer().await
    }

    /// Sends a request, and [`show`]s the answer.
    pub(crate) async fn text(&mut self, words: &[&str]) -> Result<String, String> {
        Ok(show(&self.call(words).await?))
    }

    /// Sends a request, and compares the answer.
    pub(crate) async fn expect(&mut self, words: &[&str], expected: &str) -> Result<(), String> {
        let got = self.text(words).await?;
        if got == expected {
            return Ok(());
        }
        Err(format!("{} at {}: expected {expected:?}, got {got:?}", words.join(" "), self.address))
    }

    /// Sends bytes as they are.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sent = timeout(PATIENCE, self.stream.write_all(bytes)).await;
        sent.map_err(|_| self.late("took no bytes"))?.map_err(|error| format!("sending to {}: {error}", self.address))
    }

    /// Sends as much as the replica takes at once. Returns the number of bytes.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> usize {
        self.stream.try_write(bytes).unwrap_or(0)
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self) -> Result<OwnedFrame, String> {
        timeout(PATIENCE, self.next()).await.map_err(|_| self.late("sent no answer"))?
    }

    /// The next answer, whenever it comes. If the wait is given up, the bytes that have arrived are kept.
    pub(crate) async fn next(&mut self) -> Result<OwnedFrame, String> {
        loop {
            match decode(&self.received) {
                Ok(Some((answer, bytes))) => {
                    self.received.drain(..bytes);
                    return Ok(answer);
                }
                Ok(None) => {}
                Err(error) => return Err(format!("{} sent what is no RESP2: {error}", self.address)),
            }
            if self.receive().await? == 0 {
                return Err(format!("{} closed the connection", self.address));
            }
        }
    }

    /// All bytes that come until the replica closes the connection.
    pub(crate) async fn rest(mut self) -> Result<Vec<u8>, String> {
        while timeout(PATIENCE, self.receive()).await.map_err(|_| self.late("sent nothing, nor an end,"))?? > 0 {}
        Ok(self.received)
    }

    /// Ends the sending direction of the connection.
    pub(crate) async fn finish(&mut self) {
        // It fails if the replica has closed the connection already, which is just as well.
        let _ = self.stream.shutdown().await;
    }

    async fn receive(&mut self) -> Result<usize, String> {
        let received = self.stream.read_buf(&mut self.received).await;
        received.map_err(|error| format!("reading from {}: {error}", self.address))
    }

    fn late(&self, what: &str) -> String {
        format!("{} {what} for {PATIENCE:?}", self.address)
    }
}

/// A request, as clients send it.
pub(crate) fn request(words: &[impl AsRef<str>]) -> Vec<u8> {
    let words: Vec<_> = words.iter().map(|word| BorrowedFrame::BulkString(word.as_ref().as_bytes())).collect();
    let request = BorrowedFrame::Array(&words);
    let mut bytes = vec![0; request.encode_len(false)];
    encode_borrowed(&mut bytes, &request, false).expect("there is as much room as it takes");
    bytes
}

/// An answer on one line: an error with its minus, nothing as "(nil)".
pub(crate) fn show(answer: &OwnedFrame) -> String {
    match answer {
        OwnedFrame::SimpleString(text) | OwnedFrame::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        OwnedFrame::Error(text) => format!("-{text}"),
        OwnedFrame::Integer(number) => number.to_string(),
        OwnedFrame::Array(elements) => format!("[{}]", elements.iter().map(show).collect::<Vec<_>>().join(", ")),
        OwnedFrame::Null => "(nil)".to_owned(),
    }
}

/// Calls `look` until it succeeds, for `patience` at most. Returns its last error if it never does.
pub(crate) async fn until<T>(
    patience: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, String> {
    let deadline = Instant::now() + patience;
    loop {
        match look().await {
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(5)).await,
            found => return found,
        }
    }
}

/// The value of a field of INFO's answer.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
