//! Copies a file or directory from one process to several, by RDMC.
//!
//! ```text
//! cargo run --release --example bulk_copy                              a root and three receivers, 256 MiB
//! cargo run --release --example bulk_copy -- receive DIRECTORY NAME    one receiver
//! cargo run --release --example bulk_copy -- send PATH NAME…           the root
//! ```

use std::{
    env,
    error::Error,
    fs::{self, File, Permissions},
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::atomic::AtomicBool,
};

use squall_copy::{PushOptions, PushReport, Receiver, ServeEvent, ServeOptions, push};

const FILE_BYTES: usize = 256 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => demonstrate(),
        ["receive", directory, name] => receive(directory.into(), name, "bulk-copy"),
        ["receive", directory, name, cluster] => receive(directory.into(), name, cluster),
        ["send", path, ref names @ ..] if !names.is_empty() => send(path.into(), names, "bulk-copy").map(drop),
        _ => Err("usage: bulk_copy [receive DIRECTORY NAME | send PATH NAME…]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bulk_copy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes one transfer into `directory`.
fn receive(directory: PathBuf, name: &str, cluster: &str) -> Result<(), Box<dyn Error>> {
    let options = ServeOptions { directory, name: name.to_owned(), cluster: cluster.to_owned(), network: None };
    let mut receiver = Receiver::open(&options)?;
    writeln!(io::stdout(), "ready")?;
    let mut trouble = None;
    receiver.receive(&AtomicBool::new(false), &mut |event| match event {
        ServeEvent::Finished { failed, .. } => trouble = failed.into_iter().next(),
        ServeEvent::Interrupted { reason } => trouble = Some(reason),
        _ => {}
    });
    trouble.map_or(Ok(()), |trouble| Err(trouble.into()))
}

/// Sends `path` to all receivers at once.
fn send(path: PathBuf, names: &[&str], cluster: &str) -> Result<PushReport, Box<dyn Error>> {
    let to = names.iter().map(|&name| name.to_owned()).collect();
    let options = PushOptions::new(vec![path], to, cluster);
    let report = push(&options, &AtomicBool::new(false), &mut |progress| {
        let written: u64 = progress.receivers.iter().map(|receiver| receiver.written).sum();
        let all = progress.bytes * progress.receivers.len() as u64;
        eprintln!("{} %", (100 * written).checked_div(all).unwrap_or(100));
    })?;
    let failed = report.receivers.iter().find_map(|receiver| {
        let error = receiver.error.as_ref().or(receiver.failed.first());
        error.map(|error| format!("{}: {error}", receiver.name))
    });
    failed.map_or(Ok(report), |failed| Err(failed.into()))
}

/// A receiver in a process of its own, which does not outlive this one.
struct ReceiverProcess(Child);

impl Drop for ReceiverProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A root and three receivers, on this machine.
fn demonstrate() -> Result<(), Box<dyn Error>> {
    let base =
        tempfile::Builder::new().prefix("squall-bulk-copy-").permissions(Permissions::from_mode(0o700)).tempdir()?;
    demonstrate_in(base.path())
}

fn demonstrate_in(base: &Path) -> Result<(), Box<dyn Error>> {
    let cluster = format!("bulk-copy-{}", std::process::id());
    let file = base.join("file");
    write_noise(&file)?;
    let names = ["a", "b", "c"];
    let mut receivers = Vec::new();
    for name in names {
        fs::create_dir(base.join(name))?;
        let mut command = Command::new(env::current_exe()?);
        command.arg("receive").arg(base.join(name)).args([name, &cluster]).stdout(Stdio::piped());
        receivers.push(ReceiverProcess(command.spawn()?));
    }
    for ReceiverProcess(receiver) in &mut receivers {
        let mut ready = String::new();
        BufReader::new(receiver.stdout.as_mut().ok_or("a receiver has no output")?).read_line(&mut ready)?;
        if ready.is_empty() {
            return Err("a receiver did not start".into());
        }
    }
    let report = send(file.clone(), &names, &cluster)?;
    for (name, ReceiverProcess(receiver)) in names.iter().zip(&mut receivers) {
        if !receiver.wait()?.success() {
            return Err(format!("receiver {name} failed").into());
        }
        if !same(&file, &base.join(name).join("file"))? {
            return Err(format!("the copy at {name} differs").into());
        }
    }
    let seconds = report.took.as_secs_f64();
    let rate = report.bytes as f64 / seconds / 1e9;
    writeln!(
        io::stdout(),
        "{} MiB to {} receivers in {seconds:.2} s, {rate:.2} GB/s to each; all copies are the same",
        report.bytes >> 20,
        names.len()
    )?;
    Ok(())
}

fn write_noise(path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut random = fastrand::Rng::with_seed(1);
    let mut chunk = vec![0; 1 << 20];
    for _ in 0..FILE_BYTES / chunk.len() {
        random.fill(&mut chunk);
        file.write_all(&chunk)?;
    }
    file.flush()
}

fn same(a: &Path, b: &Path) -> io::Result<bool> {
    if fs::metadata(a)?.len() != fs::metadata(b)?.len() {
        return Ok(false);
    }
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let read = a.read(&mut left)?;
        b.read_exact(&mut right[..read])?;
        if left[..read] != right[..read] {
            return Ok(false);
        }
        if read == 0 {
            return Ok(true);
        }
    }
}
