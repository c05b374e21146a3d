//! `CONFIG`: the settings as clients see and change them.

use super::{KEEP_ALIVE, operations::Operations, reception::Reception, resp::MAX_BULK_BYTES};
use crate::{Error, Reply, number::integer, pattern::matches};

impl Reception {
    /// Answers `CONFIG ...`, of at least two words.
    pub(super) fn config_command(&self, words: &[&[u8]]) -> Result<Reply, Error> {
        match (&*words[1].to_ascii_lowercase(), &words[2..]) {
            (b"get", patterns @ [_, ..]) => {
                let asked =
                    |name: &str| patterns.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()));
                let chosen = self.all_settings().into_iter().filter(|(name, _)| asked(name));
                Ok(Reply::Map(chosen.map(|(name, value)| (Reply::bytes(name), Reply::bytes(value))).collect()))
            }
            (b"set", pairs) => match pairs.as_chunks::<2>() {
                ([], _) => Err(Error::arity("config|set")),
                (_, [_]) => Err(Error::SYNTAX),
                (pairs, _) => self.set(pairs),
            },
            (b"resetstat", []) => {
                self.counts.reset();
                self.hub.keys.reset();
                self.operations.statistics.reset();
                Ok(Reply::OK)
            }
            (b"get", []) => Err(Error::arity("config|get")),
            (b"resetstat", _) => Err(Error::arity("config|resetstat")),
            (b"rewrite", []) => Err(Error::fixed("ERR The server is running without a config file")),
            _ => Err(Error::unknown_subcommand("CONFIG", words[1])),
        }
    }

    /// The settings that tools ask for, with their values here.
    fn all_settings(&self) -> Vec<(&'static str, String)> {
        let Operations { slow_log, latency, memory, .. } = &*self.operations;
        vec![
            ("appendonly", "no".to_owned()),
            ("bind", self.listen.ip().to_string()),
            ("client-output-buffer-limit", "normal 0 0 0 slave 0 0 0 pubsub 33554432 0 0".to_owned()),
            ("cluster-enabled", "no".to_owned()),
            ("databases", "1".to_owned()),
            ("latency-monitor-threshold", latency.threshold_ms().to_string()),
            ("maxclients", self.settings.max_clients().to_string()),
            ("maxmemory", memory.max().to_string()),
            ("maxmemory-clients", self.budget.max().to_string()),
            ("maxmemory-policy", "noeviction".to_owned()),
            ("notify-keyspace-events", String::new()),
            ("port", self.listen.port().to_string()),
            ("proto-max-bulk-len", MAX_BULK_BYTES.to_string()),
            ("save", String::new()),
            ("slowlog-log-slower-than", slow_log.slower_than_us().to_string()),
            ("slowlog-max-len", slow_log.max_len().to_string()),
            ("tcp-backlog", self.backlog.to_string()),
            ("tcp-keepalive", KEEP_ALIVE.as_secs().to_string()),
            ("timeout", self.settings.timeout_seconds().unwrap_or(0).to_string()),
        ]
    }

    /// Changes all of these settings, or none.
    fn set(&self, pairs: &[[&[u8]; 2]]) -> Result<Reply, Error> {
        let present = self.all_settings();
        let mut changes = Vec::new();
        for [name, value] in pairs {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            let Some((_, old)) = present.iter().find(|(known, _)| *known == name) else {
                let name: String = name.chars().take(128).collect();
                return Err(Error::new(format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")));
            };
            let change = Change::read(&name, old, value).map_err(|why| {
                Error::new(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
            })?;
            changes.extend(change);
        }
        changes.into_iter().for_each(|change| self.apply(change));
        Ok(Reply::OK)
    }

    fn apply(&self, change: Change) {
        let Operations { slow_log, latency, memory, .. } = &*self.operations;
        match change {
            Change::MaxClients(max) => self.settings.set_max_clients(max),
            Change::MaxClientBytes(bytes) => self.budget.set_max(bytes),
            Change::Timeout(seconds) => self.settings.set_timeout_seconds(seconds),
            Change::MaxMemory(bytes) => memory.set_max(bytes),
            Change::SlowerThan(us) => slow_log.set_slower_than_us(us),
            Change::SlowLogLen(len) => slow_log.set_max_len(len),
            Change::LatencyThreshold(ms) => latency.set_threshold_ms(ms),
        }
    }
}

/// A setting's new value.
#[derive(Clone, Copy, Debug)]
enum Change {
    MaxClients(usize),
    MaxClientBytes(usize),
    Timeout(u64),
    MaxMemory(usize),
    SlowerThan(i64),
    SlowLogLen(usize),
    LatencyThreshold(u64),
}

impl Change {
    /// Reads the new value of a setting. `None` if nothing changes. The error is Redis' text.
    fn read(name: &str, old: &str, value: &[u8]) -> Result<Option<Change>, String> {
        let number = |least: i64, most: i64| {
            let number = integer(value).ok_or("argument couldn't be parsed into an integer")?;
            let is_right = (least..=most).contains(&number);
            if is_right { Ok(number) } else { Err(format!("argument must be between {least} and {most} inclusive")) }
        };
        let size = || memory_size(value).ok_or("argument must be a memory value");
        let most = i64::from(u32::MAX);
        Ok(Some(match name {
            "maxclients" => Change::MaxClients(number(1, most)? as usize),
            "timeout" => Change::Timeout(number(0, most)?.cast_unsigned()),
            "maxmemory-clients" => Change::MaxClientBytes(size()?),
            "maxmemory" => Change::MaxMemory(size()?),
            "slowlog-log-slower-than" => Change::SlowerThan(number(-1, i64::MAX)?),
            "slowlog-max-len" => Change::SlowLogLen(number(0, i64::MAX)? as usize),
            "latency-monitor-threshold" => Change::LatencyThreshold(number(0, i64::MAX)?.cast_unsigned()),
            // It has this value already.
            _ if old.as_bytes() == value => return Ok(None),
            "maxmemory-policy" if value.eq_ignore_ascii_case(old.as_bytes()) => return Ok(None),
            "maxmemory-policy" => return Err(format!("argument(s) must be one of the following: {old}")),
            _ => return Err("can't set immutable config".to_owned()),
        }))
    }
}

/// Reads a number of bytes as Redis writes it: `100`, `5k` (5000) or `5kb` (5120), with b, k, m, g and their sums in
/// either case.
fn memory_size(text: &[u8]) -> Option<usize> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let unit = match &*text[digits..].to_ascii_lowercase() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    // As in Redis, no digits are 0.
    let number = if digits == 0 { 0 } else { str::from_utf8(&text[..digits]).ok()?.parse::<usize>().ok()? };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_units_of_redis() {
        for (text, bytes) in [
            ("100", Some(100)),
            ("3b", Some(3)),
            ("5k", Some(5000)),
            ("5kb", Some(5120)),
            ("100MB", Some(104_857_600)),
            ("1g", Some(1_000_000_000)),
            ("1Gb", Some(1 << 30)),
            ("", Some(0)),
            ("mb", Some(0)),
            ("-1", None),
            ("1.5gb", None),
            ("1 mb", None),
            ("x", None),
            ("99999999999999999999", None),
            ("18446744073709551615kb", None),
        ] {
            assert_eq!(memory_size(text.as_bytes()), bytes, "{text:?}");
        }
    }
}
