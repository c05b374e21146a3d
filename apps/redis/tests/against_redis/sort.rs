use fastrand::Rng;

use crate::{Order, Request, any_type, compare, key, request, word};

#[test]
fn sorts() {
    let fixed = [
        "rpush l 3 1 10 2 1.5 -7 1e2",
        "sort l",
        "sort l desc",
        "sort l desc asc",
        "sort l alpha",
        "sort l ALPHA DESC limit 1 3",
        "sort l limit -1 -1",
        "sort l limit 100 1",
        "sort l limit 1 0",
        "sort l limit 1",
        "sort l limit x 1",
        "sort l what",
        "sort l by",
        "sort l get",
        "sort l store",
        "sort_ro l store to",
        "mset w1 5 w2 4 w3 x w10 7 v1 one v2 two",
        "hset h1 f 9 g one",
        "hset h2 f 8",
        "sort l by w*",
        "sort l by w* alpha",
        "sort l by h*->f",
        "sort l by h*->",
        "sort l by nosort",
        "sort l by nosort desc",
        "sort l by nosort desc limit 1 2",
        "sort l by nosort limit 2 100",
        "sort l by # desc",
        "sort l get v* get # get h*->g get fixed",
        "sort l get # store to",
        "sort l get v* store to",
        "lrange to 0 -1",
        "rpush l x",
        "sort l",
        "sort l store to",
        "sort l limit 0 1",
        "sort l alpha store to",
        "sort absent",
        "sort absent store to",
        "exists to",
        "zadd z 3 a 2 b 1 c",
        "sort z alpha desc",
        "sort z by nosort",
        "sort z by nosort desc limit 0 2",
        "sort z",
        "set text x",
        "sort text",
        "sort text what",
        "sort h1",
        "sadd s 7 8 9",
        "sort s",
        "sort s by nosort store to",
        "lrange to 0 -1",
        "sort_ro s desc",
    ];
    compare(&fixed, any);
}

fn any(rng: &mut Rng) -> Request {
    let name = |name: &str| name.as_bytes().to_vec();
    let number = |rng: &mut Rng| rng.i8(-2..6).to_string().into_bytes();
    match rng.u8(..12) {
        0 => return any_type(rng),
        1 => return request(vec![name("rpush"), key(rng), number(rng), word(rng)]),
        2 => return request(vec![name("rpush"), key(rng), number(rng), number(rng)]),
        3 => return request(vec![name("sadd"), key(rng), number(rng), number(rng)]),
        4 => return request(vec![name("zadd"), key(rng), number(rng), number(rng)]),
        5 => return request(vec![name("del"), key(rng)]),
        6 => return request(vec![name("set"), [b"w".to_vec(), number(rng)].concat(), number(rng)]),
        7 => return request(vec![name("hset"), [b"h".to_vec(), number(rng)].concat(), name("f"), number(rng)]),
        _ => {}
    }
    let mut words = vec![name(if rng.bool() { "sort" } else { "sort_ro" }), key(rng)];
    // Bytes behind a zero don't count where Redis compares as the locale says.
    let is_alpha = rng.u8(..4) == 0;
    let by = rng.choice(["", "", "w*", "h*->f", "k"]).expect("some");
    if !by.is_empty() && !is_alpha {
        words.extend([name("by"), name(by)]);
    }
    if is_alpha {
        words.push(name("alpha"));
    }
    if rng.bool() {
        words.push(name("desc"));
    }
    // Elements that count the same have no certain order if only some are asked for.
    if rng.u8(..3) == 0 && !words.contains(&name("by")) {
        words.extend([name("limit"), number(rng), number(rng)]);
    }
    for _ in 0..rng.u8(..3) {
        let pattern = rng.choice(["#", "w*", "h*->f", "k*", "none"]).expect("some");
        words.extend([name("get"), name(pattern)]);
    }
    // A set without an order is stored in one.
    let is_stored = words[0] == b"sort" && rng.u8(..4) == 0;
    if is_stored {
        words.extend([name("store"), key(rng)]);
    }
    let keeps_order = words.contains(&name("k"));
    Request { words, order: if keeps_order && !is_stored { Order::Any } else { Order::Same } }
}
