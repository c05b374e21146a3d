//! The lines of a page that concern a node's keys, and the refusals at its port.

use std::fmt::{self, Write};

use squall::admin::{DeniedReport, KeysReport, PortReport, RefusedReport};

/// The node's keys, and how long they are good.
pub(super) fn keys(keys: &KeysReport) -> String {
    let days = keys.certificates.iter().map(|certificate| certificate.left_s.div_euclid(86_400)).min();
    let good = days.map_or(String::new(), |days| format!(", good for {days} days"));
    let problem = keys.problem.as_ref().map_or(String::new(), |why| format!("; NEW KEYS ARE NOT USED: {why}"));
    format!("keys: those of {}{good}{problem}", keys.owner)
}

/// Writes the refusals, if there were any.
pub(super) fn refusals(page: &mut String, port: &PortReport) -> fmt::Result {
    let refused: Vec<_> =
        port.refused.iter().map(|RefusedReport { reason, count }| format!("{reason} {count}")).collect();
    if !refused.is_empty() {
        writeln!(page, "connections refused: {}", refused.join(", "))?;
    }
    let denied = port.denied.iter().map(|DeniedReport { role, call, count }| format!("{call} to {role}s {count}"));
    let denied: Vec<_> = denied.collect();
    if denied.is_empty() { Ok(()) } else { writeln!(page, "calls not permitted: {}", denied.join(", ")) }
}
