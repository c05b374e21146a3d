//! The two halves of a conversation, over any transport.

use std::{io, os::unix::net::UnixStream, time::Duration};

use squall_fabric::{NodeId, net::ServiceStream};

use squall_services::{ControlStream, StreamReader, StreamWriter};

/// The time after which a peer that reads nothing is given up: a peer's reading thread never waits for anything else.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A connection before anything was said.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) from: StreamReader,
    pub(super) to: StreamWriter,
}

impl TryFrom<UnixStream> for Stream {
    type Error = io::Error;

    fn try_from(stream: UnixStream) -> io::Result<Stream> {
        // On one host, receivers are known by names.
        let stream = ControlStream::local(NodeId(0), stream)?;
        stream.writer.set_timeout(Some(WRITE_LIMIT))?;
        Ok(Stream { from: stream.reader, to: stream.writer })
    }
}

impl From<ServiceStream> for Stream {
    fn from(call: ServiceStream) -> Stream {
        let stream = ControlStream::port(call);
        // If the limit can't be set, a peer that reads nothing is given up later.
        let _ = stream.writer.set_timeout(Some(WRITE_LIMIT));
        Stream { from: stream.reader, to: stream.writer }
    }
}
