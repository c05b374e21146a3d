use fastrand::Rng;

use crate::{Request, compare, key, request, word};

#[test]
fn lists() {
    let fixed = [
        "rpush l a b c 1 2 a b 007",
        "lpush l x y",
        "lpush l",
        "lpushx none x",
        "rpushx l z",
        "lrange l 0 -1",
        "lrange l -3 100",
        "lrange l 3 1",
        "lrange l x 1",
        "lrange none 0 -1",
        "lindex l -1",
        "lindex l 100",
        "lindex l -100",
        "lindex l x",
        "lindex none x",
        "lset l 100 x",
        "lset l -100 x",
        "lset l x x",
        "lset l -1 end",
        "lset none x x",
        "linsert l before a new",
        "linsert l AFTER 1 new",
        "linsert l after nothing new",
        "linsert l beside a new",
        "linsert none before a new",
        "lrem l x a",
        "lrem l -9223372036854775808 a",
        "lrem l -1 a",
        "lrem l 0 new",
        "lrange l 0 -1",
        "lpos l a rank 0",
        "lpos l a rank x",
        // The least number is refused by 7.2, but not by 7.0.
        "lpos l a count -1",
        "lpos l a count x",
        "lpos l a maxlen -1",
        "lpos l a rank",
        "lpos l a x 1",
        "lpos l b count 0",
        "lpos l b count 0 rank -1",
        "lpos l b rank 2",
        "lpos l b rank -9223372036854775807",
        "lpos l b count 1 maxlen 3 rank -1",
        "lpos none a",
        "lpos none a count 0",
        "lpop l 0",
        "lpop l -1",
        "lpop l x",
        "lpop l 1 2",
        "lpop none",
        "lpop none 0",
        "lpop none 2",
        "lpop l",
        "rpop l 2",
        "lmove l l left right",
        "lmove l m up right",
        "lmove none m left right",
        "lmove none m left x",
        "set text x",
        "lmove l text left left",
        "lmove none text left left",
        "lmove text l left left",
        "rpoplpush l m",
        "rpoplpush l l",
        "lmpop 0 l left",
        "lmpop x l left",
        "lmpop -1 l left",
        "lmpop 1 l",
        "lmpop 1 l up",
        "lmpop 2 l left",
        "lmpop 2 none l left count 0",
        "lmpop 2 none l left count x",
        "lmpop 2 none l left count",
        "lmpop 2 none l left count 2 count 3",
        "lmpop 2 none l left x 2",
        "lmpop 2 none l RIGHT COUNT 2",
        "lmpop 2 none l left",
        "lmpop 2 none text left",
        "lmpop 1 none left count 3",
        "lmpop 9223372036854775807 l left",
        "ltrim l 1 -2",
        "lrange l 0 -1",
        "ltrim l 5 1",
        "llen l",
        "ltrim l x 1",
        "ltrim none 0 1",
        "ltrim text 0 1",
        "set l x",
        "rpush w a b c d e f",
        "blpop none w 0",
        "brpop w none 0",
        "blpop none text w 0",
        "blpop none w text 0",
        "blpop w x",
        "blpop w nan",
        "blpop w -1",
        "blpop none 0.001",
        "blpop none none 0.001",
        "blpop none",
        "blmove w none left right 0",
        "blmove w text left right 0",
        "blmove text w left right 0",
        "blmove absent text left right 0.001",
        "blmove w none up right x",
        "blmove w none left right x",
        "blmove absent none left right 0.001",
        "brpoplpush absent none 0.001",
        "brpoplpush none none 0",
        "brpoplpush none none -1",
        "rpush w a b c d",
        "blmpop 0 1 w left",
        "blmpop 0 2 absent w RIGHT count 2",
        "blmpop 0.001 1 absent left count 10",
        "blmpop x 0 w left",
        "blmpop 0 0 w left",
        "blmpop 0 x w left",
        "blmpop 0 1 w up",
        "blmpop 0 2 w left",
        "blmpop 0 1 w left count 0",
        "blmpop 0 1 w left count 1 count 2",
        "blmpop 0 1 text left",
        "blmpop 0 2 absent text left",
    ];
    compare(&fixed, any);
}

fn any(rng: &mut Rng) -> Request {
    let some = rng.usize(0..5);
    let name = |name: &str| name.as_bytes().to_vec();
    let number = |rng: &mut Rng| rng.i8(-7..8).to_string().into_bytes();
    let side = |rng: &mut Rng| name(rng.choice(["left", "right", "up"]).expect("there are some"));
    let push = |text: &str, rng: &mut Rng| {
        let mut command = vec![name(text), key(rng)];
        command.extend((0..some).map(|_| word(rng)));
        command
    };
    let timeout = || name("0.001");
    request(match rng.u8(..31) {
        0 => push("lpush", rng),
        1 => push("rpush", rng),
        2 => push("lpushx", rng),
        3 => push("rpushx", rng),
        4 => vec![name("lpop"), key(rng)],
        5 => vec![name("rpop"), key(rng)],
        6 => vec![name("lpop"), key(rng), number(rng)],
        7 => vec![name("rpop"), key(rng), number(rng)],
        8 => vec![name("llen"), key(rng)],
        9..12 => vec![name("lrange"), key(rng), number(rng), number(rng)],
        12 => vec![name("lindex"), key(rng), number(rng)],
        13 => vec![name("lset"), key(rng), number(rng), word(rng)],
        14 => vec![name("linsert"), key(rng), name(if rng.bool() { "before" } else { "after" }), word(rng), word(rng)],
        15 => vec![name("lrem"), key(rng), number(rng), word(rng)],
        16 if rng.bool() => vec![name("ltrim"), key(rng), number(rng), number(rng)],
        17..20 => {
            let mut command = vec![name("lpos"), key(rng), word(rng)];
            for option in ["rank", "count", "maxlen"] {
                if rng.bool() {
                    command.extend([name(option), number(rng)]);
                }
            }
            command
        }
        20 | 21 => vec![name("lmove"), key(rng), key(rng), side(rng), side(rng)],
        22 => vec![name("rpoplpush"), key(rng), key(rng)],
        23 => {
            let mut command = vec![name("lmpop"), name("2"), key(rng), key(rng), side(rng)];
            if rng.bool() {
                command.extend([name("count"), number(rng)]);
            }
            command
        }
        26 => vec![name(rng.choice(["blpop", "brpop"]).expect("some")), key(rng), key(rng), timeout()],
        27 => vec![name("brpoplpush"), key(rng), key(rng), timeout()],
        28 => vec![name("blmove"), key(rng), key(rng), side(rng), side(rng), timeout()],
        29 => {
            let mut command = vec![name("blmpop"), timeout(), name("2"), key(rng), key(rng), side(rng)];
            if rng.bool() {
                command.extend([name("count"), number(rng)]);
            }
            command
        }
        24 if rng.u8(..10) == 0 => vec![name("set"), key(rng), word(rng)],
        25 if rng.u8(..20) == 0 => vec![name("flushall")],
        _ => vec![name("get"), key(rng)],
    })
}
