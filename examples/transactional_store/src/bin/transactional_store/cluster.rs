//! The members' processes, and the one that decides which of them have failed: this.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use squall_onepipe::Directive;
use squall_transactions::arbiter::Arbiter;

use crate::{
    Args,
    load::Findings,
    words::{Said, Told},
};

/// How long members may take to do what they are asked for, beside the time that they were asked to work for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A member's process, which is killed when this is dropped.
struct Process {
    child: Child,
    input: ChildStdin,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A member has said this, or (none) nothing more will come of it.
type News = (usize, Option<Said>);

/// All members.
pub(crate) struct Cluster {
    /// By rank; none once it was killed.
    processes: Vec<Option<Process>>,
    news: Receiver<News>,
    arbiter: Arbiter,
    /// When the last failure was settled.
    pub(crate) settled: Option<Instant>,
}

impl Cluster {
    /// Starts all members, and waits until they have met.
    pub(crate) fn start(args: &Args, seed: u64) -> Result<Cluster, String> {
        let (tell, news) = mpsc::channel();
        let name = format!("transactions-{}", std::process::id());
        let processes = (0..args.members)
            .map(|rank| spawn(args, &name, seed, rank, tell.clone()).map(Some))
            .collect::<io::Result<_>>();
        let processes = processes.map_err(|error| format!("this program could not be started again: {error}"))?;
        // 1 is the epoch in which the members meet.
        let mut cluster = Cluster { processes, news, arbiter: Arbiter::new(args.members as usize, 1), settled: None };
        cluster.until_all(Said::Ready, Duration::ZERO)?;
        Ok(cluster)
    }

    pub(crate) fn survivors(&self) -> Vec<usize> {
        self.arbiter.survivors().collect()
    }

    /// Tells all members.
    pub(crate) fn tell(&mut self, told: &Told) {
        for process in self.processes.iter_mut().flatten() {
            // One that has failed hears nothing, and need not.
            let _ = writeln!(process.input, "{told}");
        }
    }

    /// Ends a member, as `kill -9` does.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.processes[rank] = None;
    }

    /// Serves the members for a while.
    pub(crate) fn serve(&mut self, lasts: Duration) -> Result<(), String> {
        let until = Instant::now() + lasts;
        while let Some((rank, said)) = self.next(until)? {
            self.take(rank, said)?;
        }
        Ok(())
    }

    /// Waits until all that have not failed have said this.
    pub(crate) fn until_all(&mut self, awaited: Said, lasts: Duration) -> Result<(), String> {
        let until = Instant::now() + lasts + PATIENCE;
        let mut have = vec![false; self.processes.len()];
        while !self.survivors().into_iter().all(|rank| have[rank]) {
            let Some((rank, said)) = self.next(until)? else {
                let missing: Vec<usize> = self.survivors().into_iter().filter(|&rank| !have[rank]).collect();
                return Err(format!("ranks {missing:?} did not get to {:?} in time", awaited.to_string()));
            };
            match said == awaited {
                true => have[rank] = true,
                false => self.take(rank, said)?,
            }
        }
        Ok(())
    }

    /// Ends the run, and returns what each member that has not failed has found, with its rank.
    pub(crate) fn finish(mut self) -> Result<Vec<(usize, Findings)>, String> {
        self.tell(&Told::Finish);
        let until = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        while all.len() < self.survivors().len() {
            match self.next(until)? {
                Some((rank, Said::Done(file))) => all.push((rank, read(&file)?)),
                Some((rank, said)) => self.take(rank, said)?,
                None => return Err("some members did not say what they have found".to_owned()),
            }
        }
        Ok(all)
    }

    fn take(&mut self, rank: usize, said: Said) -> Result<(), String> {
        let directives = match said {
            Said::Suspects { epoch, rank: suspect } => self.arbiter.suspect(rank, epoch, suspect),
            Said::Reports { epoch, barrier } => self.arbiter.report(rank, epoch, barrier),
            Said::Failed(why) => return Err(format!("rank {rank}: {why}")),
            other => return Err(format!("rank {rank} says {:?}, which was not asked for", other.to_string())),
        };
        for directive in directives {
            if matches!(directive, Directive::Settle(_)) {
                self.settled = Some(Instant::now());
            }
            self.tell(&Told::Directive(directive));
        }
        Ok(())
    }

    /// What a member says next; none when it is time.
    fn next(&mut self, until: Instant) -> Result<Option<(usize, Said)>, String> {
        loop {
            match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((rank, Some(said))) => return Ok(Some((rank, said))),
                Ok((rank, None)) if self.processes[rank].is_some() => {
                    return Err(format!("rank {rank} has ended, and nobody has killed it"));
                }
                Ok((_, None)) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err("no member is left".to_owned()),
            }
        }
    }
}

fn spawn(args: &Args, cluster: &str, seed: u64, rank: u32, tell: Sender<News>) -> io::Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    let numbers = [
        ("--rank", u64::from(rank)),
        ("--members", u64::from(args.members)),
        ("--shards", u64::from(args.shards.unwrap_or(args.members))),
        ("--replicas", u64::from(args.replicas)),
        ("--accounts", u64::from(args.accounts)),
        ("--window", u64::from(args.window)),
        ("--seconds", args.seconds),
        ("--seed", seed),
    ];
    command.args(["--cluster", cluster]);
    command.args(numbers.into_iter().flat_map(|(name, number)| [name.to_owned(), number.to_string()]));
    if args.smoke {
        command.arg("--smoke");
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (Some(input), Some(output)) = (input, output) else { unreachable!("both are piped") };
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let said = lines.map(|line| line.parse().unwrap_or_else(Said::Failed));
        // Nobody listens any more once the run is over.
        let _ = said.map(Some).chain([None]).try_for_each(|said| tell.send((rank as usize, said)));
    });
    Ok(Process { child, input })
}

/// What a member has left in a file.
fn read(file: &str) -> Result<Findings, String> {
    let bytes = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    let removed = fs::remove_file(file);
    let findings = postcard::from_bytes(&bytes).map_err(|error| format!("{file}: {error}"))?;
    removed.map(|()| findings).map_err(|error| format!("{file}: {error}"))
}
