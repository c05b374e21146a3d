//! What the log makes of the disk: appends in batches beside a plain program that writes the same bytes with one sync for each
//! batch, and opening and checking a log beside reading its files once.
//!
//! `cargo bench -p squall-ordered --bench log -- [DIRECTORY] [--seconds N] [--gib N]`: the directory decides which disk (default:
//! cargo's). The page cache is dropped before each reading, which takes root; without, it says so.
#![expect(clippy::print_stdout, reason = "it is a program")]

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fastrand::Rng;
use squall_fabric::NodeId;
use squall_membership::{ClusterId, Epoch, Seq, ShardId};
use squall_ordered::{
    Payload,
    log::{Appender, End, Files, Hlc, Log, Options, Position, ViewRecord},
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const MIB: f64 = 1024.0 * 1024.0;

struct Settings {
    directory: PathBuf,
    span: Duration,
    gib: f64,
}

fn main() -> Result<()> {
    let mut settings =
        Settings { directory: env!("CARGO_TARGET_TMPDIR").into(), span: Duration::from_secs(1), gib: 1.0 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            // Cargo says so to every benchmark.
            "--bench" => {}
            "--seconds" => settings.span = Duration::from_secs_f64(value()?.parse()?),
            "--gib" => settings.gib = value()?.parse()?,
            _ => settings.directory = argument.into(),
        }
    }
    settings.directory.push(format!("log-bench-{}", std::process::id()));
    fs::create_dir_all(&settings.directory)?;
    let result = appends(&settings).and_then(|()| recovery(&settings));
    fs::remove_dir_all(&settings.directory)?;
    result
}

fn appends(settings: &Settings) -> Result<()> {
    println!("payload  records   batch       log              plain            share");
    println!("  bytes  a batch   bytes       appends/s  MiB/s  appends/s  MiB/s");
    for payload in [100_usize, 1024, 10 << 10] {
        for records in [1, 16, 256, 4096] {
            let batch_bytes = records * (payload + 64).next_multiple_of(16);
            if batch_bytes > 16 << 20 {
                continue;
            }
            // In turns, since a shared disk is not the same from one second to the next.
            let (mut log, mut plain) = (0.0, 0.0);
            for _ in 0..2 {
                log += log_rate(settings, payload, records)?;
                plain += plain_rate(settings, batch_bytes)?;
            }
            let (log, plain) = (log / 2.0, plain / 2.0);
            let mib = |rate: f64| rate * batch_bytes as f64 / MIB;
            println!(
                "{payload:>7}  {records:>7}  {batch_bytes:>8}  {:>10.0} {:>7.1} {:>10.0} {:>7.1}  {:.2}",
                log * records as f64,
                mib(log),
                plain * records as f64,
                mib(plain),
                log / plain
            );
        }
    }
    Ok(())
}

fn begin(directory: &Path) -> Result<(Log<Files>, Appender)> {
    let files = Files::open(directory)?;
    let mut log = Log::open(files, options(), &mut Rng::new())?.log;
    log.prepare()?;
    let mut appender = log.appender();
    appender.append_view(Epoch(1), Hlc(1), &ViewRecord { ended: Position::START, members: vec![] })?;
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

/// Batches a second.
fn log_rate(settings: &Settings, payload: usize, records: usize) -> Result<f64> {
    let directory = settings.directory.join("log");
    let (mut log, mut appender) = begin(&directory)?;
    let payload = vec![7; payload];
    let (start, mut batches) = (Instant::now(), 0);
    while start.elapsed() < settings.span {
        append(&mut log, &mut appender, &payload, records)?;
        batches += 1;
    }
    let rate = f64::from(batches) / start.elapsed().as_secs_f64();
    fs::remove_dir_all(&directory)?;
    Ok(rate)
}

/// Batches a second of a program that appends bytes to a file.
fn plain_rate(settings: &Settings, batch_bytes: usize) -> Result<f64> {
    let path = settings.directory.join("plain");
    let file = File::create(&path)?;
    let batch = vec![7; batch_bytes];
    let (start, mut batches) = (Instant::now(), 0);
    while start.elapsed() < settings.span {
        file.write_all_at(&batch, batches * batch_bytes as u64)?;
        file.sync_data()?;
        batches += 1;
    }
    let rate = batches as f64 / start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

fn recovery(settings: &Settings) -> Result<()> {
    let directory = settings.directory.join("long");
    let (mut log, mut appender) = begin(&directory)?;
    let (records, payload) = ((settings.gib * 1024.0 * 1024.0) as u64, vec![7; 1024 - 64]);
    for _ in 0..records.div_ceil(4096) {
        append(&mut log, &mut appender, &payload, 4096)?;
    }
    drop(log);
    let cached = if drop_page_cache() { "" } else { " (from the page cache: dropping it takes root)" };
    for _ in 0..2 {
        drop_page_cache();
        let start = Instant::now();
        let mut bytes = 0;
        let mut chunk = vec![0; 1 << 20];
        let mut files: Vec<PathBuf> = fs::read_dir(&directory)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
        files.sort();
        for path in files {
            let mut file = OpenOptions::new().read(true).open(path)?;
            loop {
                match file.read(&mut chunk)? {
                    0 => break,
                    read => bytes += read,
                }
            }
        }
        let plain = start.elapsed();
        drop_page_cache();
        let start = Instant::now();
        let log = Log::open(Files::open(&directory)?, options(), &mut Rng::new())?.log;
        let opened = start.elapsed();
        let verified = log.verify(|_| {})?;
        let recovered = start.elapsed();
        println!(
            "{} records in {:.0} MiB of files{cached}: read once in {plain:.2?}; opened in {opened:.2?}, and all checked by \
             {recovered:.2?}: {:.2} times as long",
            verified.records,
            bytes as f64 / MIB,
            recovered.as_secs_f64() / plain.as_secs_f64()
        );
        let end = Position::new(Epoch(1), Seq(records.div_ceil(4096) * 4096));
        assert_eq!((log.persisted().position, verified.damage.len()), (end, 0));
    }
    Ok(())
}

fn drop_page_cache() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
