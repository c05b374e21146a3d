//! A status as a page of text.

use std::fmt::{self, Write};

use squall::{
    Fetching, RoomLevel, RoomStatus,
    admin::{
        ClientsReport, HealthReport, MemberReport, NodeCondition, RowReport, ShardCondition, ShardReport, StallReport,
        StatusReport, TrafficReport, ViewLogReport, WaitReport,
    },
};
use squall_units::show_about_size;

use super::{
    layout::layout,
    log, security,
    table::{health, ids, table, time, traffic},
};

/// The page.
pub(super) fn of(report: &StatusReport) -> String {
    let mut page = String::new();
    write(&mut page, report).expect("a string takes all");
    page
}

fn write(page: &mut String, report: &StatusReport) -> fmt::Result {
    head(page, report)?;
    if !report.members.is_empty() {
        let rows = report.members.iter().map(|member| self::member(report, member));
        let head = ["MEMBER", "RACK", "ADDRESS", "INCARNATION", "TRANSPORT", "HEARTBEAT", "STATE"];
        table(page, &head, &rows.collect::<Vec<_>>())?;
    }
    for MemberReport { node, unshared, .. } in &report.members {
        if let Some(why) = unshared {
            writeln!(page, "{node} is on this host too, but memory can't be shared with it: {why}")?;
        }
    }
    layout(page, &[report])?;
    report.shards.iter().try_for_each(|shard| self::shard(page, shard))?;
    for StallReport { node, shard, group, waits_for, for_ms } in &report.stalls {
        let waited = time(*for_ms);
        writeln!(
            page,
            "\n{node} STANDS STILL in shard {shard} of {group:?}: it has waited for its {waits_for} for {waited}"
        )?;
    }
    if let Some(log) = &report.view_log {
        writeln!(page, "\n{}", view_log(log))?;
    }
    for candidate in &report.candidates {
        let from = if candidate.addresses.is_empty() {
            String::new()
        } else {
            format!(" ({})", candidate.addresses.join(", "))
        };
        writeln!(page, "{} asks to join{from}", candidate.node)?;
    }
    report.forced.iter().try_for_each(|forced| writeln!(page, "forced by {forced}"))
}

/// Writes what concerns the node.
fn head(page: &mut String, report: &StatusReport) -> fmt::Result {
    let HealthReport { health, reasons } = report.health();
    self::health(page, health, &reasons)?;
    let epoch = report.epoch.map_or("no view yet".to_owned(), |epoch| format!("epoch {epoch}"));
    writeln!(page, "cluster {:?}, {epoch}; {} {}", report.cluster, report.node, node_condition(&report.condition))?;
    if let Some(clock) = &report.clock {
        writeln!(page, "WRONG CLOCK: {clock}")?;
    }
    if let Some(room) = &report.room {
        writeln!(page, "{}", self::room(room))?;
    }
    for says in &report.went_back {
        writeln!(page, "THE GROUP HAS GONE BACK: {says}")?;
    }
    if !report.joined.is_empty() || !report.left.is_empty() {
        writeln!(page, "joined in this view: {}; left: {}", ids(&report.joined), ids(&report.left))?;
    }
    for WaitReport { waits_for, for_ms, .. } in &report.waits {
        let waited = for_ms.map_or(String::new(), |ms| format!("; it has waited for {}", time(ms)));
        writeln!(page, "it waits for {waits_for}{waited}")?;
    }
    if let Some(up_ms) = report.up_ms {
        let views = report.views_installed;
        writeln!(page, "up for {}, with {views} view{} since", time(up_ms), if views == 1 { "" } else { "s" })?;
    }
    if let Some(ClientsReport { connected, calls, calls_per_second }) = report.clients {
        writeln!(page, "clients: {connected} connected; calls {calls_per_second}/s (in total {calls})")?;
    }
    if let Some(keys) = &report.keys {
        writeln!(page, "{}", security::keys(keys))?;
    }
    report.port.as_ref().map_or(Ok(()), |port| security::refusals(page, port))
}

fn shard(page: &mut String, shard: &ShardReport) -> fmt::Result {
    writeln!(page, "\nshard {} of {:?}: {}", shard.shard, shard.group, condition(&shard.condition))?;
    if let Some(Fetching { source, received, bytes }) = shard.fetching {
        let of = bytes.map_or(String::new(), |bytes| format!(" of about {}", show_about_size(bytes)));
        writeln!(page, "its state comes from {source}: {}{of} so far", show_about_size(received))?;
    }
    let TrafficReport { reads, reads_per_second, skipped, .. } = shard.traffic;
    let of = &shard.traffic;
    let delivered = traffic(of.delivered, of.delivered_bytes, of.delivered_per_second, of.delivered_bytes_per_second);
    let submitted = traffic(of.submitted, of.submitted_bytes, of.submitted_per_second, of.submitted_bytes_per_second);
    writeln!(page, "delivered {delivered}; submitted here {submitted}; reads {reads_per_second}/s (in total {reads})")?;
    if skipped > 0 {
        writeln!(page, "{skipped} messages were no commands, and were skipped by all members")?;
    }
    if let Some(log) = &shard.log {
        log::write(page, log)?;
    }
    table(page, &["MEMBER", "ROLE", "SENT", "RECEIVED", "DELIVERED", "PERSISTED", "LAG"], &rows(shard))
}

fn node_condition(condition: &NodeCondition) -> String {
    match condition {
        NodeCondition::Forming => "waits for the other members of the first view".into(),
        NodeCondition::Joining => "asks to join".into(),
        NodeCondition::Waiting { rejoins_in_ms } => {
            format!("was dropped again soon after it had joined, and asks to join again in {}", time(*rejoins_in_ms))
        }
        NodeCondition::Member => "is a member".into(),
        NodeCondition::Wedged => "waits for the next view".into(),
        NodeCondition::Stalled(why) => format!("can't go on: {why}"),
        NodeCondition::Ended(why) => format!("has ended: {why}"),
        NodeCondition::Witness => "is a witness".into(),
    }
}

fn condition(condition: &ShardCondition) -> String {
    match condition {
        ShardCondition::Active => "active".into(),
        ShardCondition::Inadequate => "refuses work: too few members hold its state".into(),
        ShardCondition::Suspended { last_holders, acknowledged, all_back } => {
            let holders = ids(last_holders);
            let waits = match all_back {
                false => format!("suspended: it goes on when a node that held its state is back ({holders})"),
                true => format!(
                    "suspended: all nodes that held its state are back ({holders}), and it goes on as soon as one of them says that it has \
                     it. If that takes longer than seconds, it is lost: end all nodes, start one of these and let it begin anew with `squall \
                     recover --force --reason TEXT`, then start the others"
                ),
            };
            match acknowledged {
                0 => waits,
                version => format!(
                    "{waits}, with all that was acknowledged, up to version {version}; if all their logs are damaged, end them and see \
                     `squall log repair --help`"
                ),
            }
        }
    }
}

fn member(report: &StatusReport, member: &MemberReport) -> [String; 7] {
    let marks = [
        (report.leader == Some(member.node), "leads"),
        (report.joined.contains(&member.node), "new"),
        (member.suspected, "SUSPECTED"),
        (member.wedged, "wedged"),
        (member.leaving, "leaving"),
        (member.short_of_room, "SHORT OF ROOM"),
    ];
    let marks: Vec<&str> = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
    [
        member.node.0.to_string(),
        member.rack.clone(),
        member.addresses.first().cloned().unwrap_or_default(),
        member.incarnation.to_string(),
        member.transport.clone().unwrap_or_default(),
        member.heartbeat_age_ms.map_or("itself".to_owned(), |age| format!("{} ago", time(age))),
        marks.join(", "),
    ]
}

fn room(room: &RoomStatus) -> String {
    match (room.level, room.warning()) {
        (RoomLevel::Short, Some(why)) => format!("SHORT OF ROOM: {why}"),
        (_, Some(why)) => format!("LITTLE ROOM: {why}"),
        (_, None) => {
            let [free, total] = [room.free_bytes, room.total_bytes].map(show_about_size);
            format!("{free} of {total} are free in {}", room.directory)
        }
    }
}

fn rows(shard: &ShardReport) -> Vec<[String; 7]> {
    let role = |row: &RowReport| match (row.complete, row.sender) {
        (false, _) => "gets the state",
        (true, true) => "sends",
        (true, false) => "receives",
    };
    let row = |row: &RowReport| {
        let counts = [row.sent, row.received, row.delivered, row.lag].map(|count| count.to_string());
        let [sent, received, delivered, lag] = counts;
        let persisted = row.persisted.map_or(String::new(), |version| version.to_string());
        [row.node.0.to_string(), role(row).to_owned(), sent, received, delivered, persisted, lag]
    };
    shard.rows.iter().map(row).collect()
}

fn view_log(log: &ViewLogReport) -> String {
    let leader = log.leader.map_or("no leader is known".to_owned(), |leader| format!("{leader} leads"));
    let applied = log.applied.map_or(String::new(), |applied| format!(", {applied} entries applied"));
    let storage = log.storage.as_ref().map_or("in memory".to_owned(), |storage| format!("in {storage}"));
    let (voters, learners) = (ids(&log.voters), ids(&log.learners));
    let silent = if log.silent.is_empty() { String::new() } else { format!(" (SILENT: {})", ids(&log.silent)) };
    format!(
        "view log: {leader}, term {}; voters {voters}{silent}; learners {learners}{applied}; kept {storage}",
        log.term
    )
}

#[cfg(test)]
pub(super) mod tests {
    use squall::{
        AsideStatus, LogStatus, NodeId, ScrubStatus,
        admin::{CandidateReport, CertificateReport, DeniedReport, KeysReport, PortReport, RefusedReport, WaitsFor},
    };

    use super::*;

    fn member(node: u32, heartbeat_age_ms: Option<u64>) -> MemberReport {
        let addresses = vec![format!("10.0.0.{node}:7700")];
        let (suspected, wedged, leaving) = (node == 3, node == 3, false);
        let rack = String::new();
        let [transport, unshared] = ["TCP", "its socket is not found"].map(|text| (node == 3).then(|| text.to_owned()));
        let short_of_room = node == 3;
        MemberReport {
            node: NodeId(node),
            incarnation: 7,
            addresses,
            rack,
            transport,
            unshared,
            heartbeat_age_ms,
            clock_ahead_ms: None,
            suspected,
            wedged,
            leaving,
            short_of_room,
        }
    }

    /// A report that has something of everything.
    pub(in super::super) fn report() -> StatusReport {
        let row = |node, complete, delivered, lag| RowReport {
            node: NodeId(node),
            sender: complete,
            complete,
            goes: false,
            sent: 4,
            received: 12,
            delivered,
            persisted: Some(3),
            lag,
        };
        StatusReport {
            cluster: "bank".into(),
            node: NodeId(1),
            version: "0.1.0".into(),
            condition: NodeCondition::Member,
            waits: vec![WaitReport {
                waits_for: "its disk in shard 0 of \"accounts\"".into(),
                nodes: Vec::new(),
                for_ms: Some(1400),
            }],
            up_ms: Some(90_500),
            clock: Some("this node's clock is 7.0 s ahead".into()),
            room: Some(RoomStatus {
                directory: "state".into(),
                free_bytes: 1000,
                total_bytes: 5000,
                reserve_bytes: 2000,
                free_inodes: None,
                reserve_inodes: 8,
                lasts_s: None,
                level: RoomLevel::Short,
            }),
            epoch: Some(4),
            views_installed: 2,
            configured: vec![NodeId(1), NodeId(3)],
            leader: Some(NodeId(1)),
            members: vec![member(1, None), member(3, Some(120))],
            joined: vec![NodeId(3)],
            left: vec![NodeId(2)],
            shards: vec![ShardReport {
                shard: 0,
                group: "accounts".into(),
                condition: ShardCondition::Inadequate,
                traffic: TrafficReport {
                    delivered: 4000,
                    delivered_bytes: 3 << 20,
                    submitted: 1000,
                    submitted_bytes: 700 << 10,
                    skipped: 2,
                    reads: 600,
                    delivered_per_second: 120,
                    delivered_bytes_per_second: 12_400,
                    submitted_per_second: 40,
                    submitted_bytes_per_second: 4_100,
                    reads_per_second: 10,
                },
                fetching: Some(Fetching { source: NodeId(3), received: 12 << 20, bytes: Some(64 << 20) }),
                log: Some(LogStatus {
                    first: 101,
                    begins_at_ns: 1_795_000_000_000_000_000,
                    last: 4096,
                    ends_at_ns: 1_795_334_400_000_000_000,
                    globally_persisted: 4090,
                    bytes: 96 << 20,
                    snapshot: Some(4000),
                    snapshots_bytes: 3 << 20,
                    snapshot_late: true,
                    records: 64,
                    written_bytes: 1 << 20,
                    syncs: 9,
                    failure: None,
                    no_room: Some("a segment does not fit".into()),
                    damaged: vec!["log/segment-0000000003, offset 4096 to 4200".into()],
                    repaired: 2,
                    scrub: ScrubStatus {
                        bytes_per_second: 1 << 20,
                        read_bytes: 12 << 20,
                        of_bytes: 96 << 20,
                        passes: 3,
                        ended_at_ns: 1_795_334_400_000_000_000,
                        found: 3,
                    },
                    asides: vec![AsideStatus {
                        name: "aside-1".into(),
                        directory: "log".into(),
                        first: 7,
                        last: 9,
                        bytes: 1 << 20,
                    }],
                }),
                rows: vec![row(1, true, 12, 0), row(3, false, 5, 7)],
            }],
            stalls: vec![StallReport {
                node: NodeId(3),
                shard: 0,
                group: "accounts".into(),
                waits_for: WaitsFor::Disk,
                for_ms: 1400,
            }],
            clients: Some(ClientsReport { connected: 3, calls: 5000, calls_per_second: 25 }),
            view_log: Some(ViewLogReport {
                voters: vec![NodeId(1), NodeId(3)],
                silent: vec![NodeId(3)],
                learners: vec![],
                leader: None,
                term: 2,
                applied: Some(9),
                storage: None,
            }),
            candidates: vec![CandidateReport { node: NodeId(5), incarnation: 1, addresses: vec![] }],
            went_back: vec!["node 2 knows more".into()],
            forced: vec!["ann on host, 2026-11-22 06:00:00 UTC: fire".into()],
            keys: Some(KeysReport {
                owner: "node 1".into(),
                certificates: vec![CertificateReport {
                    certificate: "keys/node-1.pem".into(),
                    until_unix_s: 1_800_000_000,
                    left_s: 300 * 86_400 + 7,
                    ends_soon: false,
                }],
                problem: Some("keys/node-1.key can't be read".into()),
            }),
            port: Some(PortReport {
                refused: [("certificate", 3), ("malformed", 1)]
                    .map(|(reason, count)| RefusedReport { reason: reason.into(), count })
                    .into(),
                denied: vec![DeniedReport { role: "client".into(), call: "orders".into(), count: 2 }],
            }),
        }
    }

    #[test]
    fn a_page_says_it_all() {
        let expected = "\
health: can't go on: shard 0 of \"accounts\" refuses work: too few members hold its state
  also: it waits for its disk in shard 0 of \"accounts\"
  also: wrong clock: this node's clock is 7.0 s ahead
  also: its new keys are not used: keys/node-1.key can't be read
  also: the group has gone back: node 2 knows more
  also: its storage is short of room
  also: node 3 is suspected
  also: the storage of node 3 is short of room
  also: node 3 stands still in shard 0 of \"accounts\": it waits for its disk
  also: the view log has no leader, so no change of the view can be decided
  also: nothing is heard of voters: node 3
  also: the log of shard 0 of \"accounts\" is damaged: log/segment-0000000003, offset 4096 to 4200
  also: the log of shard 0 of \"accounts\" waits for room on its disk
  also: a snapshot of shard 0 of \"accounts\" is due, and the one before is still being taken
cluster \"bank\", epoch 4; node 1 is a member
WRONG CLOCK: this node's clock is 7.0 s ahead
SHORT OF ROOM: 1000 of 5000 bytes are free in state, fewer than the 2000 that the logs may need at once: if it is so at most members, durable groups refuse writes until there is more; make room there, move the storage to a larger disk, or let the groups' logs be shorter (`retain`)
THE GROUP HAS GONE BACK: node 2 knows more
joined in this view: 3; left: 2
it waits for its disk in shard 0 of \"accounts\"; it has waited for 1400ms
up for 90s, with 2 views since
clients: 3 connected; calls 25/s (in total 5000)
keys: those of node 1, good for 300 days; NEW KEYS ARE NOT USED: keys/node-1.key can't be read
connections refused: certificate 3, malformed 1
calls not permitted: orders to clients 2
MEMBER  ADDRESS        INCARNATION  TRANSPORT  HEARTBEAT  STATE
     1  10.0.0.1:7700            7             itself     leads
     3  10.0.0.3:7700            7  TCP        120ms ago  new, SUSPECTED, wedged, SHORT OF ROOM
node 3 is on this host too, but memory can't be shared with it: its socket is not found

GROUP     SHARD  1  3
accounts      0  ■  ◧
■ holds the state, ◧ gets it, □ holds it until others do, · is no member

shard 0 of \"accounts\": refuses work: too few members hold its state
its state comes from node 3: 12 MiB of about 64 MiB so far
delivered 120/s, 12 KiB/s (in total 4000, 3 MiB); submitted here 40/s, 4100 B/s (in total 1000, 700 KiB); reads 10/s (in total 600)
2 messages were no commands, and were skipped by all members
log: versions 101 to 4096, the last of 2026-11-22 08:00:00 UTC; all members have 4090 on disk; 96 MiB here, snapshot at 4000 (3 MiB, the next LATE); since its start 64 records, 1 MiB with 9 syncs
NO ROOM: a segment does not fit
read again for damage: 12 MiB of about 96 MiB, at 1 MiB/s; 3 times to its end, last at 2026-11-22 08:00:00 UTC; 3 damages found
DAMAGED: log/segment-0000000003, offset 4096 to 4200; it is replaced once another member that has these records can be asked
2 damages were repaired since its start
set aside: aside-1, versions 7 to 9 (1 MiB), in log: to look at it, copy its files to a directory of their own, without \"aside-1\" and the dot in their names, and see `squall log read --help`; newer ones take its place
MEMBER  ROLE            SENT  RECEIVED  DELIVERED  PERSISTED  LAG
     1  sends              4        12         12          3    0
     3  gets the state     4        12          5          3    7

node 3 STANDS STILL in shard 0 of \"accounts\": it has waited for its disk for 1400ms

view log: no leader is known, term 2; voters 1, 3 (SILENT: 3); learners none, 9 entries applied; kept in memory
node 5 asks to join
forced by ann on host, 2026-11-22 06:00:00 UTC: fire
";
        assert_eq!(of(&report()), expected);
    }
}
