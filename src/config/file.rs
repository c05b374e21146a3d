//! The reading of configurations in TOML.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use toml::Spanned;

use super::{
    ConfigError, ValuePlace, bytes,
    draft::{self, Draft, Given, GroupDraft, value_error},
    membership::MembershipDraft,
    network::{self, NetworkDraft},
    security,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: Option<Spanned<String>>,
    id: Option<Spanned<u32>>,
    members: Option<Spanned<Vec<u32>>>,
    addresses: Option<Spanned<BTreeMap<String, Spanned<Listed>>>>,
    join: Option<Spanned<Contacts>>,
    storage: Option<Spanned<PathBuf>>,
    sign_log: Option<Spanned<PathBuf>>,
    voters: Option<Spanned<Vec<u32>>>,
    witnesses: Option<Spanned<Vec<u32>>>,
    rack: Option<Spanned<String>>,
    listen: Option<Spanned<Listed>>,
    security: Option<Spanned<Security>>,
    formation_timeout_ms: Option<Spanned<u64>>,
    failure_timeout_ms: Option<Spanned<u64>>,
    clock_limit_ms: Option<Spanned<u64>>,
    read_lease_ms: Option<Spanned<u64>>,
    restart_wait_ms: Option<Spanned<u64>>,
    disk_timeout_ms: Option<Spanned<u64>>,
    apply_timeout_ms: Option<Spanned<u64>>,
    spin: Option<Spanned<String>>,
    short_limit_us: Option<Spanned<u64>>,
    client_bytes: Option<Spanned<Size>>,
    scrub_bytes_per_second: Option<Spanned<Size>>,
    #[serde(default)]
    fabric: Fabric,
    #[serde(default)]
    groups: BTreeMap<String, Spanned<Group>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fabric {
    backend: Option<Spanned<String>>,
    #[serde(default)]
    tcp: Tcp,
    #[serde(default)]
    verbs: Verbs,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tcp {
    send_buffer_bytes: Option<Spanned<Size>>,
    receive_buffer_bytes: Option<Spanned<Size>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Verbs {
    device: Option<Spanned<String>>,
    port: Option<Spanned<u8>>,
    gid_index: Option<Spanned<u8>>,
}

/// The setting of the security: `security = "none"`, or a table.
enum Security {
    Named(String),
    Table(Keys),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    mode: Option<Spanned<String>>,
    ca: Option<Spanned<PathBuf>>,
    certificate: Option<Spanned<PathBuf>>,
    key: Option<Spanned<PathBuf>>,
}

/// A text, or a list of texts.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address such as \"10.0.0.1:7700\", or a list of such")]
enum Listed {
    One(String),
    Many(Vec<String>),
}

/// Addresses and ids, or a single one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address such as \"10.0.0.1:7700\", an id, or a list of such")]
enum Contacts {
    One(Contact),
    Many(Vec<Contact>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address such as \"10.0.0.1:7700\", or an id")]
enum Contact {
    Id(u32),
    Text(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    mode: Option<Spanned<String>>,
    ring_bytes: Option<Spanned<Size>>,
    bulk_threshold: Option<Spanned<Size>>,
    bulk_reserve: Option<Spanned<Size>>,
    senders: Option<Spanned<Vec<u32>>>,
    max_waiting: Option<Spanned<usize>>,
    shards: Option<Spanned<u32>>,
    min_replicas: Option<Spanned<u32>>,
    max_replicas: Option<Spanned<u32>>,
    snapshot_bytes: Option<Spanned<Size>>,
    retain: Option<Spanned<Size>>,
}

/// A number of bytes, or a text such as "4MiB".
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number of bytes, or a size such as \"4MiB\"")]
enum Size {
    Bytes(usize),
    Text(String),
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Draft, ConfigError> {
    let place = |line| ValuePlace::File { path: path.to_owned(), line };
    let raw = std::fs::read(path).map_err(|cause| ConfigError::Read { path: path.to_owned(), cause })?;
    match std::str::from_utf8(&raw) {
        Ok(text) => parse(text, &place),
        Err(error) => {
            let line = line_of(&raw, error.valid_up_to());
            let problem = "is not UTF-8 text: the file may be damaged, or no configuration file".to_owned();
            Err(ConfigError::Text { place: place(Some(line)), problem })
        }
    }
}

/// Reads TOML; `place` makes a place of a line.
pub(super) fn parse(text: &str, place: &impl Fn(Option<usize>) -> ValuePlace) -> Result<Draft, ConfigError> {
    if text.trim().is_empty() {
        let problem =
            "is empty: the file may not have been written yet; a configuration begins with `cluster = \"...\"`";
        return Err(ConfigError::Text { place: place(None), problem: problem.into() });
    }
    let file: File = toml::from_str(text).map_err(|error| syntax_error(text, &error, place))?;
    let at = |span: Range<usize>| place(Some(line_of(text.as_bytes(), span.start)));
    let mut draft = Draft::new(place(None));
    draft.cluster = file.cluster.map(|value| given(value, at, |name| name));
    draft.id = file.id.map(|value| given(value, at, |id| id));
    draft.members = file.members.map(|value| given(value, at, |ids| ids));
    draft.formation_timeout = file.formation_timeout_ms.map(|value| given(value, at, Duration::from_millis));
    draft.clock_limit = file.clock_limit_ms.map(|value| given(value, at, Duration::from_millis));
    draft.failure_timeout = file.failure_timeout_ms.map(|value| given(value, at, Duration::from_millis));
    draft.read_lease = file.read_lease_ms.map(|value| given(value, at, Duration::from_millis));
    draft.restart_wait = file.restart_wait_ms.map(|value| given(value, at, Duration::from_millis));
    draft.disk_timeout = file.disk_timeout_ms.map(|value| given(value, at, Duration::from_millis));
    draft.apply_timeout = file.apply_timeout_ms.map(|value| given(value, at, Duration::from_millis));
    draft.short_limit = file.short_limit_us.map(|value| given(value, at, Duration::from_micros));
    draft.scrub_bytes_per_second = file
        .scrub_bytes_per_second
        .map(|value| read_as(value, "scrub_bytes_per_second", at, Size::read))
        .transpose()?;
    draft.client_bytes = file.client_bytes.map(|value| read_as(value, "client_bytes", at, Size::read)).transpose()?;
    draft.spin = file.spin.map(|value| read_as(value, "spin", at, |text| draft::spin(&text))).transpose()?;
    let beside = |value: Spanned<PathBuf>| {
        let place = at(value.span());
        given(value, at, |path| place.beside(path))
    };
    draft.membership = MembershipDraft {
        join: file.join.map(|value| given(value, at, Contacts::list)),
        storage: file.storage.map(beside),
        sign_log: file.sign_log.map(beside),
        voters: file.voters.map(|value| given(value, at, |ids| ids)),
        witnesses: file.witnesses.map(|value| given(value, at, |ids| ids)),
        rack: file.rack.map(|value| given(value, at, |name| name)),
    };
    draft.network = network(file.addresses, file.listen, file.security, file.fabric, at)?;
    for (name, group) in file.groups {
        let place = at(group.span());
        let group = group.into_inner();
        let key = |field: &str| format!("groups.{name}.{field}");
        let size = |given: Option<Spanned<Size>>, field| {
            given.map(|value| read_as(value, &key(field), at, Size::read)).transpose()
        };
        let value = GroupDraft {
            mode: group.mode.map(|value| read_as(value, &key("mode"), at, |text| draft::mode(&text))).transpose()?,
            ring_bytes: size(group.ring_bytes, "ring_bytes")?,
            bulk_threshold: size(group.bulk_threshold, "bulk_threshold")?,
            bulk_reserve: size(group.bulk_reserve, "bulk_reserve")?,
            senders: group.senders.map(|value| given(value, at, |ids| ids)),
            max_waiting: group.max_waiting.map(|value| given(value, at, |count| count)),
            shards: group.shards.map(|value| given(value, at, |count| count)),
            min_replicas: group.min_replicas.map(|value| given(value, at, |count| count)),
            max_replicas: group.max_replicas.map(|value| given(value, at, |count| count)),
            snapshot_bytes: size(group.snapshot_bytes, "snapshot_bytes")?,
            retain: size(group.retain, "retain")?,
        };
        draft.groups.insert(name, Given { value, place });
    }
    Ok(draft)
}

fn network(
    addresses: Option<Spanned<BTreeMap<String, Spanned<Listed>>>>,
    listen: Option<Spanned<Listed>>,
    security: Option<Spanned<Security>>,
    fabric: Fabric,
    at: impl Fn(Range<usize>) -> ValuePlace + Copy,
) -> Result<NetworkDraft, ConfigError> {
    let size = |given: Option<Spanned<Size>>, key| given.map(|value| read_as(value, key, at, Size::read)).transpose();
    let mut draft = NetworkDraft {
        listen: listen.map(|value| given(value, at, Listed::list)),
        send_buffer_bytes: size(fabric.tcp.send_buffer_bytes, "fabric.tcp.send_buffer_bytes")?,
        receive_buffer_bytes: size(fabric.tcp.receive_buffer_bytes, "fabric.tcp.receive_buffer_bytes")?,
        device: fabric.verbs.device.map(|value| given(value, at, |name| name)),
        port: fabric.verbs.port.map(|value| given(value, at, |port| port)),
        gid_index: fabric.verbs.gid_index.map(|value| given(value, at, |index| index)),
        ..NetworkDraft::default()
    };
    let backend = |value| read_as(value, "fabric.backend", at, |text: String| network::backend(&text));
    draft.backend = fabric.backend.map(backend).transpose()?;
    if let Some(table) = addresses {
        let place = at(table.span());
        let mut value = BTreeMap::new();
        for (id, listed) in table.into_inner() {
            let listed = given(listed, at, Listed::list);
            let Ok(number) = id.parse::<u32>() else {
                let problem = "is of no node: the keys of `[addresses]` are ids, such as `1 = \"10.0.0.1:7700\"`";
                return Err(listed.error(format!("addresses.{id}"), problem));
            };
            value.insert(number, listed);
        }
        draft.addresses = Some(Given { value, place });
    }
    if let Some(security) = security {
        let place = at(security.span());
        match security.into_inner() {
            Security::Named(text) => match security::mode(&text) {
                Ok(value) => draft.security = Some(Given { value, place }),
                Err(problem) => return Err(value_error(&place, "security", problem)),
            },
            Security::Table(keys) => {
                let mode = |value| read_as(value, "security.mode", at, |text: String| security::mode(&text));
                draft.security = keys.mode.map(mode).transpose()?;
                let path = |value| given(value, at, |path: PathBuf| place.beside(path));
                draft.ca = keys.ca.map(path);
                draft.certificate = keys.certificate.map(path);
                draft.key = keys.key.map(path);
            }
        }
    }
    Ok(draft)
}

impl Listed {
    fn list(self) -> Vec<String> {
        match self {
            Listed::One(text) => vec![text],
            Listed::Many(list) => list,
        }
    }
}

impl Contacts {
    fn list(self) -> Vec<String> {
        let text = |contact| match contact {
            Contact::Id(id) => id.to_string(),
            Contact::Text(text) => text,
        };
        match self {
            Contacts::One(contact) => vec![text(contact)],
            Contacts::Many(list) => list.into_iter().map(text).collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Security {
    /// Implemented by hand, so that an unknown key of the table is reported with its place.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Security, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Security;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", or a table with `ca`, `certificate` and `key`")
            }

            fn visit_str<E>(self, text: &str) -> Result<Security, E> {
                Ok(Security::Named(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Security, A::Error> {
                Keys::deserialize(MapAccessDeserializer::new(map)).map(Security::Table)
            }
        }

        from.deserialize_any(Either)
    }
}

impl Size {
    fn read(self) -> Result<usize, String> {
        match self {
            Size::Bytes(bytes) => Ok(bytes),
            Size::Text(text) => bytes::parse(&text)
                .ok_or_else(|| format!("is {text:?}: give a number of bytes, or a size such as \"64KiB\" or \"4MiB\"")),
        }
    }
}

fn given<T, U>(value: Spanned<T>, at: impl Fn(Range<usize>) -> ValuePlace, into: impl FnOnce(T) -> U) -> Given<U> {
    let place = at(value.span());
    Given { value: into(value.into_inner()), place }
}

fn read_as<T, U>(
    value: Spanned<T>,
    key: &str,
    at: impl Fn(Range<usize>) -> ValuePlace,
    read: impl FnOnce(T) -> Result<U, String>,
) -> Result<Given<U>, ConfigError> {
    let place = at(value.span());
    match read(value.into_inner()) {
        Ok(value) => Ok(Given { value, place }),
        Err(problem) => Err(value_error(&place, key, problem)),
    }
}

fn syntax_error(text: &str, error: &toml::de::Error, place: &impl Fn(Option<usize>) -> ValuePlace) -> ConfigError {
    let span = error.span();
    let line = span.as_ref().map(|span| line_of(text.as_bytes(), span.start));
    let mut problem = error.message().trim_end().replace('\n', ", ");
    // The message does not name the key, but the line does.
    if let Some(source) = line.and_then(|line| text.lines().nth(line - 1)).filter(|source| !source.trim().is_empty()) {
        let start: String = source.trim().chars().take(SHOWN).collect();
        problem.push_str(&format!(", in `{start}`"));
    }
    // An error at the very end, or on a last line without its newline, mostly means that the rest was not written.
    let last_line = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
    if span.is_none_or(|span| span.start >= last_line) && !text.ends_with('\n') {
        problem.push_str("; the text ends in the middle of a line, so the file may be only half written");
    }
    ConfigError::Text { place: place(line), problem }
}

/// The number of characters that are shown of a wrong line.
const SHOWN: usize = 60;

/// Returns the line, from 1, of the byte at `offset`.
fn line_of(text: &[u8], offset: usize) -> usize {
    1 + text[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}
