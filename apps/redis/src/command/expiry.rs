//! The commands of the expiry of keys.

use super::{Group, Spec, integer, is, name, read, write};
use crate::{
    Error, Reply,
    error::excerpt,
    keyspace::{KeyEntry, KeyspaceMut, View},
};

pub(super) const COMMANDS: &[Spec] = &Group("generic").of([
    write("expire", -3, |keys, words| set_expiry(keys, words, Clock::EX))
        .doc("1.0.0", "Sets in how many seconds a key expires.")
        .fast(),
    write("pexpire", -3, |keys, words| set_expiry(keys, words, Clock::PX))
        .doc("2.6.0", "Sets in how many milliseconds a key expires.")
        .fast(),
    write("expireat", -3, |keys, words| set_expiry(keys, words, Clock::EXAT))
        .doc("1.2.0", "Sets at which second a key expires.")
        .fast(),
    write("pexpireat", -3, |keys, words| set_expiry(keys, words, Clock::PXAT))
        .doc("2.6.0", "Sets at which millisecond a key expires.")
        .fast(),
    read("ttl", 2, ttl).doc("1.0.0", "Returns in how many seconds a key expires.").fast(),
    read("pttl", 2, pttl).doc("2.6.0", "Returns in how many milliseconds a key expires.").fast(),
    read("expiretime", 2, expiretime).doc("7.0.0", "Returns at which second a key expires.").fast(),
    read("pexpiretime", 2, pexpiretime).doc("7.0.0", "Returns at which millisecond a key expires.").fast(),
    write("persist", 2, persist).doc("2.2.0", "Makes a key that expires one that does not.").fast(),
]);

/// The unit and the origin of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    unit_ms: i64,
    /// Whether it counts from now; if not, from 1970.
    from_now: bool,
}

impl Clock {
    /// Seconds from now.
    pub(super) const EX: Clock = Clock { unit_ms: 1000, from_now: true };
    /// Milliseconds from now.
    pub(super) const PX: Clock = Clock { unit_ms: 1, from_now: true };
    /// Seconds since 1970.
    pub(super) const EXAT: Clock = Clock { unit_ms: 1000, from_now: false };
    /// Milliseconds since 1970.
    pub(super) const PXAT: Clock = Clock { unit_ms: 1, from_now: false };

    /// The clock that an option names.
    pub(super) fn of_option(word: &[u8]) -> Option<Clock> {
        let clocks = [("ex", Clock::EX), ("px", Clock::PX), ("exat", Clock::EXAT), ("pxat", Clock::PXAT)];
        clocks.into_iter().find_map(|(option, clock)| is(word, option).then_some(clock))
    }

    /// Reads an expiry, and returns it in milliseconds since 1970. Refuses 0, and less.
    pub(super) fn expiry_ms(self, word: &[u8], now_ms: u64, words: &[&[u8]]) -> Result<u64, Error> {
        let time = integer(word)?;
        let expires_ms = if time > 0 { self.to_ms(time, now_ms) } else { None };
        expires_ms.map(i64::unsigned_abs).ok_or_else(|| invalid(words))
    }

    /// A time in milliseconds since 1970. `None` if it does not fit into 64 bits.
    fn to_ms(self, time: i64, now_ms: u64) -> Option<i64> {
        let start = if self.from_now { i64::try_from(now_ms).ok()? } else { 0 };
        time.checked_mul(self.unit_ms)?.checked_add(start)
    }
}

fn invalid(words: &[&[u8]]) -> Error {
    Error::new(format!("ERR invalid expire time in '{}' command", name(words)))
}

fn set_expiry(keys: &mut KeyspaceMut<'_>, words: &[&[u8]], clock: Clock) -> Result<Reply, Error> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in &words[3..] {
        let options = [("nx", &mut nx), ("xx", &mut xx), ("gt", &mut gt), ("lt", &mut lt)];
        let Some((_, given)) = options.into_iter().find(|(option, _)| is(word, option)) else {
            return Err(Error::new(format!("ERR Unsupported option {}", excerpt(word))));
        };
        *given = true;
    }
    if nx && (xx || gt || lt) {
        return Err(Error::fixed("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if gt && lt {
        return Err(Error::fixed("ERR GT and LT options at the same time are not compatible"));
    }
    let expires_ms = clock.to_ms(integer(words[2])?, keys.now_ms()).ok_or_else(|| invalid(words))?;
    // A time before 1970 has passed, as 1970 has.
    let expires_ms = expires_ms.max(0).unsigned_abs();
    let view = keys.view();
    let Some(entry) = view.entry(words[1]) else { return Ok(Reply::whether(false)) };
    let wanted = match entry.expires_ms() {
        None => !xx && !gt,
        Some(old_ms) => !nx && (!gt || expires_ms > old_ms) && (!lt || expires_ms < old_ms),
    };
    if wanted {
        keys.set_expiry(words[1], Some(expires_ms));
    }
    Ok(Reply::whether(wanted))
}

fn ttl(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(expiry(keys, words[1], |at_ms| seconds(at_ms - keys.now_ms())))
}

fn pttl(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(expiry(keys, words[1], |at_ms| at_ms - keys.now_ms()))
}

fn expiretime(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(expiry(keys, words[1], seconds))
}

fn pexpiretime(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(expiry(keys, words[1], |at_ms| at_ms))
}

/// A key's expiry as an answer: -1 if it has none, -2 if the key does not exist.
fn expiry(keys: &View<'_>, key: &[u8], show: impl FnOnce(u64) -> u64) -> Reply {
    let Some(entry) = keys.entry(key) else { return Reply::Integer(-2) };
    entry.expires_ms().map_or(Reply::Integer(-1), |at_ms| Reply::Integer(show(at_ms) as i64))
}

/// The nearest second.
fn seconds(ms: u64) -> u64 {
    (ms + 500) / 1000
}

fn persist(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let expires = keys.view().entry(words[1]).and_then(KeyEntry::expires_ms).is_some();
    Ok(Reply::whether(expires && keys.set_expiry(words[1], None)))
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn a_key_expires_when_its_time_has_come() {
        let mut shell = Shell::new();
        shell.ask("set k v");
        assert_eq!(shell.ask("expire k 10"), ":1");
        shell.now_ms += 9_400;
        assert_eq!((shell.ask("ttl k"), shell.ask("pttl k")), (":1".to_owned(), ":600".to_owned()));
        shell.now_ms += 599;
        assert_eq!((shell.ask("ttl k"), shell.ask("exists k")), (":0".to_owned(), ":1".to_owned()));
        shell.now_ms += 1;
        assert_eq!((shell.ask("ttl k"), shell.ask("exists k")), (":-2".to_owned(), ":0".to_owned()));
    }

    #[test]
    fn a_key_that_persists_does_not_expire() {
        let mut shell = Shell::new();
        shell.ask("setex k 10 v");
        assert_eq!(shell.ask("persist k"), ":1");
        assert_eq!(shell.ask("persist k"), ":0");
        shell.now_ms += 10_000;
        assert_eq!(shell.ask("get k"), "\"v\"");
    }

    #[test]
    fn a_time_in_the_past_removes_the_key() {
        let mut shell = Shell::new();
        for command in ["expire k 0", "expire k -1", "pexpireat k 1", "expireat k -1", "pexpire k -9223372036854775808"]
        {
            shell.ask("set k v");
            assert_eq!(shell.ask(command), ":1", "{command}");
            assert_eq!(shell.ask("exists k"), ":0", "{command}");
        }
    }

    #[test]
    fn a_time_that_64_bits_cannot_hold_is_refused() {
        let mut shell = Shell::new();
        shell.ask("set k v");
        for (name, time) in [("expire", i64::MAX / 1000), ("expireat", i64::MAX / 1000 + 1), ("pexpire", i64::MAX)] {
            let refused = format!("-ERR invalid expire time in '{name}' command");
            assert_eq!(shell.ask(&format!("{name} k {time}")), refused);
        }
        assert_eq!(shell.ask("pexpireat k 9223372036854775807"), ":1");
        assert_eq!(shell.ask("pexpiretime k"), ":9223372036854775807");
        assert_eq!(shell.ask("expiretime k"), ":9223372036854776");
    }
}
