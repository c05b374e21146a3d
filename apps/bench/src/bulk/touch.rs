//! The use that a receiver makes of a message once all have theirs, and its cost.

use std::{fs, hint::black_box};

use squall::Time;

use super::contents::{COMPARED, PAGE};
use crate::job::{Touch, Touched};

impl Touch {
    /// Uses messages. None if there is nothing to do.
    pub(super) fn of<'a>(self, messages: impl Iterator<Item = &'a mut [u8]>) -> Option<Touched> {
        let mut messages = messages.peekable();
        if self == Touch::None || messages.peek().is_none() {
            return None;
        }
        let (faults, began) = (page_faults(), Time::boot_clock());
        messages.for_each(|message| self.each_page(message));
        let nanos = Time::boot_clock().since(began).as_nanos() as u64;
        Some(Touched { nanos, page_faults: page_faults().saturating_sub(faults) })
    }

    fn each_page(self, message: &mut [u8]) {
        match self {
            Touch::None => {}
            Touch::Read => _ = black_box(message.iter().step_by(PAGE).fold(0, |sum: u8, byte| sum ^ byte)),
            Touch::Write => {
                // Behind the bytes that are compared later: the comparison shall see what was received, not what is
                // written here.
                message.iter_mut().skip(COMPARED).step_by(PAGE).for_each(|byte| *byte = 1);
                black_box(message);
            }
        }
    }
}

/// The minor page faults of this thread so far, as getrusage counts them; 0 if the system does not say.
fn page_faults() -> u64 {
    let count = |stat: String| {
        // The name may hold any character and is in parentheses; the third and all other fields follow it.
        let (_, after_name) = stat.rsplit_once(')')?;
        after_name.split_whitespace().nth(10 - 3)?.parse().ok()
    };
    fs::read_to_string("/proc/thread-self/stat").ok().and_then(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_to_each_page_and_leaves_what_is_compared() {
        let mut message = vec![7; 2 * PAGE + COMPARED + 1];
        assert!(Touch::Write.of([&mut *message].into_iter()).is_some());
        let written: Vec<_> = (0..message.len()).filter(|&at| message[at] != 7).collect();
        assert_eq!(written, [0, 1, 2].map(|page| page * PAGE + COMPARED));
    }

    #[test]
    fn what_is_not_used_costs_nothing() {
        assert!(Touch::None.of([&mut [0; 10][..]].into_iter()).is_none());
        assert!(Touch::Read.of([].into_iter()).is_none());
    }

    #[test]
    fn the_first_use_of_a_page_is_a_fault() {
        // Too large for the allocator to use pages again, whatever the page size.
        let mut fresh = vec![0; 64 << 20];
        let touched = Touch::Write.of([&mut *fresh].into_iter()).expect("there is a message");
        assert!(touched.page_faults > 0, "{touched:?}");
    }
}
