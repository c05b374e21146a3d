use std::{collections::BTreeMap, ffi::OsString, fs, path::Path};

use squall_ordered::Mode;

use super::*;

const MINIMAL: &str = "cluster = \"bank\"\nid = 1\nmembers = [3, 1, 2]\n";

/// Returns the error's sentence.
fn wrong(text: &str) -> String {
    Config::from_toml(text).expect_err(text).to_string()
}

fn with(line: &str) -> String {
    format!("{MINIMAL}{line}\n")
}

#[test]
fn what_is_left_out_has_its_default() {
    let config = Config::from_toml(MINIMAL).unwrap();
    assert_eq!(config.cluster(), "bank");
    assert_eq!(config.id(), NodeId(1));
    assert_eq!(config.members(), [NodeId(1), NodeId(2), NodeId(3)], "their order in the file does not matter");
    assert_eq!(config.formation_timeout(), Duration::from_secs(30));
    assert_eq!(config.failure_timeout(), Duration::from_secs(1));
    assert_eq!(config.spin(), Spin::Auto);
    assert_eq!(config.short_limit(), Duration::from_millis(1));
    assert_eq!(config.backend(), Backend::Auto);
    assert_eq!(config.group_names().count(), 0);
    assert_eq!(config.group("any"), GroupConfig::default());
    assert_eq!(config, Config::builder("bank", 1).members([1, 2, 3]).build().unwrap());
}

#[test]
fn everything_can_be_set() {
    let text = "
        cluster = \"bank\"
        id = 2
        members = [1, 2]
        formation_timeout_ms = 5000
        failure_timeout_ms = 20
        spin = \"never\"
        short_limit_us = 200
        client_bytes = \"8MiB\"
        scrub_bytes_per_second = \"2MiB\"
        [fabric]
        backend = \"shm\"
        [groups.accounts]
        mode = \"unordered\"
        ring_bytes = \"4MiB\"
        bulk_threshold = \"64KiB\"
        bulk_reserve = \"1GiB\"
        senders = [2]
        max_waiting = 10
        [groups.audit]
        ring_bytes = 65536
    ";
    let config = Config::from_toml(text).unwrap();
    let built = Config::builder("bank", 2)
        .members([2, 1])
        .formation_timeout(Duration::from_secs(5))
        .failure_timeout(Duration::from_millis(20))
        .spin(Spin::Never)
        .short_limit(Duration::from_micros(200))
        .client_bytes(8 << 20)
        .scrub_bytes_per_second(2 << 20)
        .backend(Backend::Shm)
        .group("accounts", |group| {
            group.mode(Mode::Unordered).ring_bytes(4 << 20).bulk_threshold(64 << 10).bulk_reserve(1 << 30);
            group.senders([2]).max_waiting(10);
        })
        .group("audit", |group| _ = group.ring_bytes(65_536))
        .build()
        .unwrap();
    assert_eq!(config, built);
    assert_eq!(config.group_names().collect::<Vec<_>>(), ["accounts", "audit"]);
    assert_eq!(config.group("accounts").senders, Some(vec![NodeId(2)]));
}

#[test]
fn a_durable_group_needs_a_storage() {
    let built = || Config::builder("bank", 1).members([1]).group("a", |group| _ = group.mode(Mode::Durable));
    let said = built().build().unwrap_err().to_string();
    assert!(said.contains("groups.a.mode") && said.contains("storage ="), "{said}");
    assert_eq!(built().storage("state").build().unwrap().group("a").mode, Mode::Durable);
}

#[test]
fn the_module_s_example_is_valid() {
    let page = include_str!("mod.rs");
    let examples: Vec<String> = page
        .split("//! ```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("//! ```\n").next())
        .map(|text| text.lines().map(|line| format!("{}\n", line.trim_start_matches("//!").trim_start())).collect())
        .collect();
    let [example, joining, witness, network, options] = &examples[..] else { panic!("{} examples", examples.len()) };
    let config = Config::from_toml(example).unwrap();
    let defaults = Config::builder("bank", 1).members([1, 2, 3]).build().unwrap();
    let everyone = GroupConfig { senders: Some(config.members().to_vec()), ..GroupConfig::default() };
    assert_eq!(config.group("accounts"), everyone);
    assert_eq!(Config { groups: BTreeMap::new(), ..config }, defaults, "it shows the defaults");
    let config = Config::from_toml(joining).unwrap();
    assert_eq!((config.join().len(), config.carrier()), (2, Carrier::Mixed));
    let config = Config::from_toml(witness).unwrap();
    assert_eq!((config.is_witness(), config.voters()), (true, Some(&[NodeId(1), NodeId(2), NodeId(3)][..])));
    let config = Config::from_toml(&format!("{network}{options}")).unwrap();
    assert_eq!(config.members().len(), 3);
    assert_eq!(config.tcp().send_buffer_bytes, Some(4 << 20));
    assert_eq!(config.verbs().port, Some(1));
    assert!(matches!(config.security(), Security::Tls(keys) if keys.key == Path::new("keys/node-1.key")));
}

#[test]
fn the_book_s_examples_are_valid() {
    let page = concat!(
        include_str!("../../docs/src/operate/configuration.md"),
        include_str!("../../docs/src/operate/logs.md")
    );
    let examples: Vec<&str> = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let (joining, others): (Vec<&str>, Vec<&str>) = examples.iter().partition(|example| example.contains("join ="));
    assert_eq!((joining.len(), others.len()), (1, 4));
    for example in others {
        let config = Config::from_toml(&format!("id = 3\n{example}")).unwrap();
        assert!(config.members().len() >= 3, "{example}");
    }
    let joins = Config::from_toml(joining[0]).unwrap();
    assert_eq!((joins.id(), joins.join().len()), (NodeId(4), 1));
}

#[test]
fn an_error_names_the_line_the_key_and_the_remedy() {
    for (line, said) in [
        (
            "spin = \"sometimes\"",
            "configuration, line 4: `spin` is \"sometimes\": give \"auto\", \"always\" or \"never\"",
        ),
        (
            "failure_timeout_ms = 5",
            "configuration, line 4: `failure_timeout_ms` is 5 ms: give at least 20 ms, since a thread may have to wait so long \
             for its core",
        ),
        ("formation_timeout_ms = 0", "configuration, line 4: `formation_timeout_ms` is 0: give at least 1"),
        (
            "[fabric]\nbackend = \"infiniband\"",
            "configuration, line 5: `fabric.backend` is \"infiniband\": give \"auto\", \"shm\", \"tcp\" or \"verbs\"",
        ),
        (
            "[groups.a]\nring_bytes = 3000",
            "configuration, line 5: `groups.a.ring_bytes` is 3000 B: give a power of two from 1 KiB to 1 GiB, such as \"4 KiB\"",
        ),
        (
            "[groups.a]\nbulk_reserve = \"2TiB\"",
            "configuration, line 5: `groups.a.bulk_reserve` is 2 TiB: give 4 KiB to 1 TiB, or 0 for no messages above a quarter \
             of the ring",
        ),
        (
            "[groups.a]\nring_bytes = \"4 many\"",
            "configuration, line 5: `groups.a.ring_bytes` is \"4 many\": give a size such as 4096, 64KiB or 4MiB",
        ),
        (
            "failure_timeout_ms = \"soon\"",
            "configuration, line 4: `failure_timeout_ms` is \"soon\": give a time such as 500ms, 5s or 10m",
        ),
        (
            "[groups.a]\nmax_waiting = 1\nsenders = [1, 4]",
            "configuration, line 6: `groups.a.senders` lists 4, which is not among the members: add it there or remove it",
        ),
        (
            "[groups.a]\nsenders = []",
            "configuration, line 5: `groups.a.senders` lists no member: name at least one, or leave it out if all may send",
        ),
        ("[groups.a]\nmax_waiting = 0", "configuration, line 5: `groups.a.max_waiting` is 0: give 1 to 16777216"),
        (
            "storage = \"x\"\n[groups.a]\nsnapshot_bytes = 100",
            "configuration, line 6: `groups.a.snapshot_bytes` is 100 B: give at least 64 KiB",
        ),
        (
            "[groups.a]\nmode = \"durable\"",
            "configuration, line 4: `groups.a.mode` is \"durable\", and there is nowhere to keep its log: give a directory, \
             `storage = \"state/{id}\"`, or set the environment variable SQUALL_STORAGE",
        ),
        (
            "[groups.\"a b\"]",
            "configuration, line 4: `groups.a b` is \"a b\": give a name of 1 to 64 letters, digits, `.`, `_` and `-` (ASCII) that begins with a letter or a digit",
        ),
    ] {
        assert_eq!(wrong(&with(line)), said);
    }
    assert_eq!(
        wrong("cluster = \"bank\"\nmembers = [1, 2]\nid = 7\n"),
        "configuration, line 3: `id` is 7, which is not among the members [1, 2]: add it to `members`, give the id of one \
         of them, or let it join a group that runs, `join = [\"10.0.0.1:7700\"]`"
    );
    assert_eq!(
        wrong("cluster = \"bank\"\nid = 1\nmembers = [1, 2, 1]\n"),
        "configuration, line 3: `members` lists 1 twice: remove one"
    );
    assert_eq!(
        wrong("cluster = \"\"\nid = 1\nmembers = [1]\n"),
        "configuration, line 1: `cluster` is \"\": give a name of 1 to 64 letters, digits, `.`, `_` and `-` (ASCII) that begins with a letter or a digit"
    );
    let many: Vec<u32> = (1..=65).collect();
    assert_eq!(
        wrong(&format!("cluster = \"bank\"\nid = 1\nmembers = {many:?}\n")),
        "configuration, line 3: `members` lists 65 nodes: list 1 to 64"
    );
}

#[test]
fn an_unknown_key_or_a_wrong_type_is_an_error_of_its_line() {
    // A name in quotes is no path.
    for line in ["\"security.mode\" = \"tls\"", "\"fabric.tcp\" = {}", "[fabric]\n\"tcp.send_buffer_bytes\" = 8192"] {
        let error = wrong(&with(line));
        assert!(error.contains("unknown field"), "{error}");
    }
    for (line, at, word) in [
        ("fialure_timeout_ms = 5", 4, "fialure_timeout_ms"),
        ("[fabric]\nport = 1", 5, "port"),
        ("[groups.a]\nring = 1", 5, "ring"),
        ("short_limit_us = true", 4, "5ms"),
        ("short_limit_us = -1", 4, "-1"),
        ("[groups.a]\nring_bytes = true", 5, "4MiB"),
        ("client_bytes = 4096", 4, "is 4 KiB: give at least 1 MiB"),
        ("members = [1]", 4, "duplicate key"),
    ] {
        let said = wrong(&with(line));
        assert!(said.starts_with(&format!("configuration, line {at}: ")) && said.contains(word), "{line:?}: {said}");
    }
}

#[test]
fn a_half_written_file_is_called_so() {
    let whole = with("[groups.accounts]\nring_bytes = \"4MiB\"");
    for end in 0..whole.len() {
        let Err(error) = Config::from_toml(&whole[..end]) else { continue };
        let said = error.to_string();
        assert!(said.contains("half written") || said.contains("not have been written"), "{:?}: {said}", &whole[..end]);
    }
    assert_eq!(
        wrong("cluster = \"bank\"\nid = 1\n"),
        "configuration: `members` is missing: list all nodes, `members = [1, 2, 3]`, or give them `[addresses]` (if \
         you did, the file may be only half written)"
    );
}

#[test]
fn an_error_of_a_file_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("squall.toml");
    fs::write(&path, with("spin = 1")).unwrap();
    let said = Config::load(&path).unwrap_err().to_string();
    assert!(said.starts_with(&format!("{}:4: ", path.display())), "{said}");
    fs::write(&path, [b"cluster = \"bank\"\n\0\0".as_slice(), &[0xff]].concat()).unwrap();
    let said = Config::load(&path).unwrap_err().to_string();
    assert!(said.starts_with(&format!("{}:2: is not UTF-8 text", path.display())), "{said}");
    fs::remove_file(&path).unwrap();
    let said = Config::load(&path).unwrap_err().to_string();
    assert!(said.contains("can't be read") && said.contains(&path.display().to_string()), "{said}");
}

/// Loads `MINIMAL` with these variables.
fn overridden(variables: &[(&'static str, &str)]) -> Result<Config, ConfigError> {
    let variables: BTreeMap<_, OsString> = variables.iter().map(|&(name, value)| (name, value.into())).collect();
    let mut draft = file::parse(MINIMAL, &ValuePlace::text)?;
    environment::apply(&mut draft, |name| variables.get(name).cloned())?;
    draft.check()
}

#[test]
fn the_environment_overrides_the_file() {
    let config = overridden(&[
        ("SQUALL_CLUSTER", "test"),
        ("SQUALL_ID", " 5"),
        ("SQUALL_MEMBERS", "5, 4,6"),
        ("SQUALL_FORMATION_TIMEOUT_MS", "100"),
        ("SQUALL_FAILURE_TIMEOUT_MS", "50"),
        ("SQUALL_SPIN", "always"),
        ("SQUALL_SHORT_LIMIT_US", "7"),
        ("SQUALL_CLIENT_BYTES", "2MiB"),
        ("SQUALL_FABRIC", "shm"),
    ]);
    let built = Config::builder("test", 5)
        .members([4, 5, 6])
        .formation_timeout(Duration::from_millis(100))
        .failure_timeout(Duration::from_millis(50))
        .spin(Spin::Always)
        .short_limit(Duration::from_micros(7))
        .client_bytes(2 << 20)
        .backend(Backend::Shm)
        .build();
    assert_eq!(config.unwrap(), built.unwrap());
}

#[test]
fn an_error_of_the_environment_names_the_variable() {
    for (name, value, said) in [
        ("SQUALL_ID", "one", "environment variable SQUALL_ID: `id` is \"one\": give the id of a node"),
        (
            "SQUALL_ID",
            "9",
            "environment variable SQUALL_ID: `id` is 9, which is not among the members [1, 2, 3]: add it to `members`, give \
             the id of one of them, or let it join a group that runs, `join = [\"10.0.0.1:7700\"]`",
        ),
        (
            "SQUALL_MEMBERS",
            "1;2",
            "environment variable SQUALL_MEMBERS: `members` is \"1;2\": give the ids of all \
             nodes, such as `1,2,3`, or `1=10.0.0.1:7700,2=10.0.0.2:7700+[fd00::2]:7700`",
        ),
        ("SQUALL_SPIN", "", "environment variable SQUALL_SPIN: `spin` is \"\": give \"auto\", \"always\" or \"never\""),
    ] {
        assert_eq!(overridden(&[(name, value)]).unwrap_err().to_string(), said);
    }
}

#[test]
fn the_builder_checks_too() {
    let said = Config::builder("bank", 1).build().unwrap_err().to_string();
    assert!(said.starts_with("configuration built by the program: `members` is missing"), "{said}");
}

/// Members of one host are paused together; an explicit lease is the user's decision.
#[test]
fn reads_are_confirmed_where_the_clock_of_this_host_alone_may_stop() {
    let several = format!("{MINIMAL}security = \"none\"\n");
    let addresses = "[addresses]\n1 = \"10.0.0.1:7700\"\n2 = \"10.0.0.2:7700\"\n3 = \"10.0.0.3:7700\"\n";
    let why = |text: String| Config::from_toml(&text).unwrap().confirms_reads();
    let silent = why(several.replace("members = [3, 1, 2]\n", "") + addresses);
    assert_eq!(silent.is_some(), hypervisor().is_some());
    assert!(silent.is_none_or(|why| why.contains("read_lease_ms = 15")), "it says what to do");
    let given = several.replace("members = [3, 1, 2]\n", "read_lease_ms = 15\n") + addresses;
    assert_eq!(why(given), None);
    assert_eq!(why(MINIMAL.to_owned()), None);
}
