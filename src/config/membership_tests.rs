//! The checks of members, contacts and voters.

use std::path::Path;

use super::*;

const LISTED: &str = "cluster = \"bank\"\nmembers = [1, 2, 3]\n";

fn as_node(id: u32, lines: &str) -> Result<Config, ConfigError> {
    Config::from_toml(&format!("id = {id}\n{LISTED}{lines}\n"))
}

/// Returns the error's sentence.
fn wrong(id: u32, lines: &str) -> String {
    as_node(id, lines).expect_err(lines).to_string()
}

fn at(text: &str) -> Contact {
    Contact::Address(text.parse().unwrap())
}

#[test]
fn who_is_not_listed_joins() {
    let config = as_node(4, "join = [1, \"2\"]").unwrap();
    assert_eq!(config.join(), [Contact::Node(NodeId(1)), Contact::Node(NodeId(2))]);
    assert_eq!(config.carrier(), Carrier::Shm, "ids without addresses are of this host");
    assert_eq!(config.members().len(), 3);
    let config = Config::from_toml("cluster = \"bank\"\nid = 4\njoin = 1").unwrap();
    assert_eq!((config.join(), config.members()), (&[Contact::Node(NodeId(1))][..], &[][..]));
    let built = Config::builder("bank", 4).join(["1"]).build().unwrap();
    assert_eq!(config, built);
}

#[test]
fn one_file_is_for_those_who_are_listed_and_those_who_join() {
    let config = as_node(1, "join = [2]").unwrap();
    assert_eq!(config.join(), [], "it waits for the others");
    let hosts = "join = \"10.0.0.1:7700\"\nsecurity = \"none\"\n[addresses]\n1 = \"10.0.0.1:7700\"\n2 = \"10.0.0.2:7700\"\n\
                 3 = \"10.0.0.3:7700\"\n4 = \"10.0.0.4:7700\"\n";
    let config = as_node(4, hosts).unwrap();
    assert_eq!(config.join(), [Contact::Node(NodeId(1))], "the address is known to be its");
    assert_eq!(config.listen(), ["10.0.0.4:7700".parse().unwrap()]);
    assert_eq!(as_node(3, hosts).unwrap().members().len(), 3, "an address of a node that may join makes no member");
}

#[test]
fn what_is_dialed_by_its_address_is_on_a_network() {
    for backend in ["", "[fabric]\nbackend = \"tcp\""] {
        let config = as_node(4, &format!("join = [\"127.0.0.1:7700\"]\n{backend}")).unwrap();
        assert_eq!(config.join(), [at("127.0.0.1:7700")]);
        assert_eq!(config.carrier(), if backend.is_empty() { Carrier::Mixed } else { Carrier::Tcp });
    }
    assert_eq!(
        wrong(4, "join = [\"127.0.0.1:7700\"]\n[fabric]\nbackend = \"shm\""),
        "configuration, line 4: `join` is 127.0.0.1:7700, but in shared memory nodes are found by their ids: give the id of a \
         node that runs on this host, or another `fabric.backend` to all nodes"
    );
}

#[test]
fn a_directory_is_beside_the_file_and_has_the_id() {
    let config = as_node(2, "storage = \"state/{id}\"\nrack = \"left\"").unwrap();
    assert_eq!((config.storage(), config.rack()), (Some(Path::new("state/2")), "left"));
    let config = as_node(2, "storage = \"s\"\nsign_log = \"keys/{id}.key\"").unwrap();
    assert_eq!(config.sign_log(), Some(Path::new("keys/2.key")));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("squall.toml");
    std::fs::write(&path, format!("id = 1\n{LISTED}storage = \"{{id}}\"\n")).unwrap();
    let config = Config::load_as(&path, 3);
    assert_eq!(config.unwrap().storage(), Some(&*directory.path().join("3")));
    std::fs::write(&path, format!("id = 1\n{LISTED}storage = \"\"\n")).unwrap();
    let said = Config::load_as(&path, 3).unwrap_err().to_string();
    assert!(said.contains(":4: `storage` is empty"), "it is not the file's directory: {said}");
}

#[test]
fn witnesses_vote_with_the_first_members() {
    let ids = |ids: &[u32]| Some(ids.iter().copied().map(NodeId).collect::<Vec<_>>());
    for (members, lines, voters) in [
        ("[1, 2]", "", None),
        ("[1, 2]", "witnesses = [9]", ids(&[1, 2, 9])),
        ("[1, 2, 3]", "witnesses = [9]", ids(&[1, 2, 9])),
        ("[1, 2, 3, 4, 5, 6]", "witnesses = [9]", ids(&[1, 2, 3, 4, 9])),
        ("[1, 2, 3]", "witnesses = [8, 9]", ids(&[1, 2, 3, 8, 9])),
        ("[1, 2, 3]", "witnesses = [9]\nvoters = [9]", ids(&[9])),
    ] {
        let config = Config::from_toml(&format!("cluster = \"bank\"\nid = 1\nmembers = {members}\n{lines}\n")).unwrap();
        assert_eq!(config.voters().map(<[NodeId]>::to_vec), voters, "{members} {lines}");
        assert!(!config.is_witness());
    }
    assert!(as_node(9, "witnesses = [9]").unwrap().is_witness());
}

#[test]
fn an_error_names_the_line_the_key_and_the_remedy() {
    for (line, said) in [
        (
            "join = []",
            "`join` lists 0 nodes: give 1 to 16 of a group that runs, such as \"10.0.0.1:7700\" or, on one host, an id",
        ),
        ("join = 4", "`join` is 4, this node itself: give one that runs in the group already"),
        (
            "join = \"host\"",
            "`join` is \"host\": give a host and a port, such as \"10.0.0.1:7700\", \"[fd00::1]:7700\" or \"host.example:7700\"; or \
             the id of a node that is on this host or has an address here",
        ),
        (
            "join = 1\nstorage = \"\"",
            "`storage` is empty: give a directory, or leave it out to keep nothing across restarts",
        ),
        (
            "join = 1\nsign_log = \"keys/node-{id}.log.key\"",
            "`sign_log` is given, and there is nowhere to keep a log: give a directory, `storage = \"state/{id}\"`",
        ),
        (
            "join = 1\nrack = \"a b\"",
            "`rack` is \"a b\": give a name of 1 to 64 letters, digits, `.`, `_` and `-` (ASCII) that begins with a letter or a digit",
        ),
        ("join = 1\nwitnesses = [3]", "`witnesses` lists 3, which is a member: a witness has no part in any group"),
        (
            "join = 1\nvoters = [1, 2]",
            "`voters` lists 2 nodes: give an odd number up to 7, since one more than an odd number survives no more losses",
        ),
        ("join = 1\n[groups.a]\nshards = 0", "`groups.a.shards` is 0: give 1 to 1024"),
        ("join = 1\n[groups.a]\nmin_replicas = 0", "`groups.a.min_replicas` is 0: give 1 to 64"),
        (
            "join = 1\n[groups.a]\nmin_replicas = 3\nmax_replicas = 2",
            "`groups.a.max_replicas` is 2, fewer than min_replicas, which is 3: give at least as many",
        ),
        ("join = 1\nmoves_at_once = 0", "`moves_at_once` is 0: give 1 to 1024"),
        ("join = 1\nweights.2 = 1001", "`weights.2` is 1001: give 0 to 1000"),
        ("join = 1\nweights.a = 1", "`weights.a` is of no node: the keys of `[weights]` are ids, such as `1 = 2`"),
        ("join = 1\n[groups.a]\nreserved = [2, 2]", "`groups.a.reserved` lists 2 twice: remove one"),
        ("join = 1\n[groups.a.shard.3]\nmin_replicas = 65", "`groups.a.shard.3.min_replicas` is 65: give 1 to 64"),
        (
            "join = 1\n[groups.a.shard.3]\nracks = [\"a b\"]",
            "`groups.a.shard.3.racks` lists \"a b\": give a name of 1 to 64 letters, digits, `.`, `_` and `-` (ASCII) that begins \
             with a letter or a digit",
        ),
        (
            "join = 1\n[groups.a]\nshard.x.only = true",
            "`groups.a.shard.x` is no shard: the keys of `shard` are numbers from 0, such as `[groups.NAME.shard.0]`",
        ),
    ] {
        let line_of_error = 3 + line.lines().count();
        assert_eq!(wrong(4, line), format!("configuration, line {line_of_error}: {said}"));
    }
    assert_eq!(
        wrong(1, "voters = [7]"),
        "configuration, line 4: `voters` lists 7, which is neither among `members` nor among `witnesses`: add it there or \
         remove it"
    );
}

#[test]
fn the_environment_says_it_too() {
    let variables = [
        ("SQUALL_ID", "4"),
        ("SQUALL_JOIN", "1, 2"),
        ("SQUALL_STORAGE", "s"),
        ("SQUALL_SIGN_LOG", "k"),
        ("SQUALL_RACK", "r"),
        ("SQUALL_VOTERS", "1,2,3"),
    ];
    let mut draft = file::parse(&format!("id = 1\n{LISTED}"), &ValuePlace::text).unwrap();
    environment::apply(&mut draft, |name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        .unwrap();
    let built = Config::builder("bank", 4).members([1, 2, 3]).join(["1", "2"]).storage("s").sign_log("k").rack("r");
    let built = built.voters([1, 2, 3]);
    assert_eq!(draft.check().unwrap(), built.build().unwrap());
}

#[test]
fn a_group_s_shards_and_replicas_can_be_set() {
    let config = as_node(1, "[groups.a]\nshards = 8\nmin_replicas = 2\nmax_replicas = 3").unwrap();
    let group = config.group("a");
    assert_eq!((group.shards, group.min_replicas, group.max_replicas), (8, 2, Some(3)));
    let built =
        Config::builder("bank", 1).members([1, 2, 3]).group("a", |group| _ = group.shards(8).replicas(2, Some(3)));
    assert_eq!(config, built.build().unwrap());
}

#[test]
fn weights_reserved_nodes_and_single_shards_can_be_set() {
    let text = "moves_at_once = 7\nweights = { 2 = 0, 3 = 5 }\n[groups.a]\nreserved = [3]\n[groups.a.shard.4]\npinned = [2, 1]\n\
                racks = [\"y\", \"x\"]\nonly = true\nmin_replicas = 2\nmax_replicas = 3";
    let config = as_node(1, text).unwrap();
    assert_eq!((config.moves_at_once(), config.weights()), (7, &BTreeMap::from([(NodeId(2), 0), (NodeId(3), 5)])));
    let (pinned, racks) = ([1, 2].map(NodeId).to_vec(), ["x", "y"].map(str::to_owned).to_vec());
    let options = ShardOptions { min_replicas: Some(2), max_replicas: Some(3), pinned, racks, only: true };
    assert_eq!(config.group("a").reserved, [NodeId(3)]);
    assert_eq!(config.group("a").shard_options, BTreeMap::from([(4, options.clone())]));
    let built = Config::builder("bank", 1).members([1, 2, 3]).moves_at_once(7u32).weight(2, 0).weight(3, 5);
    let built = built.group("a", |group| _ = group.reserved([3]).shard(4, options));
    assert_eq!(config, built.build().unwrap());
    for (line, said) in [
        ("[groups.a]\nreserved = [4]", "`groups.a.reserved` lists 4, which is not among the members"),
        ("[groups.a.shard.0]\npinned = [4]", "`groups.a.shard.0.pinned` lists 4, which is not among the members"),
        ("weights.4 = 2", "`weights.4` is of a node that is not among the members"),
    ] {
        let wrong = wrong(1, line);
        assert!(wrong.contains(said), "{wrong}");
    }
    let said = as_node(1, "[groups.a.shard.0]\npined = [2]").unwrap_err().to_string();
    assert!(said.contains("unknown field `pined`, expected one of `min_replicas`"), "{said}");
}
