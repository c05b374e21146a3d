//! Open files that one process of a host sends another, along with the bytes of a stream.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut, Read},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::stream::{LocalWriter, StreamReader, StreamWriter};

/// The most open files that are sent at once.
pub const MOST_DESCRIPTORS: usize = 64;

/// A reader that keeps the open files that come along with the bytes of a stream of this host.
#[derive(Debug)]
pub struct DescriptorReader {
    reader: StreamReader,
    came: VecDeque<OwnedFd>,
}

impl DescriptorReader {
    /// Reads from a stream, of which no byte has been read.
    pub fn new(reader: StreamReader) -> DescriptorReader {
        DescriptorReader { reader, came: VecDeque::new() }
    }

    /// Takes the next `count` open files that came along with bytes that are read. None if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<Vec<OwnedFd>> {
        (count <= self.came.len()).then(|| self.came.drain(..count).collect())
    }
}

impl Read for DescriptorReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let StreamReader::Local(socket) = &self.reader else { return self.reader.read(buffer) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.came.extend(rights);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            let text = "open files that came along can't be taken: allow this process more with `ulimit -n`";
            return Err(io::Error::other(text));
        }
        // Who reads takes those that are announced. A peer that sends others must not fill the process's table.
        if self.came.len() > 4 * MOST_DESCRIPTORS {
            return Err(io::Error::other("more open files came along than were announced"));
        }
        Ok(message.bytes)
    }
}

impl StreamWriter {
    /// Writes some bytes, with which open files go to a process of this host. Returns the number of bytes; no file went
    /// if it fails. Over a network it always fails.
    pub fn write_with(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let StreamWriter::Local(LocalWriter(socket)) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            let text = format!("{} open files can't go at once, {MOST_DESCRIPTORS} can", files.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{BufReader, Seek, Write},
        os::{fd::AsFd, unix::net::UnixStream},
    };

    use squall_fabric::NodeId;

    use super::{super::ControlStream, *};

    fn file(text: &str) -> File {
        let path = std::env::temp_dir().join(format!("squall-descriptors-{}-{text}", std::process::id()));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    }

    fn text(file: OwnedFd) -> String {
        let mut text = String::new();
        File::from(file).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn files_come_in_order_whatever_is_read_at_once() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut stream = ControlStream::local(NodeId(1), here);
        let files = ["a", "b", "c"].map(file);
        let sent = stream.writer.write_with(b"one", &[files[0].as_fd(), files[1].as_fd()]).unwrap();
        assert_eq!(sent, 3);
        stream.writer.write_all(b"two").unwrap();
        stream.writer.write_with(b"three", &[files[2].as_fd()]).unwrap();
        drop(stream);
        let reader = ControlStream::local(NodeId(2), there).reader;
        let mut from = BufReader::new(DescriptorReader::new(reader));
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"onetwothree");
        let came = from.get_mut().take(2).unwrap();
        assert_eq!(came.into_iter().map(text).collect::<Vec<_>>(), ["a", "b"]);
        assert!(from.get_mut().take(2).is_none(), "there is one more");
        assert_eq!(text(from.get_mut().take(1).unwrap().remove(0)), "c");
    }

    #[test]
    fn a_peer_that_sends_files_for_ever_is_an_error() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut stream = ControlStream::local(NodeId(1), here);
        let mut from = DescriptorReader::new(ControlStream::local(NodeId(2), there).reader);
        let file = file("x");
        let many = vec![file.as_fd(); MOST_DESCRIPTORS];
        let mut read = || {
            stream.writer.write_with(b"x", &many)?;
            from.read(&mut [0; 8])
        };
        for _ in 0..4 {
            assert_eq!(read().unwrap(), 1);
        }
        assert!(read().unwrap_err().to_string().contains("than were announced"));
    }
}
