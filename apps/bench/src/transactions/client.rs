//! A client of the store: it moves money between accounts, and now and then reads all of them.

use std::collections::HashMap;

use hdrhistogram::Histogram;
use squall_transactions::{
    Completed, Key, Operation, Reply, Transaction, TransactionError, TransactionId, Value,
    history::{KnownOutcome, Record},
};

use crate::{
    job::{Go, Transacted, TransactionsJob},
    latency,
};

/// The amount that each account has at first.
const OPENING: i64 = 1000;

/// One in this many transactions reads all accounts.
const READS_ALL: u32 = 64;

pub(super) struct StoreClient {
    rank: usize,
    accounts: Vec<Key>,
    random: fastrand::Rng,
    /// The transactions under way, with the times of their submission.
    pub(super) under_way: HashMap<TransactionId, (u64, Transaction)>,
    /// The time within which the end of a transaction counts.
    pub(super) counted: Option<Go>,
    latencies: Histogram<u64>,
    /// All but the latencies.
    pub(super) transacted: Transacted,
    record: bool,
    pub(super) records: Vec<Record>,
}

impl StoreClient {
    pub(super) fn new(job: &TransactionsJob) -> StoreClient {
        StoreClient {
            rank: job.node as usize,
            accounts: (0..job.shape.accounts).map(|account| format!("account {account}").into()).collect(),
            random: fastrand::Rng::with_seed(job.seed ^ u64::from(job.node) << 32),
            under_way: HashMap::new(),
            counted: None,
            latencies: latency::histogram(),
            transacted: Transacted::default(),
            record: job.record,
            records: Vec::new(),
        }
    }

    /// The transaction that fills the accounts.
    pub(super) fn opening(&self) -> Transaction {
        self.accounts.iter().map(|account| Operation::Put(account.clone(), Value::Number(OPENING))).collect()
    }

    pub(super) fn read_all(&self) -> Transaction {
        self.accounts.iter().cloned().map(Operation::Get).collect()
    }

    pub(super) fn next(&mut self) -> Transaction {
        if self.random.u32(0..READS_ALL) == 0 {
            return self.read_all();
        }
        let from = self.random.usize(..self.accounts.len());
        let to = (from + self.random.usize(1..self.accounts.len())) % self.accounts.len();
        let amount = self.random.i64(1..100);
        Transaction::new().add(self.accounts[from].clone(), -amount).add(self.accounts[to].clone(), amount)
    }

    /// Takes a transaction that is over. One that was recalled is returned, to be tried again.
    pub(super) fn completed(&mut self, over: Completed, now: u64) -> Result<Option<Transaction>, TransactionError> {
        let Some((submitted, transaction)) = self.under_way.remove(&over.id) else { return Ok(None) };
        let (seen, again) = match over.result {
            Ok(outcome) => {
                self.count(submitted, now, &outcome.replies);
                (KnownOutcome::Committed(outcome), None)
            }
            Err(TransactionError::Aborted) => (KnownOutcome::Aborted, Some(transaction.clone())),
            Err(error) => return Err(error),
        };
        if self.record {
            let (client, number, ended) = (self.rank, over.id.0, now);
            self.records.push(Record { client, number, submitted, ended, transaction, seen });
        }
        Ok(again)
    }

    fn count(&mut self, submitted: u64, now: u64, replies: &[Reply]) {
        if self.counted.is_some_and(|go| (go.from..go.until).contains(&now)) {
            self.latencies.saturating_record(now - submitted);
        }
        let numbers = replies.iter().map(|reply| match reply {
            Reply::Value(Some(Value::Number(number))) => Some(*number),
            _ => None,
        });
        if let Some(sum) = numbers.sum::<Option<i64>>() {
            self.transacted.read_all += 1;
            self.transacted.wrong_sums += u64::from(sum != OPENING * self.accounts.len() as i64);
        }
    }

    /// Its measurements.
    pub(super) fn measured(&mut self) -> Transacted {
        Transacted { latencies: latency::recorded(&self.latencies), ..std::mem::take(&mut self.transacted) }
    }
}
