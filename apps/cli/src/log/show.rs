//! Records on standard output.

use std::io::{self, BufWriter, StdoutLock, Write};

use clap::Args;
use serde_json::{Value, json};
use squall::log_service::LogRecord;

use super::time;

/// The form in which records are shown.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct FormArgs {
    /// Put each record's version before it
    #[arg(long)]
    with_version: bool,
    /// Put each record's version and time before it
    #[arg(long)]
    with_time: bool,
    /// Print a JSON object on each line: version, time, time_ns, epoch, node, skipped (if no member applies it), and
    /// record, or bytes (in hexadecimal) if it is no text
    #[arg(long, conflicts_with_all = ["with_version", "with_time"])]
    json: bool,
}

/// Shows records, a line for each.
pub(super) struct Shown {
    form: FormArgs,
    out: BufWriter<StdoutLock<'static>>,
    /// The number of commands that are no records.
    strange: u64,
}

impl Shown {
    pub(super) fn new(form: FormArgs) -> Shown {
        Shown { form, out: BufWriter::with_capacity(64 << 10, io::stdout().lock()), strange: 0 }
    }

    /// Shows records, and flushes them with all records before.
    pub(super) fn records<'r>(&mut self, records: impl IntoIterator<Item = &'r LogRecord>) -> io::Result<()> {
        records.into_iter().try_for_each(|record| self.record(record))?;
        self.out.flush()
    }

    /// Shows a record. It may appear only with the next [records](Shown::records).
    pub(super) fn record(&mut self, record: &LogRecord) -> io::Result<()> {
        let Ok(bytes) = record.record() else {
            // No member has applied it.
            self.strange += 1;
            return Ok(());
        };
        let LogRecord { version, time, is_skipped, .. } = record;
        if *is_skipped && !self.form.json {
            eprintln!("squall: version {version} is skipped: no member applies it, as an operator has said");
        }
        if self.form.json {
            return writeln!(self.out, "{}", object(record, Contents::Record(bytes)));
        }
        if self.form.with_version || self.form.with_time {
            write!(self.out, "{version}\t")?;
        }
        if self.form.with_time {
            write!(self.out, "{}\t", time::show(*time))?;
        }
        self.out.write_all(&bytes)?;
        self.out.write_all(b"\n")
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.strange > 0 {
            eprintln!(
                "squall: {} commands are no records, and were not shown: is this the log of another service?",
                self.strange
            );
        }
    }
}

/// The contents of a log's record.
pub(super) enum Contents {
    /// The bytes that were appended to a log of records.
    Record(Vec<u8>),
    /// The command of another service, as rkyv encoded it.
    Command(Vec<u8>),
}

/// A record as a JSON object, which [`contents`] reads.
pub(super) fn object(record: &LogRecord, contents: Contents) -> Value {
    let LogRecord { version, time, epoch, sender, is_skipped, .. } = record;
    let mut object = json!({
        "version": version,
        "time": time::show(*time),
        "time_ns": time.0,
        "epoch": epoch.0,
        "node": sender.0,
    });
    if *is_skipped {
        object["skipped"] = true.into();
    }
    match contents {
        Contents::Record(bytes) => match String::from_utf8(bytes) {
            Ok(text) => object["record"] = text.into(),
            Err(error) => object["bytes"] = hexadecimal(error.as_bytes()).into(),
        },
        Contents::Command(bytes) => object["command"] = hexadecimal(&bytes).into(),
    }
    object
}

/// The record that a JSON object shows; None if no member applies it. The error says why the object shows none.
pub(super) fn contents(line: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let object: Value = serde_json::from_slice(line).map_err(|error| format!("it is no JSON object: {error}"))?;
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    match (object.get("skipped"), text("record"), text("bytes")) {
        (Some(Value::Bool(true)), _, _) => Ok(None),
        (_, Some(text), None) => Ok(Some(text.as_bytes().to_vec())),
        (_, None, Some(digits)) => from_hexadecimal(digits).map(Some).ok_or("its \"bytes\" are not hexadecimal".into()),
        _ if object.get("command").is_some() => Err("it is a command of another service than a log of records".into()),
        _ => Err("it has neither \"record\" nor \"bytes\"".into()),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| u8::try_from(digit(high)? << 4 | digit(low)?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use squall::{Epoch, Hlc, NodeId};

    use super::*;

    fn record(is_skipped: bool) -> LogRecord {
        let (version, time, epoch, sender) = (7, Hlc(1_795_000_000_000_000_001), Epoch(3), NodeId(2));
        LogRecord { version, time, epoch, sender, is_skipped, command: Vec::new() }
    }

    #[test]
    fn whatever_a_record_holds_its_object_gives_back() {
        for bytes in
            [&b""[..], b"text", b"two\nlines\r\n", b"\"quoted\" \\ \t \x00", "ümläut".as_bytes(), b"\xff\x00\n"]
        {
            let line = object(&record(false), Contents::Record(bytes.to_vec())).to_string();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(contents(line.as_bytes()), Ok(Some(bytes.to_vec())), "{line}");
        }
    }

    #[test]
    fn what_was_skipped_or_is_no_record_is_not_taken() {
        let line = object(&record(true), Contents::Record(b"text".to_vec())).to_string();
        assert_eq!(contents(line.as_bytes()), Ok(None));
        let line = object(&record(false), Contents::Command(vec![1, 255])).to_string();
        assert!(line.contains("\"command\":\"01ff\""), "{line}");
        let why = |line: &str| contents(line.as_bytes()).expect_err("it is no record");
        assert!(why(&line).contains("another service"));
        assert!(why("text").contains("no JSON object"));
        assert!(why("{}").contains("neither"));
        assert!(why("{\"bytes\": \"0\"}").contains("hexadecimal"));
        assert!(why("{\"bytes\": \"0g\"}").contains("hexadecimal"));
        assert!(why("{\"record\": \"a\", \"bytes\": \"00\"}").contains("neither"));
    }
}
