//! Transfers between accounts by optimistic transactions at all replicas: the sum must stay the same.

use std::{
    ops::AddAssign,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame};

use crate::{
    machine::one_at_a_time,
    target::{Target, fresh_prefix},
    wire::{Client, request, show},
};

const CLIENTS: usize = 50;
const ACCOUNTS: usize = 20;
const OPENING: i64 = 1000;
const LASTS: Duration = Duration::from_secs(4);

/// The least number of transfers, far below that of a busy machine. With fewer, the test would show nothing.
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
    assert_eq!(target.connect(0).ask(&[&["MSET"], &open[..]].concat()), "OK");
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
    assert_eq!(target.connect(1).ask(&words), ACCOUNTS.to_string());
    target.stop();
}

/// Moves money as long as the bank is open. A transaction that was aborted is tried again with the new balances.
fn move_money(mut client: Client, accounts: &[String], until: Instant) -> Counts {
    let mut counts = Counts::default();
    while Instant::now() < until {
        let from = fastrand::usize(..ACCOUNTS);
        let to = (from + fastrand::usize(1..ACCOUNTS)) % ACCOUNTS;
        let most = fastrand::i64(1..100);
        while Instant::now() < until {
            if transfer(&mut client, &accounts[from], &accounts[to], most) {
                counts.transfers += 1;
                break;
            }
            counts.aborted += 1;
        }
    }
    counts
}

/// Whether the transaction went through.
fn transfer(client: &mut Client, from: &str, to: &str, most: i64) -> bool {
    assert_eq!(client.ask(&["WATCH", from, to]), "OK");
    let mut balance = |account| client.ask(&["GET", account]).parse::<i64>().expect("a balance");
    let (has, gets) = (balance(from), balance(to));
    assert!(has >= 0 && gets >= 0, "an account is overdrawn: {has}, {gets}");
    let moved = most.min(has);
    let (has, gets) = ((has - moved).to_string(), (gets + moved).to_string());
    let requests =
        [request(&["MULTI"]), request(&["SET", from, &has]), request(&["SET", to, &gets]), request(&["EXEC"])];
    client.send(&requests.concat()).unwrap();
    let answers = requests.map(|_| show(&client.answer().unwrap()));
    match answers.each_ref().map(String::as_str) {
        ["OK", "QUEUED", "QUEUED", "nil"] => false,
        ["OK", "QUEUED", "QUEUED", "[OK, OK]"] => true,
        other => panic!("a transfer was answered with {other:?}"),
    }
}

/// Reads all accounts again and again, by one command and by one transaction in turn.
fn audit(mut client: Client, accounts: &[String], closed: &AtomicBool) -> Counts {
    let mut looks = 0;
    while !closed.load(Ordering::Relaxed) {
        balances(&mut client, accounts);
        assert_eq!(client.ask(&["MULTI"]), "OK");
        for account in accounts {
            assert_eq!(client.ask(&["GET", account]), "QUEUED");
        }
        check(&client.call(&["EXEC"]).unwrap());
        looks += 2;
        thread::sleep(Duration::from_millis(1));
    }
    Counts { looks, ..Counts::default() }
}

fn balances(client: &mut Client, accounts: &[String]) {
    let words: Vec<&str> = ["MGET"].into_iter().chain(accounts.iter().map(String::as_str)).collect();
    check(&client.call(&words).unwrap());
}

fn check(balances: &OwnedFrame) {
    let OwnedFrame::Array(all) = balances else { panic!("not all balances: {}", show(balances)) };
    let balance = |account: &OwnedFrame| account.as_str()?.parse::<i64>().ok();
    let sum: i64 = all.iter().map(|account| balance(account).expect("a balance")).sum();
    assert_eq!(sum, OPENING * ACCOUNTS as i64, "{}", show(balances));
}
