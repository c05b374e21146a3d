//! The speed of logs on a disk: appends in batches, beside a plain program that writes the same bytes with one sync for
//! each batch; the cost of signing; and opening and checking a log, beside reading its files once.
//!
//! `cargo bench -p squall-ordered --bench log -- [DIRECTORY] [--logs N] [--size BYTES] [--batch RECORDS,..]
//! [--seconds S] [--rounds N] [--gib N]`: the directory decides which disk (default: cargo's). `--gib 0` leaves out the
//! second part, `--rounds 0` the first. The page cache is dropped before each reading, which takes root; without, it
//! says so.
#![expect(clippy::print_stdout, reason = "it is a program")]

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rustix::fs::{FallocateFlags, fallocate, sync};
use squall_fabric::NodeId;
use squall_membership::{ClusterId, Epoch, Seq, ShardId};
use squall_ordered::{
    Payload,
    log::{Appender, End, Files, Hlc, Log, Options, Position, SigningKey, ViewRecord},
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MIB: f64 = 1024.0 * 1024.0;

struct Settings {
    directory: PathBuf,
    logs: usize,
    payload_bytes: usize,
    batches: Vec<usize>,
    span: Duration,
    rounds: usize,
    gib: f64,
}

fn main() -> Result<()> {
    let mut settings = Settings {
        directory: env!("CARGO_TARGET_TMPDIR").into(),
        logs: 3,
        payload_bytes: 1024,
        batches: vec![1, 4, 16, 64, 256, 1024, 4096],
        span: Duration::from_secs(1),
        rounds: 5,
        gib: 1.0,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            // Cargo says so to every benchmark.
            "--bench" => {}
            "--logs" => settings.logs = value()?.parse()?,
            "--size" => settings.payload_bytes = value()?.parse()?,
            "--batch" => {
                settings.batches = value()?.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
            }
            "--seconds" => settings.span = Duration::from_secs_f64(value()?.parse()?),
            "--rounds" => settings.rounds = value()?.parse()?,
            "--gib" => settings.gib = value()?.parse()?,
            _ => settings.directory = argument.into(),
        }
    }
    let scratch = tempfile::Builder::new().prefix("log-bench-").tempdir_in(&settings.directory)?;
    settings.directory = scratch.path().to_owned();
    appends(&settings).and_then(|()| signing(&settings)).and_then(|()| recovery(&settings))
}

fn appends(settings: &Settings) -> Result<()> {
    if settings.rounds == 0 {
        return Ok(());
    }
    println!(
        "{} logs on one disk, {} bytes a record, medians of {}",
        settings.logs, settings.payload_bytes, settings.rounds
    );
    println!("records   bytes              logs               plain        share of the disk");
    println!("     a batch        appends/s    MiB/s  writes/s    MiB/s   median, least to most");
    for &records in &settings.batches {
        let batch_bytes = records * (settings.payload_bytes + 64).next_multiple_of(16);
        let (mut logs, mut plain, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        // In turns, since a shared disk is not the same from one second to the next.
        for round in 0..settings.rounds {
            let mut measure = |ours: bool| -> Result<()> {
                match ours {
                    true => logs.push(together(settings, |n, start| log_rate(settings, n, records, start))?),
                    false => plain.push(together(settings, |n, start| plain_rate(settings, n, batch_bytes, start))?),
                }
                Ok(())
            };
            measure(round % 2 == 0)?;
            measure(round % 2 == 1)?;
            shares.push(logs[round] / plain[round]);
        }
        let (logs, plain, share) = (median(&mut logs), median(&mut plain), median(&mut shares));
        println!(
            "{records:>7} {batch_bytes:>8} {:>12.0} {:>8.1} {plain:>9.0} {:>8.1}   {share:.2}, {:.2} to {:.2}",
            logs * records as f64,
            logs * batch_bytes as f64 / MIB,
            plain * batch_bytes as f64 / MIB,
            shares[0],
            shares[shares.len() - 1],
        );
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The sum of what as many threads measure as there are logs.
fn together(settings: &Settings, rate: impl Fn(usize, &Barrier) -> Result<f64> + Sync) -> Result<f64> {
    // What was removed before may still be on its way.
    sync();
    let (start, rate) = (&Barrier::new(settings.logs), &rate);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..settings.logs).map(|n| scope.spawn(move || rate(n, start))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    })
}

fn begin(directory: &Path) -> Result<(Log<Files>, Appender)> {
    begin_signed(directory, false)
}

fn begin_signed(directory: &Path, is_signed: bool) -> Result<(Log<Files>, Appender)> {
    let files = Files::open(directory)?;
    let mut log = Log::open(files, options(), &mut Rng::new())?.log;
    if is_signed {
        log.sign_with(NodeId(1), SigningKey::from_seed(&[1; 32]))?;
    }
    log.prepare()?;
    let mut appender = log.appender();
    appender.append_view(Epoch(1), Hlc(1), &ViewRecord::default())?;
    let mut batch = appender.take_batch().ok_or("nothing was appended")?;
    log.commit(&mut batch)?;
    appender.give_back(batch);
    Ok((log, appender))
}

fn options() -> Options {
    Options { batch_bytes: 64 << 20, ..Options::new(ClusterId(1), ShardId(0)) }
}

/// Appends one batch, and commits it.
fn append(log: &mut Log<Files>, appender: &mut Appender, payload: &[u8], records: usize) -> Result<()> {
    for _ in 0..records {
        let End { position, time, .. } = appender.end();
        appender.append(position, Hlc(time.0 + 1), NodeId(1), Payload::kept(payload))?;
    }
    let mut batch = appender.take_batch().ok_or("nothing was appended")?;
    log.commit(&mut batch)?;
    appender.give_back(batch);
    log.prepare()?;
    Ok(())
}

/// Measures the cost of signing, and the speed at which a signed log is checked.
fn signing(settings: &Settings) -> Result<()> {
    println!("records  plain      signed     share");
    println!("a batch  appends/s  appends/s");
    for records in [1, 16, 64, 256, 1000] {
        let (mut plain, mut signed) = (0.0, 0.0);
        for _ in 0..3 {
            plain += log_rate_signed(settings, 0, records, &Barrier::new(1), false)? / 3.0;
            signed += log_rate_signed(settings, 0, records, &Barrier::new(1), true)? / 3.0;
        }
        let per_second = |rate: f64| rate * records as f64;
        println!("{records:>7}  {:>9.0}  {:>9.0}  {:.2}", per_second(plain), per_second(signed), signed / plain);
    }
    let directory = settings.directory.join("signed");
    let (mut log, mut appender) = begin_signed(&directory, true)?;
    for _ in 0..1000 {
        append(&mut log, &mut appender, &[7; 1024], 256)?;
    }
    for (what, is_signed) in [("records alone", false), ("with signatures", true)] {
        let start = Instant::now();
        let found = if is_signed { log.verify_signed(&[], |_| {})? } else { log.verify(|_| {})? };
        assert_eq!((found.damage.len(), found.flaws.len()), (0, 0));
        let rate = found.bytes as f64 / MIB / start.elapsed().as_secs_f64();
        println!("checked from the page cache, {what}: {rate:.0} MiB/s");
    }
    drop(log);
    Ok(fs::remove_dir_all(&directory)?)
}

/// Batches a second.
fn log_rate(settings: &Settings, n: usize, records: usize, start: &Barrier) -> Result<f64> {
    log_rate_signed(settings, n, records, start, false)
}

fn log_rate_signed(settings: &Settings, n: usize, records: usize, start: &Barrier, is_signed: bool) -> Result<f64> {
    let directory = settings.directory.join(format!("log-{n}"));
    let (mut log, mut appender) = begin_signed(&directory, is_signed)?;
    let payload = vec![7; settings.payload_bytes];
    let rate = rate(settings.span, start, || append(&mut log, &mut appender, &payload, records))?;
    fs::remove_dir_all(&directory)?;
    Ok(rate)
}

/// The bytes that a plain program preallocates at a time.
const PREALLOCATED_BYTES: u64 = 1 << 30;

/// Batches a second of a program that appends bytes to files that have their space.
fn plain_rate(settings: &Settings, n: usize, batch_bytes: usize, start: &Barrier) -> Result<f64> {
    let directory = settings.directory.join(format!("plain-{n}"));
    fs::create_dir_all(&directory)?;
    let next = |number: u32| -> io::Result<File> {
        let file = File::create(directory.join(number.to_string()))?;
        fallocate(&file, FallocateFlags::empty(), 0, PREALLOCATED_BYTES)?;
        file.sync_all()?;
        Ok(file)
    };
    let batch = vec![7; batch_bytes];
    let (mut file, mut files, mut at) = (next(0)?, 1, 0);
    let rate = rate(settings.span, start, || {
        if at + batch_bytes as u64 > PREALLOCATED_BYTES {
            (file, files, at) = (next(files)?, files + 1, 0);
        }
        file.write_all_at(&batch, at)?;
        file.sync_data()?;
        at += batch_bytes as u64;
        Ok(())
    })?;
    fs::remove_dir_all(&directory)?;
    Ok(rate)
}

/// The number of times that it can be done in a second.
fn rate(span: Duration, start: &Barrier, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    start.wait();
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < span {
        once()?;
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

fn recovery(settings: &Settings) -> Result<()> {
    let batches = ((settings.gib * 1024.0 * 1024.0) as u64).div_ceil(4096);
    if batches == 0 {
        return Ok(());
    }
    let directory = settings.directory.join("long");
    let (mut log, mut appender) = begin(&directory)?;
    let payload = vec![7; 1024 - 64];
    for _ in 0..batches {
        append(&mut log, &mut appender, &payload, 4096)?;
    }
    drop((log, appender));
    let cached = if drop_page_cache() { "" } else { " (from the page cache: dropping it takes root)" };
    // Disks that others use too are at times thrice as fast as at others.
    let (mut reads, mut recoveries) = (Vec::new(), Vec::new());
    let mut rng = Rng::new();
    for _ in 0..11 {
        let read_first = rng.bool();
        let mut read = Duration::ZERO;
        let mut bytes = 0;
        if read_first {
            (bytes, read) = read_once(&directory)?;
        }
        drop_page_cache();
        let start = Instant::now();
        let log = Log::open(Files::open(&directory)?, options(), &mut Rng::new())?.log;
        let opened = start.elapsed();
        let verified = log.verify(|_| {})?;
        let recovered = start.elapsed();
        let end = Position::new(Epoch(1), Seq(batches * 4096));
        assert_eq!((log.persisted().position, verified.damage.len()), (end, 0));
        drop(log);
        if !read_first {
            (bytes, read) = read_once(&directory)?;
        }
        println!(
            "{} records in {:.0} MiB of files{cached}: read once in {read:.2?}; opened in {opened:.2?}, and all checked by \
             {recovered:.2?}: {:.2} times as long",
            verified.records,
            bytes as f64 / MIB,
            recovered.as_secs_f64() / read.as_secs_f64()
        );
        reads.push(read.as_secs_f64());
        recoveries.push(recovered.as_secs_f64());
    }
    let (read, recovered) = (median(&mut reads), median(&mut recoveries));
    println!(
        "medians: read in {read:.2} s, checked in {recovered:.2} s, {:.2} times as long; memory at most {}",
        recovered / read,
        resident().as_deref().unwrap_or("unknown")
    );
    Ok(())
}

/// Reads all files of a directory, as a plain program does. Returns the bytes and the time.
fn read_once(directory: &Path) -> Result<(usize, Duration)> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    drop_page_cache();
    let start = Instant::now();
    let (mut chunk, mut bytes) = (vec![0; 1 << 20], 0);
    for path in files {
        let mut file = File::open(path)?;
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                read => bytes += read,
            }
        }
    }
    Ok((bytes, start.elapsed()))
}

fn drop_page_cache() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

/// The most memory that the process had at a time.
fn resident() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().to_owned())
}
