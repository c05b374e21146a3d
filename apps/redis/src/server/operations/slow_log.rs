//! `SLOWLOG`: the latest requests that took long.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::super::lock;
use crate::{Error, Reply, command::Spec, number::integer};

/// The most words of a request that are kept, and the most bytes of each, as in Redis.
const MAX_WORDS: usize = 32;
const MAX_WORD_BYTES: usize = 128;

/// The number of entries that `SLOWLOG GET` answers by default.
const SHOWN: usize = 10;

const HELP: [&str; 12] = [
    "SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET [<count>]",
    "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
    "    Entries are made of:",
    "    id, timestamp, time in microseconds, arguments array, client IP and port,",
    "    client name",
    "LEN",
    "    Return the length of the slowlog.",
    "RESET",
    "    Reset the slowlog.",
    "HELP",
    "    Prints this help.",
];

/// The latest requests that took long.
#[derive(Debug)]
pub(in crate::server) struct SlowLog {
    /// The time from which a request counts as slow, in microseconds; negative if none does.
    slower_than_us: AtomicI64,
    max_len: AtomicUsize,
    entries: Mutex<Entries>,
}

/// The entries, the newest first.
#[derive(Debug, Default)]
struct Entries {
    next_id: i64,
    all: VecDeque<SlowRequest>,
}

#[derive(Debug)]
struct SlowRequest {
    id: i64,
    at_s: u64,
    took: Duration,
    words: Vec<Box<[u8]>>,
    peer: String,
    name: String,
}

/// The words of a request, each cut to the bytes that the log shows. They are written one after the other, as in
/// [`words`](crate::words), each with its full length.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Excerpt {
    /// The number of all words.
    words: u32,
    /// The bytes that were written.
    pub(in crate::server) bytes: u32,
}

impl Excerpt {
    /// An excerpt of nothing.
    pub(in crate::server) const NONE: Excerpt = Excerpt { words: 0, bytes: 0 };

    /// Writes a request's words, which are `request` if it is short.
    pub(in crate::server) fn write(request: &[u8], words: &[&[u8]], to: &mut Vec<u8>) -> Excerpt {
        if request.len() <= MAX_WORD_BYTES {
            to.extend_from_slice(request);
            return Excerpt { words: words.len() as u32, bytes: request.len() as u32 };
        }
        let before = to.len();
        for word in words.iter().take(MAX_WORDS) {
            to.extend_from_slice(&(word.len() as u32).to_le_bytes());
            to.extend_from_slice(&word[..word.len().min(MAX_WORD_BYTES)]);
        }
        Excerpt { words: words.len() as u32, bytes: (to.len() - before) as u32 }
    }

    /// The words as the log shows them. `from` begins with what was written.
    fn read(self, from: &[u8]) -> Vec<Box<[u8]>> {
        let mut rest = &from[..self.bytes as usize];
        let mut words = Vec::new();
        while let Some((length, bytes)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            let (shown, bytes) = bytes.split_at(length.min(MAX_WORD_BYTES));
            rest = bytes;
            let mut word = shown.to_vec();
            if length > MAX_WORD_BYTES {
                word.extend_from_slice(format!("... ({} more bytes)", length - MAX_WORD_BYTES).as_bytes());
            }
            words.push(word.into());
        }
        let count = self.words as usize;
        if count > MAX_WORDS {
            words.truncate(MAX_WORDS);
            let more = format!("... ({} more arguments)", count - MAX_WORDS + 1);
            words[MAX_WORDS - 1] = more.into_bytes().into();
        }
        words
    }
}

/// Slow requests of one client, in their order, until they are in the log.
#[derive(Debug, Default)]
pub(in crate::server) struct SlowRequests {
    /// The excerpts of all of them.
    excerpts: Vec<u8>,
    all: Vec<(Excerpt, Duration)>,
}

impl SlowRequests {
    pub(in crate::server) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a request. `from` begins with its excerpt.
    pub(in crate::server) fn push(&mut self, took: Duration, excerpt: Excerpt, from: &[u8]) {
        self.excerpts.extend_from_slice(&from[..excerpt.bytes as usize]);
        self.all.push((excerpt, took));
    }
}

impl SlowLog {
    /// A log of at most `max_len` requests that took `slower_than_us` microseconds or longer.
    pub(in crate::server) fn new(slower_than_us: i64, max_len: usize) -> SlowLog {
        SlowLog { slower_than_us: slower_than_us.into(), max_len: max_len.into(), entries: Mutex::default() }
    }

    pub(in crate::server) fn slower_than_us(&self) -> i64 {
        self.slower_than_us.load(Ordering::Relaxed)
    }

    pub(in crate::server) fn set_slower_than_us(&self, us: i64) {
        self.slower_than_us.store(us, Ordering::Relaxed);
    }

    pub(in crate::server) fn max_len(&self) -> usize {
        self.max_len.load(Ordering::Relaxed)
    }

    pub(in crate::server) fn set_max_len(&self, max_len: usize) {
        self.max_len.store(max_len, Ordering::Relaxed);
        lock(&self.entries).all.truncate(max_len);
    }

    /// Whether a request that took so long belongs in the log.
    pub(in crate::server) fn is_slow(&self, spec: &Spec, took: Duration) -> bool {
        u128::try_from(self.slower_than_us()).is_ok_and(|least| took.as_micros() >= least) && !spec.flags.is_blocking
    }

    /// Adds requests of a client, at a time since 1970.
    pub(in crate::server) fn add(&self, at: Duration, slow: SlowRequests, (peer, name): (String, String)) {
        let max_len = self.max_len();
        // Those that the later ones would push out need not be read.
        let pushed_out = slow.all.len().saturating_sub(max_len);
        let mut from = &slow.excerpts[..];
        let mut entries = lock(&self.entries);
        for (place, (excerpt, took)) in slow.all.into_iter().enumerate() {
            let id = entries.next_id;
            entries.next_id += 1;
            if place >= pushed_out {
                let (words, peer, name) = (excerpt.read(from), peer.clone(), name.clone());
                entries.all.push_front(SlowRequest { id, at_s: at.as_secs(), took, words, peer, name });
            }
            from = &from[excerpt.bytes as usize..];
        }
        entries.all.truncate(max_len);
    }

    /// Answers `SLOWLOG ...`, of at least two words.
    pub(in crate::server) fn answer(&self, words: &[&[u8]]) -> Result<Reply, Error> {
        match (&*words[1].to_ascii_lowercase(), &words[2..]) {
            (b"get", []) => Ok(self.newest(SHOWN)),
            (b"get", [count]) => match integer(count) {
                Some(-1) => Ok(self.newest(usize::MAX)),
                Some(count @ 0..) => Ok(self.newest(count as usize)),
                _ => Err(Error::fixed("ERR count should be greater than or equal to -1")),
            },
            (b"len", []) => Ok(Reply::count(lock(&self.entries).all.len())),
            (b"reset", []) => {
                lock(&self.entries).all.clear();
                Ok(Reply::OK)
            }
            (b"help", []) => Ok(Reply::Array(HELP.map(Reply::status).into())),
            (b"get", _) => Err(Error::wrong_subcommand("SLOWLOG", words[1])),
            (name @ (b"len" | b"reset" | b"help"), _) => {
                Err(Error::arity(&format!("slowlog|{}", String::from_utf8_lossy(name))))
            }
            _ => Err(Error::unknown_subcommand("SLOWLOG", words[1])),
        }
    }

    fn newest(&self, count: usize) -> Reply {
        let entries = lock(&self.entries);
        let shown = entries.all.iter().take(count).map(|entry| {
            Reply::Array(vec![
                Reply::Integer(entry.id),
                Reply::Integer(entry.at_s.cast_signed()),
                Reply::Integer(entry.took.as_micros() as i64),
                Reply::array_of_bytes(&entry.words),
                Reply::bytes(&entry.peer),
                Reply::bytes(&entry.name),
            ])
        });
        Reply::Array(shown.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{command::find, testing::show};

    const AT: Duration = Duration::from_secs(1_700_000_000);

    fn add(log: &SlowLog, took: Duration, words: &[&[u8]]) {
        add_all(log, took, &[words]);
    }

    fn add_all(log: &SlowLog, took: Duration, requests: &[&[&[u8]]]) {
        let mut slow = SlowRequests::default();
        for words in requests {
            let mut kept = Vec::new();
            let excerpt = Excerpt::write(&crate::words::join(*words), words, &mut kept);
            // What other requests have written follows.
            kept.extend(b"other");
            slow.push(took, excerpt, &kept);
        }
        log.add(AT, slow, ("127.0.0.1:1".to_owned(), "me".to_owned()));
    }

    fn ask(log: &SlowLog, line: &str) -> String {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        show(&log.answer(&words).into())
    }

    #[test]
    fn the_newest_entries_stay_and_come_first() {
        let log = SlowLog::new(10_000, 2);
        for key in ["a", "b", "c"] {
            add(&log, Duration::from_millis(12), &[b"get", key.as_bytes()]);
        }
        let entry = |id, key| format!(r#"[:{id}, :1700000000, :12000, ["get", "{key}"], "127.0.0.1:1", "me"]"#);
        assert_eq!(ask(&log, "slowlog get"), format!("[{}, {}]", entry(2, "c"), entry(1, "b")));
        assert_eq!(ask(&log, "slowlog get 1"), format!("[{}]", entry(2, "c")));
        assert_eq!((ask(&log, "slowlog get 0"), ask(&log, "slowlog len")), ("[]".to_owned(), ":2".to_owned()));
        add_all(&log, Duration::from_millis(12), &[&[b"get", b"d"], &[b"get", b"e"], &[b"get", b"f"]]);
        assert_eq!(ask(&log, "slowlog get"), format!("[{}, {}]", entry(5, "f"), entry(4, "e")));
        log.set_max_len(1);
        assert_eq!(ask(&log, "SLOWLOG LEN"), ":1");
        assert_eq!((ask(&log, "slowlog reset"), ask(&log, "slowlog get -1")), ("OK".to_owned(), "[]".to_owned()));
        log.set_max_len(0);
        add(&log, Duration::from_millis(12), &[b"get", b"d"]);
        assert_eq!(ask(&log, "slowlog len"), ":0");
    }

    #[test]
    fn long_requests_are_cut_as_redis_cuts_them() {
        let log = SlowLog::new(0, 10);
        let long = [b'x'; 200];
        let mut words: Vec<&[u8]> = vec![b"set", &long];
        add(&log, AT, &words);
        let shown = ask(&log, "slowlog get 1");
        assert!(shown.contains(&format!("{}... (72 more bytes)\"]", "x".repeat(128))), "{shown}");
        words.extend([&b"word"[..]; 40]);
        add(&log, AT, &words);
        let shown = ask(&log, "slowlog get 1");
        assert!(shown.contains(r#""word", "... (11 more arguments)"]"#), "{shown}");
        assert_eq!(shown.matches("\"word\"").count(), 29, "31 words are shown in all");
        let mut kept = Vec::new();
        let huge = vec![b'x'; 10 << 20];
        assert!(Excerpt::write(&huge, &vec![&huge[..]; 1000], &mut kept).bytes < 5000);
        add(&log, AT, &[&b""[..]; 32]);
        assert_eq!(ask(&log, "slowlog get 1").matches("\"\"").count(), 32);
    }

    #[test]
    fn the_limit_of_time_can_be_off_or_zero() {
        let (get, none) = (find(b"get").expect("it is there"), Duration::ZERO);
        let log = SlowLog::new(-1, 1);
        assert!(!log.is_slow(get, Duration::MAX));
        log.set_slower_than_us(0);
        assert!(log.is_slow(get, none));
        log.set_slower_than_us(5);
        assert!(!log.is_slow(get, Duration::from_nanos(4999)) && log.is_slow(get, Duration::from_micros(5)));
    }
}
