//! The members' wall clocks, as seen from one node.

use squall_fabric::Time;

/// The lead of each member's wall clock over this node's boot clock.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    /// The last reading of each member, and the difference when that was first seen, in nanoseconds.
    seen: Vec<(u64, i64)>,
    changed: bool,
}

impl Clocks {
    pub(crate) fn new(members: usize) -> Clocks {
        // A member that is alone hears of no others: that is news, once.
        Clocks { seen: vec![(0, 0); members], changed: members == 1 }
    }

    /// Takes note of the members' readings since the last look. A message that is late makes a clock look slow, never
    /// fast.
    pub(crate) fn look(&mut self, now: Time, says: impl Fn(usize) -> u64) {
        for (member, (said, offset)) in self.seen.iter_mut().enumerate() {
            let says = says(member);
            if says != *said {
                let difference = i128::from(says) - i128::from(now.as_nanos());
                (*said, *offset) = (says, difference.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
                self.changed = true;
            }
        }
    }

    /// The leads of the wall clocks of all members but `me` over this node's boot clock, in nanoseconds. None unless
    /// one changed since the last call, and all are known.
    pub(crate) fn take(&mut self, me: usize) -> Option<impl Iterator<Item = (usize, i64)>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let others = self.seen.iter().enumerate().filter(move |(member, _)| *member != me);
        let are_known = others.clone().all(|(_, (said, _))| *said > 0);
        are_known.then(|| others.map(|(member, (_, offset))| (member, *offset)))
    }
}
