//! A thread that calls and waits for the answers: an ordinary application thread.

use std::collections::VecDeque;

use fastrand::Rng;
use hdrhistogram::Histogram;
use squall::{Group, Read, Service, Submit, SubmitError};
use squall_fabric::Time;

use super::{
    job::{Calls, Go},
    latency,
};

/// A call under way.
enum OngoingCall<T> {
    Submit(Submit<T>),
    Read(Read<usize>),
}

/// Calls until `go.until`, and waits for all answers. Returns the latencies of the answers that came within the
/// measured time.
pub(crate) fn run<S>(calls: Calls, size_bytes: usize, go: Go, group: &Group<S>) -> Result<Histogram<u64>, String>
where
    S: Service,
{
    let mut latencies = latency::histogram();
    let mut rng = Rng::new();
    let mut payload = vec![0; size_bytes];
    // Random, since a disk might treat zeros specially.
    rng.fill(&mut payload);
    let mut under_way = VecDeque::with_capacity(calls.in_flight as usize);
    loop {
        let now = Time::boot_clock().as_nanos();
        while now < go.until && under_way.len() < calls.in_flight as usize {
            let began = Time::boot_clock().as_nanos();
            let call = if rng.u32(0..100) < calls.reads_percent {
                OngoingCall::Read(group.read(|service| size_of_val(service)))
            } else {
                match group.try_submit_bytes(&payload) {
                    // A submit that waits for room is handed over only while its caller waits for it, and this thread
                    // waits for the oldest.
                    Err(SubmitError::Full) if !under_way.is_empty() => break,
                    Err(SubmitError::Full) => OngoingCall::Submit(group.submit_bytes(&payload)),
                    submitted => OngoingCall::Submit(submitted.map_err(|error| error.to_string())?),
                }
            };
            under_way.push_back((began, call));
        }
        let Some((began, call)) = under_way.pop_front() else { return Ok(latencies) };
        match call {
            OngoingCall::Submit(submit) => submit.wait().map(|_| ()).map_err(|error| error.to_string())?,
            OngoingCall::Read(read) => read.wait().map(|_| ()).map_err(|error| error.to_string())?,
        }
        let ended = Time::boot_clock().as_nanos();
        if (go.from..go.until).contains(&ended) {
            latencies.saturating_record(ended - began);
        }
    }
}
