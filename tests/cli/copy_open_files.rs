//! Receivers on the source's host, which copy from its open files.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    process::{Command, Stdio},
};

use super::copy::{SLOW, World, assert_same, number, receiver, report, text, write};

#[test]
fn many_files_take_few_descriptors() {
    let mut world = World::new(&["a", "b"]);
    for file in 0..3000 {
        write(&world.from(&format!("tree/{}/{file}", file % 10)), file % 500);
    }
    for name in ["a", "b"] {
        let process = world.receiver(name).id().to_string();
        let limited = Command::new("prlimit").args(["--nofile=128:128", "--pid", &process]).status().unwrap();
        assert!(limited.success());
    }
    let push = world.command(&["tree"], "a,b", &[]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh"]).arg(push.get_program()).args(push.get_args());
    let output = limited.output().unwrap();
    let report = report(&output);
    assert!(output.status.success() && report["complete"] == true, "{report}: {}", text(&output.stderr));
    assert_eq!(number(&report, "multicasts"), 0, "{report}");
    for name in ["a", "b"] {
        assert_same(&world.from("tree"), &world.at(name, "tree"));
    }
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_named_and_not_put_in_place() {
    type Change = fn(&File);
    let changes: [(Change, &str); 3] = [
        (|file| file.set_len(1 << 20).unwrap(), "its size changed"),
        (|file| file.set_len(100 << 20).unwrap(), "its size changed"),
        (|file| file.write_all_at(b"changed", 1000).unwrap(), "it changed after the transfer had begun"),
    ];
    for (change, told) in changes {
        let world = World::new(&["a", "b"]);
        write(&world.from("file"), 60_000_000);
        write(&world.from("other"), 1000);
        let mut push = world.command(&["file", "other"], "a,b", &SLOW).spawn().unwrap();
        world.await_segments("b", 10, &mut push);
        change(&File::options().write(true).open(world.from("file")).unwrap());
        let output = push.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let errors = text(&output.stderr);
        // One that shrinks is seen by the copy, or by the look at it afterwards.
        assert!(errors.contains(told) || errors.contains("it shrank"), "{errors}");
        for name in ["a", "b"] {
            assert!(!world.at(name, "file").exists());
            assert_same(&world.from("other"), &world.at(name, "other"));
        }
        world.push_well(&["file", "other"], "a,b", &[]);
        for name in ["a", "b"] {
            assert_same(&world.from("file"), &world.at(name, "file"));
        }
    }
}

#[test]
fn a_receiver_in_another_mount_namespace_is_handed_no_open_file() {
    let mut world = World::new(&["a"]);
    fs::create_dir(world.at("b", "")).unwrap();
    let serve = world.serve_command("b");
    let mut contained = Command::new("unshare");
    contained.arg("--mount").arg(serve.get_program()).args(serve.get_args()).stdout(Stdio::piped());
    let mut child = contained.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    if !ready.contains("ready") {
        assert!(std::env::var_os("SQUALL_FORBID_SKIPS").is_none(), "no mount namespace can be made here");
        eprintln!("skipped: no mount namespace can be made here, which takes root");
        child.wait().unwrap();
        return;
    }
    world.receivers.push(("b".to_owned(), child));
    write(&world.from("file"), 3_000_000);
    let report = world.push_well(&["file"], "a,b", &[]);
    assert_eq!((number(&report, "groups"), number(&report, "multicasts")), (1, 1), "{report}");
    for name in ["a", "b"] {
        assert!(number(receiver(&report, name), "bytes_moved") >= 3_000_000, "{report}");
        assert_same(&world.from("file"), &world.at(name, "file"));
    }
}
