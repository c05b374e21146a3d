//! The speed of the machine itself, to compare the other figures with.

mod copies;

use std::{
    hint::{black_box, spin_loop},
    io,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam::utils::CachePadded;
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::OwnedFd,
    io::Errno,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use squall_command::CommandError;

use self::copies::{BYTES, Best, Copies};
use super::report::{FigureReport, Yardstick};

/// Larger than a cache, so that memory is measured.
const COPY_BYTES: usize = 64 << 20;

/// The samples of each yardstick but those of `copies`. The best one counts: the machine's speed when nothing disturbs
/// it.
const SAMPLES: usize = 15;

/// The number of rounds in one sample; a sample takes some milliseconds.
const CACHE_LINE_ROUNDS: u32 = 10_000;
const EVENTFD_ROUNDS: u32 = 200;

/// Measures all yardsticks, and reports each.
pub(crate) fn run(report: &mut FigureReport) -> Result<(), CommandError> {
    let failed =
        |error: io::Error| CommandError::Failed(format!("this machine's yardsticks can't be measured: {error}"));
    for yardstick in measure().map_err(failed)? {
        report.yardstick(&yardstick)?;
    }
    Ok(())
}

fn measure() -> io::Result<Vec<Yardstick>> {
    let cores = allowed_cores()?;
    let one = cores[0];
    let copy = Yardstick::new("memcpy", Some(memcpy_gigabytes_per_second()), "GB/s", "one core, 64 MiB buffers");
    let two_cores = cores.get(1).copied();
    let line = match two_cores {
        Some(two) => Some(cache_line_round_trip(one, two)?.as_nanos() as f64),
        None => None,
    };
    let line = Yardstick::new("cache_line_round_trip", line, "ns", note(two_cores, "two spinning threads, two cores"));
    let far = match two_cores {
        Some(two) => Some(micros(eventfd_round_trip(one, two)?)),
        None => None,
    };
    let far = Yardstick::new("eventfd_round_trip_two_cores", far, "us", note(two_cores, "two sleeping threads"));
    let near = Some(micros(eventfd_round_trip(one, one)?));
    let near = Yardstick::new("eventfd_round_trip_one_core", near, "us", "two sleeping threads");
    let mut copies = Copies::new();
    let thrice = copies_to_three("copy_to_three_one_core", copies.best(&cores[..1])?);
    let thrice_by_two = match two_cores {
        Some(_) => copies_to_three("copy_to_three_two_cores", copies.best(&cores[..2])?),
        None => Yardstick::new("copy_to_three_two_cores", None, "ms", note(None, "")),
    };
    Ok(vec![copy, line, far, near, thrice, thrice_by_two])
}

fn copies_to_three(name: &'static str, Best { time, block_bytes }: Best) -> Yardstick {
    let note = format!("{} MiB to three places, median, best in blocks of {} KiB", BYTES >> 20, block_bytes >> 10);
    Yardstick::new(name, Some(micros(time) / 1000.0), "ms", note)
}

fn note(second_core: Option<usize>, what: &'static str) -> &'static str {
    if second_core.is_some() { what } else { "not measured: this process may use only one core" }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// The cores that this process may use; at least one.
fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

fn memcpy_gigabytes_per_second() -> f64 {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![0u8; COPY_BYTES];
    let sample = |_| {
        let began = Instant::now();
        black_box(&mut to).copy_from_slice(black_box(&from));
        COPY_BYTES as f64 / began.elapsed().as_secs_f64() / 1e9
    };
    (0..SAMPLES).map(sample).fold(0.0, f64::max)
}

/// The time from one core's store to the other core's answer, both spinning.
fn cache_line_round_trip(one: usize, two: usize) -> io::Result<Duration> {
    let lines: [CachePadded<AtomicU64>; 2] = Default::default();
    let await_value = |line: &AtomicU64, value| {
        while line.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    let here = |round| {
        lines[0].store(round, Ordering::Release);
        await_value(&lines[1], round);
        Ok(())
    };
    let there = |round| {
        await_value(&lines[0], round);
        lines[1].store(round, Ordering::Release);
        Ok(())
    };
    round_trip([one, two], CACHE_LINE_ROUNDS, here, there)
}

/// The time from waking a thread that sleeps on an eventfd until it has woken this one by another.
fn eventfd_round_trip(one: usize, two: usize) -> io::Result<Duration> {
    let bells = [eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?];
    let ring = |bell: &OwnedFd| rustix::io::write(bell, &1u64.to_ne_bytes()).map(drop);
    let await_ring = |bell: &OwnedFd| rustix::io::read(bell, &mut [0; 8]).map(drop);
    let here = |_| ring(&bells[0]).and_then(|()| await_ring(&bells[1]));
    let there = |_| await_ring(&bells[0]).and_then(|()| ring(&bells[1]));
    round_trip([one, two], EVENTFD_ROUNDS, here, there)
}

/// The time of a round, in which this thread does `here` on the first core, and another does `there` on the second one.
fn round_trip(
    cores: [usize; 2],
    rounds: u32,
    here: impl Fn(u64) -> Result<(), Errno>,
    there: impl Fn(u64) -> Result<(), Errno> + Send,
) -> io::Result<Duration> {
    let _pinned = Pinned::to(cores[0])?;
    let all_rounds = 1..=SAMPLES as u64 * u64::from(rounds);
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let other = scope.spawn({
            let mut all_rounds = all_rounds.clone();
            move || {
                let pinned = Pinned::to(cores[1]);
                // The thread at the other end waits for it.
                let _ = ready.send(pinned.as_ref().map(drop).map_err(io::Error::kind));
                pinned.is_ok().then(|| all_rounds.try_for_each(there))
            }
        });
        is_ready.recv().expect("the other thread says how it began")?;
        let mut best = Duration::MAX;
        let mut next = all_rounds;
        for _ in 0..SAMPLES {
            let began = Instant::now();
            for round in next.by_ref().take(rounds as usize) {
                here(round)?;
            }
            best = best.min(began.elapsed() / rounds);
        }
        other.join().expect("the other thread does not panic").transpose()?;
        Ok(best)
    })
}

/// Keeps this thread on one core until it is dropped.
struct Pinned(CpuSet);

impl Pinned {
    fn to(core: usize) -> io::Result<Pinned> {
        let before = sched_getaffinity(None)?;
        let mut set = CpuSet::new();
        set.set(core);
        sched_setaffinity(None, &set)?;
        Ok(Pinned(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The old set was allowed a moment ago. If it no longer is, later figures are taken on fewer cores.
        let _ = sched_setaffinity(None, &self.0);
    }
}
