//! `squall keys revoke`: certificates that are refused from now on.

use std::{fs, path::PathBuf};

use clap::Args;
use squall::keys::{Authority, Files, KeysError, describe, parse_serial};
use squall_command::say;

use super::show::hex;

/// Adds certificates to the CA's list of those that nodes refuse, crl.pem.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  squall keys revoke --dir keys keys/node-3.pem
  squall keys revoke --dir keys --serial 5f0cd1e2

Copy the list to each node, and name it in its configuration as `crl` in `[security]`. Nodes look at it each second:
they close what the owner of a revoked certificate has open, and let it in no more.")]
#[group(id = "which", required = true, multiple = true, args = ["file", "serial"])]
pub(super) struct RevokeArgs {
    /// The directory of the CA, and of the list
    #[arg(long, value_name = "DIR", default_value = "keys")]
    dir: PathBuf,
    /// The certificates, as PEM files
    #[arg(value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Their serial numbers, as `squall keys show` writes them, where the files are lost
    #[arg(long, value_name = "HEX", value_delimiter = ',', value_parser = serial)]
    serial: Vec<Serial>,
}

/// A serial number, big-endian.
#[derive(Clone, Debug)]
struct Serial(Vec<u8>);

fn serial(text: &str) -> Result<Serial, String> {
    parse_serial(text)
        .map(Serial)
        .ok_or_else(|| "give the hexadecimal digits that `squall keys show` writes".to_owned())
}

impl RevokeArgs {
    pub(super) fn run(self) -> Result<(), KeysError> {
        let files = Files::in_directory(&self.dir);
        let authority = Authority::load(&files)?;
        let mut serials: Vec<Vec<u8>> = self.serial.into_iter().map(|Serial(serial)| serial).collect();
        for path in self.file {
            let text = fs::read_to_string(&path).map_err(|cause| KeysError::Read {
                path: path.clone(),
                cause,
                is_ca: false,
            })?;
            let first = describe(&text).map(|all| all.into_iter().next());
            let first = first.map_err(|problem| KeysError::Malformed { what: path.display().to_string(), problem })?;
            serials.extend(first.map(|certificate| certificate.serial));
        }
        let list = authority.revoke(&files, serials)?;
        say(format_args!(
            "{} is list {} of cluster {:?}",
            files.revocation_list().display(),
            list.number,
            authority.cluster()
        ));
        for (serial, at) in &list.serials {
            say(format_args!("  {}  revoked on {}", hex(serial), at.date()));
        }
        say(format_args!("\nCopy it to each node, where `crl` in `[security]` names it."));
        Ok(())
    }
}
