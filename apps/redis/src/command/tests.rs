//! Properties of every command, for all words.

use fastrand::Rng;
use squall::NodeId;

use super::*;
use crate::{
    Store,
    inspect::Digest,
    keyspace::KeyEntry,
    message::{AnsweredBy, StoreCommand},
    testing::Shell,
    words,
};

/// The number of random requests.
const REQUESTS: usize = 20_000;

/// Keys of each type, and one that is absent.
const KEYS: &[&str] = &["string", "number", "list", "hash", "set", "zset", "zset0", "absent"];

const WORDS: &str = "a b c 0 1 -1 2 3 7 -9223372036854775808 9223372036854775807 1e400 inf -inf nan 0.5 nx xx gt lt ch \
                     incr ex px exat pxat keepttl persist get count match * [a-c] type limit withscores withscore \
                     weights aggregate min max sum rev byscore bylex left right before after rank maxlen replace db \
                     withvalues bit byte (1 [a (c - + encoding usage digest digest-value samples and xor not len idx \
                     minmatchlen by alpha desc store # *->a u8 i5 overflow sat fail set incrby";

const BEGINNING: &[&str] = &[
    "set string abc",
    "set number 7 px 50",
    "rpush list a b c a 1",
    "hset hash a 1 b x c 0.5",
    "sadd set a b c 7",
    "zadd zset 1 a 2 b -inf c",
    "zadd zset0 0 a 0 b 0 c",
    "expire zset 1",
];

fn any(rng: &mut Rng) -> Vec<u8> {
    let specs: Vec<_> = all().filter(|spec| !matches!(spec.run, CommandFn::Local)).collect();
    let spec = rng.choice(specs).expect("there are some");
    let words: Vec<_> = WORDS.split_whitespace().collect();
    let fewest = usize::from(spec.arity.unsigned_abs());
    let count = if spec.arity < 0 { fewest + rng.usize(..5) } else { fewest };
    let mut request = words::join([spec.name]);
    for place in 1..count {
        let is_key = place == 1 || rng.u8(..3) == 0;
        let from = if is_key { KEYS } else { &words };
        words::push(&mut request, rng.choice(from).expect("there are some").as_bytes());
    }
    request
}

/// All that a replica holds, in its order, with the state of each key as a transaction notes it.
fn held(shell: &Shell) -> Vec<String> {
    let view = shell.store.keys().view(shell.now_ms);
    let shown = |(key, entry): (&[u8], &KeyEntry)| {
        let (digest, expires_ms) = (Digest::of_entry(entry).to_hex(), entry.expires_ms());
        format!("{} {digest} {expires_ms:?} {:?}", key.escape_ascii(), view.watch(key))
    };
    view.iter().map(shown).collect()
}

/// The same without the order, which the removal of expired keys changes.
fn sorted(mut held: Vec<String>) -> Vec<String> {
    held.sort_unstable();
    held
}

#[test]
fn a_command_that_fails_has_changed_nothing_and_replicas_stay_the_same() {
    let mut rng = Rng::with_seed(7);
    let mut replicas = [1, 2].map(|node| {
        let mut shell = Shell::new();
        shell.store = Store::at(NodeId(node));
        shell
    });
    let mut failed = 0;
    for place in 0..REQUESTS {
        if place % 40 == 0 {
            for replica in &mut replicas {
                BEGINNING.iter().for_each(|line| drop(replica.ask(line)));
            }
        }
        let request = any(&mut rng);
        let at_ms = replicas[0].now_ms + rng.u64(..3);
        // Keys that expire at this moment are no change.
        replicas.iter_mut().for_each(|replica| replica.now_ms = at_ms);
        let before = held(&replicas[0]);
        let command = StoreCommand::Run { at_ms, request: request.clone(), answered_by: AnsweredBy::Sender };
        let [reply, _] = replicas.each_mut().map(|replica| replica.apply(&command));
        let after = replicas.each_ref().map(held);
        let shown = request.escape_ascii();
        assert_eq!(after[0], after[1], "replicas differ after {shown}");
        if matches!(reply, Reply::Error(_)) {
            failed += 1;
            assert_eq!(sorted(before), sorted(after[0].clone()), "{shown} failed: {reply:?}");
        }
    }
    assert!((REQUESTS / 4..REQUESTS).contains(&failed), "{failed} of {REQUESTS} failed");
}
