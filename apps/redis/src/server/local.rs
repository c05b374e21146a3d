//! The requests that the server answers by itself.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{connected_client::ConnectedClient, describe, reception::Reception};
use crate::{Error, Reply, command::Spec, number::integer};

/// Answers a request that has as many words as the command takes.
pub(super) fn answer(
    reception: &Reception,
    client: &ConnectedClient,
    spec: &Spec,
    words: &[&[u8]],
) -> Result<Reply, Error> {
    match spec.name {
        "ping" => match words {
            [_] => Ok(Reply::status("PONG")),
            [_, text] => Ok(Reply::bytes(text)),
            _ => Err(Error::arity(spec.name)),
        },
        "echo" => Ok(Reply::bytes(words[1])),
        "time" => Ok(time()),
        "select" => match integer(words[1]) {
            Some(0) => Ok(Reply::OK),
            Some(_) => Err(Error::fixed("ERR DB index is out of range")),
            None => Err(Error::NOT_AN_INTEGER),
        },
        "client" => {
            let paused = reception.operations.pause.answer(words);
            paused.unwrap_or_else(|| reception.clients.answer(client, words))
        }
        "command" => describe::answer(words),
        "config" => reception.config_command(words),
        "latency" => reception.operations.latency.answer(words, &reception.operations.statistics),
        "memory" => reception.memory_command(words),
        "slowlog" => reception.operations.slow_log.answer(words),
        "pubsub" => reception.hub.answer(words),
        "acl" => acl(words),
        "module" => match &*words[1].to_ascii_lowercase() {
            b"list" if words.len() == 2 => Ok(Reply::Array(Vec::new())),
            b"list" => Err(Error::arity("module|list")),
            _ => Err(Error::unknown_subcommand("MODULE", words[1])),
        },
        "cluster" => Err(Error::fixed("ERR This instance has cluster support disabled")),
        name => Err(Error::new(format!("ERR '{name}' is not answered here"))),
    }
}

fn acl(words: &[&[u8]]) -> Result<Reply, Error> {
    match &*words[1].to_ascii_lowercase() {
        b"whoami" if words.len() == 2 => Ok(Reply::bytes("default")),
        b"whoami" => Err(Error::arity("acl|whoami")),
        _ => Err(Error::unknown_subcommand("ACL", words[1])),
    }
}

/// The answer of `TIME`: seconds since 1970, and microseconds of the present second.
fn time() -> Reply {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Reply::array_of_bytes([now.as_secs().to_string(), now.subsec_micros().to_string()])
}
