//! The protection of copies over a network.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use squall::keys::{Files, KeyFiles};
use squall_command::CommandError;
use squall_fabric::{
    NodeId,
    net::{Identity, Principal, Role, Security},
};

/// The options of both sides that protect copies.
#[derive(Debug, Args)]
#[command(next_help_heading = "Over a network")]
pub(crate) struct ProtectionArgs {
    /// The directory with ca.pem of the cluster, and node-N.pem and node-N.key of this side, as `squall keys` makes
    /// them
    #[arg(long, value_name = "DIR", conflicts_with = "security")]
    pub(crate) keys: Option<PathBuf>,
    /// This side's node, where the directory has keys of several
    #[arg(long, value_name = "N", requires = "keys")]
    pub(crate) node: Option<u32>,
    /// Without keys: «none» lets every program that reaches the port send files, or get them
    #[arg(long, value_enum)]
    pub(crate) security: Option<Unprotected>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Unprotected {
    None,
}

impl ProtectionArgs {
    /// Refuses options for a network where all happens on this host, which needs no protection.
    pub(crate) fn check_unused(&self) -> Result<(), CommandError> {
        if self.keys.is_none() && self.security.is_none() {
            return Ok(());
        }
        let text = "--keys and --security are for copies over a network: give `serve` an address to --listen at, and `push` \
                    addresses instead of names";
        Err(CommandError::Usage(text.to_owned()))
    }

    /// The remedy, as a part of an error, where only loopback addresses are possible.
    pub(crate) fn remedy(&self) -> &'static str {
        match (&self.keys, self.security) {
            (None, None) => " (without --keys DIR, or --security none, all sides are on this host)",
            _ => "",
        }
    }

    /// The protection. `node_option` is the command's option for this side's node.
    pub(crate) fn security(&self, node_option: &str) -> Result<Security, CommandError> {
        match (&self.keys, self.security) {
            (Some(directory), _) => Ok(Security::Tls(self.identity(directory, node_option)?)),
            (None, Some(Unprotected::None)) => Ok(Security::None),
            (None, None) => Ok(Security::LoopbackOnly),
        }
    }

    fn identity(&self, directory: &Path, node_option: &str) -> Result<Identity, CommandError> {
        let owner = self.node.map(|node| Principal::Member(NodeId(node)));
        let files = key_files(directory, owner, &[Role::Member], node_option)?;
        Identity::load(&files).map_err(CommandError::usage)
    }
}

/// Returns the files of an owner's keys in a directory. If none is named, it is the only owner of the first of these
/// roles that has keys there. `option` is the option that names an owner.
pub(crate) fn key_files(
    directory: &Path,
    owner: Option<Principal>,
    roles: &[Role],
    option: &str,
) -> Result<KeyFiles, CommandError> {
    let owner = match owner {
        Some(owner) => owner,
        None => only_owner(directory, roles, option).map_err(CommandError::Usage)?,
    };
    Ok(Files::in_directory(directory).of(owner))
}

/// Returns the owner whose key a directory has. An error if there is none of these roles, or more than one.
fn only_owner(directory: &Path, roles: &[Role], option: &str) -> Result<Principal, String> {
    let shown = directory.display();
    let entries = directory.read_dir().map_err(|error| format!("the keys in {shown} can't be read: {error}"))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let owners: Vec<Principal> = names.filter_map(|name| Principal::of_label(name.strip_suffix(".key")?)).collect();
    for &role in roles {
        let mut of_role = owners.iter().filter(|owner| owner.role() == role);
        match (of_role.next(), of_role.next()) {
            (Some(owner), None) => return Ok(owner.clone()),
            (None, _) => {}
            (Some(_), Some(_)) => {
                return Err(format!(
                    "{shown} has keys of several owners: say with {option} which of them this side is"
                ));
            }
        }
    }
    let (form, made_by) = match roles.first() {
        Some(Role::Operator) => ("operator-NAME", "--operator NAME"),
        Some(Role::Client) => ("client-NAME", "--client NAME"),
        _ => ("node-N", "--node N"),
    };
    Err(format!("{shown} has no {form}.key: make one with `squall keys add --dir {shown} {made_by}`"))
}
