//! A client of one replica, as simple as can be.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long any single answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection. Every failure is a sentence.
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Client, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| format!("connecting to {address}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Client { address, stream, received: Vec::new() })
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn call(&mut self, words: &[&str]) -> Result<Answer, String> {
        self.send(&request(words)).await?;
        self.answer().await
    }

    /// Asks for what is a text or a number, and gives it as text; an error with its minus, nothing as "(nil)".
    pub(crate) async fn text(&mut self, words: &[&str]) -> Result<String, String> {
        Ok(show(&self.call(words).await?))
    }

    /// Asks, and compares the answer.
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

    /// Sends what the replica takes at once. Returns how much.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> usize {
        self.stream.try_write(bytes).unwrap_or(0)
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self) -> Result<Answer, String> {
        loop {
            if let Some((answer, bytes)) = decode(&self.received) {
                self.received.drain(..bytes);
                return answer.ok_or_else(|| format!("{} sent what is no RESP2", self.address));
            }
            if self.receive().await? == 0 {
                return Err(format!("{} closed the connection", self.address));
            }
        }
    }

    /// All that comes until the replica closes the connection.
    pub(crate) async fn rest(mut self) -> Result<Vec<u8>, String> {
        while self.receive().await? > 0 {}
        Ok(self.received)
    }

    /// Says that nothing more will be sent.
    pub(crate) async fn finish(&mut self) {
        // If the replica has closed the connection already, it knows.
        let _ = self.stream.shutdown().await;
    }

    async fn receive(&mut self) -> Result<usize, String> {
        let received = timeout(PATIENCE, self.stream.read_buf(&mut self.received)).await;
        received
            .map_err(|_| self.late("sent no answer"))?
            .map_err(|error| format!("reading from {}: {error}", self.address))
    }

    fn late(&self, what: &str) -> String {
        format!("{} {what} for {PATIENCE:?}", self.address)
    }
}

/// A request, as clients send it.
pub(crate) fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        let _ = write!(bytes, "${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

/// An answer in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A status, or a string.
    Text(String),
    Error(String),
    Integer(i64),
    Null,
    Array(Vec<Answer>),
}

/// The first answer in these bytes, and how many it takes: None if it is not complete, and no answer if it is no RESP2.
fn decode(bytes: &[u8]) -> Option<(Option<Answer>, usize)> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
    let mut at = end + 2;
    let number = rest.parse::<i64>().ok();
    let answer = match (kind, number) {
        ("+", _) => Some(Answer::Text(rest.to_owned())),
        ("-", _) => Some(Answer::Error(rest.to_owned())),
        (":", Some(number)) => Some(Answer::Integer(number)),
        ("$" | "*", Some(..0)) => Some(Answer::Null),
        ("$", Some(length)) => {
            let text = &bytes.get(at..at + length as usize + 2)?[..length as usize];
            at += length as usize + 2;
            Some(Answer::Text(String::from_utf8_lossy(text).into_owned()))
        }
        ("*", Some(count)) => {
            let mut all = Vec::new();
            for _ in 0..count {
                let (answer, bytes) = decode(&bytes[at..])?;
                all.push(answer);
                at += bytes;
            }
            all.into_iter().collect::<Option<_>>().map(Answer::Array)
        }
        _ => None,
    };
    Some((answer, at))
}

/// An answer on one line.
pub(crate) fn show(answer: &Answer) -> String {
    match answer {
        Answer::Text(text) => text.clone(),
        Answer::Error(text) => format!("-{text}"),
        Answer::Integer(number) => number.to_string(),
        Answer::Array(elements) => format!("[{}]", elements.iter().map(show).collect::<Vec<_>>().join(", ")),
        Answer::Null => "(nil)".to_owned(),
    }
}
