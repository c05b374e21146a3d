//! A small client of the Redis protocol.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the replica listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        Client(BufReader::new(stream))
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        self.0.get_mut()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream().write_all(bytes).expect("the replica reads");
    }

    /// Whether the other side closes the connection within a time, without saying anything.
    pub(crate) fn is_closed_within(&mut self, limit: Duration) -> bool {
        self.stream().set_read_timeout(Some(limit)).expect("a timeout");
        self.stream().read(&mut [0]).is_ok_and(|bytes| bytes == 0)
    }

    /// Sends a command and returns its answer as text: an error with its `-`, a number or a string as it is.
    pub(crate) fn ask(&mut self, command: &[&str]) -> String {
        let mut request = format!("*{}\r\n", command.len());
        for word in command {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        // A replica that refuses a large command may close before it has read it all; the answer tells.
        let _ = self.stream().write_all(request.as_bytes());
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer within the timeout");
        let line = line.trim_end();
        match line.split_at_checked(1) {
            Some(("$", "-1")) => "nil".into(),
            Some(("$", len)) => {
                let mut bulk = vec![0; len.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bulk).expect("a bulk string");
                bulk.truncate(bulk.len() - 2);
                String::from_utf8(bulk).expect("text")
            }
            Some(("+" | ":", text)) => text.to_owned(),
            Some(("-", _)) => line.to_owned(),
            _ => panic!("an unexpected answer: {line:?}"),
        }
    }
}
