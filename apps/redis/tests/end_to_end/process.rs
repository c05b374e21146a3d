//! Processes of squall-redis: started, watched, and stopped even if a test fails.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use redis_protocol::resp2::types::OwnedFrame;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{
    machine::{DEADLINE, free_ports, within},
    wire::Client,
};

fn spawn(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall-redis"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// Runs the program, which must fail with exit code 1. Returns its standard error.
pub(crate) fn fails(args: &[&str]) -> String {
    let (status, said) = run_for(args, DEADLINE);
    assert_eq!(status.map(|status| status.code()), Some(Some(1)), "{said}");
    said
}

/// Runs the program for `limit` at most. Returns its exit status and its standard error.
pub(crate) fn run_for(args: &[&str], limit: Duration) -> (Option<ExitStatus>, String) {
    let mut child = spawn(args);
    let status = ends_within(limit, &mut child);
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
    (status, said)
}

/// The exit status of a process that ends within a time. Otherwise it is killed, and there is none.
pub(crate) fn ends_within(limit: Duration, child: &mut Child) -> Option<ExitStatus> {
    let mut status = None;
    within(limit, || {
        status = child.try_wait().expect("a child can be waited for");
        status.is_some()
    });
    if status.is_none() {
        child.kill().expect("it still runs");
        child.wait().expect("it was killed");
    }
    status
}

/// One replica of a cluster.
pub(crate) struct Replica {
    pub(crate) port: u16,
    /// The id of its latest process.
    pid: Arc<AtomicU32>,
    /// The process, if the replica was started alone.
    child: Option<Child>,
}

impl Replica {
    /// Starts one replica, without waiting for anything.
    pub(crate) fn alone(args: &[&str]) -> Replica {
        let child = spawn(args);
        Replica { port: 0, pid: Arc::new(child.id().into()), child: Some(child) }
    }

    /// Starts a replica or front end, and waits until it says where it serves.
    pub(crate) fn serving(args: &[&str]) -> Replica {
        let mut child = spawn(args);
        let Some((port, _)) = next_serving(&mut BufReader::new(child.stdout.take().expect("it is piped"))) else {
            let mut said = String::new();
            child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
            panic!("{args:?} did not start: {said}");
        };
        Replica { port, pid: Arc::new(child.id().into()), child: Some(child) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Stops a replica that was started alone, as Ctrl-C does. Returns its exit status; `None` if it took too long.
    pub(crate) fn stop(mut self) -> Option<ExitStatus> {
        self.signal(Signal::INT);
        ends_within(DEADLINE, self.child.as_mut().expect("it was started alone"))
    }

    /// The exit status of a replica that was started alone and ends by itself; `None` if it took too long.
    pub(crate) fn ends(mut self) -> Option<ExitStatus> {
        ends_within(DEADLINE, self.child.as_mut().expect("it was started alone"))
    }

    /// The value of a field of INFO's answer.
    pub(crate) fn info(&self, name: &str) -> Option<String> {
        let mut client = Client::connect(self.address()).ok()?;
        let OwnedFrame::BulkString(text) = client.call(&["INFO", "squall"]).ok()? else { return None };
        let text = String::from_utf8(text.to_vec()).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::to_owned)
    }

    /// The standard error of a replica that was started alone, once it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let child = self.child.as_mut()?;
        child.try_wait().expect("a child can be waited for")?;
        let mut said = String::new();
        child.stderr.take()?.read_to_string(&mut said).expect("it is text");
        Some(said)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address()).expect("the replica listens")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.pid()), signal).expect("the replica is alive");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The process may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Three replicas and their supervisor, as the program starts them by default.
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
        let mut lines = BufReader::new(supervisor.stdout.take().expect("it is piped"));
        let count = options.iter().position(|option| *option == "--replicas");
        let count = count.map_or(3, |at| options[at + 1].parse().expect("a number of replicas"));
        while replicas.len() < count {
            let Some((port, pid)) = next_serving(&mut lines) else {
                let mut said = String::new();
                let stderr = supervisor.stderr.as_mut().expect("it is piped");
                stderr.read_to_string(&mut said).expect("it is text");
                panic!("the cluster did not start: {said}");
            };
            replicas.push(Replica { port, pid: Arc::new(pid.into()), child: None });
        }
        // Notes the processes of replicas that died and serve again.
        let processes: Vec<_> = replicas.iter().map(|replica| (replica.port, Arc::clone(&replica.pid))).collect();
        thread::spawn(move || {
            while let Some((port, pid)) = next_serving(&mut lines) {
                let of_replica = processes.iter().find(|(of, _)| *of == port);
                of_replica.expect("a replica keeps its port").1.store(pid, Ordering::Relaxed);
            }
        });
        let mut stderr = supervisor.stderr.take().expect("it is piped");
        thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
        Cluster { supervisor, replicas }
    }

    /// Stops the cluster as Ctrl-C does, and checks that it ends cleanly and soon.
    pub(crate) fn stop(mut self) {
        kill_process(pid(self.supervisor.id()), Signal::INT).expect("the supervisor is alive");
        let status = ends_within(DEADLINE, &mut self.supervisor);
        assert!(status.is_some_and(|status| status.success()), "after Ctrl-C: {status:?}");
    }

    /// Waits for the cluster to end by itself, and checks that it ends cleanly.
    pub(crate) fn ends(mut self) {
        let status = ends_within(DEADLINE, &mut self.supervisor);
        assert!(status.is_some_and(|status| status.success()), "by itself: {status:?}");
    }

    pub(crate) fn kill_supervisor(&mut self) {
        self.supervisor.kill().expect("the supervisor is alive");
        self.supervisor.wait().expect("it was killed");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A test may have failed in the middle. The replicas notice that their supervisor is gone.
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

/// The port and the process of the next line that says that a replica serves, such as «replica 1 serves redis-cli -p
/// 7001 (process 4711)». The process is 0 if the replica is not restarted when it dies. `None` if there is no next
/// line.
fn next_serving(said: &mut BufReader<ChildStdout>) -> Option<(u16, u32)> {
    let mut line = String::new();
    loop {
        line.clear();
        if said.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some((_, rest)) = line.split_once("redis-cli -p ") {
            let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
            let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
            let port = number().and_then(|port| u16::try_from(port).ok()).expect("a port");
            return Some((port, number().unwrap_or(0)));
        }
    }
}

fn pid(raw: u32) -> Pid {
    Pid::from_raw(raw.cast_signed()).expect("a process id")
}

pub(crate) fn is_alive(raw: u32) -> bool {
    // A process that has ended, and whose parent has not waited for it, is no longer alive.
    let stat = fs::read_to_string(format!("/proc/{raw}/stat")).unwrap_or_default();
    test_kill_process(pid(raw)).is_ok() && !stat.contains(") Z ")
}

/// The process's own memory. The number of the program's pages in memory depends on the rest of the machine.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is alive");
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB")
    };
    (kib("RssAnon:") + kib("RssShmem:")) << 10
}

/// User and system time of all threads.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is alive");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    let mut times = fields.split(' ').skip(11).map(|ticks| ticks.parse::<u64>().expect("a number of ticks"));
    let ticks = times.next().expect("user time") + times.next().expect("system time");
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
