use fastrand::Rng;

use crate::{Order, Request, compare, line, request};

#[test]
fn sorted_sets() {
    compare(FIXED, any);
}

#[test]
fn large_sorted_sets() {
    compare(&[], any_of_large);
}

const FIXED: &[&str] = &[
    "zadd z 1 a 2 b",
    "zadd z nx xx 1 a",
    "zadd z gt lt 1 a",
    "zadd z nx gt 1 a",
    "zadd z incr 1 a 2 b",
    "zadd z incr nx 1 a",
    "zadd z incr nx 1 new",
    "zadd z incr xx 1 none",
    "zadd none xx 1 a",
    "zadd none xx incr 1 a",
    "zadd z ch 3 a 2 b 1 c",
    "zadd z 1",
    "zadd z 1 a 2",
    "zadd z x a",
    "zadd z 1 a x b",
    "zadd z nan a",
    "zadd z ch",
    "zadd z gt incr -1 a",
    "zadd z lt incr -1 a",
    "zadd inf inf a -inf b 0 c",
    "zincrby inf -inf a",
    "zadd inf incr inf b",
    "zincrby inf x a",
    "zincrby new 1.5 a",
    "zincrby new 1.25 a",
    "zadd zero 0 a",
    "zadd zero ch -0 a",
    "zadd zero -0 b",
    "zrange zero 0 -1 withscores",
    "zadd dup 1 a 2 a 3 a",
    "zscore dup a",
    "zadd dup ch 4 a 4 a 5 a",
    "zrange z 0 -1 withscores",
    "zrange z 0 -1 limit 0 1",
    "zrange z 0 -1 limit 0 -1",
    "zrange z 0 -1 limit 5 -1",
    "zrange z 0 -1 bylex withscores",
    "zrange z - + bylex byscore",
    "zrange z - + bylex rev",
    "zrange z + - bylex rev",
    "zrange z 0 -1 rev rev",
    "zrange z 0 -1 limit 1",
    "zrange z 0 1 2",
    "zrange z a b",
    "zrange z a b byscore",
    "zrange z a b bylex",
    "zrange z (1 inf byscore limit 1 x",
    "zrange z -9223372036854775808 9223372036854775807",
    "zrange z -1 -9223372036854775808",
    "zrevrange z 0 -1 rev",
    "zrevrange z 0 -1 byscore",
    "zrevrange z 0 0 limit 1 1",
    "zrangebyscore z -inf +inf withscores limit 1 1",
    "zrangebyscore z -inf +inf rev",
    "zrangebyscore z 1 ( withscores",
    "zrangebylex z - + withscores",
    "zrangebylex z - +x",
    "zrevrangebylex z + -",
    "zrangestore out z 0 -1 withscores",
    "zrangestore out z 0 0",
    "zrangestore out z 9 9",
    "zrange out 0 -1",
    "zrangestore out none 0 -1",
    "zrangestore z z 1 2 rev",
    "zcount z x 1",
    "zlexcount z x 1",
    "zremrangebyrank z x 1",
    "zremrangebyscore z x 1",
    "zremrangebylex z x 1",
    "zpopmin z 0",
    "zpopmin z -1",
    "zpopmin z x",
    "zpopmin z 1 1",
    "zpopmin none 0",
    "zpopmin none -1",
    "zpopmax none",
    "zmpop 0 z min",
    "zmpop x z min",
    "zmpop 1 z mid",
    "zmpop 2 z min",
    "zmpop 1 none max",
    "zmpop 2 none z max",
    "zmpop 1 z min count 0",
    "zmpop 1 z min count",
    "zmpop 1 z min count 1 count 2",
    "zmpop 1 z min count 0 count 2",
    "zmpop 1 z min cnt 1",
    "zmpop 9223372036854775807 z min",
    "zmpop 1 inf min count 10",
    "zrandmember none",
    "zrandmember none 3",
    "zrandmember none x",
    "zrandmember none 1 withscores x",
    "zrandmember none 1 scores",
    "zrandmember none -9223372036854775808",
    "zrandmember none -9223372036854775807",
    "zrandmember none 9223372036854775807 withscores",
    "zadd w 1 a 2 b 3 c",
    "zadd v 10 b 20 c 30 d",
    "sadd s a c e",
    "set str x",
    "zunion 2 w v withscores",
    "zunion 2 w v weights 2 3 withscores",
    "zunion 2 w v weights 2",
    "zunion 2 w v weights 2 x",
    "zunion 2 w v aggregate max withscores",
    "zunion 2 w v aggregate",
    "zunion 2 w v aggregate mid",
    "zunion 0 w",
    "zunion x w",
    "zunion -1 w",
    "zunion 3 w v",
    "zunion 9223372036854775807 w v",
    "zunion 2 w str foo",
    "zunion 2 w str",
    "zunion 3 w v s withscores",
    "zinter 3 w v s withscores",
    "zinter 2 w w withscores weights 1 -1",
    "zdiff 2 w s withscores",
    "zdiff 2 w s weights 1 1",
    "zdiff 1 w aggregate sum",
    "zdiffstore 0 w",
    "zdiffstore out 0 w",
    "zinterstore out 0 w",
    "zinterstore out 2 w v withscores",
    "zunionstore w 2 w v",
    "zrange w 0 -1 withscores",
    "zinterstore w 2 w none",
    "zcard w",
    "zintercard 0 v",
    "zintercard 2 v s limit -1",
    "zintercard 2 v s limit x",
    "zintercard 2 v s limit 1",
    "zintercard 2 v s limit 0",
    "zintercard 2 v s limit",
    "zintercard 2 v s weights 1 1",
    "zadd infs inf a -inf b 0 c",
    "zadd minus -inf a inf b inf c",
    "zunion 2 infs minus withscores",
    "zinter 2 infs minus withscores",
    "zunion 2 infs minus weights 0 0 withscores",
    "zinter 2 infs minus weights 0 0 withscores aggregate min",
    "zinter 2 infs minus weights 1 0 withscores aggregate max",
    "zscan none 0",
    "zscan none x",
    "zscan none 0 foo",
    "zscan v 0 foo",
    "zscan v 0 match [bc]",
    "zscan v 0 count 0",
    "zscan v 0 count x",
    "zscan v 0 match",
    "zscan str 0",
    "zscore str a",
    "zmscore str a",
    "zmscore none a b",
    "zadd str 1 a",
    "zadd str x a",
    "zincrby str 1 a",
    "zrem str a",
    "zcard str",
    "zcount str 0 1",
    "zlexcount str - +",
    "zrank str a",
    "zrange str 0 1",
    "zrangestore out str 0 1",
    "zremrangebyrank str 0 1",
    "zpopmin str",
    "zpopmin str 0",
    "zmpop 2 none str min",
    "zadd bz 1 a 2.5 b 3 c inf d 5 e",
    "bzpopmin none bz 0",
    "bzpopmax bz none 0",
    "bzpopmin none str bz 0",
    "bzpopmin none bz str 0",
    "bzpopmin none 0.001",
    "bzpopmax none x",
    "bzpopmax none -1",
    "bzpopmax none",
    "bzmpop 0 1 bz max",
    "bzmpop 0 2 none bz MIN count 2",
    "bzmpop 0.001 1 none min",
    "bzmpop x 0 bz min",
    "bzmpop 0 0 bz min",
    "bzmpop 0 1 bz mid",
    "bzmpop 0 2 bz min",
    "bzmpop 0 1 bz min count 0",
    "bzmpop 0 1 bz min count 1 count 2",
    "bzmpop 0 1 str min",
    "zrandmember str",
    "zrandmember str 0",
    "zunionstore str 1 v",
    "zrange str 0 -1",
];

/// One of few sorted sets; seldom a key without one, or a plain set.
fn key(rng: &mut Rng) -> String {
    match rng.u8(..40) {
        0 => "text".to_owned(),
        1 => "plain0".to_owned(),
        number => format!("z{}", number % 4),
    }
}

/// A set whose members all have the same score: only there the order of strings has a meaning.
fn level(rng: &mut Rng) -> String {
    if rng.u8(..40) == 0 { "other".to_owned() } else { format!("level{}", rng.u8(..2)) }
}

fn source(rng: &mut Rng) -> String {
    match rng.u8(..8) {
        0 => format!("plain{}", rng.u8(..2)),
        1 => level(rng),
        2 => "none".to_owned(),
        _ => key(rng),
    }
}

fn member(rng: &mut Rng) -> String {
    if rng.bool() { format!("m{}", rng.u8(..20)) } else { one(rng, &["", "a", "b", "aa", "B", "7", "nx", "\u{e9}"]) }
}

fn one(rng: &mut Rng, words: &[&str]) -> String {
    (*rng.choice(words).expect("there are some")).to_owned()
}

fn score(rng: &mut Rng) -> String {
    match rng.u8(..12) {
        0 => one(rng, &["inf", "-inf", "+inf", "0", "-0", "1e3", "0.5", "-1.25"]),
        1 => one(rng, &["", "x", "nan", "1x"]),
        _ => rng.i8(-10..10).to_string(),
    }
}

fn score_limit(rng: &mut Rng) -> String {
    let excluded = if rng.u8(..3) == 0 { "(" } else { "" };
    match rng.u8(..4) {
        0 => one(rng, &["-inf", "+inf", "inf", "(inf", "(-inf", "", "(", "((1", "a", "nan", " 1", "1 ", "1\0x"]),
        _ => format!("{excluded}{}", score(rng)),
    }
}

fn lex_limit(rng: &mut Rng) -> String {
    match rng.u8(..12) {
        0..=3 => one(rng, &["-", "+"]),
        4 => one(rng, &["", "a", "-a", "+a", "]a"]),
        5..=7 => format!("({}", member(rng)),
        _ => format!("[{}", member(rng)),
    }
}

fn rank(rng: &mut Rng) -> String {
    if rng.u8(..30) == 0 { one(rng, &["x", "", "1.5"]) } else { rng.i8(-12..12).to_string() }
}

/// Some of these options, in any order.
fn options(rng: &mut Rng, all: &[&str]) -> Vec<String> {
    let mut words = Vec::new();
    while rng.u8(..3) == 0 {
        words.extend(one(rng, all).split(' ').map(str::to_owned));
    }
    words
}

fn limit(rng: &mut Rng) -> Vec<String> {
    match rng.u8(..4) {
        0 => vec!["limit".to_owned(), rng.i8(-1..5).to_string(), rng.i8(-2..5).to_string()],
        _ => Vec::new(),
    }
}

fn any(rng: &mut Rng) -> Request {
    match rng.u8(..20) {
        0..=5 => members(rng),
        6..=10 => ranges(rng),
        11 | 12 => levels(rng),
        13..=15 => algebra(rng),
        16 => pops(rng),
        17 => random(rng),
        18 => scan(rng),
        _ => match rng.u8(..8) {
            0 => line("set text x"),
            2 => line("set other x"),
            1 => line(&format!("sadd plain{} a m1 m2 m{}", rng.u8(..2), rng.u8(..20))),
            _ => words(&["zcard"], [key(rng)]),
        },
    }
}

fn words(first: &[&str], rest: impl IntoIterator<Item = String>) -> Request {
    let first = first.iter().map(|word| (*word).to_owned());
    request(first.chain(rest).map(String::into_bytes).collect())
}

fn members(rng: &mut Rng) -> Request {
    let key = key(rng);
    match rng.u8(..12) {
        0..=5 => {
            let mut rest = vec![key];
            rest.extend(options(rng, &["nx", "xx", "gt", "lt", "ch", "CH", "incr"]));
            for _ in 0..rng.u8(1..4) {
                rest.extend([score(rng), member(rng)]);
            }
            words(&["zadd"], rest)
        }
        6 => words(&["zincrby"], [key, score(rng), member(rng)]),
        7 => words(&["zrem"], [key, member(rng), member(rng)]),
        8 => words(&["zscore"], [key, member(rng)]),
        9 => words(&["zmscore"], [key, member(rng), member(rng)]),
        10 => words(&["zrank"], [key, member(rng)]),
        _ => words(&["zrevrank"], [key, member(rng)]),
    }
}

fn ranges(rng: &mut Rng) -> Request {
    let key = key(rng);
    let with_scores = ["withscores", "rev", "x"];
    match rng.u8(..10) {
        0 => words(&["zrange", &key, &rank(rng), &rank(rng)], options(rng, &["withscores", "rev", "x", "limit 0 -1"])),
        1 => {
            let rest = [limit(rng), options(rng, &["withscores", "rev", "byscore", "bylex"])].concat();
            words(&["zrange", &key, &score_limit(rng), &score_limit(rng), "byscore"], rest)
        }
        2 => words(&["zrevrange", &key, &rank(rng), &rank(rng)], options(rng, &with_scores)),
        3 | 4 => {
            let name = one(rng, &["zrangebyscore", "zrevrangebyscore"]);
            let rest = [options(rng, &with_scores), limit(rng)].concat();
            words(&[&name, &key, &score_limit(rng), &score_limit(rng)], rest)
        }
        5 => words(&["zcount", &key, &score_limit(rng), &score_limit(rng)], []),
        6 => {
            let to = format!("z{}", rng.u8(..4));
            let rest = [limit(rng), options(rng, &["rev", "withscores"])].concat();
            words(&["zrangestore", &to, &key, &score_limit(rng), &score_limit(rng), "byscore"], rest)
        }
        7 => words(&["zrangestore", &key, &source(rng), &rank(rng), &rank(rng)], options(rng, &["rev"])),
        8 if rng.bool() => words(&["zremrangebyrank", &key, &rank(rng), &rank(rng)], []),
        8 => words(&["zremrangebyscore", &key, &score_limit(rng), &score_limit(rng)], []),
        _ => words(&["zrange", &key, "0", "-1", "withscores"], []),
    }
}

fn levels(rng: &mut Rng) -> Request {
    let key = level(rng);
    match rng.u8(..8) {
        0..=2 => words(&["zadd", &key, "0", &member(rng), "0", &member(rng)], []),
        3 => words(
            &["zrange", &key, &lex_limit(rng), &lex_limit(rng), "bylex"],
            [limit(rng), options(rng, &["rev"])].concat(),
        ),
        4 => words(&["zrangebylex", &key, &lex_limit(rng), &lex_limit(rng)], limit(rng)),
        5 => words(&["zrevrangebylex", &key, &lex_limit(rng), &lex_limit(rng)], limit(rng)),
        6 => words(&["zlexcount", &key, &lex_limit(rng), &lex_limit(rng)], []),
        _ => words(&["zremrangebylex", &key, &lex_limit(rng), &lex_limit(rng)], []),
    }
}

fn algebra(rng: &mut Rng) -> Request {
    let count = rng.usize(1..4);
    let name = one(rng, &["union", "inter", "diff"]);
    let mut rest = Vec::new();
    let name = if rng.u8(..4) == 0 {
        rest.push(format!("z{}", rng.u8(..4)));
        format!("z{name}store")
    } else if rng.u8(..6) == 0 {
        "zintercard".to_owned()
    } else {
        format!("z{name}")
    };
    rest.push(count.to_string());
    rest.extend((0..count).map(|_| source(rng)));
    if rng.u8(..4) == 0 {
        rest.push("weights".to_owned());
        rest.extend((0..count).map(|_| score(rng)));
    }
    let others = ["withscores", "withscores", "aggregate min", "aggregate max", "aggregate sum", "limit 2"];
    rest.extend(options(rng, &others));
    words(&[&name], rest)
}

fn pops(rng: &mut Rng) -> Request {
    let (key, name) = (key(rng), one(rng, &["zpopmin", "zpopmax"]));
    match rng.u8(..6) {
        0 => words(&[&name, &key], []),
        1 => words(&[&name, &key, &rng.i8(-1..4).to_string()], []),
        2 => words(&["zmpop", "2", "none", &key, &one(rng, &["min", "max"])], []),
        3 => words(&[&one(rng, &["bzpopmin", "bzpopmax"]), &key, "z0", "0.001"], []),
        4 => words(&["bzmpop", "0.001", "2", &key, "z0", "max", "count", &rng.i8(0..4).to_string()], []),
        _ => words(&["zmpop", "2", &key, "z0", "min", "count", &rng.i8(0..4).to_string()], []),
    }
}

/// A request on two sets that become large.
fn any_of_large(rng: &mut Rng) -> Request {
    let key = format!("large{}", rng.u8(..2));
    let score = |rng: &mut Rng| rng.i16(-999..999).to_string();
    let member = |rng: &mut Rng| format!("m{}", rng.u16(..3000));
    let far = |rng: &mut Rng| rng.i16(-2500..2500).to_string();
    match rng.u8(..40) {
        0..=19 => words(&["zadd", &key], (0..20).flat_map(|_| [score(rng), member(rng)]).collect::<Vec<_>>()),
        20 | 21 => words(&["zrem", &key, &member(rng), &member(rng)], []),
        22 | 23 => words(&["zincrby", &key, &score(rng), &member(rng)], []),
        24 | 25 => words(&["zrank", &key, &member(rng)], []),
        26 => words(&["zrevrank", &key, &member(rng)], []),
        27 => words(&["zmscore", &key, &member(rng), &member(rng)], []),
        28 | 36 | 37 if rng.u8(..5) > 0 => words(&["zscore", &key, &member(rng)], []),
        28 => words(&["zrange", &key, &far(rng), &far(rng), "withscores"], options(rng, &["rev"])),
        29 => words(&["zrangebyscore", &key, &score(rng), &score(rng), "withscores", "limit", "3", "200"], []),
        30 => words(&["zrevrangebyscore", &key, &score(rng), &score(rng), "limit", "100", "300"], []),
        31 => words(&["zcount", &key, &score(rng), &score(rng)], []),
        32 => {
            let from = rng.i16(-999..999);
            words(&["zremrangebyscore", &key, &from.to_string(), &(from + rng.i16(0..40)).to_string()], [])
        }
        33 => {
            let from = rng.i16(0..2500);
            words(&["zremrangebyrank", &key, &from.to_string(), &(from.saturating_add(rng.i16(0..90))).to_string()], [])
        }
        34 if rng.u8(..8) == 0 => words(&["zremrangebyrank", &key, &far(rng), &far(rng)], []),
        34 => words(&["zpopmin", &key, &rng.u8(..9).to_string()], []),
        35 => words(&["zpopmax", &key, &rng.u8(..9).to_string()], []),
        36 => {
            words(&["zinter", "2", "large0", "large1", "withscores"], options(rng, &["aggregate max", "weights 2 -3"]))
        }
        37 => {
            words(&["zunion", "2", "large0", "large1", "withscores"], options(rng, &["aggregate min", "weights 2 -3"]))
        }
        38 => words(&["zdiffstore", "out", "2", "large0", "large1"], []),
        _ => words(&["zcard", &key], []),
    }
}

/// A request for random members, of sets and counts for which the choice makes no difference.
fn random(rng: &mut Rng) -> Request {
    let (key, count) = (key(rng), one(rng, &["0", "1000", "x"]));
    let (order, scores) =
        if rng.bool() { (Order::Any, Vec::new()) } else { (Order::AnyOfPairs, vec!["withscores".to_owned()]) };
    Request { order, ..words(&["zrandmember", &key, &count], scores) }
}

/// A request for a scan, which answers few members all at once.
fn scan(rng: &mut Rng) -> Request {
    words(&["zscan", &key(rng), "0"], options(rng, &["match m*", "match *1", "count 3", "x"]))
}
