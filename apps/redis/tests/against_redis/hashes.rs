use fastrand::Rng;

use crate::{Order, Request, compare, key, request, word};

#[test]
fn hashes() {
    let fixed = [
        "hset h a 1 b 2 a 3",
        "hgetall h",
        "hset h a",
        "hset h a 1 b",
        "hmset h a 1 b",
        "hmset h c 4 a 9",
        "hmget h a b c d",
        "hmget none a b",
        "hgetall none",
        "hkeys none",
        "hvals none",
        "hincrby h a x",
        "hincrby h a 9223372036854775807",
        "hincrby h a -9223372036854775808",
        "hset h text x float 10.5 big 9223372036854775807 inf inf space 1e3",
        "hincrby h text 1",
        "hincrby h float 1",
        "hincrby h big 1",
        "hincrbyfloat h text 1",
        "hincrbyfloat h float x",
        "hincrbyfloat h float 0.25",
        "hincrbyfloat h float nan",
        "hincrbyfloat h float inf",
        "hincrbyfloat none float inf",
        "hincrbyfloat h inf 1",
        "hincrbyfloat h space 2e2",
        "hincrbyfloat h new -5.0",
        "hget h new",
        "hrandfield none",
        "hrandfield none 3",
        "hrandfield none -3 withvalues",
        "hrandfield h 0",
        "hrandfield h x",
        "hrandfield h 1 values",
        "hrandfield h 1 withvalues x",
        "hrandfield h -9223372036854775808",
        "hrandfield h 9223372036854775807 withvalues",
        "hset one f 7",
        "hrandfield one",
        "hrandfield one -3",
        "hrandfield one -3 WITHVALUES",
        "hrandfield one 3 withvalues",
        "hscan one 0",
        "hscan one 0 match f*",
        "hscan one 0 match g* count 100",
        "hscan one x",
        "hscan one 0 count",
        "hscan one 0 count x",
        "hscan one 0 count 0",
        "hscan one 0 type string",
        "hscan none 0 nonsense",
        "hscan none x",
        "hdel h",
        "hget h",
        "set text x",
        "hscan text 0 nonsense",
        "hscan text x",
        "hrandfield text 0",
    ];
    compare(&fixed, any);
}

fn any(rng: &mut Rng) -> Request {
    let key = key(rng);
    let command = |name: &str| vec![name.as_bytes().to_vec(), key.clone()];
    let with = |name: &str, words: usize, rng: &mut Rng| {
        let mut command = command(name);
        command.extend((0..words).map(|_| word(rng)));
        command
    };
    let some = rng.usize(0..5);
    request(match rng.u8(..20) {
        0 => with("hset", some, rng),
        1 => with("hset", 4, rng),
        2 => with("hsetnx", 2, rng),
        3 => with("hmset", some, rng),
        4 => with("hget", 1, rng),
        5 => with("hmget", some, rng),
        6 => with("hdel", some, rng),
        7 => with("hexists", 1, rng),
        8 => command("hlen"),
        9 => with("hstrlen", 1, rng),
        10 => with("hincrby", 2, rng),
        11 => {
            let by =
                rng.choice(["0.1", "0.5", "-3.25", "1e3", "10", "0", "", "x", " 1", "1e17"]).expect("there are some");
            vec![b"hincrbyfloat".to_vec(), key, rng.choice(["x", "y", "z"]).expect("there are some").into(), by.into()]
        }
        12 => return Request { words: command("hgetall"), order: Order::AnyOfPairs },
        13 => return Request { words: command("hkeys"), order: Order::Any },
        14 => return Request { words: command("hvals"), order: Order::Any },
        15 => {
            let words = [command("hrandfield"), vec![b"100".to_vec(), b"withvalues".to_vec()]].concat();
            return Request { words, order: Order::AnyOfPairs };
        }
        16 => with("hdel", 4, rng),
        17 if rng.u8(..10) == 0 => with("set", 1, rng),
        18 if rng.u8(..10) == 0 => vec![b"flushall".to_vec()],
        _ => command("get"),
    })
}
