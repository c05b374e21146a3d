//! The checks of addresses and of security settings.

use std::{collections::BTreeMap, ffi::OsString, path::Path, time::Duration};

use super::*;
use crate::Carrier;

const HOSTS: &str = "\
cluster = \"bank\"
id = 2
[addresses]
1 = \"10.0.0.1:7700\"
2 = [\"10.0.0.2:7700\", \"[fd00::2]:7700\"]
3 = \"Host3.Example:7700\"
";
const KEYS: &str = "[security]\nca = \"ca.pem\"\ncertificate = \"node-{id}.pem\"\nkey = \"node-{id}.key\"\n";

fn shown(addresses: &[Address]) -> Vec<String> {
    addresses.iter().map(Address::to_string).collect()
}

#[test]
fn addresses_name_the_members_and_say_what_carries_their_messages() {
    let config = Config::from_toml(&format!("{HOSTS}{KEYS}")).unwrap();
    assert_eq!(config.members(), [NodeId(1), NodeId(2), NodeId(3)]);
    assert_eq!(shown(config.addresses(NodeId(3))), ["host3.example:7700"]);
    assert_eq!(shown(config.listen()), ["10.0.0.2:7700", "[fd00::2]:7700"], "its own, if nothing else is said");
    assert_eq!((config.backend(), config.carrier()), (Backend::Auto, Carrier::Mixed));
    let keys = KeyFiles::new("ca.pem", "node-2.pem", "node-2.key");
    assert_eq!(*config.security(), Security::Tls(keys));
    let built = Config::builder("bank", 2)
        .addresses(1, ["10.0.0.1:7700"])
        .addresses(2, ["10.0.0.2:7700", "[fd00::2]:7700"])
        .addresses(3, ["host3.example:7700"])
        .security(config.security().clone())
        .build();
    assert_eq!(config, built.unwrap());
}

#[test]
fn the_bulk_threshold_over_tcp_is_that_of_shared_memory_unless_one_is_given() {
    let text = format!("{HOSTS}{KEYS}[groups.a]\n[groups.b]\nbulk_threshold = \"1MiB\"\n");
    let config = Config::from_toml(&text).unwrap();
    for (group, threshold) in [("a", 256 << 10), ("b", 1 << 20), ("unlisted", 256 << 10)] {
        assert_eq!(config.group(group).bulk_threshold, threshold, "{group}");
    }
    let local = Config::builder("bank", 1).addresses(1, ["[::1]:1"]).addresses(2, ["localhost:2"]).build().unwrap();
    assert_eq!((local.carrier(), local.group("a").bulk_threshold), (Carrier::Mixed, 256 << 10));
    let tcp = Config::builder("bank", 1).addresses(1, ["[::1]:1"]).addresses(2, ["localhost:2"]).backend(Backend::Tcp);
    assert_eq!(tcp.build().unwrap().carrier(), Carrier::Tcp, "it was asked for");
}

#[test]
fn protection_is_asked_for_in_either_form_and_paths_are_relative_to_the_file() {
    for none in ["security = \"none\"\n", ""] {
        let table = if none.is_empty() { "[security]\nmode = \"none\"\n" } else { "" };
        let config = Config::from_toml(&format!("{none}{HOSTS}{table}")).unwrap();
        assert_eq!(*config.security(), Security::None);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("squall.toml");
    std::fs::write(&path, format!("{HOSTS}{KEYS}")).unwrap();
    let config = Config::load_as(&path, 3);
    let Security::Tls(keys) = config.unwrap().security().clone() else { panic!("there are keys") };
    assert_eq!(keys.key, directory.path().join("node-3.key"));
}

#[test]
fn one_member_may_have_no_address_and_others_may_listen_elsewhere() {
    let text =
        "cluster = \"bank\"\nid = 2\nmembers = [1, 2]\nlisten = []\nsecurity = \"none\"\n[addresses]\n1 = \"a:1\"\n";
    let config = Config::from_toml(text).unwrap();
    assert!(config.listen().is_empty() && config.addresses(NodeId(2)).is_empty());
    let config = Config::from_toml(&format!("listen = \"0.0.0.0:7700\"\n{HOSTS}{KEYS}")).unwrap();
    assert_eq!(shown(config.listen()), ["0.0.0.0:7700"]);
}

#[test]
fn an_error_names_the_place_the_key_and_the_remedy() {
    let open = "which other hosts can reach, and nothing protects it: make keys with `squall keys` and name them in `[security]`, or \
                write `security = \"none\"` if only this cluster is on that network";
    let address = "give a host and a port, such as \"10.0.0.1:7700\", \"[fd00::1]:7700\" or \"host.example:7700\"";
    for (text, said) in [
        (HOSTS.to_owned(), format!("line 5: `addresses.2` is 10.0.0.2:7700, {open}")),
        (format!("listen = \"[::]:1\"\n{HOSTS}"), format!("line 1: `listen` is [::]:1, {open}")),
        (format!("{HOSTS}4 = \"fd00::1:7700\"\n"), format!("line 7: `addresses.4` is \"fd00::1:7700\": {address}")),
        (
            format!("{HOSTS}four = \"10.0.0.4:7700\"\n"),
            "line 7: `addresses.four` is of no node: the keys of `[addresses]` are ids, such as `1 = \"10.0.0.1:7700\"`".into(),
        ),
        (
            format!("{HOSTS}4 = \"0.0.0.0:7700\"\n"),
            "line 7: `addresses.4` is 0.0.0.0:7700, which no node can dial: give an address of its host here, and `listen = \
             \"0.0.0.0:7700\"`"
                .into(),
        ),
        (
            format!("{HOSTS}4 = \"10.0.0.1:7700\"\n"),
            "line 7: `addresses.4` is 10.0.0.1:7700, as that of node 1: give each node an address of its own".into(),
        ),
        (
            format!("{HOSTS}4 = []\n"),
            "line 7: `addresses.4` lists 0 addresses: give 1 to 8, or leave it out if no node can dial this one".into(),
        ),
        (
            format!("members = [1, 2]\n{HOSTS}"),
            "line 7: `addresses.3` is of no member: add the id to `members`, or remove the address".into(),
        ),
        (
            format!("members = [1, 2, 3, 4, 5]\n{HOSTS}"),
            "line 4: `addresses` says neither where node 4 listens nor where node 5 does, so they can't meet: give both, such \
             as `4 = \"10.0.0.4:7700\"`"
                .into(),
        ),
        (
            "cluster = \"bank\"\nid = 2\nmembers = [1, 2]\nlisten = \"[::]:1\"\nsecurity = \"none\"\n[addresses]\n1 = \
             \"a:1\"\n"
            .into(),
            "line 4: `listen` is [::]:1, but no other member is told where node 2 is: give it an address in `[addresses]`, or \
             let it listen nowhere (`listen = []`, or SQUALL_LISTEN with nothing in it), so that it dials all others"
                .into(),
        ),
        (
            format!("listen = []\n{HOSTS}{KEYS}"),
            "line 1: `listen` is empty, but the others dial 10.0.0.2:7700: leave it out, or remove this node's address from \
             `[addresses]`"
                .into(),
        ),
        (
            format!("{HOSTS}{}", KEYS.replace("key =", "# key =")),
            "line 8: `security.key` is missing: TLS needs `ca`, `certificate` and `key`; `squall keys` makes them".into(),
        ),
        (
            format!("security = \"tls\"\n{HOSTS}"),
            "line 1: `security.ca` is missing: TLS needs `ca`, `certificate` and `key`; `squall keys` makes them".into(),
        ),
        (
            format!("{HOSTS}{KEYS}mode = \"none\"\n"),
            "line 8: `security.ca` is given, but `security` is \"none\": remove the one or the other".into(),
        ),
        (
            format!("security = \"off\"\n{HOSTS}"),
            "line 1: `security` is \"off\": give \"tls\" with `ca`, `certificate` and `key` (`squall keys` makes them), or \
             \"none\" if only this cluster is on the network"
                .into(),
        ),
        (
            format!("{HOSTS}{KEYS}[fabric.tcp]\nsend_buffer_bytes = 17\n"),
            "line 12: `fabric.tcp.send_buffer_bytes` is 17 B: give 4 KiB to 1 GiB, or leave it out to let the system choose"
                .into(),
        ),
        (
            format!("{HOSTS}{KEYS}[fabric.verbs]\nport = 0\n"),
            "line 12: `fabric.verbs.port` is 0: a device's ports are counted from 1".into(),
        ),
        (
            format!("{HOSTS}{KEYS}[fabric.verbs]\nservice_level = 16\n"),
            "line 12: `fabric.verbs.service_level` is above 15: verbs count service levels in 4 bits".into(),
        ),
        (
            format!("{HOSTS}{KEYS}[fabric.verbs]\npartition_key = 0x8000\n"),
            "line 12: `fabric.verbs.partition_key` has no partition's number: its lowest 15 bits are 0 \
             (32767, or 65535, is the default partition)"
                .into(),
        ),
        (
            "cluster = \"bank\"\nid = 1\n[addresses]\n".into(),
            "line 3: `members` lists 0 nodes: list 1 to 64".into(),
        ),
        (
            "cluster = \"bank\"\nid = 1\nmembers = [1, 2]\n[fabric]\nbackend = \"tcp\"\n".into(),
            "line 5: `addresses` says neither where node 1 listens nor where node 2 does, so they can't meet: give both, such \
             as `1 = \"10.0.0.1:7700\"`"
                .into(),
        ),
    ] {
        let error = Config::from_toml(&text).expect_err(&text).to_string();
        assert_eq!(error, format!("configuration, {said}"), "{text}");
    }
}

#[test]
fn a_wrong_key_of_the_security_table_has_its_line() {
    let error = Config::from_toml(&format!("{HOSTS}{KEYS}cert = \"a\"\n")).unwrap_err().to_string();
    assert!(error.starts_with("configuration, line 11: ") && error.contains("cert"), "{error}");
    let error = Config::from_toml(&format!("security = 1\n{HOSTS}")).unwrap_err().to_string();
    assert!(error.starts_with("configuration, line 1: ") && error.contains("`certificate`"), "{error}");
}

fn overridden(variables: &[(&'static str, &str)]) -> Result<Config, ConfigError> {
    let variables: BTreeMap<_, OsString> = variables.iter().map(|&(name, value)| (name, value.into())).collect();
    let mut draft = file::parse(HOSTS, &ValuePlace::text)?;
    environment::apply(&mut draft, |name| variables.get(name).cloned())?;
    draft.check()
}

#[test]
fn the_environment_can_say_all_of_it() {
    let config = overridden(&[
        ("SQUALL_MEMBERS", "2=127.0.0.1:1+[::1]:1, 7=10.0.0.7:1 ,8"),
        ("SQUALL_LISTEN", "127.0.0.1:1, [::1]:1"),
        ("SQUALL_CA", "ca"),
        ("SQUALL_CERTIFICATE", "cert-{id}"),
        ("SQUALL_KEY", "/key"),
    ])
    .unwrap();
    assert_eq!(config.members(), [NodeId(2), NodeId(7), NodeId(8)], "the file's list does not count");
    assert_eq!(shown(config.addresses(NodeId(2))), ["127.0.0.1:1", "[::1]:1"]);
    assert!(config.addresses(NodeId(8)).is_empty());
    assert!(matches!(config.security(), Security::Tls(keys) if keys.certificate == Path::new("cert-2")));
    let config = overridden(&[("SQUALL_MEMBERS", "1,2,3")]).unwrap();
    assert_eq!(config.carrier(), Carrier::Shm, "without addresses, they are on one host");
    let config = overridden(&[("SQUALL_SECURITY", "none"), ("SQUALL_FAILURE_TIMEOUT_MS", "50")]).unwrap();
    assert_eq!((config.security(), config.failure_timeout()), (&Security::None, Duration::from_millis(50)));
    let error = overridden(&[("SQUALL_MEMBERS", "1=10.0.0.1,2=b:1")]).unwrap_err().to_string();
    assert!(error.starts_with("environment variable SQUALL_MEMBERS: `addresses.1` is \"10.0.0.1\": give"), "{error}");
}

#[test]
fn each_node_can_have_a_device_of_another_name() {
    let text = format!("{HOSTS}{KEYS}[fabric.verbs]\ndevice = \"rxe{{id}}\"\n");
    let config = Config::from_toml(&text).unwrap();
    assert_eq!(config.verbs().device.as_deref(), Some("rxe2"));
    let config = overridden(&[
        ("SQUALL_SECURITY", "none"),
        ("SQUALL_VERBS_DEVICE", "mlx5_{id}"),
        ("SQUALL_VERBS_PORT", "2"),
        ("SQUALL_VERBS_GID_INDEX", "3"),
    ])
    .unwrap();
    let expected =
        VerbsOptions { device: Some("mlx5_2".into()), port: Some(2), gid_index: Some(3), ..VerbsOptions::default() };
    assert_eq!(*config.verbs(), expected);
    let error = overridden(&[("SQUALL_VERBS_PORT", "first")]).unwrap_err().to_string();
    assert!(error.starts_with("environment variable SQUALL_VERBS_PORT: `fabric.verbs.port` is \"first\""), "{error}");
}

#[test]
fn rdma_is_there_if_it_was_built_in_and_else_the_error_says_how() {
    let config = Config::from_toml(&format!("{HOSTS}{KEYS}[fabric]\nbackend = \"verbs\"\n"));
    match config {
        Ok(config) => assert_eq!((config.carrier(), cfg!(feature = "verbs")), (Carrier::Verbs, true)),
        Err(error) => {
            let said = error.to_string();
            assert!(!cfg!(feature = "verbs") && said.contains("build it with squall's feature `verbs`"), "{said}");
        }
    }
}
