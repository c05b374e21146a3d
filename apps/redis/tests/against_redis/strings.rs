use fastrand::Rng;

use crate::{Order, Request, any_type, compare, key, line, near, request, word};

#[test]
fn strings() {
    let fixed = [
        "set a 1",
        "get a b",
        "set a 1 ex 10 ex 20",
        "set a 1 ex 10 px 20",
        "set a 1 ex",
        "set a 1 nx xx",
        "set a 1 ex 10 keepttl",
        "set a 1 persist",
        "set a 1 ex 9223372036854775807",
        "set a 1 px 9223372036854775807",
        "set b 1 nx get",
        "set b 2 nx get",
        "get b",
        "set c 2 xx get",
        "setex a 0 x",
        "psetex a -1 x",
        "setex a x x",
        "getex a keepttl",
        "getex a ex 0",
        "getex absent ex 0",
        "getex absent ex",
        "mset a 1 b",
        "msetnx a 1 b",
        "getrange a -1 -2",
        "getrange a -100 -90",
        "getrange a 9223372036854775807 -9223372036854775808",
        "setrange a -1 x",
        "setrange a 536870912 x",
        "setrange a 536870912 ",
        "setrange absent 5 ",
        "get absent",
    ];
    compare(&fixed, any);
}

#[test]
fn numbers() {
    let fixed = [
        "set a 1",
        "incr a",
        "decrby a x",
        "decrby a -9223372036854775808",
        "incrby a 9223372036854775807",
        "set a x",
        "incr a",
        "set a ",
        "incr a",
        "incrbyfloat a 1",
        "set a 1e400",
        "incrbyfloat a 1",
        "incrbyfloat a 1e4932",
        "set a inf",
        "incrbyfloat a 1",
        "incrbyfloat a x",
        "set a 3.0e3",
        "incrbyfloat a 1e-5000",
        "incrbyfloat a 1e5000",
        "incrbyfloat a nan",
        "incrbyfloat a  1",
        "incrbyfloat a -inf",
    ];
    compare(&fixed, any_number);
}

#[test]
fn bits() {
    let fixed = [
        "setbit a 7 1",
        "setbit a 7 2",
        "setbit a 7 x",
        "setbit a x 1",
        "setbit a -1 1",
        "setbit a 4294967296 1",
        "getbit a 4294967296",
        "getbit a -1",
        "bitcount a 0",
        "bitcount a 0 x",
        "bitcount a 0 -1 bits",
        "bitcount a 0 -1 bit byte",
        "bitpos a 2",
        "bitpos a x",
        "bitpos a 0 1 2 bits",
        "bitpos a 0 1 2 bit byte",
        "bitpos absent 0",
        "bitpos absent 1",
        "bitop not b a a",
        "bitop nor b a",
        "bitop and b",
        "bitop AND b absent",
        "rpush list x",
        "bitop or b a list",
        "bitop or list a absent a",
        "get list",
        "bitfield a",
        "bitfield a get",
        "bitfield a get u8",
        "bitfield a get u64 0",
        "bitfield a get u0 0",
        "bitfield a get i65 0",
        "bitfield a get x8 0",
        "bitfield a get u 0",
        "bitfield a get u8 x",
        "bitfield a get u8 -1",
        "bitfield a get u8 #x",
        "bitfield a get u8 4294967296",
        "bitfield a get u8 0 0",
        "bitfield a set u8 0 x",
        "bitfield a set u8 0",
        "bitfield a overflow",
        "bitfield a overflow up get u8 0",
        "bitfield a overflow wrap",
        "bitfield absent get u8 0 get i63 100",
        "bitfield absent overflow fail set u4 #1 16 incrby i4 0 8",
        "get absent",
        "bitfield_ro a set u8 0 1",
        "bitfield_ro a get i64 3",
        "rpush l x",
        "bitfield l get u8 0",
        "bitfield l set u8 0 1",
    ];
    compare(&fixed, any_bit);
}

fn text(of: impl ToString) -> Vec<u8> {
    of.to_string().into_bytes()
}

/// A time for one of the options; rarely one that is refused, or that has long passed.
pub(crate) fn time(rng: &mut Rng, option: &str) -> Vec<u8> {
    match rng.u8(..20) {
        0 => return text(rng.choice(["0", "-1", "x", "9223372036854775807", "9223372036854776"]).expect("some")),
        1 if option.ends_with("at") => return text("1"),
        _ => {}
    }
    // Far ahead, and far from one another, so that the moment at which a server is asked makes no difference.
    let seconds = rng.i64(1..1_000_000) * 1000;
    let since_1970 = 4_000_000_000 + rng.i64(0..1_000_000) * 1000;
    let ms = rng.i64(0..1000);
    match option {
        "ex" => text(seconds),
        "px" => text(seconds * 1000 + ms),
        "exat" => text(since_1970),
        _ => text(since_1970 * 1000 + ms),
    }
}

fn expiry_option(rng: &mut Rng) -> Vec<Vec<u8>> {
    let option = rng.choice(["ex", "px", "exat", "PXAT"]).expect("some");
    vec![text(option), time(rng, &option.to_lowercase())]
}

fn index(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..20) {
        0 => text(rng.choice(["x", "9223372036854775807", "-9223372036854775808", ""]).expect("some")),
        1 => text(rng.i64(..)),
        _ => text(rng.i8(-12..30)),
    }
}

fn content(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..8) {
        0 => b"y".repeat(rng.usize(..100)),
        _ => word(rng),
    }
}

fn any(rng: &mut Rng) -> Request {
    if rng.u8(..20) == 0 {
        return any_type(rng);
    }
    let (key, value) = (key(rng), content(rng));
    let name = [
        "get", "get", "set", "set", "set", "setnx", "setex", "psetex", "getset", "getdel", "getex", "getex",
        "getrange", "substr", "setrange", "append", "strlen", "incr", "mget", "mset", "msetnx", "ttl", "pttl", "del",
        "encoding",
    ];
    let name = *rng.choice(&name).expect("some");
    let mut words = vec![text(name), key];
    match name {
        "set" => {
            words.push(value);
            for _ in 0..rng.u8(..4) {
                match rng.u8(..6) {
                    0 => words.push(text("nx")),
                    1 => words.push(text("XX")),
                    2 => words.push(text("get")),
                    3 => words.push(text("KeepTTL")),
                    _ => words.extend(expiry_option(rng)),
                }
            }
        }
        "setex" => words.extend([time(rng, "ex"), value]),
        "psetex" => words.extend([time(rng, "px"), value]),
        "setnx" | "getset" | "append" => words.push(value),
        "getex" => match rng.u8(..3) {
            0 => words.push(text("persist")),
            1 => words.extend(expiry_option(rng)),
            _ => {}
        },
        "getrange" | "substr" => words.extend([index(rng), index(rng)]),
        // Not far beyond the end: the value would be compared again and again.
        "setrange" => words.extend([text(rng.i8(-2..100)), value]),
        "mget" => words.extend((0..rng.usize(..4)).map(|_| crate::key(rng))),
        "mset" | "msetnx" => {
            words.push(value);
            for _ in 0..rng.u8(..3) {
                words.extend([crate::key(rng), word(rng)]);
            }
            words.truncate(words.len() - usize::from(rng.u8(..20) == 0));
        }
        "encoding" => {
            words.splice(..1, [text("object"), text(name)]);
            return Request { words, order: Order::Encoding };
        }
        "ttl" | "pttl" => return near(words),
        _ => {}
    }
    request(words)
}

fn number(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..10) {
        0 => word(rng),
        1 => text(rng.i64(..)),
        2 => text(rng.i32(..)),
        3 => text(format!("{}e{}", rng.i32(..), rng.i8(-30..40))),
        4 => text(format!("{}.{}", rng.i16(..), rng.u64(..))),
        5 => text(format!("{:e}", f64::from_bits(rng.u64(..)))),
        6 => text(format!("{}{}", rng.u64(..), "0".repeat(rng.usize(..60)))),
        _ => text(f64::from(rng.i16(..)) / 100.0),
    }
}

fn any_number(rng: &mut Rng) -> Request {
    if rng.u8(..20) == 0 {
        return any_type(rng);
    }
    let key = key(rng);
    let names = ["incr", "decr", "incrby", "decrby", "incrbyfloat", "incrbyfloat", "incrbyfloat", "set", "get"];
    let name = *rng.choice(&names).expect("some");
    let mut words = vec![text(name), key];
    if !matches!(name, "incr" | "decr" | "get") {
        words.push(number(rng));
    }
    Request { words, order: Order::SameToTheByte }
}

fn any_bit(rng: &mut Rng) -> Request {
    if rng.u8(..20) == 0 {
        return any_type(rng);
    }
    let key = key(rng);
    let bit = |rng: &mut Rng| text(rng.u8(..2));
    let unit = |rng: &mut Rng| text(rng.choice(["bit", "BYTE"]).expect("some"));
    match rng.u8(..16) {
        12 => {
            let name = rng.choice(["and", "OR", "xor", "not"]).expect("some");
            let mut words = vec![text("bitop"), text(name), key];
            words.extend((0..rng.usize(1..5)).map(|_| crate::key(rng)));
            request(words)
        }
        13..15 => fields("bitfield", key, rng),
        15 => fields("bitfield_ro", key, rng),
        0 => request(vec![text("set"), key, b"\xff".repeat(rng.usize(..20))]),
        1 => request(vec![text("set"), key, content(rng)]),
        2 => request(vec![text("del"), key]),
        3 => request(vec![text("get"), key]),
        4..7 => request(vec![text("setbit"), key, text(rng.u8(..200)), bit(rng)]),
        7 => request(vec![text("getbit"), key, text(rng.u8(..250))]),
        8 => request(vec![text("bitcount"), key]),
        9 => request(vec![text("bitcount"), key, index(rng), index(rng), unit(rng)]),
        10 => {
            let mut words = vec![text("bitpos"), key, bit(rng)];
            words.extend((0..rng.u8(..3)).map(|_| index(rng)));
            request(words)
        }
        _ => request(vec![text("bitpos"), key, bit(rng), index(rng), index(rng), unit(rng)]),
    }
}

/// A request for numbers of some bits.
fn fields(name: &str, key: Vec<u8>, rng: &mut Rng) -> Request {
    let mut words = vec![text(name), key];
    for _ in 0..rng.u8(..4) {
        let kind = text(format!("{}{}", rng.choice(["i", "u"]).expect("some"), rng.u8(1..66)));
        let hash = if rng.bool() { "#" } else { "" };
        let offset = text(format!("{hash}{}", rng.u8(..90)));
        let number = match rng.u8(..3) {
            0 => rng.i64(..),
            1 => rng.i64(..) >> rng.u8(..64),
            _ => rng.i8(..).into(),
        };
        match rng.u8(..if name == "bitfield" { 5 } else { 1 }) {
            0 => words.extend([text("GET"), kind, offset]),
            // Redis 7.0 takes numbers near the least for ones that are too large: their distance to the largest that
            // fits has 65 bits there.
            1 => words.extend([text("set"), kind, offset, text(number >> 1)]),
            2 | 3 => words.extend([text("IncrBy"), kind, offset, text(number)]),
            _ => words.extend([text("overflow"), text(rng.choice(["wrap", "SAT", "fail"]).expect("some"))]),
        }
    }
    request(words)
}

#[test]
fn a_long_number_is_written_as_in_redis() {
    // Few steps: the answers are long.
    let sums = ["set a 1e4900", "incrbyfloat a 1e4899", "incrbyfloat a -9.99e4899", "incrbyfloat a 0.5", "get a"];
    compare(&sums, |_| line("dbsize"));
}
