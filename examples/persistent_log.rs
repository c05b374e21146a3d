//! A replicated log that survives the death of all its processes. Records are appended, and read back, through three
//! processes.
//!
//! ```text
//! cargo run --release --example persistent_log                         appends, kills all three, checks the log
//! cargo run --release --example persistent_log -- serve DIRECTORY ID   one node of three; its data is in DIRECTORY
//! cargo run --release --example persistent_log -- append               appends the lines of standard input
//! cargo run --release --example persistent_log -- read                 prints all of them
//! ```

use std::{
    collections::VecDeque,
    env,
    error::Error,
    fs::Permissions,
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use squall::{
    Config, Consistency, Mode, Node, NodeId,
    client::{Call, Client, ClientConfig, ClientError},
    log_service::{Appended, LogClient, LogRecord, RecordLog},
};

/// The nodes' ids. They share memory, so they are processes of one host. With addresses and keys in their
/// configuration, they could run on several hosts.
const NODES: [u32; 3] = [1, 2, 3];

/// The name of the group.
const GROUP: &str = "log";

/// The number of appends under way at a time. All that are waiting go to the disks together.
const WINDOW: usize = 500;

/// The time that a call may take, even if all nodes have to be started again meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

const HELP: &str = "\
usage: persistent_log                      append, kill all three processes, and show that nothing is lost
       persistent_log serve DIRECTORY ID   run node ID, 1 to 3, with its part of the log in DIRECTORY
       persistent_log append               append the lines of standard input
       persistent_log read                 print all lines";

type Done<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cluster = env::var("PERSISTENT_LOG_CLUSTER").unwrap_or_else(|_| "persistent-log".to_owned());
    let done = match arguments[..] {
        [] => demonstrate(),
        ["serve", directory, id] => {
            id.parse().map_err(Box::from).and_then(|id| serve(&cluster, Path::new(directory), id))
        }
        ["append"] => append_input(&cluster),
        ["read"] => print(&cluster),
        ["help" | "-h" | "--help"] => writeln!(io::stdout(), "{HELP}").map_err(Box::from),
        _ => Err(HELP.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("persistent_log: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a node until it leaves the group.
fn serve(cluster: &str, directory: &Path, id: u32) -> Done {
    let config = Config::builder(cluster, id).members(NODES).storage(directory).group(GROUP, |group| {
        group.mode(Mode::Durable);
    });
    let config = config.build()?;
    let mut node = Node::builder(config.clone());
    node.serve(GROUP, RecordLog::default(), RecordLog::options(&config, GROUP));
    let node = node.start()?;
    writeln!(io::stdout(), "ready")?;
    Err(node.wait_ended().to_string().into())
}

/// The nodes, as a client finds them.
fn cluster_of(cluster: &str) -> ClientConfig {
    ClientConfig::on_host(cluster, NODES.map(NodeId)).with_timeout(PATIENCE)
}

/// Appends lines, in order, each once, whatever happens to the nodes. `tell` is called with the place of each line.
fn append(
    cluster: &str,
    lines: impl Iterator<Item = io::Result<String>>,
    mut tell: impl FnMut(Appended) -> Done,
) -> Done {
    let client = Client::<RecordLog>::connect(&cluster_of(cluster), GROUP)?;
    let mut under_way: VecDeque<Call<Appended>> = VecDeque::new();
    let mut acknowledge = |call: Option<Call<Appended>>| match call.map(Call::wait) {
        Some(Ok(appended)) => tell(appended),
        Some(Err(error)) => Err(Box::<ClientError>::from(error).into()),
        None => Ok(()),
    };
    for line in lines {
        if under_way.len() >= WINDOW {
            acknowledge(under_way.pop_front())?;
        }
        under_way.push_back(client.submit(&line?.into_bytes()));
    }
    under_way.into_iter().try_for_each(|call| acknowledge(Some(call)))
}

fn append_input(cluster: &str) -> Done {
    append(cluster, io::stdin().lines(), |Appended { version, .. }| Ok(writeln!(io::stdout(), "{version}")?))
}

/// Reads every record that a client was told is in the log.
fn read(cluster: &str, mut each: impl FnMut(&LogRecord) -> Done) -> Done {
    let mut log = LogClient::new(&cluster_of(cluster), GROUP);
    let mut page = log.read(Consistency::Linearizable, ..)?;
    let end = page.globally_persisted;
    loop {
        page.records.iter().try_for_each(&mut each)?;
        if page.next > end {
            return Ok(());
        }
        page = log.follow(page.next..=end, Duration::from_secs(1))?;
    }
}

fn print(cluster: &str) -> Done {
    read(cluster, |record| {
        Ok(writeln!(io::stdout(), "{}\t{}", record.version, String::from_utf8_lossy(&record.record()?))?)
    })
}

/// A node in a process of its own, which does not outlive this one.
struct NodeProcess(Child);

impl NodeProcess {
    fn start(cluster: &str, base: &Path, id: u32) -> Done<NodeProcess> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("serve").arg(base.join(id.to_string())).arg(id.to_string());
        Ok(NodeProcess(command.env("PERSISTENT_LOG_CLUSTER", cluster).stdout(Stdio::piped()).spawn()?))
    }

    fn wait_ready(&mut self) -> Done {
        let mut ready = String::new();
        BufReader::new(self.0.stdout.as_mut().ok_or("a node has no output")?).read_line(&mut ready)?;
        if ready.is_empty() { Err("a node did not start".into()) } else { Ok(()) }
    }
}

impl Drop for NodeProcess {
    /// Kills the process, as `kill -9` does.
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_all(cluster: &str, base: &Path) -> Done<Vec<NodeProcess>> {
    let mut nodes = NODES.map(|id| NodeProcess::start(cluster, base, id)).into_iter().collect::<Done<Vec<_>>>()?;
    nodes.iter_mut().try_for_each(NodeProcess::wait_ready)?;
    Ok(nodes)
}

/// Runs three nodes on this machine, kills them, and checks that the log is whole.
fn demonstrate() -> Done {
    let base = tempfile::Builder::new()
        .prefix("squall-persistent-log-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir()?;
    demonstrate_in(base.path())
}

fn demonstrate_in(base: &Path) -> Done {
    let cluster = format!("persistent-log-{}", std::process::id());
    let say = |text: String| writeln!(io::stdout(), "{text}");
    let text = include_str!("persistent_log.rs").lines().cycle().take(50_000);
    let lines: Vec<String> = (1..).zip(text).map(|(number, line)| format!("{number:5} {line}")).collect();
    let nodes = start_all(&cluster, base)?;
    say(format!("three nodes serve a log; {} lines are appended to it", lines.len()))?;

    let begun = Instant::now();
    let (tell, told) = mpsc::channel();
    let (acknowledged, outage) = thread::scope(|scope| -> Done<_> {
        let appending = scope.spawn(|| {
            let lines = lines.iter().cloned().map(Ok);
            append(&cluster, lines, |appended| Ok(tell.send(appended)?)).map_err(|error| error.to_string())
        });
        let mut acknowledged: Vec<Appended> = told.iter().take(lines.len() / 2).collect();
        if acknowledged.len() < lines.len() / 2 {
            return Err(appending.join().map_err(|_| "appending panicked")?.err().unwrap_or_default().into());
        }
        let killed = Instant::now();
        drop(nodes);
        acknowledged.extend(told.try_iter());
        say(format!(
            "{} lines were acknowledged when all three were killed (-9); they are started again",
            acknowledged.len()
        ))?;
        let _nodes = start_all(&cluster, base)?;
        acknowledged.extend(told.iter().take(1));
        let outage = killed.elapsed();
        appending.join().map_err(|_| "appending panicked")??;
        acknowledged.extend(told.try_iter());
        say(format!("{:.1} s later the next line was acknowledged", outage.as_secs_f64()))?;
        check(&cluster, &lines, &acknowledged)?;
        Ok((acknowledged, outage))
    })?;
    let took = begun.elapsed().saturating_sub(outage).as_secs_f64();
    say(format!(
        "all {} acknowledged lines are in the log, each once, in order: versions {} to {}; {:.0} lines/s but for the outage",
        acknowledged.len(),
        acknowledged.first().map_or(0, |first| first.version),
        acknowledged.last().map_or(0, |last| last.version),
        lines.len() as f64 / took
    ))?;
    Ok(())
}

/// Checks that the log holds exactly these lines, each at the place that its appender was told.
fn check(cluster: &str, lines: &[String], acknowledged: &[Appended]) -> Done {
    if acknowledged.len() != lines.len() {
        return Err(format!("{} of {} lines were acknowledged", acknowledged.len(), lines.len()).into());
    }
    let mut expected = lines.iter().zip(acknowledged);
    read(cluster, |record| {
        let (line, appended) = expected.next().ok_or_else(|| format!("version {} is one too many", record.version))?;
        let (found, version) = (record.record()?, appended.version);
        if record.version != version || found != line.as_bytes() {
            let found = String::from_utf8_lossy(&found);
            return Err(
                format!("version {} is {found:?}; expected was {line:?}, version {version}", record.version).into()
            );
        }
        Ok(())
    })?;
    match expected.next() {
        Some((line, appended)) => Err(format!("version {}, {line:?}, is lost", appended.version).into()),
        None => Ok(()),
    }
}
