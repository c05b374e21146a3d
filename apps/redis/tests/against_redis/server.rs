//! A redis-server of the test's own, and a client of it.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use squall_redis::encode::Protocol;

/// An answer in either version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    NullArray,
    Array(Vec<Tree>),
    Set(Vec<Tree>),
    /// Keys and values in turn.
    Map(Vec<Tree>),
    /// The bits of a number, however it was written.
    Double(u64),
}

impl Tree {
    /// The elements, if it is an array.
    pub(crate) fn array(&self) -> &[Tree] {
        if let Tree::Array(all) = self { all } else { panic!("{self:?} is no array") }
    }

    pub(crate) fn read(from: &mut impl BufRead) -> Tree {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line).expect("an answer in time");
        let line = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
        let (kind, rest) = line.split_at_checked(1).expect("an answer has a kind");
        let number = || rest.parse::<i64>().expect("a number");
        let mut all = |count| (0..count).map(|_| Tree::read(from)).collect();
        match kind {
            "+" => Tree::Status(rest.to_owned()),
            "-" => Tree::Error(rest.to_owned()),
            ":" => Tree::Integer(number()),
            "$" if number() < 0 => Tree::Null,
            "$" => {
                let mut bytes = vec![0; number() as usize + 2];
                from.read_exact(&mut bytes).expect("the bytes announced");
                bytes.truncate(bytes.len() - 2);
                Tree::Bulk(bytes)
            }
            "*" if number() < 0 => Tree::NullArray,
            "*" => Tree::Array(all(number())),
            "~" => Tree::Set(all(number())),
            "%" => Tree::Map(all(2 * number())),
            "," => Tree::Double(rest.parse::<f64>().expect("a number").to_bits()),
            "_" => Tree::Null,
            other => panic!("an answer of the kind {other:?}"),
        }
    }
}

/// A redis-server. It is killed on drop.
pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Server {
    /// Starts a server that answers in this version of the protocol. `None` if there is no redis-server, which is
    /// reported.
    pub(crate) fn start(protocol: Protocol) -> Option<Server> {
        let socket = env::temp_dir().join(format!("squall-redis-{:016x}.sock", fastrand::u64(..)));
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"]);
        command.arg("--unixsocket").arg(&socket);
        // It compares the strings of `SORT ALPHA` as the locale says.
        command.env("LC_ALL", "C");
        let child = match command.stdout(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) => {
                assert!(env::var_os("SQUALL_FORBID_SKIPS").is_none(), "redis-server can't be started: {error}");
                eprintln!("skipped: redis-server can't be started ({error}); Debian's package redis-server has it");
                return None;
            }
        };
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) => {
                    assert!(begun.elapsed() < Duration::from_secs(10), "redis-server does not listen: {error}");
                }
            }
            thread::sleep(Duration::from_millis(10));
        };
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let mut server = Server { child, socket, stream: BufReader::new(stream) };
        if protocol == Protocol::Resp3 {
            server.ask(&[b"hello".to_vec(), b"3".to_vec()]);
        }
        Some(server)
    }

    pub(crate) fn ask(&mut self, words: &[Vec<u8>]) -> Tree {
        send(self.stream.get_mut(), words);
        Tree::read(&mut self.stream)
    }

    /// Another connection, which speaks the same version of the protocol.
    pub(crate) fn connect(&self, protocol: Protocol) -> Connection {
        let stream = UnixStream::connect(&self.socket).expect("redis-server listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let mut connection = Connection(BufReader::new(stream));
        if protocol == Protocol::Resp3 {
            connection.send(&[b"hello".to_vec(), b"3".to_vec()]);
            connection.answer();
        }
        connection
    }
}

/// A further connection to a redis-server.
pub(crate) struct Connection(BufReader<UnixStream>);

impl Connection {
    pub(crate) fn send(&mut self, words: &[Vec<u8>]) {
        send(self.0.get_mut(), words);
    }

    /// The next answer, which must come.
    pub(crate) fn answer(&mut self) -> Tree {
        Tree::read(&mut self.0)
    }
}

fn send(stream: &mut UnixStream, words: &[Vec<u8>]) {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    stream.write_all(&request).expect("redis-server reads");
}

impl Drop for Server {
    fn drop(&mut self) {
        // If this fails, the test is over all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}
