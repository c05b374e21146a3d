//! One member, with the pipe played by the test.

use squall_onepipe::{Delivery, Mode, PipeEvent, ScatterError, ScatteringId};
use squall_transactions::{
    Completed, Condition, Outcome, Placement, Reply, ShardId, Store, StoreConfig, SubmitError, Transaction,
    TransactionError, TransactionId,
};

/// A scattering that a member has given to its pipe.
#[derive(Debug)]
struct Scattering {
    mode: Mode,
    /// The receivers' ranks, and the message for each.
    messages: Vec<(usize, Vec<u8>)>,
}

/// Three members; each shard has replicas on two of them.
fn config() -> StoreConfig {
    let placement = Placement::new(3, 3, 2).expect("it is sound");
    StoreConfig { window: 2, message_bytes: 600, value_bytes: 100, record: true, ..StoreConfig::new(placement) }
}

fn stores() -> Vec<Store> {
    (0..3).map(|me| Store::new(config(), me)).collect()
}

/// A key in the shard whose replicas are at rank `first` and the next one.
fn key(first: u32, name: &str) -> String {
    let keys = (0..).map(|number| format!("{{{number}}}{name}"));
    let mut of_shard = keys.filter(|key| config().placement.shard_of(&key.as_str().into()) == ShardId(first));
    of_shard.next().expect("every shard has keys")
}

/// Takes a member's next scattering.
fn take(store: &mut Store, mode: Mode, id: u64) -> Option<Scattering> {
    let mut taken = None;
    store.scatter(|of, messages| {
        if of != mode || taken.is_some() {
            return Err(ScatterError::Full { waiting_bytes: 0 });
        }
        let messages = messages.iter().map(|message| (message.to, message.bytes.to_vec())).collect();
        taken = Some(Scattering { mode, messages });
        Ok(ScatteringId(id))
    });
    taken
}

/// Whether a member has a scattering for its pipe, which does not take it.
fn offers(store: &mut Store, mode: Mode) -> bool {
    let mut offered = false;
    store.scatter(|of, _| {
        offered |= of == mode;
        Err(ScatterError::Full { waiting_bytes: 0 })
    });
    offered
}

/// Removes members by one settlement.
fn remove(store: &mut Store, ranks: &[usize]) {
    store.on_events(ranks.iter().map(|&rank| PipeEvent::Removed { rank, failure_timestamp: 0 }));
}

/// Tells a member that its scattering of this number was recalled, or may not have arrived at a member that has failed.
fn undeliverable(store: &mut Store, mode: Mode, id: u64) {
    store.on_events([PipeEvent::Undeliverable { id: ScatteringId(id), mode, stamp: None }].into_iter());
}

/// Delivers a scattering to one of its receivers.
fn deliver(store: &mut Store, rank: usize, scattering: &Scattering, stamp: u64, sender: usize) {
    let (_, bytes) = scattering.messages.iter().find(|(to, _)| *to == rank).expect("it is a receiver");
    store.on_delivery(&Delivery { mode: scattering.mode, stamp, sender, bytes });
}

/// Hands a member's answers to the client at rank 0.
fn answer(stores: &mut [Store], from: usize) {
    let answers = take(&mut stores[from], Mode::BestEffort, 99).expect("it answers");
    deliver(&mut stores[0], 0, &answers, 1, from);
}

/// Rank 0 has submitted, as its scattering number 0, a write to shard 1, whose replicas are at ranks 1 and 2.
fn submitted(stores: &mut [Store]) -> Scattering {
    let transaction = Transaction::new().put(key(1, "").as_str(), 7);
    assert_eq!(stores[0].submit(&transaction), Ok(TransactionId(0)));
    let request = take(&mut stores[0], Mode::Reliable, 0).expect("it is to be sent");
    let receivers: Vec<usize> = request.messages.iter().map(|(to, _)| *to).collect();
    assert_eq!(receivers, [1, 2]);
    request
}

fn result(store: &mut Store) -> Option<Result<Outcome, TransactionError>> {
    store.completed().map(|Completed { result, .. }| result)
}

#[test]
fn a_transaction_on_several_shards_is_one_scattering_and_one_answer_of_each_member() {
    let mut stores = stores();
    let [a, b] = [0, 1].map(|shard| key(shard, ""));
    let transaction = Transaction::new().add(&*b, 5).get(&*a).add(&*a, -5).get(&*b);
    stores[0].submit(&transaction).expect("it is accepted");
    let request = take(&mut stores[0], Mode::Reliable, 0).expect("it is to be sent");
    assert_eq!(request.messages.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(!offers(&mut stores[0], Mode::Reliable));
    for (rank, store) in stores.iter_mut().enumerate() {
        deliver(store, rank, &request, 1000, 0);
    }
    // Its own answer needs no message.
    assert!(!offers(&mut stores[0], Mode::BestEffort));
    answer(&mut stores, 1);
    assert_eq!(result(&mut stores[0]), None);
    answer(&mut stores, 2);
    let Outcome { at, replies } = result(&mut stores[0]).expect("all have answered").expect("it took effect");
    assert_eq!((at.stamp, at.sender), (1000, 0));
    let five = Reply::Value(Some(5.into()));
    assert_eq!(replies, [Reply::Sum(5), Reply::Value(None), Reply::Sum(-5), five]);
    assert!(stores[0].is_idle());
    let executed = [0, 1, 2].map(|rank| stores[rank].take_executions());
    for (shard, ranks) in [(0, [0, 1]), (1, [1, 2])] {
        let [one, other] = ranks.map(|rank| &stores[rank].copies()[&ShardId(shard)]);
        assert_eq!(one, other);
        for rank in ranks {
            let of_shard = executed[rank].iter().filter(|execution| execution.shard == ShardId(shard));
            assert_eq!(of_shard.count(), 1);
        }
    }
    assert_eq!(executed[1].len(), 2);
}

#[test]
fn one_replica_is_not_enough_as_long_as_the_other_lives() {
    let mut stores = stores();
    let request = submitted(&mut stores);
    deliver(&mut stores[1], 1, &request, 10, 0);
    answer(&mut stores, 1);
    assert_eq!(result(&mut stores[0]), None, "what rank 1 has done may be undone if it fails");
    remove(&mut stores[0], &[2]);
    assert!(matches!(result(&mut stores[0]), Some(Ok(_))), "the replicas that are left have answered");
}

#[test]
fn what_a_removed_replica_has_answered_does_not_count() {
    let mut stores = stores();
    let request = submitted(&mut stores);
    deliver(&mut stores[1], 1, &request, 10, 0);
    let early = take(&mut stores[1], Mode::BestEffort, 1).expect("it answers");
    deliver(&mut stores[0], 0, &early, 11, 1);
    remove(&mut stores[0], &[1]);
    assert_eq!(result(&mut stores[0]), None);
    // Nor does an answer that is delivered only now.
    deliver(&mut stores[0], 0, &early, 11, 1);
    assert_eq!(result(&mut stores[0]), None);
    deliver(&mut stores[2], 2, &request, 10, 0);
    answer(&mut stores, 2);
    assert!(matches!(result(&mut stores[0]), Some(Ok(_))));
}

#[test]
fn a_recalled_transaction_is_aborted() {
    let mut stores = stores();
    submitted(&mut stores);
    remove(&mut stores[0], &[1]);
    // A lost answer to a member that has failed makes no difference here.
    undeliverable(&mut stores[0], Mode::BestEffort, 0);
    undeliverable(&mut stores[0], Mode::Reliable, 5);
    assert_eq!(result(&mut stores[0]), None);
    undeliverable(&mut stores[0], Mode::Reliable, 0);
    assert_eq!(result(&mut stores[0]), Some(Err(TransactionError::Aborted)));
    assert!(stores[0].is_idle());
}

#[test]
fn what_was_not_sent_yet_goes_to_the_survivors() {
    let mut stores = stores();
    stores[0].submit(&Transaction::new().get(&*key(1, ""))).expect("it is accepted");
    remove(&mut stores[0], &[1]);
    let request = take(&mut stores[0], Mode::Reliable, 0).expect("it is to be sent");
    assert_eq!(request.messages.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_shard_without_replicas_is_lost() {
    let mut stores = stores();
    submitted(&mut stores);
    let waiting = Transaction::new().get(&*key(1, "")).get(&*key(2, ""));
    stores[0].submit(&waiting).expect("it is accepted");
    remove(&mut stores[0], &[1, 2]);
    assert_eq!(result(&mut stores[0]), Some(Err(TransactionError::Lost(ShardId(1)))), "it may have been carried out");
    assert_eq!(result(&mut stores[0]), Some(Err(TransactionError::Aborted)), "it was never sent");
    assert!(!offers(&mut stores[0], Mode::Reliable));
    assert_eq!(stores[0].submit(&waiting), Err(SubmitError::Lost(ShardId(1))));
    assert_eq!(stores[0].submit(&Transaction::new().get(&*key(2, ""))), Ok(TransactionId(2)), "rank 0 has a copy");
}

#[test]
fn nobody_knows_what_becomes_of_the_transactions_of_a_removed_member() {
    let mut stores = stores();
    submitted(&mut stores);
    stores[0].submit(&Transaction::new().get("a")).expect("it is accepted");
    stores[0].on_events([PipeEvent::Ended].into_iter());
    assert_eq!(result(&mut stores[0]), Some(Err(TransactionError::Ended)));
    assert_eq!(result(&mut stores[0]), Some(Err(TransactionError::Aborted)), "it was never sent");
    assert_eq!(stores[0].submit(&Transaction::new().get("a")), Err(SubmitError::Ended));
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_sent() {
    let mut stores = stores();
    let store = &mut stores[0];
    assert_eq!(store.submit(&Transaction::new()), Err(SubmitError::Empty));
    let long = Transaction::new().put("a", vec![0; 101]);
    assert_eq!(store.submit(&long), Err(SubmitError::ValueTooLong { bytes: 101, most: 100 }));
    let writes = (0..7).fold(Transaction::new(), |writes, _| writes.put("a", vec![0; 100]));
    assert!(matches!(store.submit(&writes), Err(SubmitError::TooLong { bytes: 700.., most: 600 })));
    // Short requests with long answers.
    let reads = (0..5).fold(Transaction::new(), |reads, _| reads.get("a"));
    assert!(matches!(store.submit(&reads), Err(SubmitError::TooLong { bytes: 600.., most: 600 })));
    assert!(!offers(store, Mode::Reliable));
    for _ in 0..2 {
        store.submit(&Transaction::new().get("a")).expect("it is accepted");
    }
    assert_eq!(store.submit(&Transaction::new().get("a")), Err(SubmitError::Busy { window: 2 }));
}

#[test]
fn answers_go_to_each_client_in_messages_of_their_own_and_no_longer_than_allowed() {
    let mut stores = stores();
    let all = (0..4).fold(Transaction::new(), |reads, _| reads.get(&*key(1, "")));
    let fill = Transaction::new().put(&*key(1, ""), vec![0; 100]);
    for client in [0, 2] {
        for transaction in [&fill, &all] {
            stores[client].submit(transaction).expect("it is accepted");
            let request = take(&mut stores[client], Mode::Reliable, 0).expect("it is to be sent");
            deliver(&mut stores[1], 1, &request, 10, client);
        }
    }
    let mut sent = Vec::new();
    while let Some(answers) = take(&mut stores[1], Mode::BestEffort, 0) {
        let [(client, bytes)] = &answers.messages[..] else { panic!("{answers:?}") };
        assert!(bytes.len() <= 600);
        sent.push(*client);
    }
    assert_eq!(sent, [2, 0], "each client's two answers fit into one message");
}

#[test]
fn nothing_is_answered_to_who_was_removed() {
    let mut stores = stores();
    let request = submitted(&mut stores);
    deliver(&mut stores[1], 1, &request, 10, 0);
    assert!(offers(&mut stores[1], Mode::BestEffort));
    remove(&mut stores[1], &[0]);
    assert!(!offers(&mut stores[1], Mode::BestEffort));
    assert_eq!([0, 1, 2].map(|rank| stores[1].is_alive(rank)), [false, true, true]);
    // The removed member's last transactions are delivered after that.
    deliver(&mut stores[1], 1, &request, 11, 0);
    assert!(!offers(&mut stores[1], Mode::BestEffort));
    assert_eq!(stores[1].take_executions().len(), 2);
}

#[test]
fn garbled_messages_have_no_effect() {
    let mut stores = stores();
    let request = submitted(&mut stores);
    let (_, whole) = &request.messages[0];
    for mode in Mode::ALL {
        for len in 0..whole.len() {
            for flip in 0..8 {
                let mut bytes = whole[..len].to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1 << flip;
                }
                stores[0].on_delivery(&Delivery { mode, stamp: 5, sender: 1, bytes: &bytes });
            }
        }
    }
    assert_eq!(result(&mut stores[0]), None);
}

#[test]
fn conditions_guard_their_own_shard_and_no_other() {
    let mut stores = stores();
    let [own, same, other] = [(1, "own"), (1, "same"), (0, "other")].map(|(shard, name)| key(shard, name));
    let guarded = Transaction::new().check(&*own, Condition::Present).put(&*same, 1).put(&*other, 1);
    stores[0].submit(&guarded).expect("it is accepted");
    let request = take(&mut stores[0], Mode::Reliable, 0).expect("it is to be sent");
    for (rank, store) in stores.iter_mut().enumerate() {
        deliver(store, rank, &request, 10, 0);
    }
    answer(&mut stores, 1);
    answer(&mut stores, 2);
    let outcome = result(&mut stores[0]).expect("all have answered").expect("it took effect");
    assert_eq!(outcome.replies, [Reply::Held(false), Reply::Skipped, Reply::Done]);
}
