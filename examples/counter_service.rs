//! Members of a group of counters that programs in other languages call: see `bindings/`.
//!
//! ```text
//! SQUALL_ID=1 cargo run --release --example counter_service -- cluster.toml     runs member 1, until its input ends
//! ```
//!
//! The file describes the cluster, and says in `[groups.counters]` how many shards there are. A name and `members = [1,
//! 2, 3]` will do.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    io::{self, BufReader, Read, Write},
    process::ExitCode,
    time::Duration,
};

use rkyv::{Archive, Deserialize, Serialize};
use squall::{Config, Node, ServeOptions, Snapshot};

const GROUP: &str = "counters";

/// The time within which all members come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A counter: its sum, and the number of commands that have changed it.
#[derive(Clone, Copy, Default, Archive, Serialize, Deserialize, serde::Serialize)]
struct CounterValue {
    sum: i64,
    adds: u64,
}

/// The counters of one shard, by their names.
#[derive(Default)]
struct Counters(BTreeMap<String, CounterValue>);

#[squall::service(json, schema = "counters", version = 1)]
impl Counters {
    /// Adds to a counter, and returns it. None if the sum would be too large.
    #[command]
    fn add(&mut self, name: String, amount: i64) -> Option<CounterValue> {
        let counter = self.0.entry(name).or_default();
        counter.sum = counter.sum.checked_add(amount)?;
        counter.adds += 1;
        Some(*counter)
    }

    /// Removes all counters, and returns their number.
    #[command]
    fn clear(&mut self) -> usize {
        std::mem::take(&mut self.0).len()
    }

    /// Returns a counter.
    #[query]
    fn get(&self, name: String) -> Option<CounterValue> {
        self.0.get(&name).copied()
    }

    /// Returns the names of all counters.
    #[query]
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Writes the counters, for a member that joins.
    #[snapshot]
    fn snapshot(&self) -> Snapshot {
        let mut bytes = Vec::new();
        for (name, counter) in &self.0 {
            bytes.extend_from_slice(&(name.len() as u64).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(&counter.sum.to_le_bytes());
            bytes.extend_from_slice(&counter.adds.to_le_bytes());
        }
        Snapshot::of_bytes(bytes)
    }

    #[restore]
    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut from = BufReader::new(from);
        self.0.clear();
        let mut length = [0; 8];
        while from.read_exact(&mut length[..1]).is_ok() {
            from.read_exact(&mut length[1..])?;
            let mut name = String::new();
            from.by_ref().take(u64::from_le_bytes(length)).read_to_string(&mut name)?;
            let (mut sum, mut adds) = ([0; 8], [0; 8]);
            from.read_exact(&mut sum)?;
            from.read_exact(&mut adds)?;
            self.0.insert(name, CounterValue { sum: i64::from_le_bytes(sum), adds: u64::from_le_bytes(adds) });
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let Some(file) = env::args().nth(1).filter(|file| !file.starts_with('-')) else {
        eprintln!("usage: SQUALL_ID=ID counter_service FILE     runs member ID of FILE's cluster until its input ends");
        return ExitCode::FAILURE;
    };
    match member(&file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("counter_service: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a member until its input has a line or ends.
fn member(file: &str) -> Result<(), Box<dyn Error>> {
    let config = Config::load(file)?;
    let (id, members) = (config.id(), config.members().len());
    let mut node = Node::builder(config);
    node.serve_sharded(GROUP, |_shard| Counters::default(), ServeOptions::default());
    let node = node.start()?;
    let is_whole = |view: &squall::View| {
        view.members.len() == members && view.shards.iter().all(|shard| shard.complete.contains(&id))
    };
    node.wait_view(PATIENCE, is_whole)?.ok_or("some members have not come")?;
    writeln!(io::stdout(), "ready")?;
    io::stdin().read_line(&mut String::new())?;
    node.shutdown();
    Ok(())
}
