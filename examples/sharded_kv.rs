//! A key-value store in eight shards, each held by three of six members, and clients that know one address.
//!
//! ```text
//! cargo run --release --example sharded_kv                     starts the members, which fail and leave under load
//! cargo run --release --example sharded_kv -- member ID        runs one member of six, until it is asked to leave
//! cargo run --release --example sharded_kv -- set KEY VALUE    sets a key, and prints the value that it had
//! cargo run --release --example sharded_kv -- get KEY          prints the value of a key, and its shard
//! ```
//!
//! The members share memory, so they are processes of one host. `squall-bench shards` measures the same by number of
//! shards.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    io::{self, BufRead, BufReader, Read, Write},
    process::{Child, Command, ExitCode, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use squall::{
    Config, Node, NodeId, Partitioned, ServeOptions, ShardView, Snapshot, View,
    client::{ClientConfig, Shards},
};

const MEMBERS: u32 = 6;
const SHARDS: u32 = 8;
const REPLICAS: u32 = 3;
const GROUP: &str = "store";

/// The number of clients of the demonstration, and of the keys that each writes.
const CLIENTS: usize = 4;
const KEYS: usize = 64;

/// The time that a call may take, whatever fails meanwhile, and a member to come or to leave.
const PATIENCE: Duration = Duration::from_secs(30);

const HELP: &str = "\
usage: sharded_kv                  start six members, let some fail and leave under load, and check all answers
       sharded_kv member ID        run member ID, 1 to 6, until its input has a line or ends
       sharded_kv set KEY VALUE    set a key, and print the value that it had
       sharded_kv get KEY          print the value of a key, and its shard";

type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The state of one shard.
#[derive(Default)]
struct StoreShard(BTreeMap<String, String>);

#[squall::service(schema = "sharded-kv", version = 1)]
impl StoreShard {
    /// Sets a key. Returns the value that it had before.
    #[command]
    fn set(&mut self, key: String, value: String) -> Option<String> {
        self.0.insert(key, value)
    }

    /// Returns the value of a key.
    #[query]
    fn get(&self, key: String) -> Option<String> {
        self.0.get(&key).cloned()
    }

    /// Writes the state for a member that takes over the shard: a line for each key, and one for its value.
    #[snapshot]
    fn snapshot(&self) -> Snapshot {
        let lines = self.0.iter().flat_map(|(key, value)| [key, value]);
        Snapshot::of_bytes(lines.map(|text| format!("{text}\n")).collect::<String>())
    }

    #[restore]
    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut lines = BufReader::new(from).lines();
        self.0.clear();
        while let Some(key) = lines.next().transpose()? {
            let value = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
            self.0.insert(key, value);
        }
        Ok(())
    }
}

/// Members and clients find a key's shard alike.
impl Partitioned for StoreShard {
    type Key = str;

    fn shard_of(key: &str, shards: u32) -> u32 {
        squall::shard_of_bytes(key.as_bytes(), shards)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cluster = env::var("SHARDED_KV_CLUSTER").unwrap_or_else(|_| "sharded-kv".to_owned());
    let done = match arguments[..] {
        [] => demonstrate(),
        ["member", id] => id.parse().map_err(Box::from).and_then(|id| member(&cluster, id)),
        ["set", key, value] => connect(&cluster).and_then(|store| set(&store, key, value)),
        ["get", key] => connect(&cluster).and_then(|store| get(&store, key)),
        ["help" | "-h" | "--help"] => say(HELP),
        _ => Err(HELP.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sharded_kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) -> Done {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// A client that knows member 1. It learns from there how many shards there are, and who holds them.
fn connect(cluster: &str) -> Done<Shards<StoreShard>> {
    Ok(Shards::connect(&ClientConfig::on_host(cluster, [NodeId(1)]).with_timeout(PATIENCE), GROUP).wait()?)
}

fn set(store: &Shards<StoreShard>, key: &str, value: &str) -> Done {
    if key.contains('\n') || value.contains('\n') {
        return Err("this store keeps keys and values of one line".into());
    }
    let before = store.of(key).set(key.to_owned(), value.to_owned()).wait()?;
    say(before.as_deref().unwrap_or("(none)"))
}

fn get(store: &Shards<StoreShard>, key: &str) -> Done {
    let value = store.of(key).get(key.to_owned()).wait()?;
    say(&format!("{} (shard {})", value.as_deref().unwrap_or("(none)"), StoreShard::shard_of(key, store.len() as u32)))
}

/// Runs a member until it is asked to leave.
fn member(cluster: &str, id: u32) -> Done {
    let config = Config::builder(cluster, id).members(1..=MEMBERS);
    let config = config.group(GROUP, |group| _ = group.shards(SHARDS).replicas(1, Some(REPLICAS)));
    let mut node = Node::builder(config.build()?);
    node.serve_sharded(GROUP, |_shard| StoreShard::default(), ServeOptions::default());
    let node = node.start()?;
    node.wait_view(PATIENCE, is_whole)?.ok_or("some members have not come")?;
    say("ready")?;
    io::stdin().read_line(&mut String::new())?;
    // The others go on with the shards that this member has held.
    if node.leave(PATIENCE) { say("left") } else { Err("the member could not leave".into()) }
}

/// Whether all members are there, and all shards have their replicas.
fn is_whole(view: &View) -> bool {
    let has_all = |shard: &ShardView| shard.complete.len() == REPLICAS as usize;
    view.members.len() == MEMBERS as usize && view.shards.iter().all(has_all)
}

/// A member in a process of its own, which does not outlive this one.
struct MemberProcess(Child);

impl MemberProcess {
    fn start(cluster: &str, id: u32) -> Done<MemberProcess> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["member", &id.to_string()]).env("SHARDED_KV_CLUSTER", cluster);
        Ok(MemberProcess(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
    }

    /// Waits for this line of the member.
    fn wait(&mut self, line: &str) -> Done {
        let mut said = String::new();
        BufReader::new(self.0.stdout.as_mut().ok_or("a member has no output")?).read_line(&mut said)?;
        if said.trim_end() == line { Ok(()) } else { Err(format!("a member said {said:?} instead of {line}").into()) }
    }

    fn leave(mut self) -> Done {
        writeln!(self.0.stdin.as_mut().ok_or("a member has no input")?, "leave")?;
        self.wait("left")
    }
}

impl Drop for MemberProcess {
    /// Kills the process, as `kill -9` does.
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts six members and four clients, lets members fail, leave and come back, and checks all that clients are told.
fn demonstrate() -> Done {
    let cluster = format!("sharded-kv-{}", std::process::id());
    let mut members = (1..=MEMBERS).map(|id| MemberProcess::start(&cluster, id)).collect::<Done<Vec<_>>>()?;
    members.iter_mut().try_for_each(|member| member.wait("ready"))?;
    say(&format!("{MEMBERS} members hold {SHARDS} shards, each of which {REPLICAS} have"))?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || write(cluster, client, stop))).collect();
        let disturbed = disturb(cluster, &mut members);
        stop.store(true, Ordering::Relaxed);
        let written = clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked")?);
        let written = written.collect::<Done<Vec<Written>>>()?;
        disturbed?;
        let (writes, seconds): (usize, f64) = (written.iter().map(|part| part.writes).sum(), written[0].seconds);
        let pause = written.iter().map(|part| part.pause).max().unwrap_or_default();
        say(&format!("{writes} writes, {:.0} a second, each applied once", writes as f64 / seconds))?;
        say(&format!("the longest that a client waited for an answer: {} ms", pause.as_millis()))
    })
}

/// Lets members fail, leave and come back.
fn disturb(cluster: &str, members: &mut Vec<MemberProcess>) -> Done {
    for (id, leaves) in [(2, false), (5, true), (1, false)] {
        thread::sleep(Duration::from_millis(500));
        let member = members.remove(id as usize - 1);
        match leaves {
            true => member.leave()?,
            false => drop(member),
        }
        say(&format!("member {id} {}", if leaves { "has left" } else { "was killed (-9)" }))?;
        thread::sleep(Duration::from_millis(500));
        let mut member = MemberProcess::start(cluster, id)?;
        member.wait("ready")?;
        members.insert(id as usize - 1, member);
        say(&format!("member {id} is back, and all shards have their replicas"))?;
    }
    Ok(())
}

/// The writes of a client.
struct Written {
    writes: usize,
    seconds: f64,
    /// The longest time without an answer.
    pause: Duration,
}

/// Writes keys that no other client writes, so it knows what each had before: a write that was lost, or applied twice,
/// would show.
fn write(cluster: &str, client: usize, stop: &AtomicBool) -> Done<Written> {
    let store = connect(cluster)?;
    let (began, mut last, mut pause, mut writes) = (Instant::now(), Instant::now(), Duration::ZERO, 0);
    while !stop.load(Ordering::Relaxed) {
        let round = writes / KEYS;
        let keys = (0..KEYS).map(|key| format!("client {client}, key {key}"));
        // All keys of a round are under way at once.
        let calls: Vec<_> = keys.map(|key| store.of(&key).set(key, format!("round {round}"))).collect();
        for call in calls {
            let before = call.wait()?;
            let expected = round.checked_sub(1).map(|last| format!("round {last}"));
            if before != expected {
                return Err(format!("client {client}: a key had {before:?}, and expected was {expected:?}").into());
            }
            (pause, last, writes) = (pause.max(last.elapsed()), Instant::now(), writes + 1);
        }
    }
    Ok(Written { writes, seconds: began.elapsed().as_secs_f64(), pause })
}
