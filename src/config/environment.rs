//! What the environment overrides.

use std::{ffi::OsString, fmt::Display, str::FromStr, time::Duration};

use super::{
    ConfigError, Place,
    draft::{self, Draft, Given, value_error},
};

/// Lets variables override what is in the draft. `get` looks a variable up.
pub(super) fn apply(draft: &mut Draft, get: impl Fn(&'static str) -> Option<OsString>) -> Result<(), ConfigError> {
    let environment = Environment { get };
    environment.set(&mut draft.cluster, "SQUALL_CLUSTER", "cluster", |text| Ok(text.to_owned()))?;
    environment.set(&mut draft.id, "SQUALL_ID", "id", |text| number(text, "the id of a node"))?;
    environment.set(&mut draft.members, "SQUALL_MEMBERS", "members", |text| {
        text.split(',').map(|id| number(id, "the ids of all nodes, such as `1,2,3`")).collect()
    })?;
    let millis = |text: &str| number(text, "a number of milliseconds").map(Duration::from_millis);
    environment.set(&mut draft.formation_timeout, "SQUALL_FORMATION_TIMEOUT_MS", "formation_timeout_ms", millis)?;
    environment.set(&mut draft.failure_timeout, "SQUALL_FAILURE_TIMEOUT_MS", "failure_timeout_ms", millis)?;
    environment.set(&mut draft.read_lease, "SQUALL_READ_LEASE_MS", "read_lease_ms", millis)?;
    environment.set(&mut draft.spin, "SQUALL_SPIN", "spin", draft::spin)?;
    environment.set(&mut draft.short_limit, "SQUALL_SHORT_LIMIT_US", "short_limit_us", |text| {
        number(text, "a number of microseconds").map(Duration::from_micros)
    })?;
    environment.set(&mut draft.backend, "SQUALL_FABRIC", "fabric.backend", draft::backend)
}

struct Environment<G> {
    get: G,
}

impl<G: Fn(&'static str) -> Option<OsString>> Environment<G> {
    /// Sets a value if the variable is there.
    fn set<T>(
        &self,
        into: &mut Option<Given<T>>,
        name: &'static str,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<(), ConfigError> {
        let Some(raw) = (self.get)(name) else { return Ok(()) };
        let place = Place::Variable(name);
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

fn number<T: FromStr<Err: Display>>(text: &str, what: &str) -> Result<T, String> {
    text.trim().parse().map_err(|error| format!("is {text:?} ({error}): give {what}"))
}
