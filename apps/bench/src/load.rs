//! The thread that sends: an ordinary application thread.

use std::{num::NonZeroU64, thread};

use hdrhistogram::Histogram;
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::Timespec;
use squall_fabric::Time;

use super::{
    job::{Go, Job, Spinning},
    latency,
    tally::Tally,
};

/// The number of messages of which one is timed, without a rate: reading the clock for each would be a good part of
/// its cost.
const TIMED: u64 = 16;

/// The time that the last messages may take to be delivered, in nanoseconds.
const DRAIN_NANOS: u64 = 5_000_000_000;

/// Sends the messages of `job` until `go.until`, and waits until they are delivered. Returns the lateness of sends.
///
/// `send` waits while there is no room.
pub(crate) fn run(
    job: &Job,
    go: Go,
    tally: &Tally,
    mut send: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<Histogram<u64>, String> {
    // With the default slack the host may add 50 µs to each sleep. If it refuses this, the delay shows as lateness.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let mut lateness = latency::histogram();
    let mut payload = vec![0; job.size_bytes];
    let window = job.window as u64;
    let begin = now();
    let mut sent = 0;
    loop {
        let under_way = sent - tally.own();
        if under_way >= window {
            if now() > go.until.saturating_add(DRAIN_NANOS) {
                return Err(format!("{under_way} messages were not delivered in time"));
            }
            tally.wait_for_own(sent - window / 2);
            continue;
        }
        let began = match job.rate {
            Some(rate) => {
                let due = begin + (sent as f64 * 1e9 / rate) as u64;
                let mut at = now();
                if at < due && due < go.until {
                    match job.spin {
                        Spinning::Always => spin_until(due),
                        Spinning::Auto | Spinning::Never => sleep_until(due),
                    }
                    at = now();
                }
                if due.max(at) >= go.until {
                    break;
                }
                if due >= go.from {
                    lateness.saturating_record(at.saturating_sub(due));
                }
                Some(due)
            }
            None if sent % TIMED == 0 => {
                let at = now();
                if at >= go.until {
                    break;
                }
                Some(at)
            }
            None => None,
        };
        write(&mut payload, sent);
        tally.sending(sent, began);
        send(&payload)?;
        sent += 1;
    }
    while tally.own() < sent {
        if now() > go.until.saturating_add(DRAIN_NANOS) {
            return Err(format!("{} messages were not delivered in time", sent - tally.own()));
        }
        tally.wait_for_own(sent);
    }
    Ok(lateness)
}

fn now() -> u64 {
    Time::boot_clock().as_nanos()
}

fn sleep_until(nanos: u64) {
    let at = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
    // If a signal ends the sleep early, the message goes early.
    let _ = clock_nanosleep_absolute(ClockId::Boottime, &at);
}

/// Waits as an application does that never sleeps, but lets other threads run.
fn spin_until(nanos: u64) {
    while now() < nanos {
        thread::yield_now();
    }
}

/// Writes every byte of a sender's message with this number.
fn write(payload: &mut [u8], number: u64) {
    payload.fill(number as u8);
    if let Some(first) = payload.first_chunk_mut() {
        *first = number.to_ne_bytes();
    }
}
