//! `squall keys show`: the contents of certificates and public keys.

use std::{
    fs,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use squall::{
    keys::{Description, Principal, Revocations, Subject, describe},
    log_keys::PublicKey,
};
use squall_command::{CommandError, say};

/// Shows the node, the cluster and the end of certificates, and the public keys that check a node's logs.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  squall keys show keys/*.pem\n\nThe exit code is 1 if a file could not be shown.")]
pub(super) struct ShowArgs {
    /// Certificates, or public keys, as PEM files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

impl ShowArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let mut failed = 0;
        for file in &self.files {
            let text = fs::read_to_string(file).map_err(|error| format!("it can't be read: {error}"));
            match text.and_then(|text| sentences(&text)) {
                Ok(all) => all.iter().for_each(|one| say(format_args!("{}: {one}", file.display()))),
                Err(problem) => {
                    failed += 1;
                    eprintln!("squall: {}: {problem}", file.display());
                }
            }
        }
        match failed {
            0 => Ok(()),
            1 => Err(CommandError::Failed("one file could not be shown".into())),
            some => Err(CommandError::Failed(format!("{some} files could not be shown"))),
        }
    }
}

/// The contents of a PEM text, each in a line.
fn sentences(text: &str) -> Result<Vec<String>, String> {
    if let Ok(key) = PublicKey::from_pem(text.as_bytes()) {
        return Ok(vec![format!("the public key {key}, with which signed logs are checked")]);
    }
    if let Ok(list) = Revocations::read(text) {
        let serials: Vec<_> = list.serials.keys().map(|serial| hex(serial)).collect();
        let all = if serials.is_empty() { "none".to_owned() } else { serials.join(", ") };
        return Ok(vec![format!("list {} of revoked certificates: {all}", list.number)]);
    }
    Ok(describe(text)?.iter().map(sentence).collect())
}

/// A certificate in a line.
pub(crate) fn sentence(certificate: &Description) -> String {
    let issuer = &certificate.issuer;
    let whose = match &certificate.subject {
        Subject::Authority { cluster } => format!("the CA of cluster {cluster:?}"),
        Subject::Owner { principal, of_issuer: true, .. } => {
            format!("{principal} of cluster {issuer:?}{}", may(principal))
        }
        Subject::Owner { principal, name, .. } => {
            format!("{principal} of another cluster than the issuer's, {issuer:?} (the name is {name})")
        }
        Subject::Other { names } => format!("no owner (issued by {issuer:?}, names {names:?})"),
    };
    format!("{whose}, serial {}, {}", hex(&certificate.serial), validity(certificate, now()))
}

/// The rights of a client, as an addition to its name.
fn may(owner: &Principal) -> String {
    match owner {
        Principal::Client(_, rights) => format!(", which may {rights}"),
        _ => String::new(),
    }
}

/// A serial number in hexadecimal digits.
pub(super) fn hex(serial: &[u8]) -> String {
    serial.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed())
}

/// The validity of a certificate at `now`, in seconds since 1970.
fn validity(certificate: &Description, now: i64) -> String {
    const DAY: i64 = 86_400;
    let (since, until) = (certificate.since.unix_timestamp(), certificate.until.unix_timestamp());
    let day = certificate.until.date();
    if now >= until {
        let remedy = match certificate.subject {
            Subject::Authority { .. } => {
                "make a new one with `squall keys init --force`, and new keys of all nodes with `squall keys add \
                 --force`"
            }
            _ => "renew it with `squall keys add --force`",
        };
        return format!("EXPIRED on {day}, {} days ago: {remedy}", (now - until) / DAY);
    }
    if now < since {
        return format!("not yet good: from {} on (is the clock right?)", certificate.since.date());
    }
    format!("good until {day}, {} days more", (until - now) / DAY)
}

#[cfg(test)]
mod tests {
    use squall::{NodeId, keys::Authority};

    use super::*;

    #[test]
    fn a_line_says_whose_a_certificate_is_and_how_it_stands() {
        let authority = Authority::create("bank").unwrap();
        let keys = authority.issue(NodeId(3), 30).unwrap();
        let [certificate] = &describe(keys.certificate()).unwrap()[..] else { panic!("one certificate") };
        let said = sentence(certificate);
        assert!(said.starts_with("node 3 of cluster \"bank\", serial ") && said.contains(", good until "), "{said}");
        let until = certificate.until.unix_timestamp();
        assert!(validity(certificate, until - 29 * 86_400 - 7).ends_with(", 29 days more"));
        assert!(validity(certificate, until + 2 * 86_400).contains(", 2 days ago: renew it"));
        assert!(validity(certificate, 0).starts_with("not yet good"));
        let [certificate] = &describe(authority.certificate()).unwrap()[..] else { panic!("one certificate") };
        assert!(sentence(certificate).starts_with("the CA of cluster \"bank\", serial "));
        let said = validity(certificate, certificate.until.unix_timestamp());
        assert!(said.contains("keys init --force") && said.contains("keys add --force"), "{said}");
    }
}
