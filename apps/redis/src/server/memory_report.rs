//! The memory of a server, for `INFO memory` and `MEMORY`.

use super::{operations::Process, reception::Reception};
use crate::{Error, Reply};

/// The memory below which it is of no use to look for waste, in bytes.
const SMALL: usize = 5 << 20;

/// Bytes of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryReport {
    /// In use now, at most so far, and when the server started.
    pub(super) used: usize,
    pub(super) peak: usize,
    pub(super) at_start: usize,
    /// In use for clients.
    pub(super) clients: usize,
    /// Given to the process by the system, the ring and the engine included.
    pub(super) resident: usize,
    /// The limit; 0 for none.
    pub(super) max: usize,
}

impl MemoryReport {
    pub(super) fn of(reception: &Reception) -> MemoryReport {
        let memory = &reception.operations.memory;
        let used = memory.used();
        MemoryReport {
            used,
            peak: memory.peak(),
            at_start: memory.at_start(),
            clients: reception.budget.used(),
            resident: Process::read().resident as usize,
            max: memory.max(),
        }
    }

    /// The memory in use without any keys.
    pub(super) fn overhead(&self) -> usize {
        self.at_start + self.clients
    }

    /// The memory in use beyond that.
    pub(super) fn dataset(&self) -> usize {
        self.used.saturating_sub(self.overhead())
    }

    /// The share of the keys in all that is in use since the start.
    pub(super) fn dataset_percentage(&self) -> f64 {
        percentage(self.dataset(), self.used.saturating_sub(self.at_start))
    }

    /// The memory of the process for each byte in use.
    pub(super) fn fragmentation(&self) -> f64 {
        self.resident as f64 / self.used.max(1) as f64
    }

    /// Answers `MEMORY STATS`. `keys` is the number of keys; `None` where there are none to count.
    pub(super) fn answer(&self, keys: Option<usize>) -> Reply {
        let count = Reply::count;
        let mut facts = vec![
            ("peak.allocated", count(self.peak)),
            ("total.allocated", count(self.used)),
            ("startup.allocated", count(self.at_start)),
            ("clients.normal", count(self.clients)),
            ("overhead.total", count(self.overhead())),
        ];
        if let Some(keys) = keys {
            facts.push(("keys.count", count(keys)));
            let grown = self.used.saturating_sub(self.at_start);
            facts.push(("keys.bytes-per-key", count(grown.checked_div(keys).unwrap_or(0))));
        }
        facts.extend([
            ("dataset.bytes", count(self.dataset())),
            ("dataset.percentage", Reply::Double(self.dataset_percentage())),
            ("peak.percentage", Reply::Double(percentage(self.used, self.peak))),
            ("fragmentation", Reply::Double(self.fragmentation())),
            ("fragmentation.bytes", Reply::Integer(self.resident as i64 - self.used as i64)),
        ]);
        Reply::Map(facts.into_iter().map(|(name, value)| (Reply::bytes(name), value)).collect())
    }

    /// The unusual things about the memory, for people.
    fn doctor(&self) -> String {
        if self.used < SMALL {
            return "This server uses so little memory that nothing can be said about it.\n".to_owned();
        }
        let mut found = String::new();
        if self.max > 0 && self.used > self.max / 10 * 9 {
            found += &format!(
                "- {} bytes are in use, of maxmemory's {}: writes that need memory are refused, or soon will be. Remove \
                 keys, or set a larger maxmemory.\n",
                self.used, self.max
            );
        }
        if self.peak > self.used / 2 * 3 {
            found += &format!(
                "- Up to {} bytes were in use, and {} are now: the process may keep the difference from the system.\n",
                self.peak, self.used
            );
        }
        if self.fragmentation() > 1.4 && self.resident - self.used > 10 << 20 {
            found += &format!(
                "- The system has given {} bytes to the process, and {} are in use. The rest are the group's rings, \
                 the program, and room that the allocator keeps.\n",
                self.resident, self.used
            );
        }
        if self.clients > self.used / 2 {
            found += &format!(
                "- Clients' requests and answers take {} bytes: CLIENT LIST shows who they are, and CONFIG SET \
                 maxmemory-clients limits them.\n",
                self.clients
            );
        }
        if found.is_empty() { "Nothing is unusual about the memory of this server.\n".to_owned() } else { found }
    }
}

/// The share of a part in a whole, in per cent.
pub(super) fn percentage(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

impl Reception {
    /// Answers the parts of `MEMORY` that concern this server and need no look at its store.
    pub(super) fn memory_command(&self, words: &[&[u8]]) -> Result<Reply, Error> {
        match (&*words[1].to_ascii_lowercase(), &words[2..]) {
            (b"doctor", []) => Ok(Reply::Verbatim(MemoryReport::of(self).doctor())),
            // As in a Redis with the same allocator, which keeps no pages that it would give back if asked, nor counts.
            (b"purge", []) => Ok(Reply::OK),
            (b"malloc-stats", []) => Ok(Reply::bytes("Stats not supported for the current allocator")),
            (name, _) => Err(Error::arity(&format!("memory|{}", String::from_utf8_lossy(name)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::show;

    fn report() -> MemoryReport {
        let mib = 1 << 20;
        MemoryReport { used: 20 * mib, peak: 20 * mib, at_start: mib, clients: mib, resident: 21 * mib, max: 0 }
    }

    #[test]
    fn what_is_unusual_is_named() {
        assert!(report().doctor().starts_with("Nothing"));
        let of = |change: fn(&mut MemoryReport)| {
            let mut report = report();
            change(&mut report);
            report.doctor()
        };
        assert!(of(|report| report.max = report.used).contains("maxmemory"));
        assert!(of(|report| report.peak *= 2).contains("Up to"));
        assert!(of(|report| report.resident *= 2).contains("The system has given"));
        assert!(of(|report| report.clients = report.used).contains("CLIENT LIST"));
        assert!(of(|report| report.used = 1).contains("so little"));
    }

    #[test]
    fn memory_stats_counts_what_is_beyond_the_start() {
        let said = show(&report().answer(Some(18)));
        assert!(
            said.contains(r#""overhead.total": :2097152"#) && said.contains(r#""dataset.bytes": :18874368"#),
            "{said}"
        );
        assert!(said.contains(r#""keys.count": :18, "keys.bytes-per-key": :1106830"#), "{said}");
        assert!(!show(&report().answer(None)).contains("keys"));
        assert!(show(&report().answer(Some(0))).contains(r#""keys.bytes-per-key": :0"#));
    }
}
