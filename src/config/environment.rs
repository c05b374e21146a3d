//! The values that the environment overrides.

use std::ffi::OsString;

use super::{
    ConfigError, ValuePlace,
    draft::Draft,
    notation::{self, Form, Written},
    settings::Setting,
};

/// Overrides values of the draft by variables, which `get` looks up.
pub(super) fn apply(draft: &mut Draft, get: impl Fn(&'static str) -> Option<OsString>) -> Result<(), ConfigError> {
    let variable = |name| Some((ValuePlace::Variable(name), Form::Variable(get(name)?)));
    draft.node.read(|_, name| variable(name?))?;
    // The file's members and addresses are ignored if this variable exists.
    let Some((place, form)) = variable("SQUALL_MEMBERS") else { return Ok(()) };
    let members = notation::members(&Written { key: "members", place: &place, form })?;
    draft.node.members.set(members.iter().map(|(id, _)| *id).collect(), place.clone());
    draft.addresses = Setting::new("addresses".into(), &place);
    for (id, listed) in members.into_iter().filter(|(_, listed)| !listed.is_empty()) {
        let mut addresses = Setting::new(format!("addresses.{id}"), &place);
        addresses.set(listed, place.clone());
        draft.addresses.value.get_or_insert_default().insert(id, addresses);
    }
    Ok(())
}
