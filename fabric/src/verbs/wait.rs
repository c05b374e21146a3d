//! The sleep until the device, a peer or another thread has something.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};

use super::{
    endpoint::{ConnectionStage, Endpoint},
    fabric::{Core, VerbsFabric},
    post,
    queue::Remote,
};
use crate::{Time, Wait, Waker, mixed_part::MixedPart, shm::doorbell, wait::wait_for};

impl Wait for VerbsFabric {
    /// Announces a sleep; the `watch` module shows that no wake-up is lost.
    fn arm(&mut self) {
        self.doorbell.arm();
        self.completions.announce_next();
        self.core.look_again = false;
        if self.core.reports_due < Time::MAX {
            self.core.reports_due = Time::ZERO;
        }
        let mut at = 0;
        while let Some(id) = self.core.unannounced.get(at) {
            if self.endpoints.get_mut(*id).is_none_or(|endpoint| endpoint.announce(&mut self.core)) {
                self.core.unannounced.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn disarm(&mut self) {
        self.doorbell.disarm();
    }

    /// Sleeps. A wait that was not armed ends at once.
    fn wait(&mut self, until: Time) {
        // No signal comes for work that the last poll did not finish.
        while self.may_sleep() {
            let signaled = wait_for(&mut [PollFd::new(&self.signal, PollFlags::IN)], until);
            if signaled == Err(Errno::INTR) {
                continue;
            }
            self.doorbell.disarm();
            if signaled != Ok(0) {
                doorbell::drain(self.doorbell.eventfd.as_fd());
                doorbell::drain(self.timer.as_fd());
                self.completions.channel.drain();
            }
        }
        self.doorbell.disarm();
    }

    fn waker(&self) -> Waker {
        let doorbell = Arc::clone(&self.doorbell);
        Waker::new(move || doorbell.wake())
    }
}

impl Endpoint {
    /// Announces a sleep to the peer. Returns false if that has to wait.
    fn announce(&mut self, core: &mut Core) -> bool {
        let ConnectionStage::Up(theirs) = &self.stage else { return true };
        if self.ending.is_some() {
            return true;
        }
        if self.announcement.end > self.sending.completed {
            // The last announcement is still on its way, and there is room for one.
            core.look_again = true;
            return false;
        }
        let to = Remote { addr: theirs.watch_addr, key: theirs.watch_key };
        match self.sending.announce(&self.qp, self.id, core, self.announcement.next(), to) {
            Ok(end) => self.announcement.end = end,
            Err(error) => self.fail(core, post::failed(&error)),
        }
        core.stats.announced += 1;
        true
    }
}

impl MixedPart for VerbsFabric {
    fn depth(&self) -> usize {
        self.core.depth
    }

    fn signal(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    fn may_sleep(&self) -> bool {
        self.doorbell.is_armed() && !self.core.unfinished && !self.core.look_again
    }
}
