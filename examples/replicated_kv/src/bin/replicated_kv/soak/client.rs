//! A connection of the load. Every failure is a sentence.

use std::{net::SocketAddr, time::Duration};

use redis_protocol::resp2::{decode::decode, types::OwnedFrame};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long any single answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Client {
    address: SocketAddr,
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Result<Client, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| format!("connecting to {address}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Client { address, stream, received: Vec::new() })
    }

    /// Sends bytes as they are.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sent = timeout(PATIENCE, self.stream.write_all(bytes)).await;
        sent.map_err(|_| self.late())?.map_err(|error| format!("sending to {}: {error}", self.address))
    }

    /// The next answer.
    pub(super) async fn answer(&mut self) -> Result<OwnedFrame, String> {
        timeout(PATIENCE, self.next()).await.map_err(|_| self.late())?
    }

    /// The next answer, whenever it comes. What has come of it stays if the wait is given up.
    pub(super) async fn next(&mut self) -> Result<OwnedFrame, String> {
        loop {
            match decode(&self.received) {
                Ok(Some((answer, length))) => {
                    self.received.drain(..length);
                    return Ok(answer);
                }
                Ok(None) => {}
                Err(error) => return Err(format!("{} answered what is not RESP: {error}", self.address)),
            }
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err(format!("{} closed the connection", self.address)),
                Ok(_) => {}
                Err(error) => return Err(format!("reading from {}: {error}", self.address)),
            }
        }
    }

    /// Asks for a number or a text, and gives it as text; an error with a minus before it.
    pub(super) async fn text(&mut self, words: &[&str]) -> Result<String, String> {
        let mut request = Vec::new();
        append(&mut request, words);
        self.send(&request).await?;
        Ok(match self.answer().await? {
            OwnedFrame::SimpleString(bytes) | OwnedFrame::BulkString(bytes) => {
                String::from_utf8_lossy(&bytes).into_owned()
            }
            OwnedFrame::Integer(number) => number.to_string(),
            OwnedFrame::Error(text) => format!("-{text}"),
            other => format!("{other:?}"),
        })
    }

    fn late(&self) -> String {
        format!("{} did nothing for {PATIENCE:?}", self.address)
    }
}

/// Appends a request as clients send it.
pub(super) fn append(to: &mut Vec<u8>, words: &[&str]) {
    to.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        to.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}
