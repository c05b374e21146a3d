//! What a replica tells about itself: `INFO`, `HELLO`, `COMMAND`, `CONFIG GET` and `TIME`.

use std::{
    fmt::Write,
    sync::atomic::Ordering,
    time::{SystemTime, UNIX_EPOCH},
};

use squall::{Applied, GroupStatus, Status};

use crate::{
    command::{Describe, Protocol},
    reply::Answer,
    resp::MAX_BULK_BYTES,
    server::{GROUP, Server},
    store::{Store, matches},
    table::{self, Kind, Spec},
};

/// The version of Redis whose protocol and texts are followed; clients look at it.
const REDIS_VERSION: &str = "7.0.0";

/// What `INFO` is made of.
pub(crate) struct Facts<'a> {
    pub(crate) server: &'a Server,
    /// None once the node has ended.
    pub(crate) status: Option<Status>,
    /// None once the group has ended.
    pub(crate) store: Option<Contents>,
}

/// The store's part of `INFO`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents {
    keys: usize,
    digest: u64,
    applied: Option<Applied>,
}

/// Takes the store's part of `INFO`.
pub(crate) fn look(store: &Store) -> Contents {
    Contents { keys: store.len(), digest: store.digest(), applied: store.applied() }
}

/// Writes one section's lines.
type Section = fn(&Facts<'_>, &mut Lines);

/// Writes these sections; all of them if there are none, or if "all", "default" or "everything" is among them.
pub(crate) fn text(sections: &[String], facts: &Facts<'_>) -> String {
    let known: [(&str, Section); 5] =
        [("Server", server), ("Clients", clients), ("Stats", stats), ("Squall", squall), ("Keyspace", keyspace)];
    let everything =
        sections.is_empty() || sections.iter().any(|s| ["all", "default", "everything"].contains(&s.as_str()));
    let mut lines = Lines(String::new());
    for (name, write) in known {
        if everything || sections.iter().any(|section| section.eq_ignore_ascii_case(name)) {
            if !lines.0.is_empty() {
                lines.0.push_str("\r\n");
            }
            let _ = write!(lines.0, "# {name}\r\n");
            write(facts, &mut lines);
        }
    }
    lines.0
}

struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl ToString) {
        // Reasons are sentences, and a value is the rest of its line.
        let _ = write!(self.0, "{name}:{}\r\n", value.to_string().replace(['\r', '\n'], " "));
    }
}

fn server(facts: &Facts<'_>, lines: &mut Lines) {
    let server = facts.server;
    lines.add("redis_version", REDIS_VERSION);
    lines.add("redis_mode", "standalone");
    lines.add("server_name", "squall-replicated-kv");
    lines.add("squall_version", env!("CARGO_PKG_VERSION"));
    lines.add("process_id", std::process::id());
    lines.add("tcp_port", server.listen.port());
    lines.add("uptime_in_seconds", server.since.elapsed().as_secs());
}

fn clients(facts: &Facts<'_>, lines: &mut Lines) {
    lines.add("connected_clients", facts.server.client_count());
    lines.add("maxclients", facts.server.max_clients);
}

fn stats(facts: &Facts<'_>, lines: &mut Lines) {
    let counts = &facts.server.counts;
    lines.add("total_connections_received", counts.connections.load(Ordering::Relaxed));
    lines.add("rejected_connections", counts.rejected.load(Ordering::Relaxed));
}

fn squall(facts: &Facts<'_>, lines: &mut Lines) {
    lines.add("cluster", facts.server.config.cluster());
    lines.add("node", facts.server.node.id().0);
    match facts.server.node.end_reason() {
        None => lines.add("state", "ok"),
        Some(reason) => {
            lines.add("state", "ended");
            lines.add("end_reason", reason);
        }
    }
    if let Some(status) = &facts.status {
        view(status, lines);
    }
    if let Some(contents) = facts.store {
        let (epoch, seq) = contents.applied.map_or((0, 0), |at| (at.epoch.0, at.seq.0));
        lines.add("applied_epoch", epoch);
        lines.add("applied_seq", seq);
        lines.add("state_digest", format_args!("{:016x}", contents.digest));
    }
}

fn view(status: &Status, lines: &mut Lines) {
    lines.add("epoch", status.view.epoch.0);
    let Some(group) = status.groups.iter().find(|group| group.name == GROUP) else { return };
    let GroupStatus { members, own_thread, counts, .. } = group;
    lines.add("members", members.len());
    for (rank, member) in members.iter().enumerate() {
        let counts = format!("sent={},received={},delivered={}", member.sent, member.received, member.delivered);
        lines.add(&format!("member{rank}"), format_args!("node={},{counts}", member.node.0));
    }
    lines.add("commands_applied", counts.applied);
    lines.add("commands_skipped", counts.skipped);
    lines.add("reads_answered", counts.reads);
    lines.add("overruns", counts.overruns);
    lines.add("own_thread", u8::from(*own_thread));
}

fn keyspace(facts: &Facts<'_>, lines: &mut Lines) {
    if let Some(Contents { keys: keys @ 1.., .. }) = facts.store {
        lines.add("db0", format_args!("keys={keys},expires=0,avg_ttl=0"));
    }
}

/// The answer to `HELLO`.
pub(crate) fn hello(protocol: Protocol, client: u64) -> Answer {
    let version = match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    let pairs = [
        ("server", Answer::bulk("redis")),
        ("version", Answer::bulk(REDIS_VERSION)),
        ("proto", Answer::Integer(version)),
        ("id", Answer::Integer(client as i64)),
        ("mode", Answer::bulk("standalone")),
        ("role", Answer::bulk("master")),
        ("modules", Answer::Array(Vec::new())),
    ];
    Answer::Map(pairs.map(|(key, value)| (Answer::bulk(key), value)).into())
}

/// The answer to `COMMAND ...`.
pub(crate) fn describe(what: &Describe) -> Answer {
    match what {
        Describe::All => Answer::Array(table::TABLE.iter().map(entry).collect()),
        Describe::Count => Answer::Integer(table::TABLE.len() as i64),
        Describe::List => Answer::bulks(table::TABLE.iter().map(|spec| spec.name)),
        Describe::Info(names) => {
            Answer::Array(names.iter().map(|name| table::find(name).map_or(Answer::Null, entry)).collect())
        }
        Describe::Docs(names) if names.is_empty() => Answer::Map(table::TABLE.iter().map(docs).collect()),
        Describe::Docs(names) => Answer::Map(names.iter().filter_map(|name| table::find(name)).map(docs).collect()),
    }
}

fn entry(spec: &Spec) -> Answer {
    let flags = match spec.kind {
        Kind::Write => "write",
        Kind::Read => "readonly",
        Kind::Local => "fast",
    };
    let (first, last, step) = spec.key_range();
    // The last four are access categories, hints, key specifications and subcommands, which nothing here has.
    let nothing = || Answer::Array(Vec::new());
    Answer::Array(vec![
        Answer::bulk(spec.name),
        Answer::Integer(i64::from(spec.arity)),
        Answer::Array(vec![Answer::Simple(flags)]),
        Answer::Integer(first),
        Answer::Integer(last),
        Answer::Integer(step),
        nothing(),
        nothing(),
        nothing(),
        nothing(),
    ])
}

fn docs(spec: &Spec) -> (Answer, Answer) {
    let facts = vec![
        (Answer::bulk("summary"), Answer::bulk(spec.summary)),
        (Answer::bulk("since"), Answer::bulk("1.0.0")),
        (Answer::bulk("group"), Answer::bulk(if spec.kind == Kind::Local { "connection" } else { "string" })),
    ];
    (Answer::bulk(spec.name), Answer::Map(facts))
}

/// The answer to `CONFIG GET`: what tools ask for, as it is here.
pub(crate) fn settings(server: &Server, patterns: &[Vec<u8>]) -> Answer {
    let settings = [
        ("appendonly", "no".to_owned()),
        ("bind", server.listen.ip().to_string()),
        ("databases", "1".to_owned()),
        ("maxclients", server.max_clients.to_string()),
        ("maxmemory", "0".to_owned()),
        ("port", server.listen.port().to_string()),
        ("proto-max-bulk-len", MAX_BULK_BYTES.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ];
    let asked = |name: &str| patterns.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()));
    let chosen = settings.into_iter().filter(|(name, _)| asked(name));
    Answer::Map(chosen.map(|(name, value)| (Answer::bulk(name), Answer::bulk(value))).collect())
}

/// The answer to `TIME`: seconds, and microseconds of the present one.
pub(crate) fn time() -> Answer {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Answer::bulks([now.as_secs().to_string(), now.subsec_micros().to_string()])
}
