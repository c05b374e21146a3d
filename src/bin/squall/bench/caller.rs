//! A thread that calls, and waits for the answers: an ordinary application thread.

use std::collections::VecDeque;

use fastrand::Rng;
use hdrhistogram::Histogram;
use squall::{Group, Read, Service, Submit};
use squall_fabric::Time;

use super::{
    job::{Calls, Go},
    latency,
};

/// A call under way.
enum Call<T> {
    Submit(Submit<T>),
    Read(Read<usize>),
}

/// Calls until `go.until`, and waits for all answers. Returns how long those took that came within the time.
pub(crate) fn run<S>(calls: Calls, size_bytes: usize, go: Go, group: &Group<S>) -> Result<Histogram<u64>, String>
where
    S: Service,
{
    let mut latencies = latency::histogram();
    let mut rng = Rng::new();
    let payload = vec![0; size_bytes];
    let mut under_way = VecDeque::with_capacity(calls.in_flight as usize);
    loop {
        let now = Time::boot_clock().as_nanos();
        while now < go.until && under_way.len() < calls.in_flight as usize {
            let call = if rng.u32(0..100) < calls.reads_percent {
                Call::Read(group.read(|service| size_of_val(service)))
            } else {
                Call::Submit(group.submit_bytes(&payload))
            };
            under_way.push_back((Time::boot_clock().as_nanos(), call));
        }
        let Some((began, call)) = under_way.pop_front() else { return Ok(latencies) };
        match call {
            Call::Submit(submit) => submit.wait().map(|_| ()).map_err(|error| error.to_string())?,
            Call::Read(read) => read.wait().map(|_| ()).map_err(|error| error.to_string())?,
        }
        let ended = Time::boot_clock().as_nanos();
        if (go.from..go.until).contains(&ended) {
            latencies.saturating_record(ended - began);
        }
    }
}
