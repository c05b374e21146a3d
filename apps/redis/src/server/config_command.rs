//! `CONFIG`: the settings as clients see and change them.

use super::{KEEP_ALIVE, reception::Reception, resp::MAX_BULK_BYTES};
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
        vec![
            ("appendonly", "no".to_owned()),
            ("bind", self.listen.ip().to_string()),
            ("client-output-buffer-limit", "normal 0 0 0 slave 0 0 0 pubsub 33554432 0 0".to_owned()),
            ("cluster-enabled", "no".to_owned()),
            ("databases", "1".to_owned()),
            ("maxclients", self.settings.max_clients().to_string()),
            ("maxmemory", "0".to_owned()),
            ("maxmemory-clients", self.budget.max().to_string()),
            ("maxmemory-policy", "noeviction".to_owned()),
            ("notify-keyspace-events", String::new()),
            ("port", self.listen.port().to_string()),
            ("proto-max-bulk-len", MAX_BULK_BYTES.to_string()),
            ("save", String::new()),
            ("tcp-keepalive", KEEP_ALIVE.as_secs().to_string()),
            ("timeout", self.settings.timeout_seconds().unwrap_or(0).to_string()),
        ]
    }

    /// Changes all of these settings, or none.
    fn set(&self, pairs: &[[&[u8]; 2]]) -> Result<Reply, Error> {
        let present = self.all_settings();
        let (mut max_clients, mut max_client_bytes, mut timeout) = (None, None, None);
        for [name, value] in pairs {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            let Some((_, old)) = present.iter().find(|(known, _)| *known == name) else {
                let name: String = name.chars().take(128).collect();
                return Err(Error::new(format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")));
            };
            let failed = |why: &str| {
                Error::new(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
            };
            let not_a_number = || failed("argument couldn't be parsed into an integer");
            let number = || {
                let number = integer(value).and_then(|number| u32::try_from(number).ok());
                number.ok_or_else(not_a_number)
            };
            match &*name {
                "maxclients" => match number()? {
                    0 => return Err(failed("argument must be between 1 and 4294967295 inclusive")),
                    number => max_clients = Some(number),
                },
                "maxmemory-clients" => {
                    let bytes = integer(value).and_then(|bytes| usize::try_from(bytes).ok());
                    max_client_bytes = Some(bytes.ok_or_else(not_a_number)?);
                }
                "timeout" => timeout = Some(number()?),
                // It has this value already.
                _ if old.as_bytes() == *value => {}
                _ => return Err(failed("can't set immutable config")),
            }
        }
        if let Some(max_clients) = max_clients {
            self.settings.set_max_clients(max_clients as usize);
        }
        if let Some(bytes) = max_client_bytes {
            self.budget.set_max(bytes);
        }
        if let Some(timeout) = timeout {
            self.settings.set_timeout_seconds(timeout.into());
        }
        Ok(Reply::OK)
    }
}
