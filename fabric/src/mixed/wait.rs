//! The sleep until any of the fabrics has something.

use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;

use super::MixedFabric;
use crate::{Time, Wait, Waker, mixed_part::MixedPart, wait::wait_for};

impl Wait for MixedFabric {
    fn arm(&mut self) {
        self.router.fabrics.all_mut().for_each(Wait::arm);
    }

    fn disarm(&mut self) {
        self.router.fabrics.all_mut().for_each(Wait::disarm);
    }

    fn wait(&mut self, until: Time) {
        // No signal comes for work that the last poll did not finish.
        let until = if self.router.unfinished { Time::ZERO } else { until };
        // A fabric that is alone sleeps with one system call less.
        if self.router.fabrics.all().count() == 1 {
            return self.router.fabrics.all_mut().for_each(|part| part.wait(until));
        }
        if self.router.fabrics.all().all(MixedPart::may_sleep) {
            let mut signals: SmallVec<[PollFd<'_>; 3]> =
                self.router.fabrics.all().map(|part| PollFd::from_borrowed_fd(part.signal(), PollFlags::IN)).collect();
            let _ = wait_for(&mut signals, until);
        }
        // Each takes the signal that it was given, and is disarmed.
        self.router.fabrics.all_mut().for_each(|part| part.wait(Time::ZERO));
    }

    /// The first fabric's waker: a signal to one of them ends the wait for all.
    fn waker(&self) -> Waker {
        match self.router.fabrics.all().next() {
            Some(part) => part.waker(),
            None => Waker::new(|| {}),
        }
    }
}
