//! Exports of a log in a directory, and readers that name one member.

use std::fs;

use serde_json::Value;

use crate::log_service::{Cluster, NODES, Process, complains, lines, says, squall, text};

#[test]
fn what_is_exported_is_taken_back_byte_for_byte_and_damage_is_named() {
    let cluster = Cluster::new("export", "shm");
    let nodes = cluster.start(&NODES);
    let odd = cluster.base.path().join("odd");
    fs::write(&odd, b"two\nlines \xff\x00\n").expect("a file can be written");
    let versions = cluster.append(&lines(0..100));
    says(&cluster.run(&["append", "--file", odd.to_str().expect("a readable path")]));
    drop(nodes);
    let export = |arguments: &[&str]| {
        let mut command = squall();
        command.args(["log", "export"]).arg(cluster.log(1)).args(arguments);
        Process(command.spawn().expect("it can be started")).end()
    };
    let file = cluster.base.path().join("all.jsonl");
    let path = file.to_str().expect("a readable path");
    let output = export(&["-o", path]);
    assert!(text(&output.stderr).contains("101 records are in"), "{}", text(&output.stderr));
    says(&output);
    let exported = fs::read_to_string(&file).expect("it is there");
    assert_eq!(exported, says(&export(&[])), "the same on standard output");
    let why = complains(&export(&["-o", path]), 2);
    assert!(why.contains("exists: give another name"), "{why}");
    assert_eq!(fs::read_to_string(&file).expect("it is there"), exported, "it was not replaced");
    let (from, to) = (versions[10].to_string(), versions[12].to_string());
    let part = says(&export(&["--from", &from, "--to", &to]));
    assert_eq!(part.lines().collect::<Vec<_>>(), exported.lines().skip(10).take(3).collect::<Vec<_>>());

    let other = Cluster::new("import", "shm");
    let _nodes = other.start(&NODES);
    says(&other.run(&["append", "--json", "-q", path]));
    let contents = |lines: &str| -> Vec<(Value, Value)> {
        let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON object"));
        objects.map(|object| (object["record"].clone(), object["bytes"].clone())).collect()
    };
    assert_eq!(contents(&says(&other.run(&["read", "--json"]))), contents(&exported));
    let nonsense = other.base.path().join("nonsense");
    fs::write(&nonsense, "no json\n").expect("a file can be written");
    let why = complains(&other.run(&["append", "--json", nonsense.to_str().expect("a readable path")]), 1);
    assert!(why.contains("line 1 can't be appended: it is no JSON object"), "{why}");

    let segment = cluster.log(1).join("segment-0000000000");
    let mut bytes = fs::read(&segment).expect("it is there");
    let record = lines(50..51).remove(0);
    let at = bytes.windows(record.len()).position(|part| part == record.as_bytes()).expect("it is in the log");
    bytes[at] ^= 1;
    fs::write(&segment, bytes).expect("it can be written");
    let damaged = cluster.base.path().join("damaged.jsonl");
    let why = complains(&export(&["-o", damaged.to_str().expect("a readable path")]), 1);
    assert!(why.contains("segment-0000000000") && why.contains("has all the rest"), "{why}");
    let rest: Vec<&str> = exported.lines().filter(|line| !line.contains("line 50,")).collect();
    assert_eq!(fs::read_to_string(&damaged).expect("it is there").lines().collect::<Vec<_>>(), rest);
    let (before, at, behind) = (versions[49].to_string(), versions[50].to_string(), versions[51].to_string());
    let count = |part: &[&str]| says(&export(part)).lines().count();
    assert_eq!([count(&["--to", &before]), count(&["--from", &behind])], [50, 50], "it lies outside");
    let why = complains(&export(&["--from", &at, "--to", &at]), 1);
    assert!(why.contains("1 places of the log can't be read"), "{why}");
    let why = complains(&export(&["-o", "/nowhere/at/all"]), 1);
    assert!(why.contains("/nowhere/at/all can't be written"), "{why}");
    let left = fs::read_dir(cluster.base.path()).expect("it is there").flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().starts_with(".squall")).count(), 0);
}

#[test]
fn the_member_that_is_named_answers_or_none_does() {
    for backend in ["shm", "tcp"] {
        let cluster = Cluster::new("one", backend);
        let mut nodes = cluster.start(&NODES);
        cluster.append(&lines(0..3));
        nodes.remove(2);
        let ask = |what: &[&str], members: &[u32]| {
            let mut command = squall();
            command.args(["log"]).args(what).args(["--timeout", "2", "--cluster", &cluster.name]);
            let named = |id: &u32| match backend {
                "tcp" => cluster.addresses[*id as usize - 1].clone(),
                _ => id.to_string(),
            };
            let members: Vec<String> = members.iter().map(named).collect();
            command.args([if backend == "tcp" { "--address" } else { "--node" }, &members.join(",")]);
            Process(command.spawn().expect("it can be started")).end()
        };
        for what in [&["read", "--stale"][..], &["tail"], &["at", "--time", "9999999999"], &["stat"]] {
            let why = complains(&ask(what, &[3]), 1);
            assert!(why.contains("was asked, which is named"), "{backend} {what:?}: {why}");
        }
        let all = lines(0..3);
        assert_eq!(says(&ask(&["read", "--stale"], &[2])).lines().collect::<Vec<_>>(), all);
        assert_eq!(says(&ask(&["tail"], &[3, 2])).lines().collect::<Vec<_>>(), all, "another may answer");
        let stat = says(&ask(&["stat"], &[2]));
        assert!(stat.contains("node 2: versions") && !stat.contains("node 1"), "{stat}");
    }
}
