//! A client's load: it moves money between accounts, and now and then reads all of them.

use serde::{Deserialize, Serialize};
use squall_transactions::{
    Completed, Digest, Execution, Key, Operation, Reply, Transaction, TransactionError, TransactionId, Value,
    history::{KnownOutcome, Record},
};

/// The amount that each account has at first.
pub(crate) const OPENING: i64 = 1000;

/// One in this many transactions reads all accounts.
const READS_ALL: u32 = 64;

/// A member's results, for the process that started it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Findings {
    /// The time that each transaction submitted within the run took, in nanoseconds.
    pub(crate) latencies: Vec<u32>,
    pub(crate) aborted: u64,
    /// The number of readings of all accounts. `wrong_sums` counts those that found another sum.
    pub(crate) read_all: u64,
    pub(crate) wrong_sums: u64,
    /// The transactions that its client saw and its copies carried out, if they are recorded.
    pub(crate) records: Vec<Record>,
    pub(crate) executions: Vec<Execution>,
    pub(crate) digests: Vec<Digest>,
}

/// A client's transactions.
pub(crate) struct Load {
    me: usize,
    accounts: Vec<Key>,
    random: fastrand::Rng,
    /// Whether each transaction is recorded, beside the counts.
    record: bool,
    /// The transactions under way: number, time of submission, and content.
    under_way: Vec<(u64, u64, Transaction)>,
    pub(crate) findings: Findings,
}

impl Load {
    pub(crate) fn new(me: usize, accounts: u32, seed: u64, record: bool) -> Load {
        let accounts = (0..accounts).map(|account| format!("account {account}").into()).collect();
        let random = fastrand::Rng::with_seed(seed ^ (me as u64) << 32);
        Load { me, accounts, random, record, under_way: Vec::new(), findings: Findings::default() }
    }

    /// The transaction that fills the accounts.
    pub(crate) fn opening(&self) -> Transaction {
        self.accounts.iter().map(|account| Operation::Put(account.clone(), Value::Number(OPENING))).collect()
    }

    pub(crate) fn read_all(&self) -> Transaction {
        self.accounts.iter().cloned().map(Operation::Get).collect()
    }

    pub(crate) fn next(&mut self) -> Transaction {
        if self.random.u32(0..READS_ALL) == 0 {
            return self.read_all();
        }
        let from = self.random.usize(..self.accounts.len());
        let to = (from + self.random.usize(1..self.accounts.len())) % self.accounts.len();
        let amount = self.random.i64(1..100);
        Transaction::new().add(self.accounts[from].clone(), -amount).add(self.accounts[to].clone(), amount)
    }

    pub(crate) fn submitted(&mut self, TransactionId(number): TransactionId, at: u64, transaction: Transaction) {
        self.under_way.push((number, at, transaction));
    }

    /// Takes a transaction that is over. One that was recalled is returned, to be tried again.
    pub(crate) fn completed(
        &mut self,
        completed: Completed,
        now: u64,
    ) -> Result<Option<Transaction>, TransactionError> {
        let TransactionId(number) = completed.id;
        let place = self.under_way.iter().position(|(under_way, ..)| *under_way == number);
        let Some(place) = place else { return Ok(None) };
        let (_, submitted, transaction) = self.under_way.swap_remove(place);
        let mut again = None;
        let seen = match completed.result {
            Ok(outcome) => {
                self.count(submitted, now, &outcome.replies);
                KnownOutcome::Committed(outcome)
            }
            Err(TransactionError::Aborted) => {
                self.findings.aborted += 1;
                again = Some(transaction.clone());
                KnownOutcome::Aborted
            }
            Err(error) => return Err(error),
        };
        if self.record {
            let (client, ended) = (self.me, now);
            self.findings.records.push(Record { client, number, submitted, ended, transaction, seen });
        }
        Ok(again)
    }

    fn count(&mut self, submitted: u64, now: u64, replies: &[Reply]) {
        self.findings.latencies.push(u32::try_from(now - submitted).unwrap_or(u32::MAX));
        let numbers = replies.iter().map(|reply| match reply {
            Reply::Value(Some(Value::Number(number))) => Some(*number),
            _ => None,
        });
        if let Some(sum) = numbers.sum::<Option<i64>>() {
            self.findings.read_all += 1;
            self.findings.wrong_sums += u64::from(sum != OPENING * self.accounts.len() as i64);
        }
    }
}
