//! `INFO`: a replica's report on itself.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use squall::{Epoch, GroupStatus, NodeId, ReadError, Seq, Status, Time, View};

use super::{
    GROUP, Server, VERSION,
    counts::Traffic,
    memory_report::{MemoryReport, percentage},
    operations::{Process, cpu_times},
    reception::Reception,
    session::ServerReport,
};
use crate::{Reply, Store};

/// The sources of `INFO`.
pub(super) struct Facts<'a> {
    pub(super) reception: &'a Reception,
    /// `None` for a front end.
    pub(super) member: Option<Membership<'a>>,
}

/// The facts that only a replica knows.
pub(super) struct Membership<'a> {
    pub(super) server: &'a Server,
    /// `None` once the node has ended.
    pub(super) status: Option<Status>,
    /// The reason why it can't serve the group now, if it can't.
    pub(super) unserved: Option<ReadError>,
    /// The store's part, as it was at the group's end if the group has ended; `None` if the replica broke.
    pub(super) store: Option<StoreInfo>,
}

/// The store's part of `INFO`.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreInfo {
    keys: usize,
    expiring: usize,
    applied: Option<(Epoch, Seq)>,
}

/// Reads the store's part of `INFO`.
pub(super) fn look(store: &Store, clock_ms: u64) -> StoreInfo {
    let keys = store.keys().view(store.time_ms(clock_ms)).len();
    // Expired keys no longer count, though the store may still hold them.
    let expired = store.keys().len() - keys;
    StoreInfo { keys, expiring: store.keys().expiring() - expired, applied: store.applied() }
}

/// Writes one section's lines.
type Section = fn(&Facts<'_>, &mut Lines);

/// The sections of `INFO`, and whether they are written where none is asked for.
const SECTIONS: [(&str, bool, Section); 12] = [
    ("Server", true, server),
    ("Clients", true, clients),
    ("Memory", true, memory),
    ("Persistence", true, persistence),
    ("Stats", true, stats),
    ("Replication", true, replication),
    ("CPU", true, cpu),
    ("Commandstats", false, command_stats),
    ("Errorstats", true, error_stats),
    ("Latencystats", false, latency_stats),
    ("Squall", true, squall),
    ("Keyspace", true, keyspace),
];

/// The answer to a question that only this server can answer.
pub(super) fn answer(report: &ServerReport, facts: &Facts<'_>) -> Reply {
    match report {
        ServerReport::Info(sections) => Reply::Verbatim(text(sections, facts)),
        ServerReport::Memory => {
            let keys = facts.member.as_ref().and_then(|member| member.store).map(|store| store.keys);
            MemoryReport::of(facts.reception).answer(keys)
        }
    }
}

/// Writes these sections; the default ones if there are none, or if "default" is among them.
fn text(sections: &[String], facts: &Facts<'_>) -> String {
    let asked = |name: &str| sections.iter().any(|section| section.eq_ignore_ascii_case(name));
    let (all, default) = (asked("all") || asked("everything"), sections.is_empty() || asked("default"));
    let mut lines = Lines(String::new());
    for (name, is_default, write) in SECTIONS {
        if all || (default && is_default) || asked(name) {
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
    let server = facts.reception;
    lines.add("redis_version", VERSION);
    lines.add("redis_mode", "standalone");
    lines.add("server_name", "squall-redis");
    lines.add("squall_version", env!("CARGO_PKG_VERSION"));
    lines.add("arch_bits", usize::BITS);
    lines.add("process_id", std::process::id());
    lines.add("tcp_port", server.listen.port());
    let uptime = server.since.elapsed().as_secs();
    lines.add("uptime_in_seconds", uptime);
    lines.add("uptime_in_days", uptime / (24 * 60 * 60));
}

fn clients(facts: &Facts<'_>, lines: &mut Lines) {
    lines.add("connected_clients", facts.reception.clients.count());
    lines.add("maxclients", facts.reception.settings.max_clients());
    lines.add("blocked_clients", facts.reception.clients.count_waiting());
    lines.add("pubsub_clients", facts.reception.clients.count_listeners());
}

fn memory(facts: &Facts<'_>, lines: &mut Lines) {
    let report = MemoryReport::of(facts.reception);
    let MemoryReport { used, peak, at_start, clients, resident, max } = report;
    for (name, bytes) in [("used_memory", used), ("used_memory_rss", resident), ("used_memory_peak", peak)] {
        lines.add(name, bytes);
        lines.add(&format!("{name}_human"), human(bytes));
    }
    lines.add("used_memory_peak_perc", format_args!("{:.2}%", percentage(used, peak)));
    lines.add("used_memory_overhead", report.overhead());
    lines.add("used_memory_startup", at_start);
    lines.add("used_memory_dataset", report.dataset());
    lines.add("used_memory_dataset_perc", format_args!("{:.2}%", report.dataset_percentage()));
    let total = Process::read().total_of_host as usize;
    lines.add("total_system_memory", total);
    lines.add("total_system_memory_human", human(total));
    lines.add("maxmemory", max);
    lines.add("maxmemory_human", human(max));
    lines.add("maxmemory_policy", "noeviction");
    lines.add("mem_fragmentation_ratio", format_args!("{:.2}", report.fragmentation()));
    lines.add("mem_fragmentation_bytes", resident as i64 - used as i64);
    lines.add("mem_clients_normal", clients);
    lines.add("mem_allocator", "libc");
}

fn human(bytes: usize) -> String {
    match bytes {
        0..=0x3ff => format!("{bytes}B"),
        0x400..=0xfffff => format!("{:.2}K", bytes as f64 / f64::from(1 << 10)),
        0x10_0000..=0x3fff_ffff => format!("{:.2}M", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2}G", bytes as f64 / f64::from(1 << 30)),
    }
}

/// The log in Redis' terms, as an append-only file. `log_` fields have no counterpart in Redis.
fn persistence(facts: &Facts<'_>, lines: &mut Lines) {
    let group = facts.member.as_ref().and_then(|member| member.status.as_ref()).and_then(group);
    let log = group.and_then(|group| group.log.as_ref());
    lines.add("loading", 0);
    lines.add("aof_enabled", u8::from(log.is_some()));
    let Some(log) = log else { return };
    lines.add("aof_last_write_status", if log.failure.is_some() { "err" } else { "ok" });
    lines.add("aof_current_size", log.bytes);
    lines.add("log_first", log.first);
    lines.add("log_last", log.last);
    lines.add("log_globally_persisted", log.globally_persisted);
    lines.add("log_snapshot", log.snapshot.unwrap_or(0));
    lines.add("log_snapshots_bytes", log.snapshots_bytes);
    lines.add("log_records_written", log.records);
    lines.add("log_bytes_written", log.written_bytes);
    lines.add("log_syncs", log.syncs);
    if let Some(failure) = &log.failure {
        lines.add("log_failure", failure);
    }
}

fn stats(facts: &Facts<'_>, lines: &mut Lines) {
    let (counts, hub) = (&facts.reception.counts, &facts.reception.hub);
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    lines.add("total_connections_received", count(&counts.connections));
    lines.add("total_commands_processed", counts.commands.get());
    lines.add("instantaneous_ops_per_sec", counts.commands.per_second());
    let directions = [("input", &counts.received), ("output", &counts.sent)];
    for (name, Traffic { bytes, .. }) in directions {
        lines.add(&format!("total_net_{name}_bytes"), bytes.get());
    }
    for (name, Traffic { bytes, .. }) in directions {
        lines.add(&format!("instantaneous_{name}_kbps"), format_args!("{:.2}", bytes.per_second() as f64 / 1024.0));
    }
    lines.add("rejected_connections", count(&counts.rejected));
    // A front end has no keys.
    if facts.member.is_some() {
        lines.add("expired_keys", count(&hub.keys.expired));
        lines.add("evicted_keys", 0);
        lines.add("keyspace_hits", count(&hub.keys.hits));
        lines.add("keyspace_misses", count(&hub.keys.misses));
    }
    let (channels, patterns) = hub.counts();
    lines.add("pubsub_channels", channels);
    lines.add("pubsub_patterns", patterns);
    lines.add("total_error_replies", facts.reception.operations.statistics.errors().values().sum::<u64>());
    lines.add("total_reads_processed", count(&counts.received.calls));
    lines.add("total_writes_processed", count(&counts.sent.calls));
    lines.add("acl_access_denied_auth", count(&counts.denied));
    lines.add("client_output_buffer_limit_disconnections", hub.cut_off());
}

/// The processor's time of this process, and of the thread that serves the clients.
fn cpu(_: &Facts<'_>, lines: &mut Lines) {
    for (file, suffix) in [("/proc/self/stat", ""), ("/proc/thread-self/stat", "_main_thread")] {
        let Some((system, user)) = cpu_times(file) else { continue };
        lines.add(&format!("used_cpu_sys{suffix}"), format_args!("{:.6}", system.as_secs_f64()));
        lines.add(&format!("used_cpu_user{suffix}"), format_args!("{:.6}", user.as_secs_f64()));
    }
}

fn command_stats(facts: &Facts<'_>, lines: &mut Lines) {
    facts.reception.operations.statistics.command_lines().for_each(|(name, line)| lines.add(&name, line));
}

fn latency_stats(facts: &Facts<'_>, lines: &mut Lines) {
    facts.reception.operations.statistics.latency_lines().for_each(|(name, line)| lines.add(&name, line));
}

fn error_stats(facts: &Facts<'_>, lines: &mut Lines) {
    for (code, count) in facts.reception.operations.statistics.errors() {
        lines.add(&format!("errorstat_{code}"), format_args!("count={count}"));
    }
}

/// The replication in Redis' terms: each replica takes writes, and the others have all that it acknowledges.
fn replication(facts: &Facts<'_>, lines: &mut Lines) {
    lines.add("role", "master");
    let members = facts.member.as_ref().map_or(1, |member| match &member.server.node.end_reason() {
        None => member.server.node.view().members.len(),
        Some(_) => 1,
    });
    lines.add("connected_slaves", members - 1);
}

fn squall(facts: &Facts<'_>, lines: &mut Lines) {
    let Some(member) = &facts.member else {
        lines.add("part", "front end");
        return;
    };
    let Membership { server, status, unserved, store } = member;
    lines.add("part", "replica");
    lines.add("cluster", server.config.cluster());
    lines.add("node", server.node.id().0);
    match (server.node.end_reason(), unserved) {
        (Some(reason), _) => {
            lines.add("state", "ended");
            lines.add("end_reason", reason);
        }
        (None, Some(why)) => {
            lines.add("state", "waits");
            lines.add("waits_because", why);
        }
        (None, None) => lines.add("state", "ok"),
    }
    view(&server.node.view(), lines);
    let change = server.node.last_change();
    let us = |from: Time, to: Time| to.since(from).as_micros();
    if change.suspected > Time::ZERO && change.installed > change.suspected {
        lines.add("last_change_us", us(change.suspected, change.installed));
        lines.add("last_change_ago_ms", Time::boot_clock().since(change.installed).as_millis());
    }
    if let Some(status) = status {
        progress(status, lines);
    }
    if let Some(contents) = store {
        let (epoch, seq) = contents.applied.map_or((0, 0), |(epoch, seq)| (epoch.0, seq.0));
        lines.add("applied_epoch", epoch);
        lines.add("applied_seq", seq);
    }
}

/// The last view that this node was in.
fn view(view: &View, lines: &mut Lines) {
    let list = |nodes: &[NodeId]| nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(",");
    lines.add("epoch", view.epoch.0);
    lines.add("members", view.members.len());
    lines.add("view", list(&view.nodes()));
    if let Some(shard) = view.shards.first() {
        lines.add("view_complete", list(&shard.complete));
        lines.add("view_senders", list(&shard.senders));
    }
    lines.add("view_joined", list(&view.joined));
    lines.add("view_left", list(&view.left));
}

fn group(status: &Status) -> Option<&GroupStatus> {
    status.groups.iter().find(|group| group.name == GROUP)
}

fn progress(status: &Status, lines: &mut Lines) {
    let Some(GroupStatus { members, own_thread, counts, .. }) = group(status) else { return };
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
    let store = facts.member.as_ref().and_then(|member| member.store);
    if let Some(StoreInfo { keys: keys @ 1.., expiring, .. }) = store {
        lines.add("db0", format_args!("keys={keys},expires={expiring},avg_ttl=0"));
    }
}
