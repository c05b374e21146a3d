//! `SHUTDOWN`: the wish that this server ends.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::Error;

/// The way in which a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// It leaves its group first, so that the others need no time to notice that it is gone.
    Leave,
    /// It ends at once.
    Now,
}

/// A client's wish that this server ends.
#[derive(Debug)]
pub(in crate::server) struct Shutdown {
    /// Whether the data is on disk.
    is_durable: bool,
    asked: OnceLock<ShutdownMode>,
    changed: Notify,
}

impl Shutdown {
    /// The wish of no client yet. `is_durable` says whether the data is on disk.
    pub(in crate::server) fn new(is_durable: bool) -> Shutdown {
        Shutdown { is_durable, asked: OnceLock::new(), changed: Notify::new() }
    }

    /// Waits for a client to wish it.
    pub(in crate::server) async fn asked(&self) -> ShutdownMode {
        loop {
            if let Some(mode) = self.asked.get() {
                return *mode;
            }
            self.changed.notified().await;
        }
    }

    /// Takes the request `SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT]`. The server is to end unless it is refused.
    pub(in crate::server) fn ask(&self, words: &[&[u8]]) -> Result<(), Error> {
        let (mut must_save, mut may_lose, mut is_now, mut is_forced, mut is_aborted) =
            (false, false, false, false, false);
        for word in &words[1..] {
            let option = match &*word.to_ascii_lowercase() {
                b"save" => &mut must_save,
                b"nosave" => &mut may_lose,
                b"now" => &mut is_now,
                b"force" => &mut is_forced,
                b"abort" => &mut is_aborted,
                _ => return Err(Error::SYNTAX),
            };
            *option = true;
        }
        if (is_aborted && words.len() > 2) || (must_save && may_lose) {
            return Err(Error::SYNTAX);
        }
        if is_aborted {
            // A server that ends takes no more requests.
            return Err(Error::fixed("ERR No shutdown in progress."));
        }
        if must_save && !self.is_durable && !is_forced {
            return Err(Error::fixed(
                "ERR this server has no disk to save to: the data is with the other replicas, and survives all of them \
                 only if they were started with --durable; SHUTDOWN NOSAVE stops this one",
            ));
        }
        // A second wish changes nothing.
        let _ = self.asked.set(if is_now { ShutdownMode::Now } else { ShutdownMode::Leave });
        self.changed.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    fn ask(shutdown: &Shutdown, line: &str) -> Result<(), String> {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        shutdown.ask(&words).map_err(|error| error.as_str().to_owned())
    }

    fn asked(shutdown: &Shutdown) -> ShutdownMode {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(shutdown.asked())
    }

    #[test]
    fn what_is_refused_stops_nothing() {
        let shutdown = Shutdown::new(false);
        for wrong in ["shutdown what", "shutdown save nosave", "shutdown abort now"] {
            assert_eq!(ask(&shutdown, wrong), Err("ERR syntax error".to_owned()), "{wrong}");
        }
        assert_eq!(ask(&shutdown, "shutdown abort"), Err("ERR No shutdown in progress.".to_owned()));
        assert!(ask(&shutdown, "shutdown save").is_err_and(|error| error.contains("--durable")));
        assert_eq!(shutdown.asked.get(), None);
    }

    #[test]
    fn a_wish_says_whether_the_group_is_left_first() {
        for (line, is_durable, mode) in [
            ("shutdown", false, ShutdownMode::Leave),
            ("SHUTDOWN NOSAVE FORCE", false, ShutdownMode::Leave),
            ("shutdown save", true, ShutdownMode::Leave),
            ("shutdown save force", false, ShutdownMode::Leave),
            ("shutdown now", false, ShutdownMode::Now),
        ] {
            let shutdown = Shutdown::new(is_durable);
            assert_eq!((ask(&shutdown, line), asked(&shutdown)), (Ok(()), mode), "{line}");
        }
    }
}
