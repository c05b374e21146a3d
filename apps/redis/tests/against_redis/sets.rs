use fastrand::Rng;

use crate::{Order, Request, compare, key, request, word};

#[test]
fn sets() {
    let fixed = [
        "sadd s a b c b",
        "sadd s",
        "scard s",
        "sismember s a",
        "sismember none a",
        "smismember s a x b",
        "smismember none a b",
        "smembers none",
        "spop none",
        "spop none 2",
        "spop s -1",
        "spop s x",
        "spop s 0",
        "spop s 1 2",
        "srandmember none",
        "srandmember none 2",
        "srandmember s x",
        "srandmember s 0",
        "srandmember s 1 2",
        "srandmember s -9223372036854775808",
        "sadd one m",
        "srandmember one",
        "srandmember one -3",
        "srandmember one 3",
        "spop one",
        "spop one",
        "sadd one m",
        "sscan one 0",
        "sscan one 0 match n",
        "sscan one 0 match m count 3",
        "sscan one 0 x",
        "sscan none 0 x",
        "sscan one x",
        "sadd t b c d",
        "set text x",
        "sinter s text",
        "sinter none text",
        "sinter text none",
        "sunion none text",
        "sdiff none text",
        "sdiff s s",
        "sdiff s t s",
        "sinterstore text s t",
        "scard text",
        "sinterstore text s none",
        "get text",
        "set text x",
        "smove s text a",
        "smove none text a",
        "smove text s a",
        "smove s s a",
        "smove s s x",
        "smove s t x",
        "smove s t b",
        "smove s new a",
        "sintercard 0 s",
        "sintercard x s",
        "sintercard 3 s t",
        "sintercard 2 s t",
        "sintercard 2 s t limit",
        "sintercard 2 s t limit -1",
        "sintercard 2 s t limit x",
        "sintercard 2 s t limit 0",
        "sintercard 2 s t limit 1 limit 2",
        "sintercard 1 t LIMIT 2",
        "sintercard 2 s t x 1",
        "sintercard 9223372036854775807 s",
        "sintercard 2 s text limit x",
    ];
    compare(&fixed, any);
}

fn any(rng: &mut Rng) -> Request {
    let command = |name: &str| vec![name.as_bytes().to_vec()];
    let one = |name: &str, words: usize, rng: &mut Rng| {
        let mut command = command(name);
        command.push(key(rng));
        command.extend((0..words).map(|_| word(rng)));
        command
    };
    let many = |name: &str, keys: usize, rng: &mut Rng| {
        let mut command = command(name);
        command.extend((0..keys).map(|_| key(rng)));
        command
    };
    let whole = |words| Request { words, order: Order::Any };
    let some = rng.usize(0..5);
    request(match rng.u8(..20) {
        0..3 => one("sadd", some, rng),
        3 => one("srem", some, rng),
        4 => return whole(one("smembers", 0, rng)),
        5 => one("sismember", 1, rng),
        6 => one("smismember", some, rng),
        7 => one("scard", 0, rng),
        8 => [many("smove", 2, rng), vec![word(rng)]].concat(),
        9 => return whole(many("sinter", some, rng)),
        10 => return whole(many("sunion", some, rng)),
        11 => return whole(many("sdiff", some, rng)),
        12 => many("sinterstore", some, rng),
        13 => many("sunionstore", some, rng),
        14 => many("sdiffstore", some, rng),
        15 => {
            let limit = [b"limit".to_vec(), word(rng)];
            let numbers = ["1", "2", "3", "x"].map(|number| number.as_bytes().to_vec());
            let number = rng.choice(numbers).expect("there are some");
            let limit = if rng.bool() { &limit[..] } else { &[] };
            [command("sintercard"), vec![number, key(rng), key(rng)], limit.to_vec()].concat()
        }
        16 if rng.u8(..10) == 0 => return whole([one("spop", 0, rng), vec![b"100".to_vec()]].concat()),
        17 => return whole([one("srandmember", 0, rng), vec![b"100".to_vec()]].concat()),
        18 if rng.u8(..10) == 0 => one("set", 1, rng),
        19 if rng.u8(..20) == 0 => command("flushall"),
        _ => one("get", 0, rng),
    })
}
