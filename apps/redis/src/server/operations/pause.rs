//! `CLIENT PAUSE`: requests that wait for a time.
//!
//! It pauses the clients of one server: requests wait there, and clients of other replicas go on.

use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::timeout_at};

use super::super::lock;
use crate::{Error, Reply, number::integer};

/// The requests that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum PauseMode {
    None,
    /// Those that may change the state, and transactions with such requests.
    Writes,
    All,
}

/// The pause of a server's clients.
#[derive(Debug, Default)]
pub(in crate::server) struct Pause {
    /// The mode, as a number: each request looks at it.
    mode: AtomicU8,
    end: Mutex<Option<Instant>>,
    /// The number of pauses that have ended. Another one may begin before it is noticed that one has.
    ended: AtomicU64,
    changed: Notify,
}

impl Pause {
    /// Whether a request waits.
    pub(in crate::server) fn holds(&self, is_write: bool) -> bool {
        let mode = self.mode.load(Ordering::Relaxed);
        mode != PauseMode::None as u8 && (is_write || mode == PauseMode::All as u8)
    }

    /// Begins a pause, until it is [ended](Pause::end) or `limit` has passed. Of two pauses the later end counts, and
    /// the mode that holds more.
    pub(in crate::server) fn begin(&self, mode: PauseMode, limit: Duration) {
        let mut end = lock(&self.end);
        // A time that no clock can count has no end.
        let asked = Instant::now().checked_add(limit);
        *end = match self.holds(true) {
            true => end.zip(asked).map(|(end, asked)| end.max(asked)),
            false => asked,
        };
        drop(end);
        self.mode.fetch_max(mode as u8, Ordering::Relaxed);
        self.changed.notify_one();
    }

    pub(in crate::server) fn end(&self) {
        self.mode.store(PauseMode::None as u8, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Ends each pause in time, for ever. Whenever one has ended, it calls `wake`, which lets the requests go on.
    pub(in crate::server) async fn watch(&self, wake: impl Fn()) {
        let mut known = 0;
        loop {
            let ended = self.ended.load(Ordering::Relaxed);
            if mem::replace(&mut known, ended) != ended {
                wake();
            }
            let end = *lock(&self.end);
            match end {
                Some(end) if self.holds(true) => {
                    let is_over = timeout_at(end.into(), self.changed.notified()).await.is_err();
                    // Another one may have begun meanwhile.
                    if is_over && lock(&self.end).is_some_and(|end| end <= Instant::now()) {
                        self.end();
                    }
                }
                _ => self.changed.notified().await,
            }
        }
    }

    /// Answers `CLIENT PAUSE ...` and `CLIENT UNPAUSE`; `None` for other requests.
    pub(in crate::server) fn answer(&self, words: &[&[u8]]) -> Option<Result<Reply, Error>> {
        let answer = match (&*words.get(1)?.to_ascii_lowercase(), &words[2..]) {
            (b"pause", [limit]) => self.pause(limit, PauseMode::All),
            (b"pause", [limit, mode]) => match &*mode.to_ascii_lowercase() {
                b"all" => self.pause(limit, PauseMode::All),
                b"write" => self.pause(limit, PauseMode::Writes),
                _ => Err(Error::fixed("ERR CLIENT PAUSE mode must be WRITE or ALL")),
            },
            (b"unpause", []) => {
                self.end();
                Ok(Reply::OK)
            }
            (b"pause", [_, _, _, ..]) => Err(Error::wrong_subcommand("CLIENT", words[1])),
            (name @ (b"pause" | b"unpause"), _) => {
                Err(Error::arity(&format!("client|{}", String::from_utf8_lossy(name))))
            }
            _ => return None,
        };
        Some(answer)
    }

    fn pause(&self, limit_ms: &[u8], mode: PauseMode) -> Result<Reply, Error> {
        let limit = integer(limit_ms).ok_or(Error::fixed("ERR timeout is not an integer or out of range"))?;
        let limit = u64::try_from(limit).map_err(|_| Error::fixed("ERR timeout is negative"))?;
        self.begin(mode, Duration::from_millis(limit));
        Ok(Reply::OK)
    }
}

/// Whether this ends a pause, so that it does not wait for the end itself.
pub(in crate::server) fn is_unpause(words: &[&[u8]]) -> bool {
    matches!(words, [client, unpause] if client.eq_ignore_ascii_case(b"client") && unpause.eq_ignore_ascii_case(b"unpause"))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, pin::pin, task::Context};

    use tokio::{runtime::Builder, time::timeout};

    use super::*;
    use crate::testing::show;

    fn ask(pause: &Pause, line: &str) -> Option<String> {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        Some(show(&pause.answer(&words)?.into()))
    }

    #[test]
    fn a_pause_holds_what_it_is_for_until_it_ends() {
        let pause = Pause::default();
        let held = || [pause.holds(false), pause.holds(true)];
        assert_eq!(held(), [false, false]);
        assert_eq!(ask(&pause, "client pause 1000 write").as_deref(), Some("OK"));
        assert_eq!(held(), [false, true]);
        assert_eq!(ask(&pause, "client pause 9223372036854775807").as_deref(), Some("OK"));
        assert_eq!(held(), [true, true]);
        assert_eq!(ask(&pause, "client pause 0 write").as_deref(), Some("OK"));
        let is_late = lock(&pause.end).is_none_or(|end| end > Instant::now() + Duration::from_secs(1000));
        assert!(held() == [true, true] && is_late, "the longer and the stricter one counts");
        assert_eq!(ask(&pause, "CLIENT UNPAUSE").as_deref(), Some("OK"));
        assert_eq!(held(), [false, false]);
        for wrong in ["client pause", "client pause x", "client pause -1", "client pause 1 what", "client unpause 1"] {
            assert!(ask(&pause, wrong).is_some_and(|answer| answer.starts_with("-ERR ")), "{wrong}");
        }
        assert_eq!((held(), ask(&pause, "client list")), ([false, false], None));
    }

    #[test]
    fn requests_go_on_once_the_time_is_over_or_the_pause_was_ended() {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (pause, woken) = (Pause::default(), Cell::new(0));
            let mut watching = pin!(pause.watch(|| woken.set(woken.get() + 1)));
            pause.begin(PauseMode::All, Duration::from_millis(1));
            let until_woken = std::future::poll_fn(|context: &mut Context<'_>| {
                assert!(watching.as_mut().poll(context).is_pending());
                if woken.get() == 1 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            });
            timeout(Duration::from_secs(20), until_woken).await.expect("the time is over");
            assert!(!pause.holds(true));
            pause.begin(PauseMode::Writes, Duration::from_secs(1000));
            assert!(timeout(Duration::ZERO, watching.as_mut()).await.is_err());
            assert_eq!(woken.get(), 1, "it still holds");
            pause.end();
            assert!(timeout(Duration::ZERO, watching.as_mut()).await.is_err());
            assert_eq!(woken.get(), 2);
        });
    }

    #[test]
    fn requests_go_on_that_the_next_pause_does_not_hold() {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (pause, woken) = (Pause::default(), Cell::new(0));
            let mut watching = pin!(pause.watch(|| woken.set(woken.get() + 1)));
            pause.begin(PauseMode::All, Duration::from_secs(1000));
            assert!(timeout(Duration::ZERO, watching.as_mut()).await.is_err());
            assert_eq!(woken.get(), 0);
            pause.end();
            pause.begin(PauseMode::Writes, Duration::from_secs(1000));
            assert!(timeout(Duration::ZERO, watching.as_mut()).await.is_err());
            assert_eq!(woken.get(), 1, "requests that only look were held, and are no more");
        });
    }
}
