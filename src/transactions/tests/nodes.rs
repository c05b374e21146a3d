//! Transactions between real nodes of this process, and clients of them.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use squall_fabric::{NodeId, Time};
use squall_ordered::log::Hlc;

use crate::{
    Config, Consistency, Node, ServeOptions,
    client::{ClientConfig, Shards},
    sim::{Ledger, LedgerCommand, LedgerFate, LedgerQuery, LedgerRecord, check_ledger},
    transactions::{
        Scope, TransactionAnswer, TransactionCommand, TransactionError, TransactionId, TransactionQuery,
        TransactionReply, Transactional, Transactions, script::decode,
    },
};

const SHARDS: u32 = 3;

/// The time within which all must happen.
const PATIENCE: Duration = Duration::from_secs(60);

type Member = (Node, Transactions<Ledger>);

fn cluster(test: &str) -> String {
    format!("transactions-{test}-{}", std::process::id())
}

fn start(test: &str, members: u32) -> Vec<Member> {
    let start = |id| {
        let config = Config::builder(cluster(test), id).members(1..=members).group("ledger", |group| {
            group.shards(SHARDS).replicas(1, Some(2));
        });
        let mut node = Node::builder(config.build().unwrap());
        let shards =
            node.serve_sharded("ledger", |shard| Transactional::new(shard, Ledger::default()), ServeOptions::default());
        let transactions = Transactions::new(&shards).unwrap();
        (node.start().expect("the view is formed"), transactions.within(PATIENCE))
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (1..=members).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    })
}

fn connect(test: &str) -> Shards<Transactional<Ledger>> {
    let config = ClientConfig::on_host(cluster(test), [NodeId(1)]);
    Shards::connect(&config.with_timeout(PATIENCE), "ledger").wait().unwrap()
}

fn write(key: u64, writer: u64) -> LedgerCommand {
    LedgerCommand { key, writer: Some(writer), expects: None, is_careless: false }
}

/// Prepares a write of key 0 in shards 0 and 1, as a client does that then vanishes.
fn prepare(shards: &Shards<Transactional<Ledger>>, number: u64, in_shards: &[usize]) -> Scope {
    let expires = Hlc::from(SystemTime::now()).0 + 10_000_000_000;
    let scope = Scope { id: TransactionId { coordinator: 5, number }, shards: vec![0, 1], expires };
    for &shard in in_shards {
        let commands = vec![rkyv::to_bytes::<rkyv::rancor::Error>(&write(0, number)).unwrap().to_vec()];
        let reply = shards.shard(shard).submit(&TransactionCommand::Prepare { scope: scope.clone(), commands }).wait();
        assert_eq!(reply, Ok(TransactionReply::Prepared));
    }
    scope
}

/// The version of key 0 in shards 0 and 1, once nothing is locked there.
fn versions(shards: &Shards<Transactional<Ledger>>) -> [u64; 2] {
    let query = rkyv::to_bytes::<rkyv::rancor::Error>(&LedgerQuery { key: Some(0) }).unwrap().to_vec();
    let until = Instant::now() + PATIENCE;
    [0, 1].map(|shard| {
        loop {
            let query = TransactionQuery::Ask { query: query.clone(), ignores_locks: false };
            match shards.shard(shard).query(&query).wait().unwrap() {
                TransactionAnswer::Answered(bytes) => {
                    return decode::<crate::sim::LedgerAnswer>(&bytes).unwrap().state.version;
                }
                other => assert!(Instant::now() < until, "it stays locked: {other:?}"),
            }
        }
    })
}

#[test]
fn members_end_the_transactions_of_clients_that_are_gone() {
    let members = start("gone", 3);
    let shards = connect("gone");
    prepare(&shards, 1, &[0]);
    assert_eq!(versions(&shards), [0, 0], "one shard has not voted for it");
    prepare(&shards, 2, &[0, 1]);
    assert_eq!(versions(&shards), [1, 1], "all have voted for it");
    let scope = prepare(&shards, 3, &[0, 1]);
    let decided = shards.shard(1).submit(&TransactionCommand::Decide { id: scope.id, commits: true }).wait();
    assert!(matches!(decided, Ok(TransactionReply::Applied(_))), "{decided:?}");
    assert_eq!(versions(&shards), [2, 2], "one knows the outcome");
    drop(members);
}

#[test]
fn errors_say_what_is_known() {
    let members = start("errors", 3);
    let transactions = Transactions::new(&connect("errors")).unwrap();
    let expects = |version| LedgerCommand { key: 1, writer: None, expects: Some(version), is_careless: false };
    let refused = transactions.begin().command(0, &write(0, 1)).command(2, &expects(7)).submit().wait();
    assert!(
        matches!(refused, Err(TransactionError::Aborted { shard: 2, command: 1, reply }) if reply.version == 0),
        "{refused:?}"
    );
    let replies = transactions.begin().command(2, &expects(0)).command(0, &write(0, 2)).submit().wait().unwrap();
    assert_eq!(replies.iter().map(|reply| reply.version).collect::<Vec<_>>(), [0, 0]);
    let overlap = transactions.begin().command(2, &write(4, 3)).command(0, &write(0, 3)).command(0, &write(0, 3));
    assert_eq!(overlap.submit().wait(), Err(TransactionError::Overlap { command: 2 }));
    assert_eq!(transactions.submit(2, &expects(7)).wait().map(|reply| reply.version), Ok(0), "its own word");
    let beyond = transactions.begin().command(SHARDS, &write(0, 4)).submit().wait().unwrap_err();
    assert!(beyond.to_string().contains("no shard 3") && beyond.is_not_applied(), "{beyond}");
    assert_eq!(transactions.begin().submit().wait(), Ok(Vec::new()));
    let answer = transactions.query(0, &LedgerQuery { key: Some(0) }).wait().unwrap();
    let local = transactions.query_as(Consistency::Local, 2, &LedgerQuery { key: Some(4) }).wait().unwrap();
    assert_eq!((answer.state.version, local.state.version), (1, 0));
    drop(members);
    let late = transactions.within(Duration::from_millis(300));
    let late = late.begin().command(0, &write(0, 5)).command(1, &write(0, 5)).submit().wait().unwrap_err();
    assert!(matches!(late, TransactionError::NotApplied { .. } | TransactionError::Unknown { .. }), "{late}");
}

/// Submits random transactions until `stop`, and records them.
fn submit(
    transactions: &Transactions<Ledger>,
    writers: &AtomicU64,
    stop: &AtomicBool,
    records: &Mutex<Vec<LedgerRecord>>,
) {
    while !stop.load(Ordering::Relaxed) {
        let writer = writers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut transaction = transactions.begin();
        let mut keys: Vec<(u32, u64)> = (0..3).map(|_| (fastrand::u32(0..SHARDS), fastrand::u64(0..8))).collect();
        keys.sort_unstable();
        keys.dedup();
        let writes: Vec<bool> = keys.iter().map(|_| fastrand::bool()).collect();
        for (&(shard, key), &writes) in keys.iter().zip(&writes) {
            let writer = writes.then_some(writer);
            transaction = transaction.command(shard, &LedgerCommand { writer, ..write(key, 0) });
        }
        let global = |&(shard, key): &(u32, u64)| u64::from(shard) << 32 | key;
        let submitted = Time::boot_clock().as_nanos();
        let fate = match transaction.submit().wait() {
            Ok(replies) => LedgerFate::Applied(keys.iter().map(global).zip(replies).collect()),
            Err(error) if error.is_not_applied() => LedgerFate::Refused(None),
            Err(_) => LedgerFate::Unknown,
        };
        let ended = (fate != LedgerFate::Unknown).then(|| Time::boot_clock().as_nanos());
        let writes = keys.iter().zip(&writes).filter(|(_, writes)| **writes).map(|(key, _)| global(key)).collect();
        records.lock().unwrap().push(LedgerRecord { writer, submitted, ended, writes, fate });
    }
}

#[test]
fn transactions_of_members_and_clients_are_strictly_serializable_while_a_member_fails() {
    let mut members = start("fails", 4);
    let clients: Vec<_> = (0..2).map(|_| Transactions::new(&connect("fails")).unwrap().within(PATIENCE)).collect();
    let (writers, stop, records) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    let member = members[0].1.clone();
    thread::scope(|scope| {
        for transactions in clients.iter().chain([&member]) {
            scope.spawn(|| submit(transactions, &writers, &stop, &records));
        }
        let until_more = |more: usize| {
            let (before, began) = (records.lock().unwrap().len(), Instant::now());
            while records.lock().unwrap().len() < before + more && began.elapsed() < PATIENCE {
                thread::yield_now();
            }
        };
        until_more(300);
        drop(members.pop());
        until_more(300);
        stop.store(true, Ordering::Relaxed);
    });
    let mut all = BTreeMap::new();
    for shard in 0..SHARDS {
        let answer = clients[0].query(shard, &LedgerQuery { key: None }).wait().unwrap();
        all.extend(answer.writers.into_iter().map(|(key, writers)| (u64::from(shard) << 32 | key, writers)));
    }
    let counts = check_ledger(&records.lock().unwrap(), &all).unwrap();
    assert!(counts.applied >= 500, "{counts:?}");
}
