//! The members' processes, as seen by the one that starts them.

use std::{
    collections::BTreeSet,
    env, fmt, fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    Args,
    load::Findings,
    words::{MemberCommand, MemberReport, OUT},
};

/// The time that members may take for a request, on top of the time that they were asked to work for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A member's process, which is killed when this is dropped.
struct MemberProcess {
    child: Child,
    input: ChildStdin,
}

impl MemberProcess {
    fn signal(&self, signal: Signal) -> Result<(), String> {
        kill_process(Pid::from_child(&self.child), signal).map_err(|error| format!("a member gets no signal: {error}"))
    }
}

impl Drop for MemberProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directory in which members write down at the end of a run what they have seen. It is removed on drop.
struct HistoryDirectory {
    path: PathBuf,
    is_there: bool,
}

impl HistoryDirectory {
    /// A directory with a name of its own. It is not made yet.
    fn named() -> HistoryDirectory {
        let name = format!("transactional-store-{}-{:x}", std::process::id(), fastrand::u64(..));
        HistoryDirectory { path: env::temp_dir().join(name), is_there: false }
    }

    /// Makes the directory, with access for its owner alone. It is made only when it is needed, since an interrupted
    /// run leaves it behind.
    fn create(&mut self) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(&self.path)?;
        self.is_there = true;
        Ok(())
    }
}

impl Drop for HistoryDirectory {
    fn drop(&mut self) {
        if self.is_there {
            // If the removal fails, what stays behind is of no use.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A word of a member, with its rank. `None` says that no more will come from it.
type News = (usize, Option<MemberReport>);

/// The members' processes.
pub(crate) struct Cluster {
    /// By rank; `None` once the process was killed.
    processes: Vec<Option<MemberProcess>>,
    /// The ranks that were stopped.
    stopped: BTreeSet<usize>,
    news: Receiver<News>,
    /// The words that each rank has said.
    said: BTreeSet<(usize, MemberReport)>,
    /// By rank: the members that it goes on without.
    removed: Vec<BTreeSet<usize>>,
    /// The time at which the last of the surviving members went on without one that has failed.
    pub(crate) settled: Option<Instant>,
    // Dropped last, since members write to it.
    directory: HistoryDirectory,
}

impl Cluster {
    /// Starts all members, and waits until they have met.
    pub(crate) fn start(args: &Args, seed: u64) -> Result<Cluster, String> {
        let (tell, news) = mpsc::channel();
        let directory = HistoryDirectory::named();
        let processes = (0..args.members)
            .map(|rank| spawn(args, &directory, seed, rank, tell.clone()).map(Some))
            .collect::<io::Result<_>>();
        let processes = processes.map_err(|error| format!("this program could not be started again: {error}"))?;
        let mut cluster = Cluster {
            processes,
            stopped: BTreeSet::new(),
            news,
            said: BTreeSet::new(),
            removed: vec![BTreeSet::new(); args.members as usize],
            settled: None,
            directory,
        };
        cluster.until_all(&MemberReport::Ready, Duration::ZERO)?;
        Ok(cluster)
    }

    /// The ranks that were neither killed nor stopped.
    fn survivors(&self) -> impl Iterator<Item = usize> {
        (0..self.processes.len()).filter(|&rank| self.is_left(rank))
    }

    fn is_left(&self, rank: usize) -> bool {
        self.processes.get(rank).is_some_and(Option::is_some) && !self.stopped.contains(&rank)
    }

    /// Sends a word to all members.
    pub(crate) fn tell(&mut self, told: MemberCommand) {
        for process in self.processes.iter_mut().flatten() {
            // A member that has failed does not read it, and need not.
            let _ = writeln!(process.input, "{told}");
        }
    }

    /// Ends a member, as `kill -9` does.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.processes[rank] = None;
    }

    /// Stops a member, as `kill -STOP` does.
    pub(crate) fn stop(&mut self, rank: usize) -> Result<(), String> {
        self.stopped.insert(rank);
        self.processes[rank].iter().try_for_each(|process| process.signal(Signal::STOP))
    }

    /// Continues a member that was stopped and removed, and waits until it says that the others have removed it.
    pub(crate) fn awaken(&mut self, stopped: usize) -> Result<(), String> {
        self.processes[stopped].iter().try_for_each(|process| process.signal(Signal::CONT))?;
        let until = Instant::now() + PATIENCE;
        loop {
            match self.next(until)? {
                Some((rank, MemberReport::Failed(why))) if rank == stopped && why == OUT => return Ok(()),
                Some((rank, said)) => self.take(rank, said)?,
                None => return Err(format!("rank {stopped} went on, and did not learn that it was removed")),
            }
        }
    }

    /// Serves the members for a while.
    pub(crate) fn serve(&mut self, lasts: Duration) -> Result<(), String> {
        let until = Instant::now() + lasts;
        while let Some((rank, said)) = self.next(until)? {
            self.take(rank, said)?;
        }
        Ok(())
    }

    /// Waits until all surviving members have said this.
    pub(crate) fn until_all(&mut self, awaited: &MemberReport, lasts: Duration) -> Result<(), String> {
        let until = Instant::now() + lasts + PATIENCE;
        loop {
            let has_said = |rank: &usize| self.said.contains(&(*rank, awaited.clone()));
            let missing: Vec<usize> = self.survivors().filter(|rank| !has_said(rank)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            let Some((rank, said)) = self.next(until)? else {
                return Err(format!("ranks {missing:?} did not get to {:?} in time", awaited.to_string()));
            };
            self.take(rank, said)?;
        }
    }

    /// Lets the surviving members write down what they have found, and returns it with their ranks.
    pub(crate) fn finish(&mut self) -> Result<Vec<(usize, Findings)>, String> {
        self.directory.create().map_err(|error| format!("no directory for what members have seen: {error}"))?;
        self.tell(MemberCommand::Finish);
        self.until_all(&MemberReport::Done, Duration::ZERO)?;
        self.survivors().map(|rank| Ok((rank, self.read(rank)?))).collect()
    }

    /// Reads what a member has written down.
    fn read(&self, rank: usize) -> Result<Findings, String> {
        let file = findings_file(&self.directory.path, rank);
        let refused = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
        let bytes = fs::read(&file).map_err(|error| refused(&error))?;
        postcard::from_bytes(&bytes).map_err(|error| refused(&error))
    }

    fn take(&mut self, rank: usize, said: MemberReport) -> Result<(), String> {
        match said {
            MemberReport::Removed { rank: gone } if self.is_left(gone) => {
                Err(format!("rank {gone} was taken for failed by rank {rank}, and nobody has killed it"))
            }
            MemberReport::Removed { rank: gone } => {
                self.removed[rank].insert(gone);
                if self.survivors().all(|rank| self.removed[rank].contains(&gone)) {
                    self.settled = Some(Instant::now());
                }
                Ok(())
            }
            MemberReport::Failed(why) => Err(format!("rank {rank}: {why}")),
            reached => {
                self.said.insert((rank, reached));
                Ok(())
            }
        }
    }

    /// The next word of any member; `None` at the time `until`.
    fn next(&mut self, until: Instant) -> Result<Option<(usize, MemberReport)>, String> {
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

/// The file in which a member writes down what it has found.
pub(crate) fn findings_file(directory: &Path, rank: usize) -> PathBuf {
    directory.join(format!("rank-{rank}"))
}

fn spawn(
    args: &Args,
    directory: &HistoryDirectory,
    seed: u64,
    rank: u32,
    tell: Sender<News>,
) -> io::Result<MemberProcess> {
    let mut command = Command::new(env::current_exe()?);
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
    command.args(["--cluster", &format!("transactions-{}", std::process::id())]);
    command.arg("--directory").arg(&directory.path);
    command.args(numbers.into_iter().flat_map(|(name, number)| [name.to_owned(), number.to_string()]));
    if args.smoke {
        command.arg("--smoke");
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (Some(input), Some(output)) = (input, output) else { unreachable!("both are piped") };
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let said = lines.map(|line| line.parse().unwrap_or_else(MemberReport::Failed));
        // After the run there is no receiver any more.
        let _ = said.map(Some).chain([None]).try_for_each(|said| tell.send((rank as usize, said)));
    });
    Ok(MemberProcess { child, input })
}
