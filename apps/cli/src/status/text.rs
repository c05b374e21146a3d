//! A status as a page of text.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use bytesize::ByteSize;
use squall::{
    AsideStatus, Fetching, LogStatus, NodeId,
    admin::{
        MemberReport, NodeCondition, RowReport, ShardCondition, ShardReport, StallReport, StatusReport, ViewLogReport,
    },
};
use time::OffsetDateTime;

/// The page.
pub(super) fn of(report: &StatusReport) -> String {
    let mut page = String::new();
    write(&mut page, report).expect("a string takes all");
    page
}

fn write(page: &mut String, report: &StatusReport) -> fmt::Result {
    let epoch = report.epoch.map_or("no view yet".to_owned(), |epoch| format!("epoch {epoch}"));
    writeln!(page, "cluster {:?}, {epoch}; {} {}", report.cluster, report.node, node_condition(&report.condition))?;
    if let Some(clock) = &report.clock {
        writeln!(page, "WRONG CLOCK: {clock}")?;
    }
    for says in &report.went_back {
        writeln!(page, "THE GROUP HAS GONE BACK: {says}")?;
    }
    if !report.joined.is_empty() || !report.left.is_empty() {
        writeln!(page, "joined in this view: {}; left: {}", ids(&report.joined), ids(&report.left))?;
    }
    if !report.members.is_empty() {
        let rows = report.members.iter().map(|member| self::member(report, member));
        let head = ["MEMBER", "RACK", "ADDRESS", "INCARNATION", "HEARTBEAT", "STATE"];
        table(page, head, rows.collect())?;
    }
    for shard in &report.shards {
        writeln!(page, "\nshard {} of {:?}: {}", shard.shard, shard.group, condition(&shard.condition))?;
        if let Some(Fetching { source, received, bytes }) = shard.fetching {
            let of = bytes.map_or(String::new(), |bytes| format!(" of about {}", ByteSize(bytes)));
            writeln!(page, "its state comes from {source}: {}{of} so far", ByteSize(received))?;
        }
        if let Some(log) = &shard.log {
            writeln!(page, "{}", self::log(log))?;
            beside(page, log)?;
        }
        table(page, ["MEMBER", "ROLE", "SENT", "RECEIVED", "DELIVERED", "PERSISTED", "LAG"], rows(shard))?;
    }
    for StallReport { node, shard, group, waits_for, for_ms } in &report.stalls {
        let seconds = Duration::from_millis(*for_ms).as_secs_f64();
        writeln!(
            page,
            "\n{node} STANDS STILL in shard {shard} of {group:?}: it has waited for its {waits_for} for {seconds:.1} s"
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
    for forced in &report.forced {
        writeln!(page, "forced by {forced}")?;
    }
    Ok(())
}

fn node_condition(condition: &NodeCondition) -> String {
    match condition {
        NodeCondition::Forming => "waits for the other members of the first view".into(),
        NodeCondition::Joining => "asks to join".into(),
        NodeCondition::Waiting { rejoins_in_ms } => {
            let seconds = Duration::from_millis(*rejoins_in_ms).as_secs_f64();
            format!("was dropped again soon after it had joined, and asks to join again in {seconds:.1} s")
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

fn member(report: &StatusReport, member: &MemberReport) -> [String; 6] {
    let marks = [
        (report.leader == Some(member.node), "leads"),
        (report.joined.contains(&member.node), "new"),
        (member.suspected, "SUSPECTED"),
        (member.wedged, "wedged"),
        (member.leaving, "leaving"),
    ];
    let marks: Vec<&str> = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
    [
        member.node.0.to_string(),
        member.rack.clone(),
        member.addresses.first().cloned().unwrap_or_default(),
        member.incarnation.to_string(),
        member.heartbeat_age_ms.map_or("itself".to_owned(), |age| format!("{age} ms ago")),
        marks.join(", "),
    ]
}

fn log(log: &LogStatus) -> String {
    let LogStatus { first, last, globally_persisted, bytes, snapshots_bytes, records, written_bytes, syncs, .. } = log;
    let what =
        if last < first { format!("empty, behind version {last}") } else { format!("versions {first} to {last}") };
    let ends = if log.ends_at_ns == 0 { String::new() } else { format!(", the last of {}", utc(log.ends_at_ns)) };
    let snapshot = log.snapshot.map_or("no snapshot".to_owned(), |snapshot| format!("snapshot at {snapshot}"));
    let failure = log.failure.as_ref().map_or(String::new(), |why| format!("; FAILED: {why}"));
    let late = if log.snapshot_late { ", the next LATE" } else { "" };
    format!(
        "log: {what}{ends}; all members have {globally_persisted} on disk; {} here, {snapshot} ({}{late}); since its start {records} records, {} \
         with {syncs} syncs{failure}",
        ByteSize(*bytes),
        ByteSize(*snapshots_bytes),
        ByteSize(*written_bytes)
    )
}

/// The damage in a log, and what is kept beside it.
fn beside(page: &mut String, log: &LogStatus) -> fmt::Result {
    for damage in &log.damaged {
        writeln!(page, "DAMAGED: {damage}; it is replaced once another member that has these records can be asked")?;
    }
    if log.repaired > 0 {
        writeln!(page, "{} damages were repaired since its start", log.repaired)?;
    }
    for AsideStatus { name, directory, first, last, bytes } in &log.asides {
        writeln!(
            page,
            "set aside: {name}, versions {first} to {last} ({}), in {directory}: to look at it, copy its files to a directory of their \
             own, without {name:?} and the dot in their names, and see `squall log read --help`; newer ones take its place",
            ByteSize(*bytes)
        )?;
    }
    Ok(())
}

/// The text of a time in nanoseconds since 1970.
fn utc(ns: u64) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(ns.into()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, (hour, minute, second)) = (time.date(), time.to_hms());
    format!("{date} {hour:02}:{minute:02}:{second:02} UTC")
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
    format!("view log: {leader}, term {}; voters {voters}; learners {learners}{applied}; kept {storage}", log.term)
}

fn ids(nodes: &[NodeId]) -> String {
    if nodes.is_empty() {
        return "none".into();
    }
    nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ")
}

/// Writes a table. Columns are as wide as their contents, two blanks apart; an empty column is left out.
fn table<const N: usize>(page: &mut String, head: [&str; N], rows: Vec<[String; N]>) -> fmt::Result {
    let width = |column: usize| {
        let widest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        if widest == 0 { 0 } else { widest.max(head[column].len()) }
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut line = |cells: [&str; N]| {
        let shown = cells.iter().zip(widths).filter(|(_, width)| *width > 0);
        let text: Vec<String> = shown.map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(page, "{}", text.join("  ").trim_end())
    };
    line(head)?;
    rows.iter().try_for_each(|row| line(row.each_ref().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use squall::admin::{CandidateReport, WaitsFor};

    use super::*;

    fn member(node: u32, heartbeat_age_ms: Option<u64>) -> MemberReport {
        let addresses = vec![format!("10.0.0.{node}:7700")];
        let (suspected, wedged, leaving) = (node == 3, node == 3, false);
        let rack = String::new();
        MemberReport {
            node: NodeId(node),
            incarnation: 7,
            addresses,
            rack,
            heartbeat_age_ms,
            clock_ahead_ms: None,
            suspected,
            wedged,
            leaving,
        }
    }

    #[test]
    fn a_page_says_it_all() {
        let row = |node, complete, delivered, lag| RowReport {
            node: NodeId(node),
            sender: complete,
            complete,
            sent: 4,
            received: 12,
            delivered,
            persisted: Some(3),
            lag,
        };
        let report = StatusReport {
            cluster: "bank".into(),
            node: NodeId(1),
            version: "0.1.0".into(),
            condition: NodeCondition::Member,
            clock: Some("this node's clock is 7.0 s ahead".into()),
            epoch: Some(4),
            leader: Some(NodeId(1)),
            members: vec![member(1, None), member(3, Some(120))],
            joined: vec![NodeId(3)],
            left: vec![NodeId(2)],
            shards: vec![ShardReport {
                shard: 0,
                group: "accounts".into(),
                condition: ShardCondition::Inadequate,
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
                    damaged: vec!["log/segment-0000000003, offset 4096 to 4200".into()],
                    repaired: 2,
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
            view_log: Some(ViewLogReport {
                voters: vec![NodeId(1), NodeId(3)],
                learners: vec![],
                leader: None,
                term: 2,
                applied: Some(9),
                storage: None,
            }),
            candidates: vec![CandidateReport { node: NodeId(5), incarnation: 1, addresses: vec![] }],
            went_back: vec!["node 2 knows more".into()],
            forced: vec!["ann on host, 2026-11-22 06:00:00 UTC: fire".into()],
        };
        let expected = "\
cluster \"bank\", epoch 4; node 1 is a member
WRONG CLOCK: this node's clock is 7.0 s ahead
THE GROUP HAS GONE BACK: node 2 knows more
joined in this view: 3; left: 2
MEMBER  ADDRESS        INCARNATION  HEARTBEAT   STATE
1       10.0.0.1:7700  7            itself      leads
3       10.0.0.3:7700  7            120 ms ago  new, SUSPECTED, wedged

shard 0 of \"accounts\": refuses work: too few members hold its state
its state comes from node 3: 12.0 MiB of about 64.0 MiB so far
log: versions 101 to 4096, the last of 2026-11-22 08:00:00 UTC; all members have 4090 on disk; 96.0 MiB here, snapshot at 4000 (3.0 MiB, the next LATE); since its start 64 records, 1.0 MiB with 9 syncs
DAMAGED: log/segment-0000000003, offset 4096 to 4200; it is replaced once another member that has these records can be asked
2 damages were repaired since its start
set aside: aside-1, versions 7 to 9 (1.0 MiB), in log: to look at it, copy its files to a directory of their own, without \"aside-1\" and the dot in their names, and see `squall log read --help`; newer ones take its place
MEMBER  ROLE            SENT  RECEIVED  DELIVERED  PERSISTED  LAG
1       sends           4     12        12         3          0
3       gets the state  4     12        5          3          7

node 3 STANDS STILL in shard 0 of \"accounts\": it has waited for its disk for 1.4 s

view log: no leader is known, term 2; voters 1, 3; learners none, 9 entries applied; kept in memory
node 5 asks to join
forced by ann on host, 2026-11-22 06:00:00 UTC: fire
";
        assert_eq!(of(&report), expected);
    }
}
