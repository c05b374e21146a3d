//! The check of a log at all members of a group that runs.

use std::{
    io::IsTerminal,
    thread,
    time::{Duration, Instant},
};

use indicatif::HumanBytes;
use squall::{
    LogStatus, NodeId,
    log_service::{Checked, LogClient, LogError},
};
use squall_command::{CommandError, say};

use super::super::reach::{MEMBER_PATIENCE, ReachArgs};

/// The time for which a member is waited for that is started again, or behind.
const PATIENCE: Duration = Duration::from_secs(20);

/// The interval of progress messages.
const PAUSE: Duration = Duration::from_secs(1);

/// A member, and the findings about its log.
struct VerifiedMember {
    node: NodeId,
    log: LogClient,
    first: u64,
    messages: u64,
    bytes: u64,
    damage: Vec<String>,
    /// The time at which a member that shows nothing is given up.
    patient_until: Instant,
    /// The reason for which it could not be checked to the end. It is no finding against its log.
    unchecked: Option<String>,
}

impl VerifiedMember {
    /// Checks a part, which is at least `least` versions long. A member that shows less than it had was started again
    /// meanwhile. It is waited for, as is one that does not answer.
    fn check(&mut self, from: u64, to: u64, least: u64) -> Option<Checked> {
        let mut part: Option<Checked> = None;
        let mut is_late = false;
        let mut stuck_since: Option<Instant> = None;
        loop {
            let mut is_stuck = || stuck_since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE;
            let at = part.as_ref().map_or(from, |part| part.to + 1);
            match self.log.check(at, to) {
                // A member that was started again knows of less that is globally persisted, until it is a member again.
                Ok(checked)
                    if checked.to < at || checked.to < from + least - 1 && checked.damage.is_empty() && !is_late =>
                {
                    let wanted = if checked.to < at { at } else { from + least - 1 };
                    // A part that is too short counts the second time: the member has no more.
                    is_late = checked.to >= at;
                    if is_stuck() {
                        self.unchecked =
                            Some(format!("it does not show version {wanted}, which it says all members have on disk"));
                    }
                    if self.unchecked.is_some() || !self.reach(wanted) {
                        return None;
                    }
                }
                Ok(checked) => {
                    stuck_since = None;
                    self.messages += checked.messages;
                    self.bytes += checked.bytes;
                    self.damage.extend_from_slice(&checked.damage);
                    // The first member does not count records that are damaged there, so a part at this one may end
                    // earlier.
                    part = Some(match part {
                        None => checked,
                        Some(Checked { mut damage, .. }) => {
                            damage.extend(checked.damage);
                            Checked { to: checked.to, digest: None, damage, ..Checked::default() }
                        }
                    });
                }
                // The member trimmed some of these records meanwhile.
                Err(LogError::Trimmed { first }) => {
                    self.first = self.first.max(first);
                    return None;
                }
                Err(error) => {
                    tracing::debug!(node = %self.node, %error, "a member is waited for");
                    if is_stuck() {
                        self.unchecked = Some(error.to_string());
                    }
                    if self.unchecked.is_some() || !self.reach(at) {
                        return None;
                    }
                    thread::sleep(Duration::from_millis(50));
                }
            }
            if part.as_ref().is_some_and(|part| part.to + 1 >= from + least) {
                return part;
            }
        }
    }

    /// Waits until the member knows that a version is globally persisted. Returns whether it does: it may be behind, or
    /// be started again.
    fn reach(&mut self, last: u64) -> bool {
        let until = self.patient_until;
        loop {
            let why = match self.log.status() {
                Ok(status) if status.globally_persisted >= last => {
                    self.patient_until = Instant::now() + PATIENCE;
                    return true;
                }
                Ok(status) => {
                    let version = status.globally_persisted;
                    format!("it has the log up to version {version}, and others up to {last}: see `squall status`")
                }
                Err(error) => error.to_string(),
            };
            if Instant::now() >= until {
                self.unchecked = Some(why);
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn has(&self, version: u64) -> bool {
        self.unchecked.is_none() && self.first <= version
    }
}

/// Checks all versions that are globally persisted at the beginning.
pub(super) fn verify(reach: &ReachArgs, quiet: bool) -> Result<(), CommandError> {
    let mut log = reach.log()?;
    let nodes = log.members().map_err(CommandError::failed)?;
    let (mut members, silent) = greet(&log, &nodes);
    // All members have what is globally persisted.
    let Some(last) = members.iter().map(|(_, status)| status.globally_persisted).max() else {
        return Err(CommandError::Unchecked(silent.join("; ")));
    };
    let on_disk = members.iter().map(|(_, status)| status.last).max().unwrap_or_default();
    if last == 0 && on_disk > 0 {
        let why = format!(
            "members have up to version {on_disk} on disk, and none knows which of these all have: see `squall status`"
        );
        return Err(CommandError::Unchecked(why));
    }
    let mut members: Vec<VerifiedMember> = members.drain(..).map(|(member, _)| member).collect();
    members.iter_mut().for_each(|member| _ = member.reach(last));
    let mut different: Option<(u64, u64)> = None;
    let mut shown = Instant::now();
    let mut from = members.iter().map(|member| member.first).min().unwrap_or(1);
    while from <= last {
        // A part ends before the log of a member that begins later than the others.
        let later = members.iter().map(|member| member.first).filter(|&first| first > from).min();
        let to = last.min(later.map_or(u64::MAX, |later| later - 1));
        let Some(part) = check_part(&mut members, from, to) else { break };
        if part.differs && different.is_none() {
            different = Some((from, part.to));
        }
        from = part.to + 1;
        if !quiet && shown.elapsed() >= PAUSE {
            shown = Instant::now();
            let bytes = members.iter().map(|member| member.bytes).sum();
            let end = if std::io::stderr().is_terminal() { '\r' } else { '\n' };
            eprint!("squall: checked up to version {} of {last}, {} in all    {end}", part.to, HumanBytes(bytes));
        }
    }
    report(&members, silent, different, last, quiet)
}

/// Asks each member for its log's state. Also returns a sentence for each member that does not answer.
fn greet(log: &LogClient, nodes: &[NodeId]) -> (Vec<(VerifiedMember, LogStatus)>, Vec<String>) {
    let (mut members, mut silent) = (Vec::new(), Vec::new());
    for &node in nodes {
        let mut log = log.at_member(node);
        log.set_timeout(MEMBER_PATIENCE);
        match log.status() {
            Ok(status) => {
                let (first, damage) = (status.first, Vec::new());
                let (patient_until, unchecked) = (Instant::now() + PATIENCE, None);
                members.push((
                    VerifiedMember { node, log, first, messages: 0, bytes: 0, damage, patient_until, unchecked },
                    status,
                ));
            }
            Err(error) => silent.push(format!("{node}: {error}")),
        }
    }
    (members, silent)
}

/// The outcome of one part.
struct PartVerdict {
    to: u64,
    differs: bool,
}

/// Lets all members that have the part from `from` on check it, which ends at `to` at the latest. The first member
/// determines its length; the others then check the same part at the same time. None if no member has it.
fn check_part(members: &mut [VerifiedMember], from: u64, to: u64) -> Option<PartVerdict> {
    let mut able = members.iter_mut().filter(|member| member.has(from));
    let mut first = able.next()?;
    let lead = loop {
        match first.check(from, to, 1) {
            Some(checked) => break checked,
            None => first = able.next()?,
        }
    };
    let to = lead.to;
    let others = thread::scope(|scope| {
        let checks: Vec<_> = able.map(|member| scope.spawn(move || member.check(from, to, to + 1 - from))).collect();
        checks.into_iter().filter_map(|check| check.join().ok().flatten()).collect::<Vec<_>>()
    });
    let mut digests = others.iter().chain([&lead]).filter_map(|checked| checked.digest);
    let one = digests.next();
    // Where nothing is damaged, the same records make parts of the same length.
    let is_longer = |other: &Checked| other.digest.is_none() && other.damage.is_empty();
    let differs = digests.any(|other| Some(other) != one) || lead.digest.is_some() && others.iter().any(is_longer);
    Some(PartVerdict { to, differs })
}

fn report(
    members: &[VerifiedMember],
    mut unchecked: Vec<String>,
    different: Option<(u64, u64)>,
    last: u64,
    quiet: bool,
) -> Result<(), CommandError> {
    let mut wrong = Vec::new();
    for member in members {
        let VerifiedMember { node, first, messages, bytes, damage, .. } = member;
        if !quiet {
            say(format_args!("{node}: versions {first} to {last}: {messages} good, {}", HumanBytes(*bytes)));
        }
        wrong.extend(damage.iter().map(|damage| format!("{node}: {damage}")));
        unchecked.extend(member.unchecked.iter().map(|why| format!("{node}: {why}")));
    }
    if let Some((from, to)) = different {
        wrong.push(format!("members have different records among versions {from} to {to}"));
    }
    unchecked.iter_mut().for_each(|why| why.push_str("; it could not be checked, or not to the end"));
    if !wrong.is_empty() {
        wrong.append(&mut unchecked);
        return Err(CommandError::Failed(wrong.join("\nsquall: ")));
    }
    if !unchecked.is_empty() {
        return Err(CommandError::Unchecked(unchecked.join("\nsquall: ")));
    }
    say(format_args!("all records are good, and all {} members have the same up to version {last}", members.len()));
    Ok(())
}
