//! The commands of hashes.

use super::{Group, Spec, arity, counts, integer, len, read, scan::Scan, write};
use crate::{
    Error, Reply, Text,
    extended::Extended,
    keyspace::{Edited, KeyspaceMut, View},
    value::Hash,
};

pub(super) const COMMANDS: &[Spec] = &Group("hash").of([
    write("hset", -4, |keys, words| set_all(keys, words).map(Reply::count)).doc("2.0.0", "Sets fields.").fast(),
    write("hsetnx", 4, hsetnx).doc("2.0.0", "Sets a field that does not exist.").fast(),
    write("hmset", -4, |keys, words| set_all(keys, words).map(|_| Reply::OK))
        .doc("2.0.0", "Sets fields, and counts none.")
        .fast(),
    read("hget", 3, hget).doc("2.0.0", "Returns the value of a field.").fast(),
    read("hmget", -3, hmget).doc("2.0.0", "Returns the values of fields.").fast(),
    read("hgetall", 2, hgetall).doc("2.0.0", "Returns all fields and their values."),
    write("hdel", -3, hdel).doc("2.0.0", "Removes fields.").fast(),
    read("hexists", 3, hexists).doc("2.0.0", "Says whether a field exists.").fast(),
    read("hlen", 2, |keys, words| len(keys, words, Hash::len))
        .doc("2.0.0", "Returns how many fields there are.")
        .fast(),
    read("hkeys", 2, hkeys).doc("2.0.0", "Returns all fields."),
    read("hvals", 2, hvals).doc("2.0.0", "Returns the values of all fields."),
    read("hstrlen", 3, hstrlen).doc("3.2.0", "Returns how long a field's value is.").fast(),
    write("hincrby", 4, hincrby).doc("2.0.0", "Adds to the whole number in a field.").fast(),
    write("hincrbyfloat", 4, hincrbyfloat).doc("2.6.0", "Adds to the number in a field.").fast(),
    read("hrandfield", -2, hrandfield).doc("6.2.0", "Returns random fields."),
    read("hscan", -3, hscan).doc("2.8.0", "Walks over the fields in steps."),
]);

/// Sets fields. Returns the number of new ones.
fn set_all(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<usize, Error> {
    let (pairs, odd) = words[2..].as_chunks::<2>();
    if !odd.is_empty() {
        return Err(arity(words));
    }
    keys.edit(words[1], |hash: &mut Hash| {
        let new = pairs.iter().filter(|[field, value]| hash.set(field, Text::from(*value))).count();
        Ok(Edited::Changed(new))
    })
}

fn hsetnx(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    keys.edit(words[1], |hash: &mut Hash| {
        let sets = hash.get(words[2]).is_none() && hash.set(words[2], Text::from(words[3]));
        Ok(Edited::when(sets, Reply::whether(sets)))
    })
}

fn hget(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(value(keys, words)?.cloned().into())
}

fn hmget(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let hash = keys.typed::<Hash>(words[1])?;
    let value = |field: &&[u8]| hash.and_then(|hash| hash.get(field)).cloned().into();
    Ok(Reply::Array(words[2..].iter().map(value).collect()))
}

fn hgetall(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let pair = |(field, value): (&[u8], &Text)| (Reply::bytes(field), value.clone().into());
    Ok(Reply::Map(entries(keys, words)?.map(pair).collect()))
}

fn hdel(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    keys.edit(words[1], |hash: &mut Hash| {
        let removed = words[2..].iter().filter(|field| hash.remove(field)).count();
        Ok(Edited::when(removed > 0, Reply::count(removed)))
    })
}

fn hexists(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::whether(value(keys, words)?.is_some()))
}

fn hkeys(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::array_of_bytes(entries(keys, words)?.map(|(field, _)| field)))
}

fn hvals(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::Array(entries(keys, words)?.map(|(_, value)| value.clone().into()).collect()))
}

fn hstrlen(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::count(value(keys, words)?.map_or(0, Text::len)))
}

fn hincrby(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let by = integer(words[3])?;
    keys.edit(words[1], |hash: &mut Hash| {
        let old = hash.get(words[2]).map_or(Some(0), Text::integer);
        let old = old.ok_or(Error::fixed("ERR hash value is not an integer"))?;
        let sum = old.checked_add(by).ok_or(Error::OVERFLOW)?;
        hash.set(words[2], Text::Integer(sum));
        Ok(Edited::Changed(Reply::Integer(sum)))
    })
}

fn hincrbyfloat(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let by = Extended::parse(words[3]).ok_or(Error::NOT_A_FLOAT)?;
    if !by.is_finite() {
        return Err(Error::fixed("ERR value is NaN or Infinity"));
    }
    keys.edit(words[1], |hash: &mut Hash| {
        let old = hash.get(words[2]).map_or(Extended::parse(b"0"), |text| Extended::parse(&text.bytes()));
        let old = old.ok_or(Error::fixed("ERR hash value is not a float"))?;
        let sum = old.checked_add(by).ok_or(Error::fixed("ERR increment would produce NaN or Infinity"))?.to_string();
        hash.set(words[2], Text::from(sum.as_bytes()));
        Ok(Edited::Changed(Reply::bytes(sum)))
    })
}

fn hrandfield(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let Some((count, with_values)) = counts::with_option(&words[2..], "withvalues")? else {
        let hash = keys.typed::<Hash>(words[1])?;
        let field = hash.and_then(|hash| hash.at(fastrand::usize(..hash.len())));
        return Ok(field.map_or(Reply::Null, |(field, _)| Reply::bytes(field)));
    };
    let Some(hash) = keys.typed::<Hash>(words[1])? else { return Ok(Reply::Array(Vec::new())) };
    let places = counts::pick(count, hash.len(), |place| hash.at(place).map_or(0, |(field, _)| field.len()))?;
    let entries = places.into_iter().filter_map(|place| hash.at(place));
    Ok(if with_values {
        Reply::Pairs(entries.map(|(field, value)| (Reply::bytes(field), value.clone().into())).collect())
    } else {
        Reply::array_of_bytes(entries.map(|(field, _)| field))
    })
}

fn hscan(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let Some((hash, scan)) = Scan::of_value::<Hash>(keys, words)? else { return Ok(Scan::reply(0, Vec::new())) };
    let mut found = Vec::new();
    let next = scan.walk(hash.len(), |place| {
        let wanted = hash.at(place).filter(|(field, _)| scan.matches(field));
        found.extend(wanted.into_iter().flat_map(|(field, value)| [Reply::bytes(field), value.clone().into()]));
    });
    Ok(Scan::reply(next, found))
}

/// The value of the field that the third word names.
fn value<'a>(keys: &View<'a>, words: &[&[u8]]) -> Result<Option<&'a Text>, Error> {
    Ok(keys.typed::<Hash>(words[1])?.and_then(|hash| hash.get(words[2])))
}

/// All fields and their values.
fn entries<'a>(keys: &View<'a>, words: &[&[u8]]) -> Result<impl Iterator<Item = (&'a [u8], &'a Text)>, Error> {
    Ok(keys.typed::<Hash>(words[1])?.into_iter().flat_map(Hash::iter))
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn a_hash_without_fields_does_not_exist() {
        let mut shell = Shell::new();
        assert_eq!(shell.ask("hset h a 1 b 2"), ":2");
        assert_eq!(shell.ask("hdel h a b c"), ":2");
        assert_eq!(shell.ask("set h x"), "OK");
        assert_eq!(shell.ask("hget h a"), "-WRONGTYPE Operation against a key holding the wrong kind of value");
    }

    #[test]
    fn a_refused_change_leaves_no_field() {
        let mut shell = Shell::new();
        assert_eq!(shell.ask("hset h a x"), ":1");
        assert_eq!(shell.ask("hset h b 1 c"), "-ERR wrong number of arguments for 'hset' command");
        assert_eq!(shell.ask("hincrby h a 1"), "-ERR hash value is not an integer");
        assert_eq!(shell.ask("hincrbyfloat h a 1"), "-ERR hash value is not a float");
        assert_eq!(shell.ask("hincrbyfloat g a inf"), "-ERR value is NaN or Infinity");
        assert_eq!(shell.ask("hgetall h"), "{\"a\": \"x\"}");
        assert_eq!(shell.ask("hgetall g"), "{}");
    }

    #[test]
    fn random_fields_come_with_their_values() {
        let mut shell = Shell::new();
        shell.ask("hset h a 1");
        assert_eq!(shell.ask("hrandfield h"), "\"a\"");
        assert_eq!(shell.ask("hrandfield h 5"), "[\"a\"]");
        assert_eq!(shell.ask("hrandfield h -2 withvalues"), "{\"a\": \"1\", \"a\": \"1\"}");
        assert!(shell.ask("hrandfield h -4611686018427387903 withvalues").starts_with("-ERR value is out of range"));
    }

    #[test]
    fn a_walk_meets_every_field_that_stays() {
        let mut shell = Shell::new();
        (0..1000).for_each(|n| assert_eq!(shell.ask(&format!("hset h f{n} {n}")), ":1"));
        let (mut cursor, mut seen) = ("0".to_owned(), String::new());
        for step in 0.. {
            let page = shell.ask(&format!("hscan h {cursor} count 7"));
            cursor = page[2..].split('"').next().expect("the answer begins with the cursor").to_owned();
            seen += &page;
            if cursor == "0" {
                break;
            }
            shell.ask(&format!("hdel h f{}", 500 + step));
        }
        (0..500).for_each(|n| assert!(seen.contains(&format!("\"f{n}\", \"{n}\"")), "{n}"));
    }
}
