//! The checks that each declared setting is read from its sources, and documented.

use std::{cell::RefCell, collections::BTreeMap, ffi::OsString, os::unix::ffi::OsStringExt};

use super::{
    settings::{GroupSettings, NodeSettings, ShardSettings},
    *,
};

/// Returns the key and the variable of each setting of a node, of a group and of a shard.
fn declared() -> [Vec<(String, Option<&'static str>)>; 3] {
    let (node, group, shard) = (RefCell::default(), RefCell::default(), RefCell::default());
    let note = |list: &RefCell<Vec<_>>, key: &str, variable| list.borrow_mut().push((key.to_owned(), variable));
    let place = ValuePlace::Builder;
    NodeSettings::new("", &place).read(|key, variable| (note(&node, key, variable), None).1).unwrap();
    GroupSettings::new("", &place).read(|key, variable| (note(&group, key, variable), None).1).unwrap();
    ShardSettings::new("", &place).read(|key, variable| (note(&shard, key, variable), None).1).unwrap();
    [node.into_inner(), group.into_inner(), shard.into_inner()]
}

/// The configuration of a node that joins, by keys and values in TOML.
const BASE: [(&str, &str); 10] = [
    ("cluster", "\"bank\""),
    ("id", "4"),
    ("join", "1"),
    ("storage", "\"state\""),
    ("security.ca", "\"ca\""),
    ("security.certificate", "\"certificate\""),
    ("security.key", "\"key\""),
    ("addresses.1", "\"127.0.0.1:1\""),
    ("addresses.2", "\"127.0.0.1:2\""),
    ("addresses.4", "\"127.0.0.1:4\""),
];

/// For each setting another value than that of [`BASE`] or the default: in TOML, and as a variable has it.
const VALUES: [(&str, &str, &str); 55] = [
    ("cluster", "\"other\"", "other"),
    ("id", "5", " 5"),
    ("members", "[1, 2]", ""),
    ("join", "[1, \"127.0.0.1:2\"]", "1, 127.0.0.1:2"),
    ("voters", "[1, 2, 4]", "1,2 ,4"),
    ("witnesses", "[9]", "9"),
    ("rack", "\"left\"", " left "),
    ("storage", "\"other/{id}\"", "other/{id}"),
    ("sign_log", "\"log.key\"", "log.key"),
    ("scrub_bytes_per_second", "0", "0"),
    ("formation_timeout_ms", "7", "7"),
    ("failure_timeout_ms", "\"2s\"", "2000"),
    ("read_lease_ms", "7", "7"),
    ("restart_wait_ms", "\"1m\"", "60 s"),
    ("disk_timeout_ms", "0", "0"),
    ("apply_timeout_ms", "7", "7"),
    ("clock_limit_ms", "7", "7"),
    ("spin", "\"never\"", "never "),
    ("short_limit_us", "7", "7"),
    ("client_bytes", "\"4 MiB\"", "4MiB"),
    ("moves_at_once", "7", ""),
    ("listen", "[\"127.0.0.1:8\", \"127.0.0.1:9\"]", "127.0.0.1:8,127.0.0.1:9"),
    ("security", "\"none\"", "none"),
    ("security.mode", "\"none\"", ""),
    ("security.ca", "\"other\"", "other"),
    ("security.certificate", "\"other\"", "other"),
    ("security.key", "\"other\"", "other"),
    ("security.crl", "\"list\"", "list"),
    ("security.denied", "\"list\"", "list"),
    ("fabric.backend", "\"tcp\"", "tcp"),
    ("fabric.tcp.send_buffer_bytes", "4096", ""),
    ("fabric.tcp.receive_buffer_bytes", "\"4KiB\"", ""),
    ("fabric.verbs.device", "\"mlx5_{id}\"", "mlx5_{id}"),
    ("fabric.verbs.port", "2", "2"),
    ("fabric.verbs.gid_index", "3", "3"),
    ("fabric.verbs.traffic_class", "104", "104"),
    ("fabric.verbs.service_level", "3", "3"),
    ("fabric.verbs.partition_key", "32769", "32769"),
    ("groups.a.mode", "\"durable\"", ""),
    ("groups.a.ring_bytes", "4096", ""),
    ("groups.a.bulk_threshold", "4096", ""),
    ("groups.a.bulk_reserve", "0", ""),
    ("groups.a.senders", "[2, 1]", ""),
    ("groups.a.max_waiting", "7", ""),
    ("groups.a.shards", "7", ""),
    ("groups.a.min_replicas", "2", ""),
    ("groups.a.max_replicas", "2", ""),
    ("groups.a.reserved", "[2]", ""),
    ("groups.a.snapshot_bytes", "\"1MiB\"", ""),
    ("groups.a.retain", "0", ""),
    ("groups.a.shard.0.min_replicas", "2", ""),
    ("groups.a.shard.0.max_replicas", "2", ""),
    ("groups.a.shard.0.pinned", "[2]", ""),
    ("groups.a.shard.0.racks", "[\"left\"]", ""),
    ("groups.a.shard.0.only", "true", ""),
];

#[test]
fn each_setting_is_read_from_the_file_and_the_environment_alike() {
    let [node, group, shard] = declared();
    let group = group.into_iter().map(|(key, variable)| (format!("groups.a.{key}"), variable));
    let shard = shard.into_iter().map(|(key, variable)| (format!("groups.a.shard.0.{key}"), variable));
    let all: Vec<_> = node.into_iter().chain(group).chain(shard).collect();
    let keys: Vec<_> = all.iter().map(|(key, _)| &**key).collect();
    assert_eq!(keys, VALUES.map(|(key, ..)| key), "each has a value here");
    for ((key, variable), (_, toml, text)) in all.iter().zip(VALUES) {
        let mut base = BTreeMap::from(BASE);
        if ["security", "security.mode"].contains(&&**key) {
            base.retain(|key, _| !key.starts_with("security."));
        }
        let text_of = |values: &BTreeMap<&str, &str>| {
            values.iter().map(|(key, value)| format!("{key} = {value}\n")).collect::<String>()
        };
        let before = Config::from_toml(&text_of(&base)).unwrap();
        let before = Config { groups: BTreeMap::from([("a".into(), before.group("a"))]), ..before };
        let mut draft = file::parse(&text_of(&base), &ValuePlace::text).unwrap();
        base.insert(key, toml);
        let after = Config::from_toml(&text_of(&base)).unwrap();
        let after = Config { groups: BTreeMap::from([("a".into(), after.group("a"))]), ..after };
        assert_ne!(after, before, "`{key}` is read from a file");
        let Some(variable) = variable else { continue };
        environment::apply(&mut draft, |name| (name == *variable).then(|| text.into())).unwrap();
        let overridden = draft.check().unwrap();
        assert_eq!(Config { groups: after.groups.clone(), ..overridden }, after, "{variable} sets `{key}`");
    }
}

#[test]
fn each_setting_is_documented() {
    let [node, group, shard] = declared();
    let page = include_str!("mod.rs");
    let book = include_str!("../../docs/src/operate/configuration.md");
    for (key, _) in node.iter().chain(&group).chain(&shard) {
        let name = key.rsplit('.').next().unwrap();
        assert!(page.contains(&format!(" {name} = ")), "the module's example shows `{key}`");
        assert!(book.contains(&format!("**`{key}`**")), "the book explains `{key}`");
    }
    let mut variables: Vec<_> = node.iter().chain(&group).filter_map(|(_, variable)| *variable).collect();
    variables.push("SQUALL_MEMBERS");
    variables.sort_unstable();
    let (_, environment) = page.split_once("//! # The environment\n").unwrap();
    for text in [environment, book] {
        let named = text.split('`').filter_map(|word| word.split('=').next());
        let mut named: Vec<_> = named.filter(|word| word.starts_with("SQUALL_")).collect();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named, variables);
    }
}

#[test]
fn a_variable_overrides_either_form_of_the_security_and_must_be_text() {
    let text = "cluster = \"bank\"\nid = 1\nmembers = [1]\nsecurity.mode = \"none\"\n";
    let with = |variables: &[(&str, &[u8])]| {
        let mut draft = file::parse(text, &ValuePlace::text)?;
        let get = |name| variables.iter().find(|(other, _)| *other == name).map(|(_, raw)| raw.to_vec());
        environment::apply(&mut draft, |name| get(name).map(OsString::from_vec))?;
        draft.check()
    };
    assert_eq!(*with(&[]).unwrap().security(), Security::None);
    let keys: [(_, &[u8]); 3] = [("SQUALL_CA", b"ca"), ("SQUALL_CERTIFICATE", b"c"), ("SQUALL_KEY", b"key")];
    let protected = with(&[&keys[..], &[("SQUALL_SECURITY", b"tls")]].concat()).unwrap();
    assert!(matches!(protected.security(), Security::Tls(_)));
    let said = with(&[("SQUALL_RACK", b"\xff")]).unwrap_err().to_string();
    assert_eq!(said, "environment variable SQUALL_RACK: `rack` is not UTF-8");
}
