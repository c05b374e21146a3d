use fastrand::Rng;

use crate::{Request, any_type, compare, key, request};

#[test]
fn longest_common_subsequences() {
    let fixed = [
        "mset a ohmytext b mynewtext n 12345",
        "lcs a b",
        "lcs a",
        "lcs a b LEN",
        "lcs a b idx",
        "lcs a b IDX withmatchlen",
        "lcs a b idx minmatchlen 4",
        "lcs a b idx minmatchlen 0",
        "lcs a b idx minmatchlen -1",
        "lcs a b idx minmatchlen x",
        "lcs a b idx minmatchlen",
        "lcs a b len idx",
        "lcs a b matches",
        "lcs a absent",
        "lcs absent absent idx",
        "lcs n n idx withmatchlen",
        "rpush l x",
        "lcs a l",
        "lcs l a what",
    ];
    compare(&fixed, any);
}

fn any(rng: &mut Rng) -> Request {
    if rng.u8(..20) == 0 {
        return any_type(rng);
    }
    let name = |name: &str| name.as_bytes().to_vec();
    if rng.u8(..3) == 0 {
        let letters = rng.u8(1..4);
        let text = (0..rng.usize(..30)).map(|_| b'a' + rng.u8(..letters)).collect();
        return request(vec![name("set"), key(rng), text]);
    }
    let mut words = vec![name("lcs"), key(rng), key(rng)];
    match rng.u8(..4) {
        0 => {}
        1 => words.push(name("len")),
        _ => words.push(name("idx")),
    }
    if rng.bool() {
        words.push(name("withmatchlen"));
    }
    if rng.bool() {
        words.extend([name("minmatchlen"), rng.i8(-1..5).to_string().into_bytes()]);
    }
    request(words)
}
