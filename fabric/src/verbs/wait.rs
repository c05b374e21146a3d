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
    fabric::VerbsFabric,
    post,
    queue::Remote,
};
use crate::{Time, Wait, Waker, mixed_part::MixedPart, shm::doorbell, wait::wait_for};

impl Wait for VerbsFabric {
    /// Announces a sleep; the `watch` module shows that no wake-up is lost.
    fn arm(&mut self) {
        self.bell.arm();
        self.completions.announce_next();
        self.core.look_again = false;
        self.core.reports_due = Time::ZERO;
        for endpoint in self.endpoints.all_mut() {
            if endpoint.ending.is_some() || !endpoint.announcement.is_due() || !endpoint.exposes_polled() {
                continue;
            }
            let ConnectionStage::Up(theirs) = &endpoint.stage else { continue };
            let to = Remote { addr: theirs.watch_addr, key: theirs.watch_key };
            if endpoint.announcement.end > endpoint.sending.completed {
                // The last announcement is still on its way, and there is room for one.
                self.core.look_again = true;
                continue;
            }
            let Endpoint { qp, id, sending, announcement, .. } = endpoint;
            match sending.announce(qp, *id, &mut self.core, announcement.next(), to) {
                Ok(end) => announcement.end = end,
                Err(error) => endpoint.fail(&mut self.core, post::failed(&error)),
            }
            self.core.stats.announced += 1;
        }
    }

    fn disarm(&mut self) {
        self.bell.disarm();
    }

    /// Sleeps. A wait that was not armed ends at once.
    fn wait(&mut self, until: Time) {
        // No signal comes for work that the last poll did not finish.
        while self.may_sleep() {
            let signaled = wait_for(&mut [PollFd::new(&self.signal, PollFlags::IN)], until);
            if signaled == Err(Errno::INTR) {
                continue;
            }
            self.bell.disarm();
            if signaled != Ok(0) {
                doorbell::drain(self.bell.eventfd.as_fd());
                doorbell::drain(self.timer.as_fd());
                self.completions.channel.drain();
            }
        }
        self.bell.disarm();
    }

    fn waker(&self) -> Waker {
        let bell = Arc::clone(&self.bell);
        Waker::new(move || bell.wake())
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
        self.bell.is_armed() && !self.core.unfinished && !self.core.look_again
    }
}
