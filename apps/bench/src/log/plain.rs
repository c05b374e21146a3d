//! The speed of the disk: plain threads write batches of bytes, and sync each.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FallocateFlags, fallocate};

/// The space that a file gets before it is written, in bytes.
const FILE_BYTES: u64 = 1 << 30;

/// Bytes per second of `writers` writers together, each of which writes batches of `batch_bytes` to files of its own.
///
/// An error of the disk, or [`Interrupted`](io::ErrorKind::Interrupted) once `stop` is set.
pub(super) fn bytes_per_second(
    directory: &Path,
    writers: u32,
    batch_bytes: usize,
    span: Duration,
    stop: &AtomicBool,
) -> io::Result<f64> {
    fs::create_dir_all(directory)?;
    let start = Barrier::new(writers as usize);
    let writer = PlainWriter { directory, batch_bytes, span, start: &start, stop };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..writers).map(|n| scope.spawn(move || writer.run(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    })
}

#[derive(Clone, Copy)]
struct PlainWriter<'a> {
    directory: &'a Path,
    batch_bytes: usize,
    span: Duration,
    /// The barrier at which all writers begin together.
    start: &'a Barrier,
    stop: &'a AtomicBool,
}

impl PlainWriter<'_> {
    /// Bytes per second of the writer with this number.
    fn run(self, n: u32) -> io::Result<f64> {
        let file_bytes = FILE_BYTES.max(self.batch_bytes as u64);
        let make = |number: u32| -> io::Result<File> {
            let file = File::create(self.directory.join(format!("{n}-{number}")))?;
            fallocate(&file, FallocateFlags::empty(), 0, file_bytes)?;
            file.sync_all()?;
            Ok(file)
        };
        let mut batch = vec![0; self.batch_bytes];
        fastrand::Rng::new().fill(&mut batch);
        let first = make(0);
        // A writer that failed to make its file waits too, so that it blocks no other.
        self.start.wait();
        let (mut file, mut files, mut at) = (first?, 1, 0);
        let (began, mut bytes) = (Instant::now(), 0);
        while began.elapsed() < self.span {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if at + self.batch_bytes as u64 > file_bytes {
                (file, files, at) = (make(files)?, files + 1, 0);
            }
            file.write_all_at(&batch, at)?;
            file.sync_data()?;
            at += self.batch_bytes as u64;
            bytes += self.batch_bytes as u64;
        }
        Ok(bytes as f64 / began.elapsed().as_secs_f64())
    }
}
