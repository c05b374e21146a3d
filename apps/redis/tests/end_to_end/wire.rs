//! A simple client connection.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

use redis_protocol::resp2::{
    decode::decode,
    encode::encode_borrowed,
    types::{BorrowedFrame, OwnedFrame},
};

/// The time that any answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection that speaks RESP2.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream, received: Vec::new() })
    }

    /// Sends a command, and [`show`]s its answer, which must come.
    pub(crate) fn ask(&mut self, words: &[impl AsRef<str>]) -> String {
        show(&self.call(words).expect("an answer in time"))
    }

    /// Sends a command, and waits for its answer. For checks in which there may be none.
    pub(crate) fn call(&mut self, words: &[impl AsRef<str>]) -> io::Result<OwnedFrame> {
        // A server that refuses a large command may close the connection before all of it is sent. The answer tells.
        let _ = self.send(&request(words));
        self.answer()
    }

    /// Sends a command, and returns the bytes of its answer, which must come and be no refusal.
    pub(crate) fn ask_bytes(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let _ = self.send(&request_of(words));
        match self.answer().expect("an answer in time") {
            OwnedFrame::SimpleString(bytes) | OwnedFrame::BulkString(bytes) => bytes,
            other => show(&other).into_bytes(),
        }
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Ends the sending direction of the connection.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> io::Result<OwnedFrame> {
        loop {
            let decoded = decode(&self.received).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Some((answer, bytes)) = decoded {
                self.received.drain(..bytes);
                return Ok(answer);
            }
            if self.receive()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// All bytes until the connection ends, in whatever way.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        let _: io::Result<_> = self.stream.read_to_end(&mut self.received);
        self.received
    }

    /// Whether the other side closes the connection within a time, without sending anything.
    pub(crate) fn is_closed_within(&mut self, limit: Duration) -> bool {
        self.stream.set_read_timeout(Some(limit)).expect("a timeout");
        self.receive().is_ok_and(|bytes| bytes == 0)
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 64 << 10];
        let count = self.stream.read(&mut bytes)?;
        self.received.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}

/// A command as clients send it.
pub(crate) fn request(words: &[impl AsRef<str>]) -> Vec<u8> {
    let words: Vec<_> = words.iter().map(|word| word.as_ref().as_bytes()).collect();
    request_of(&words)
}

fn request_of(words: &[&[u8]]) -> Vec<u8> {
    let words: Vec<_> = words.iter().map(|word| BorrowedFrame::BulkString(word)).collect();
    let request = BorrowedFrame::Array(&words);
    let mut bytes = vec![0; request.encode_len(false)];
    encode_borrowed(&mut bytes, &request, false).expect("there is as much room as it takes");
    bytes
}

/// An answer on one line: an error with its minus, nothing as "nil".
pub(crate) fn show(answer: &OwnedFrame) -> String {
    match answer {
        OwnedFrame::SimpleString(text) | OwnedFrame::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        OwnedFrame::Error(text) => format!("-{text}"),
        OwnedFrame::Integer(number) => number.to_string(),
        OwnedFrame::Array(elements) => format!("[{}]", elements.iter().map(show).collect::<Vec<_>>().join(", ")),
        OwnedFrame::Null => "nil".to_owned(),
    }
}
