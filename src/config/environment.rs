//! The values that the environment overrides.

use std::{collections::BTreeMap, ffi::OsString, fmt::Display, path::PathBuf, str::FromStr, time::Duration};

use super::{
    ConfigError, ValuePlace, bytes,
    draft::{self, Draft, Given, value_error},
    network, security,
};

/// Overrides values of the draft by variables, which `get` looks up.
pub(super) fn apply(draft: &mut Draft, get: impl Fn(&'static str) -> Option<OsString>) -> Result<(), ConfigError> {
    let environment = Environment { get };
    environment.set(&mut draft.cluster, "SQUALL_CLUSTER", "cluster", |text| Ok(text.to_owned()))?;
    environment.set(&mut draft.id, "SQUALL_ID", "id", |text| number(text, "the id of a node"))?;
    environment.set_members(draft)?;
    environment.set(&mut draft.network.listen, "SQUALL_LISTEN", "listen", |text| Ok(list(text, ',')))?;
    environment.set(&mut draft.network.security, "SQUALL_SECURITY", "security", security::mode)?;
    let path = |text: &str| Ok(PathBuf::from(text));
    environment.set(&mut draft.network.ca, "SQUALL_CA", "security.ca", path)?;
    environment.set(&mut draft.network.certificate, "SQUALL_CERTIFICATE", "security.certificate", path)?;
    environment.set(&mut draft.network.key, "SQUALL_KEY", "security.key", path)?;
    let millis = |text: &str| number(text, "a number of milliseconds").map(Duration::from_millis);
    environment.set(&mut draft.formation_timeout, "SQUALL_FORMATION_TIMEOUT_MS", "formation_timeout_ms", millis)?;
    environment.set(&mut draft.failure_timeout, "SQUALL_FAILURE_TIMEOUT_MS", "failure_timeout_ms", millis)?;
    environment.set(&mut draft.clock_limit, "SQUALL_CLOCK_LIMIT_MS", "clock_limit_ms", millis)?;
    environment.set(&mut draft.read_lease, "SQUALL_READ_LEASE_MS", "read_lease_ms", millis)?;
    environment.set(&mut draft.restart_wait, "SQUALL_RESTART_WAIT_MS", "restart_wait_ms", millis)?;
    environment.set(&mut draft.disk_timeout, "SQUALL_DISK_TIMEOUT_MS", "disk_timeout_ms", millis)?;
    environment.set(&mut draft.apply_timeout, "SQUALL_APPLY_TIMEOUT_MS", "apply_timeout_ms", millis)?;
    environment.set(&mut draft.spin, "SQUALL_SPIN", "spin", draft::spin)?;
    environment.set(&mut draft.short_limit, "SQUALL_SHORT_LIMIT_US", "short_limit_us", |text| {
        number(text, "a number of microseconds").map(Duration::from_micros)
    })?;
    let key = "scrub_bytes_per_second";
    environment.set(&mut draft.scrub_bytes_per_second, "SQUALL_SCRUB_BYTES_PER_SECOND", key, |text| {
        bytes::parse(text).ok_or_else(|| format!("is {text:?}: give a size such as \"1MiB\", or 0"))
    })?;
    environment.set(&mut draft.client_bytes, "SQUALL_CLIENT_BYTES", "client_bytes", |text| {
        bytes::parse(text).ok_or_else(|| format!("is {text:?}: give a size such as \"256MiB\""))
    })?;
    environment.set(&mut draft.membership.join, "SQUALL_JOIN", "join", |text| Ok(list(text, ',')))?;
    environment.set(&mut draft.membership.storage, "SQUALL_STORAGE", "storage", path)?;
    environment.set(&mut draft.membership.sign_log, "SQUALL_SIGN_LOG", "sign_log", path)?;
    environment.set(&mut draft.membership.rack, "SQUALL_RACK", "rack", |text| Ok(text.to_owned()))?;
    let ids = |text: &str| list(text, ',').iter().map(|id| number(id, "ids of nodes, such as `1,2,3`")).collect();
    environment.set(&mut draft.membership.voters, "SQUALL_VOTERS", "voters", ids)?;
    environment.set(&mut draft.membership.witnesses, "SQUALL_WITNESSES", "witnesses", ids)?;
    environment.set(&mut draft.network.backend, "SQUALL_FABRIC", "fabric.backend", network::backend)?;
    let device = |text: &str| Ok(text.to_owned());
    environment.set(&mut draft.network.device, "SQUALL_VERBS_DEVICE", "fabric.verbs.device", device)?;
    let port = |text: &str| number(text, "the number of a device's port, from 1");
    environment.set(&mut draft.network.port, "SQUALL_VERBS_PORT", "fabric.verbs.port", port)?;
    let index = |text: &str| number(text, "an index in the port's table of GIDs");
    environment.set(&mut draft.network.gid_index, "SQUALL_VERBS_GID_INDEX", "fabric.verbs.gid_index", index)
}

/// A member's id, and its addresses.
type Member = (u32, Vec<String>);

struct Environment<G> {
    get: G,
}

impl<G: Fn(&'static str) -> Option<OsString>> Environment<G> {
    /// Sets the members from ids, each with its addresses if it has some. The file's members and addresses are then
    /// ignored.
    fn set_members(&self, draft: &mut Draft) -> Result<(), ConfigError> {
        const NAME: &str = "SQUALL_MEMBERS";
        let mut members: Option<Given<Vec<Member>>> = None;
        self.set(&mut members, NAME, "members", |text| {
            let member = |entry: &str| {
                let (id, addresses) = entry.split_once('=').unwrap_or((entry, ""));
                let what = "the ids of all nodes, such as `1,2,3`, or `1=10.0.0.1:7700,2=10.0.0.2:7700+[fd00::2]:7700`";
                Ok((number(id, what)?, list(addresses, '+')))
            };
            text.split(',').map(member).collect()
        })?;
        let Some(Given { value, place }) = members else { return Ok(()) };
        draft.members = Some(Given { value: value.iter().map(|(id, _)| *id).collect(), place: place.clone() });
        let addressed = value.into_iter().filter(|(_, list)| !list.is_empty());
        let value: BTreeMap<_, _> = addressed.map(|(id, value)| (id, Given { value, place: place.clone() })).collect();
        draft.network.addresses = (!value.is_empty()).then_some(Given { value, place });
        Ok(())
    }

    /// Sets a value if the variable exists.
    fn set<T>(
        &self,
        into: &mut Option<Given<T>>,
        name: &'static str,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<(), ConfigError> {
        let Some(raw) = (self.get)(name) else { return Ok(()) };
        let place = ValuePlace::Variable(name);
        let value = match raw.to_str() {
            Some(text) => read(text.trim()),
            None => Err("is not UTF-8".into()),
        };
        match value {
            Ok(value) => {
                *into = Some(Given { value, place });
                Ok(())
            }
            Err(problem) => Err(value_error(&place, key, problem)),
        }
    }
}

/// Splits a list. An empty text is an empty list.
fn list(text: &str, separator: char) -> Vec<String> {
    if text.is_empty() { Vec::new() } else { text.split(separator).map(|item| item.trim().to_owned()).collect() }
}

fn number<T: FromStr<Err: Display>>(text: &str, what: &str) -> Result<T, String> {
    text.trim().parse().map_err(|error| format!("is {text:?} ({error}): give {what}"))
}
