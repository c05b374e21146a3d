//! Processes of the example: started, watched, and stopped whatever happens.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{TemporaryFile, redis::Client};

/// Long enough for a busy machine; nothing waits for it in vain unless something is broken.
const DEADLINE: Duration = Duration::from_secs(60);

/// Clusters of several tests at once would measure each other.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !so() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a program is there. Without it the test skips, with the reason, unless skips are forbidden.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    let skips_are_forbidden = env::var_os("SQUALL_FORBID_SKIPS").is_some();
    assert!(found || !skips_are_forbidden, "{program} is missing, and SQUALL_FORBID_SKIPS is set");
    if !found {
        // Past the test harness, which keeps what passing tests print to itself.
        let _ = writeln!(io::stderr(), "skipped: {program} is not installed (Debian's package redis-tools has it)");
    }
    found
}

/// The first of twenty free ports in a row.
pub(crate) fn free_ports() -> u16 {
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    (first..60_000)
        .step_by(20)
        .find(|&base| (base..base + 20).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()))
        .expect("some ports are free")
}

/// A file for a test, with `{pid}` replaced by this process's id.
pub(crate) fn file(name: &str, text: &str) -> TemporaryFile {
    let path = env::temp_dir().join(format!("squall-{name}-{}.toml", std::process::id()));
    fs::write(&path, text.replace("{pid}", &std::process::id().to_string())).expect("the file can be written");
    TemporaryFile(path.to_str().expect("a readable path").to_owned())
}

fn spawn(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_replicated_kv"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the example starts")
}

/// Runs the example, which must fail with exit code 1 within a minute, and returns what it said to standard error.
pub(crate) fn fails(args: &[&str], limit: Option<Duration>) -> String {
    let (status, said) = run_for(args, limit.unwrap_or(DEADLINE));
    assert_eq!(status.map(|status| status.code()), Some(Some(1)), "{said}");
    said
}

/// Runs the example for a time at most, and returns how it ended and what it said to standard error.
pub(crate) fn run_for(args: &[&str], limit: Duration) -> (Option<ExitStatus>, String) {
    let mut child = spawn(args);
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        child.kill().expect("it still runs");
        child.wait().expect("it was killed");
    }
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
    (status, said)
}

/// One replica of a cluster.
pub(crate) struct Replica {
    pub(crate) port: u16,
    pub(crate) pid: u32,
    /// If it was started alone.
    child: Option<Child>,
}

impl Replica {
    /// Starts one replica, without waiting for anything.
    pub(crate) fn alone(args: &[&str]) -> Replica {
        let child = spawn(args);
        Replica { port: 0, pid: child.id(), child: Some(child) }
    }

    /// What a replica that was started alone said to standard error, once it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let child = self.child.as_mut()?;
        child.try_wait().expect("a child can be waited for")?;
        let mut said = String::new();
        child.stderr.take()?.read_to_string(&mut said).expect("it is text");
        Some(said)
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.port)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.pid), signal).expect("the replica is alive");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Three replicas and their supervisor, as the example starts them by default.
pub(crate) struct Cluster {
    supervisor: Child,
    pub(crate) replicas: Vec<Replica>,
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        Cluster::start_at(free_ports())
    }

    pub(crate) fn start_at(base: u16) -> Cluster {
        Cluster::start_as(base, &[])
    }

    pub(crate) fn start_with(options: &[&str]) -> Cluster {
        Cluster::start_as(free_ports(), options)
    }

    fn start_as(base: u16, options: &[&str]) -> Cluster {
        let mut supervisor = spawn(&[&["--port", &base.to_string()], options].concat());
        let mut replicas = Vec::new();
        let mut lines = BufReader::new(supervisor.stdout.take().expect("it is piped")).lines();
        while replicas.len() < 3 {
            let Some(Ok(line)) = lines.next() else {
                let mut said = String::new();
                let stderr = supervisor.stderr.as_mut().expect("it is piped");
                stderr.read_to_string(&mut said).expect("it is text");
                panic!("the cluster did not start: {said}");
            };
            // «replica 1 serves redis-cli -p 7001 (process 4711)»
            if let Some((_, rest)) = line.split_once("redis-cli -p ") {
                let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
                let mut number = || numbers.next().expect("a port and a process id").parse::<u32>().expect("a number");
                let port = u16::try_from(number()).expect("a port");
                replicas.push(Replica { port, pid: number(), child: None });
            }
        }
        // What it says from now on must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        let mut stderr = supervisor.stderr.take().expect("it is piped");
        thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
        Cluster { supervisor, replicas }
    }

    /// Stops it as Ctrl-C does, and checks that it ends cleanly and soon.
    pub(crate) fn stop(mut self) {
        kill_process(pid(self.supervisor.id()), Signal::INT).expect("the supervisor is alive");
        let mut status = None;
        until("the cluster ends after Ctrl-C", || {
            status = self.supervisor.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        assert!(status.expect("it has ended").success(), "{status:?}");
    }

    pub(crate) fn kill_supervisor(&mut self) {
        self.supervisor.kill().expect("the supervisor is alive");
        self.supervisor.wait().expect("it was killed");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // If a test failed in the middle. The replicas see their supervisor go.
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

fn pid(raw: u32) -> Pid {
    Pid::from_raw(raw.cast_signed()).expect("a process id")
}

pub(crate) fn is_alive(raw: u32) -> bool {
    // One that ended and was not waited for by whoever adopted it is no longer alive.
    let stat = fs::read_to_string(format!("/proc/{raw}/stat")).unwrap_or_default();
    test_kill_process(pid(raw)).is_ok() && !stat.contains(") Z ")
}

pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("the process is alive");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("resident pages");
    pages * rustix::param::page_size() as u64
}

/// User and system time of all threads.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is alive");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    let mut times = fields.split(' ').skip(11).map(|ticks| ticks.parse::<u64>().expect("a number of ticks"));
    let ticks = times.next().expect("user time") + times.next().expect("system time");
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
