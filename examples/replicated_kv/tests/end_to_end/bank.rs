//! Money moves between accounts by optimistic transactions at all replicas, and none is made or lost.

use std::{
    ops::AddAssign,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    process::one_at_a_time,
    target::{Target, fresh_prefix},
    wire::{Answer, Connection, request},
};

const CLIENTS: usize = 50;
const ACCOUNTS: usize = 20;
const OPENING: i64 = 1000;
const LASTS: Duration = Duration::from_secs(4);

/// Far fewer than even a busy machine manages; with less, the test would show nothing.
const ENOUGH: u64 = 500;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    transfers: u64,
    /// Transactions that found an account changed since it was read.
    aborted: u64,
    /// Looks at all accounts at once.
    looks: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.transfers += other.transfers;
        self.aborted += other.aborted;
        self.looks += other.looks;
    }
}

#[test]
fn transactions_at_all_replicas_neither_make_nor_lose_money() {
    let _turn = one_at_a_time();
    let target = Target::start();
    let prefix = fresh_prefix("bank");
    let accounts: Vec<String> = (0..ACCOUNTS).map(|n| format!("{prefix}{n}")).collect();
    let opening = OPENING.to_string();
    let open: Vec<&str> = accounts.iter().flat_map(|account| [account, opening.as_str()]).collect();
    assert_eq!(target.connect(0).ask(&[&["MSET"], &open[..]].concat()).unwrap(), Answer::Status("OK".into()));
    let closed = AtomicBool::new(false);
    let until = Instant::now() + LASTS;
    let counts = thread::scope(|scope| {
        let (target, accounts, closed) = (&target, &accounts[..], &closed);
        let tellers: Vec<_> =
            (0..CLIENTS).map(|n| scope.spawn(move || move_money(target.connect(n), accounts, until))).collect();
        let auditors: Vec<_> =
            (0..3).map(|n| scope.spawn(move || audit(target.connect(n), accounts, closed))).collect();
        let mut counts = Counts::default();
        let mut failed = None;
        for teller in tellers {
            match teller.join() {
                Ok(count) => counts += count,
                Err(panic) => failed = Some(panic),
            }
        }
        closed.store(true, Ordering::Relaxed);
        for auditor in auditors {
            match auditor.join() {
                Ok(count) => counts += count,
                Err(panic) => failed = Some(panic),
            }
        }
        if let Some(panic) = failed {
            std::panic::resume_unwind(panic);
        }
        counts
    });
    eprintln!("{counts:?}");
    assert!(counts.transfers >= ENOUGH, "{counts:?}");
    assert!(counts.aborted > 0, "no two clients met: {counts:?}");
    assert!(counts.looks >= 30, "{counts:?}");
    for n in 0..3 {
        balances(&mut target.connect(n), &accounts);
    }
    target.until_all_hold_the_same();
    let words: Vec<&str> = ["DEL"].into_iter().chain(accounts.iter().map(String::as_str)).collect();
    assert_eq!(target.connect(1).ask(&words).unwrap(), Answer::Integer(ACCOUNTS as i64));
    target.stop();
}

/// Moves money as long as the bank is open. A transaction that was aborted is tried again with what is there now.
fn move_money(mut connection: Connection, accounts: &[String], until: Instant) -> Counts {
    let mut counts = Counts::default();
    while Instant::now() < until {
        let from = fastrand::usize(..ACCOUNTS);
        let to = (from + fastrand::usize(1..ACCOUNTS)) % ACCOUNTS;
        let most = fastrand::i64(1..100);
        while Instant::now() < until {
            if transfer(&mut connection, &accounts[from], &accounts[to], most) {
                counts.transfers += 1;
                break;
            }
            counts.aborted += 1;
        }
    }
    counts
}

/// Whether the transaction went through.
fn transfer(connection: &mut Connection, from: &str, to: &str, most: i64) -> bool {
    let ok = Answer::Status("OK".into());
    assert_eq!(connection.ask(&["WATCH", from, to]).unwrap(), ok);
    let mut balance = |account| connection.ask(&["GET", account]).unwrap().number().expect("a balance");
    let (has, gets) = (balance(from), balance(to));
    assert!(has >= 0 && gets >= 0, "an account is overdrawn: {has}, {gets}");
    let moved = most.min(has);
    let (has, gets) = ((has - moved).to_string(), (gets + moved).to_string());
    let commands: [&[&str]; 4] = [&["MULTI"], &["SET", from, &has], &["SET", to, &gets], &["EXEC"]];
    let bytes: Vec<u8> = commands
        .iter()
        .flat_map(|words| request(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>()))
        .collect();
    connection.send(&bytes).unwrap();
    assert_eq!(connection.answer().unwrap(), ok);
    for _ in 0..2 {
        assert_eq!(connection.answer().unwrap(), Answer::Status("QUEUED".into()));
    }
    match connection.answer().unwrap() {
        Answer::Null => false,
        done => {
            assert_eq!(done, Answer::Array(vec![ok.clone(), ok]));
            true
        }
    }
}

/// Looks at all accounts again and again, by one command and by one transaction in turn.
fn audit(mut connection: Connection, accounts: &[String], closed: &AtomicBool) -> Counts {
    let mut looks = 0;
    while !closed.load(Ordering::Relaxed) {
        balances(&mut connection, accounts);
        connection.ask(&["MULTI"]).unwrap();
        for account in accounts {
            assert_eq!(connection.ask(&["GET", account]).unwrap(), Answer::Status("QUEUED".into()));
        }
        check(connection.ask(&["EXEC"]).unwrap());
        looks += 2;
        thread::sleep(Duration::from_millis(1));
    }
    Counts { looks, ..Counts::default() }
}

fn balances(connection: &mut Connection, accounts: &[String]) {
    let words: Vec<&str> = ["MGET"].into_iter().chain(accounts.iter().map(String::as_str)).collect();
    check(connection.ask(&words).unwrap());
}

fn check(balances: Answer) {
    let balances = balances.array().expect("all balances");
    let sum: i64 = balances.iter().map(|balance| balance.number().expect("a balance")).sum();
    assert_eq!(sum, OPENING * ACCOUNTS as i64, "{balances:?}");
}
