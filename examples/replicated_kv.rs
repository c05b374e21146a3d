//! A key-value store of one's own: a state machine, three members that replicate it, and a client that is no member.
//!
//! ```text
//! cargo run --release --example replicated_kv                    starts three members, kills one, and goes on
//! cargo run --release --example replicated_kv -- member ID       runs one member of three, until Ctrl-C
//! cargo run --release --example replicated_kv -- set KEY VALUE   sets a key, and prints the value that it had
//! cargo run --release --example replicated_kv -- get KEY         prints the value of a key
//! ```
//!
//! The members share memory, so they are processes of one host. With addresses and keys in their configuration, they
//! could run on several hosts. The store that speaks the Redis protocol is `apps/redis`.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    io::{self, BufRead, BufReader, Read, Write},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use squall::{
    Config, Node, NodeId, ServeOptions, Snapshot,
    client::{Client, ClientConfig},
};

const MEMBERS: [u32; 3] = [1, 2, 3];

/// The name of the group whose members hold the store.
const GROUP: &str = "store";

/// The time that a client's call may take, even if the member that it talks to dies meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

const HELP: &str = "\
usage: replicated_kv                  start three members, kill one, and go on with two
       replicated_kv member ID        run member ID, 1 to 3, until Ctrl-C
       replicated_kv set KEY VALUE    set a key, and print the value that it had
       replicated_kv get KEY          print the value of a key";

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// The state. Each member holds a replica of it.
#[derive(Default)]
struct Store {
    values: BTreeMap<String, String>,
}

/// The commands and queries. All members apply the same commands in the same order, so a command depends on nothing but
/// the state and its arguments: no clock, no chance, no order of a hash map. Members with another schema mean something
/// else by the same bytes, and are refused.
#[squall::service(schema = "replicated-kv", version = 2)]
impl Store {
    /// Sets a key. Returns the value that it had before.
    #[command]
    fn set(&mut self, key: String, value: String) -> Option<String> {
        self.values.insert(key, value)
    }

    /// Removes a key. Returns the value that it had before.
    #[command]
    fn remove(&mut self, key: String) -> Option<String> {
        self.values.remove(&key)
    }

    /// Returns the value of a key.
    #[query]
    fn get(&self, key: String) -> Option<String> {
        self.values.get(&key).cloned()
    }

    /// Writes the state for a member that joins, each text behind its length.
    #[snapshot]
    fn snapshot(&self) -> Snapshot {
        let mut bytes = Vec::new();
        for text in self.values.iter().flat_map(|(key, value)| [key, value]) {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        Snapshot::of_bytes(bytes)
    }

    /// Reads what [`snapshot`](Store::snapshot) wrote at another member.
    #[restore]
    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        self.values.clear();
        while let Some(key) = read_text(from)? {
            let value = read_text(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            self.values.insert(key, value);
        }
        Ok(())
    }
}

/// Reads a text behind its length. None at the end.
fn read_text(from: &mut dyn Read) -> io::Result<Option<String>> {
    let mut length = Vec::new();
    from.take(8).read_to_end(&mut length)?;
    if length.is_empty() {
        return Ok(None);
    }
    let length = length.try_into().map_err(|_| io::ErrorKind::UnexpectedEof)?;
    let mut text = Vec::new();
    let length = u64::from_le_bytes(length);
    if from.take(length).read_to_end(&mut text)? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    String::from_utf8(text).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cluster = env::var("REPLICATED_KV_CLUSTER").unwrap_or_else(|_| "replicated-kv".to_owned());
    let done = match arguments[..] {
        [] => demonstrate(),
        ["member", id] => id.parse().map_err(Box::from).and_then(|id| member(&cluster, id)),
        ["set", key, value] => connect(&cluster, &MEMBERS).and_then(|store| print(set(&store, key, value)?)),
        ["get", key] => connect(&cluster, &MEMBERS).and_then(|store| print(get(&store, key)?)),
        ["help" | "-h" | "--help"] => say(HELP),
        _ => Err(HELP.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replicated_kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) -> Done {
    Ok(writeln!(io::stdout(), "{line}")?)
}

fn print(value: Option<String>) -> Done {
    say(value.as_deref().unwrap_or("(none)"))
}

/// Runs a member until it has left the group.
fn member(cluster: &str, id: u32) -> Done {
    let mut node = Node::builder(Config::builder(cluster, id).members(MEMBERS).build()?);
    // Each node declares the same groups. Clients may use this one.
    node.serve(GROUP, Store::default(), ServeOptions::default());
    // Waits until all members have come, or, of a group that is there already, until this one has the state.
    let node = node.start()?;
    say("ready")?;
    Err(node.wait_ended().to_string().into())
}

/// A client that talks to these members. It is no member itself: it follows the group as members come and go.
fn connect(cluster: &str, members: &[u32]) -> Done<Client<Store>> {
    let members = members.iter().copied().map(NodeId);
    Ok(Client::connect(&ClientConfig::on_host(cluster, members).with_timeout(PATIENCE), GROUP)?)
}

/// Sets a key. Returns once all members have the change, which is applied once, whatever fails meanwhile.
fn set(store: &Client<Store>, key: &str, value: &str) -> Done<Option<String>> {
    Ok(store.set(key.to_owned(), value.to_owned()).wait()?)
}

/// Reads a key linearizably: the answer has each change that was acknowledged before, at whichever member.
fn get(store: &Client<Store>, key: &str) -> Done<Option<String>> {
    Ok(store.get(key.to_owned()).wait()?)
}

/// A member in a process of its own, which does not outlive this one.
struct MemberProcess(Child);

impl MemberProcess {
    fn start(cluster: &str, id: u32) -> Done<MemberProcess> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["member", &id.to_string()]).env("REPLICATED_KV_CLUSTER", cluster);
        Ok(MemberProcess(command.stdout(Stdio::piped()).spawn()?))
    }

    fn wait_ready(&mut self) -> Done {
        let mut ready = String::new();
        BufReader::new(self.0.stdout.as_mut().ok_or("a member has no output")?).read_line(&mut ready)?;
        if ready.is_empty() { Err("a member did not start".into()) } else { Ok(()) }
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

/// Starts three members, writes at one and reads at another, kills one, goes on with two, and takes it in again.
fn demonstrate() -> Done {
    let cluster = format!("replicated-kv-{}", std::process::id());
    let mut members = MEMBERS.iter().map(|&id| MemberProcess::start(&cluster, id)).collect::<Done<Vec<_>>>()?;
    members.iter_mut().try_for_each(MemberProcess::wait_ready)?;
    say("three members hold a store")?;

    let (first, third) = (connect(&cluster, &[1])?, connect(&cluster, &[3])?);
    set(&first, "greeting", "hello")?;
    expect(&third, "greeting", Some("hello"))?;
    say("a key was set at member 1, and member 3 has it at once")?;

    let killed = Instant::now();
    drop(members.remove(1));
    // Not all members can have the change, until the one that is dead is dropped from the view.
    set(&first, "greeting", "hello again")?;
    let pause = killed.elapsed();
    expect(&third, "greeting", Some("hello again"))?;
    say(&format!("member 2 was killed (-9); {} ms later the next change was acknowledged", pause.as_millis()))?;

    members.push(MemberProcess::start(&cluster, 2)?);
    members.last_mut().map_or(Ok(()), MemberProcess::wait_ready)?;
    let second = connect(&cluster, &[2])?;
    expect(&second, "greeting", Some("hello again"))?;
    second.remove("greeting".to_owned()).wait()?;
    expect(&first, "greeting", None)?;
    say("member 2 was started again: it has the state from another member, and took a change itself")
}

/// Checks the value of a key.
fn expect(store: &Client<Store>, key: &str, value: Option<&str>) -> Done {
    let found = get(store, key)?;
    if found.as_deref() == value { Ok(()) } else { Err(format!("{key} is {found:?}; expected was {value:?}").into()) }
}
