//! The lines of a status about the log of a shard.

use std::fmt::{self, Write};

use squall::{AsideStatus, LogStatus, ScrubStatus};
use squall_units::show_about_size;
use time::OffsetDateTime;

fn contents(log: &LogStatus) -> String {
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
        show_about_size(*bytes),
        show_about_size(*snapshots_bytes),
        show_about_size(*written_bytes)
    )
}

/// The search for damage in a log.
fn scrub(scrub: &ScrubStatus) -> String {
    let ScrubStatus { bytes_per_second, read_bytes, of_bytes, passes, ended_at_ns, found } = *scrub;
    let ended = match passes {
        0 => "not to its end yet".to_owned(),
        passes => format!("{passes} times to its end, last at {}", utc(ended_at_ns)),
    };
    format!(
        "read again for damage: {} of about {}, at {}/s; {ended}; {found} damages found",
        show_about_size(read_bytes),
        show_about_size(of_bytes.max(read_bytes)),
        show_about_size(bytes_per_second)
    )
}

/// Writes the contents of a log, the damage in it, the search for it, and what is kept beside the log.
pub(super) fn write(page: &mut String, log: &LogStatus) -> fmt::Result {
    writeln!(page, "{}", contents(log))?;
    if let Some(why) = &log.no_room {
        writeln!(page, "NO ROOM: {why}")?;
    }
    if log.scrub.bytes_per_second > 0 {
        writeln!(page, "{}", scrub(&log.scrub))?;
    }
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
            show_about_size(*bytes)
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
