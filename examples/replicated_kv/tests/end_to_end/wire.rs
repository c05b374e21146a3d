//! A connection that keeps answers as they are, and whose failures are values: for checks that count on some.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

/// An answer in RESP2.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Answer>),
}

impl Answer {
    /// The number that an integer or a string is.
    pub(crate) fn number(&self) -> Option<i64> {
        match self {
            Answer::Integer(number) => Some(*number),
            Answer::Bulk(text) => str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn array(self) -> Option<Vec<Answer>> {
        match self {
            Answer::Array(answers) => Some(answers),
            _ => None,
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Status(text) => write!(to, "+{text}"),
            Answer::Error(text) => write!(to, "-{text}"),
            Answer::Integer(number) => write!(to, "{number}"),
            Answer::Bulk(bytes) => write!(to, "\"{}\"", bytes.escape_ascii()),
            Answer::Null => to.write_str("nil"),
            Answer::Array(answers) => to.debug_list().entries(answers).finish(),
        }
    }
}

/// A client's connection.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects. An answer that takes longer than `patience` is an error.
    pub(crate) fn open(address: SocketAddr, patience: Duration) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Connection(BufReader::new(stream)))
    }

    /// Sends a command, and waits for its answer.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> io::Result<Answer> {
        self.send(&request(words))?;
        self.answer()
    }

    /// [`call`](Connection::call) with words that are text.
    pub(crate) fn ask(&mut self, words: &[&str]) -> io::Result<Answer> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.call(&words)
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.0.get_mut().shutdown(Shutdown::Write)
    }

    /// The next line, whatever it means, with its end; empty if there is none any more.
    pub(crate) fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        Ok(line)
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let line = self.line()?;
        let garbled = || io::Error::new(io::ErrorKind::InvalidData, "not RESP2");
        let line = line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_first().ok_or_else(garbled)?;
        let text = || String::from_utf8_lossy(rest).into_owned();
        let number = || text().parse::<i64>().map_err(|_| garbled());
        Ok(match kind {
            b'+' => Answer::Status(text()),
            b'-' => Answer::Error(text()),
            b':' => Answer::Integer(number()?),
            b'$' | b'*' if number()? < 0 => Answer::Null,
            b'$' => {
                let mut bytes = vec![0; number()? as usize + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Answer::Bulk(bytes)
            }
            b'*' => Answer::Array((0..number()?).map(|_| self.answer()).collect::<io::Result<_>>()?),
            _ => return Err(garbled()),
        })
    }
}

/// A request as clients send it.
pub(crate) fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
