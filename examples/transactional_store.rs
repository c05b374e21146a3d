//! Transactions over several shards, without a lock: three members move money between accounts, and audit them.
//!
//! ```text
//! cargo run --release --example transactional_store                starts three members, kills one, and goes on
//! cargo run --release --example transactional_store -- member ID   runs one member of three, until Ctrl-C
//! ```
//!
//! The accounts are in three shards, and each member has a replica of two of them. A transfer takes from one account
//! and gives to another, mostly in another shard. It is one scattering of 1Pipe, so all replicas carry it out at one
//! logical time, or none does. An audit reads all accounts in the same way, so it finds the same sum at any time and at
//! any member, while transfers go on everywhere.
//!
//! The protocol is the crate `squall-transactions`, in `examples/transactions`. `squall-bench transactions` measures
//! it, and with `--check` shows that what its clients saw is strictly serializable.

use std::{
    collections::HashMap,
    env,
    error::Error,
    io::{self, BufRead, BufReader, Lines, Write},
    iter,
    process::{Child, ChildStdout, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use squall::{
    Config, Node, NodeId, Spin,
    onepipe::{HostClock, Pipe, PipeEvent, ViewController},
};
use squall_fabric::{
    Wait,
    shm::{ShmConfig, ShmFabric},
};
use squall_transactions::{
    Completed, Key, Operation, Placement, Reply, Store, StoreConfig, Transaction, TransactionError, TransactionId,
    Value,
};

const MEMBERS: [u32; 3] = [1, 2, 3];
const SHARDS: u32 = 3;
const REPLICAS: usize = 2;
const ACCOUNTS: usize = 12;

/// The balance of each account at first.
const OPENING: i64 = 1000;
const TOTAL: i64 = OPENING * ACCOUNTS as i64;

/// The number of transactions that a member has under way at a time.
const WINDOW: usize = 16;

/// One in this many transactions is an audit.
const AUDITS: u32 = 50;

/// The interval of a member's reports, and the number of lines after which the demonstration gives up.
const REPORTS: Duration = Duration::from_millis(250);
const PATIENCE_LINES: usize = 240;

/// The time in which members meet.
const PATIENCE: Duration = Duration::from_secs(30);

const HELP: &str = "\
usage: transactional_store             start three members, kill one, and go on with two
       transactional_store member ID   run member ID, 1 to 3, until Ctrl-C";

type Done<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cluster = env::var("TRANSACTIONAL_STORE_CLUSTER").unwrap_or_else(|_| "transactional-store".to_owned());
    let done = match arguments[..] {
        [] => demonstrate(),
        ["member", id] => id.parse().map_err(Box::from).and_then(|id| run(&cluster, id)),
        ["help" | "-h" | "--help"] => say(HELP),
        _ => Err(HELP.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transactional_store: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) -> Done {
    Ok(writeln!(io::stdout(), "{line}")?)
}

fn account(number: usize) -> Key {
    format!("account {number}").into()
}

/// A transaction that reads all accounts.
fn audit() -> Transaction {
    (0..ACCOUNTS).map(account).map(Operation::Get).collect()
}

/// A transaction that moves money between two accounts. It does not check the balance: a condition guards only its own
/// shard, so that the money would arrive in the other one even if none had left.
fn transfer(random: &mut fastrand::Rng) -> Transaction {
    let (from, amount) = (random.usize(..ACCOUNTS), random.i64(1..100));
    let to = (from + random.usize(1..ACCOUNTS)) % ACCOUNTS;
    Transaction::new().add(account(from), -amount).add(account(to), amount)
}

/// A member: a server of its shards, and a client that moves money and audits.
struct Member {
    pipe: Pipe<ShmFabric, ViewController>,
    store: Store,
    under_way: HashMap<TransactionId, Transaction>,
    /// The transactions since the last report.
    transfers: u64,
    audits: u64,
    /// The node whose views decide which members have failed.
    _node: Node,
}

impl Member {
    /// Meets the other members.
    fn meet(cluster: &str, id: u32) -> Done<Member> {
        let mut node = Node::builder(Config::builder(cluster, id).members(MEMBERS).build()?);
        // Each node declares the same pipe.
        let handle = node.onepipe("store");
        let node = node.start()?;
        // The pipe has a fabric of its own, under another cluster's name.
        let fabric = ShmFabric::open(ShmConfig::new(format!("{cluster}-pipe"), NodeId(id)))?;
        let (config, controller) = handle.take(fabric.waker(), PATIENCE)?;
        let mut pipe = Pipe::create(fabric, config, HostClock::default(), controller, Spin::Auto, MEMBERS.len())?;
        pipe.form(PATIENCE)?;
        let placement = Placement::new(MEMBERS.len(), SHARDS, REPLICAS)?;
        let store = Store::of_pipe(StoreConfig::new(placement), pipe.onepipe())?;
        Ok(Member { pipe, store, under_way: HashMap::new(), transfers: 0, audits: 0, _node: node })
    }

    fn submit(&mut self, transaction: Transaction) -> Done {
        let id = self.store.submit(&transaction)?;
        self.under_way.insert(id, transaction);
        Ok(())
    }

    /// Sends what is to be sent, carries out what arrives, and takes the results.
    fn turn(&mut self) -> Done {
        let Member { pipe, store, .. } = self;
        store.scatter(|mode, messages| pipe.scatter(mode, messages, Duration::ZERO));
        pipe.receive_any(256, REPORTS, |delivery| store.on_delivery(&delivery));
        let mut removed = None;
        store.on_events(iter::from_fn(|| pipe.next_event()).inspect(|event| {
            if let PipeEvent::Removed { rank, .. } = event {
                removed = Some(MEMBERS[*rank]);
            }
        }));
        if let Some(id) = removed {
            say(&format!("goes on without member {id}"))?;
            (self.transfers, self.audits) = (0, 0);
        }
        while let Some(Completed { id, result }) = self.store.completed() {
            let transaction = self.under_way.remove(&id).ok_or("a transaction is over that was not submitted")?;
            match result {
                Ok(outcome) => self.count(&outcome.replies)?,
                // A replica has failed before it received the transaction, which therefore had no effect anywhere.
                Err(TransactionError::Aborted) => self.submit(transaction)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Counts a transaction that took effect, and checks the sum that an audit found.
    fn count(&mut self, replies: &[Reply]) -> Done {
        let balance = |reply: &Reply| match reply {
            Reply::Value(Some(Value::Number(balance))) => *balance,
            _ => 0,
        };
        let sum: i64 = replies.iter().map(balance).sum();
        match replies[0] {
            Reply::Sum(_) => self.transfers += 1,
            Reply::Value(Some(_)) if sum != TOTAL => return Err(format!("an audit found {sum}, not {TOTAL}").into()),
            Reply::Value(Some(_)) => self.audits += 1,
            // The accounts are opened now, or were not yet when they were audited.
            _ => {}
        }
        Ok(())
    }
}

/// Runs a member until its process is killed, or the reader of its reports has gone.
fn run(cluster: &str, id: u32) -> Done {
    let mut member = Member::meet(cluster, id)?;
    if id == MEMBERS[0] {
        member.submit((0..ACCOUNTS).map(|number| Operation::Put(account(number), OPENING.into())).collect())?;
    }
    let (mut random, mut reported, mut is_open) = (fastrand::Rng::new(), Instant::now(), false);
    loop {
        // Nothing is moved until the accounts are open.
        if is_open {
            while member.under_way.len() < WINDOW {
                member.submit(if random.u32(..AUDITS) == 0 { audit() } else { transfer(&mut random) })?;
            }
        } else if member.store.is_idle() {
            member.submit(audit())?;
        }
        member.turn()?;
        is_open |= member.audits > 0;
        if reported.elapsed() >= REPORTS {
            let Member { transfers, audits, .. } = member;
            let found = if audits > 0 { format!("found {TOTAL}") } else { "are under way".to_owned() };
            say(&format!("{transfers} transfers; {audits} audits {found}"))?;
            (member.transfers, member.audits, reported) = (0, 0, Instant::now());
        }
    }
}

/// A member in a process of its own, which does not outlive this one.
struct MemberProcess {
    id: u32,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl MemberProcess {
    fn start(cluster: &str, id: u32) -> Done<MemberProcess> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["member", &id.to_string()]).env("TRANSACTIONAL_STORE_CLUSTER", cluster);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("a member has no output")?;
        Ok(MemberProcess { id, child, lines: BufReader::new(output).lines() })
    }

    /// Waits until the member says a line with this word in it, and shows that.
    fn until(&mut self, word: &str) -> Done {
        for line in self.lines.by_ref().take(PATIENCE_LINES) {
            let line = line?;
            if line.contains(word) {
                return say(&format!("  member {}: {line}", self.id));
            }
        }
        Err(format!("member {} has ended, or got no further", self.id).into())
    }
}

impl Drop for MemberProcess {
    /// Kills the process, as `kill -9` does.
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts three members, lets them move money, kills one, and lets the others go on.
fn demonstrate() -> Done {
    let cluster = format!("transactional-store-{}", std::process::id());
    let mut members = MEMBERS.iter().map(|&id| MemberProcess::start(&cluster, id)).collect::<Done<Vec<_>>>()?;
    say(&format!(
        "three members hold {ACCOUNTS} accounts of {OPENING} each, in {SHARDS} shards of {REPLICAS} replicas"
    ))?;
    members.iter_mut().try_for_each(|member| member.until("audits found"))?;

    say("member 2 is killed (-9)")?;
    let killed = Instant::now();
    drop(members.remove(1));
    members.iter_mut().try_for_each(|member| member.until("goes on without member 2"))?;
    let pause = killed.elapsed().as_millis();
    members.iter_mut().try_for_each(|member| member.until("audits found"))?;
    say(&format!("the others had agreed to go on after {pause} ms; before and after, each audit found the whole sum"))
}
