//! The handing of the source's open files to receivers on its host, which copy from them.

use std::{fs::File, io};

use rustix::io::Errno;

use super::{
    super::super::{
        control::{FrameError, HandedFile, MAX_FILES, MAX_HANDED, ToReceiver},
        feed::OpenedFile,
    },
    Peers, ReceiverState,
};

/// The files that a receiver copies, as far as it has been handed them.
#[derive(Debug)]
pub(super) struct Handout {
    /// The files, by entry.
    files: Vec<u32>,
    /// The number of those that it was handed, or soon will be.
    taken: usize,
    /// The number of those that it is done with.
    copied: usize,
}

impl Handout {
    pub(super) fn new(mut files: Vec<u32>) -> Handout {
        files.sort_unstable();
        Handout { files, taken: 0, copied: 0 }
    }

    /// Tells whether there are files to hand out, and the receiver has not enough.
    fn has_room(&self) -> bool {
        self.taken < self.files.len() && self.taken - self.copied + MAX_FILES <= MAX_HANDED
    }

    /// Takes the next files to hand out.
    fn take(&mut self) -> Vec<u32> {
        let next: Vec<u32> = self.files[self.taken..].iter().take(MAX_FILES).copied().collect();
        self.taken += next.len();
        next
    }

    /// Notes that the receiver is done with so many more. Returns false if it had not that many.
    fn copied(&mut self, files: usize) -> bool {
        let fits = files <= self.taken - self.copied;
        self.copied += if fits { files } else { 0 };
        fits
    }

    fn is_over(&self) -> bool {
        self.copied == self.files.len()
    }
}

impl Peers<'_> {
    /// Returns the next files to open, and the receiver that they are for: the one that has been handed the fewest. The
    /// files for one are open at a time, so that the source's descriptors do not depend on the number of receivers.
    pub(in super::super) fn next_to_open(&mut self) -> Option<(usize, Vec<u32>)> {
        if self.opening {
            return None;
        }
        let copying = self.peers.iter_mut().enumerate().filter_map(|(peer, at)| match &mut at.state {
            ReceiverState::Copying(handout) => Some((peer, handout)),
            _ => None,
        });
        let with_room = copying.filter(|(_, handout)| handout.has_room());
        let (peer, handout) = with_room.min_by_key(|(_, handout)| handout.taken)?;
        self.opening = true;
        Some((peer, handout.take()))
    }

    /// Hands open files to a receiver.
    pub(in super::super) fn hand(&mut self, peer: usize, opened: Vec<OpenedFile>) {
        self.opening = false;
        let at = &mut self.peers[peer];
        let (ReceiverState::Copying(handout), Some(link)) = (&mut at.state, &mut at.link) else { return };
        let (mut files, mut open): (Vec<HandedFile>, Vec<File>) = (Vec::new(), Vec::new());
        for OpenedFile { entry, file, verdict } in opened {
            files.push(HandedFile { entry, verdict });
            open.extend(file);
        }
        let count = files.len();
        match link.send_files(&ToReceiver::Files(files), &open) {
            // Receivers that do not run have not taken those that they were sent: it is tried again.
            Err(FrameError::System(cause)) if is_too_many(&cause) => handout.taken -= count,
            sent => self.if_sent(peer, sent),
        }
    }

    pub(super) fn on_copied(&mut self, peer: usize, files: u32) {
        let fits = match &mut self.peers[peer].state {
            ReceiverState::Copying(handout) => handout.copied(files as usize),
            _ => false,
        };
        if fits { self.finish_if_copied(peer) } else { self.lose_breaker(peer) }
    }

    /// Tells a receiver that has copied all that it lacked that it has it.
    pub(super) fn finish_if_copied(&mut self, peer: usize) {
        let at = &mut self.peers[peer];
        if matches!(&at.state, ReceiverState::Copying(handout) if handout.is_over()) {
            at.told_finish = true;
            self.tell_one(peer, &ToReceiver::Finish);
        }
    }
}

/// Tells whether this user has as many open files under way as it may.
fn is_too_many(cause: &io::Error) -> bool {
    Errno::from_io_error(cause) == Some(Errno::TOOMANYREFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_has_two_messages_of_files_at_most() {
        let all: Vec<u32> = (0..100).rev().collect();
        let mut handout = Handout::new(all);
        assert_eq!(handout.take(), (0..32).collect::<Vec<_>>());
        assert_eq!(handout.take(), (32..64).collect::<Vec<_>>());
        assert!(!handout.has_room());
        assert!(!handout.copied(65), "it had 64");
        assert!(handout.copied(31) && !handout.has_room());
        assert!(handout.copied(1) && handout.has_room());
        assert_eq!(handout.take(), (64..96).collect::<Vec<_>>());
        assert!(handout.copied(64));
        assert_eq!(handout.take(), (96..100).collect::<Vec<_>>());
        assert!(!handout.is_over() && handout.copied(4) && handout.is_over());
        assert!(!handout.has_room());
        assert!(Handout::new(Vec::new()).is_over());
    }
}
