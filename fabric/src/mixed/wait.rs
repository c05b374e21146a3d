//! The sleep until any of the fabrics has something.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use smallvec::SmallVec;

use super::MixedFabric;
use crate::{Time, Wait, Waker, part::MixedPart};

impl Wait for MixedFabric {
    fn arm(&mut self) {
        self.parts.fabrics.all_mut().for_each(Wait::arm);
    }

    fn disarm(&mut self) {
        self.parts.fabrics.all_mut().for_each(Wait::disarm);
    }

    fn wait(&mut self, until: Time) {
        if self.parts.fabrics.all().all(MixedPart::may_sleep) {
            let timeout = (until != Time::MAX).then(|| {
                let left = until.since(Time::boot_clock());
                Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
            });
            let mut signals: SmallVec<[PollFd<'_>; 3]> =
                self.parts.fabrics.all().map(|part| PollFd::from_borrowed_fd(part.signal(), PollFlags::IN)).collect();
            match poll(&mut signals, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => tracing::error!(%error, "waiting failed"),
            }
        }
        // Each takes the signal that it was given, and is disarmed.
        self.parts.fabrics.all_mut().for_each(|part| part.wait(Time::ZERO));
    }

    /// The first fabric's waker: a signal to one of them ends the wait for all.
    fn waker(&self) -> Waker {
        match self.parts.fabrics.all().next() {
            Some(part) => part.waker(),
            None => Waker::new(|| {}),
        }
    }
}
