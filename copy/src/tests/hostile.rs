//! Hostile sources at a real receiver.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, UNIX_EPOCH},
};

use super::{
    super::{
        control::{
            FrameError, HandedFile, Join, Layer, MAX_FILES, Offer, Over, ToReceiver, ToSource, dial, expect_greeting,
            greet, listen, node_id, read, write,
        },
        extent::{Extent, PlanPart},
        manifest::{
            RawEntry,
            tests::{directory, file, link},
        },
        plan::Holding,
        sink::{Lacking, SinkOptions, Verdict},
    },
    network::{Cluster, Way},
    pair::options,
};

fn offer(entries: Vec<RawEntry>) -> ToReceiver {
    let options = SinkOptions { sync: false, ..options() };
    ToReceiver::Offer(Offer { entries, segment_bytes: 4096, options })
}

/// Returns the first answer that is no sign of life.
fn answer(stream: &mut UnixStream) -> Result<ToSource, FrameError> {
    loop {
        match read(stream) {
            Ok(ToSource::Progress { .. }) => {}
            other => return other,
        }
    }
}

/// Offers entries to receiver `a`, and returns its answer. The receiver may still be busy with an earlier caller.
fn call(cluster: &Cluster, entries: &[RawEntry]) -> (UnixStream, ToSource) {
    loop {
        let mut stream = dial(cluster.name(), "a").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // A busy receiver may have hung up already.
        let _ = greet(&mut stream).and_then(|()| write(&mut stream, &offer(entries.to_vec())));
        expect_greeting(&mut stream).unwrap();
        match answer(&mut stream).unwrap() {
            ToSource::Refused(reason) if reason.contains("busy") => thread::yield_now(),
            answer => return (stream, answer),
        }
    }
}

/// Checks that an honest source is served after a stranger, and nothing lies outside the directory.
fn assert_well(cluster: &Cluster) {
    fs::write(cluster.from("honest"), "honest").unwrap();
    // The receiver may not have noticed yet that the stranger is gone.
    let report = loop {
        let report = cluster.push(&cluster.options());
        let error = report.receivers[0].error.clone().unwrap_or_default();
        if !error.contains("busy") {
            break report;
        }
    };
    assert!(report.is_complete(), "{report:?}");
    let mut names: Vec<String> = fs::read_dir(cluster.at("a", ""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [".squall-cp", "honest"]);
    fs::remove_file(cluster.at("a", "honest")).unwrap();
    let mut beside: Vec<String> = fs::read_dir(cluster.at("", ""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    beside.sort();
    assert_eq!(beside, ["a", "from"]);
}

#[test]
fn a_manifest_with_a_hostile_name_is_refused_by_that_name() {
    let cluster = Cluster::new(1);
    let absolute = cluster.at("", "x");
    for (entries, name) in [
        (vec![file("../x", 0)], "../x"),
        (vec![directory("d"), file("d/../../x", 0)], "d/../../x"),
        (vec![file(absolute.to_str().unwrap(), 0)], absolute.to_str().unwrap()),
        (vec![directory("..")], ".."),
        (vec![file(".squall-cp/x", 0)], ".squall-cp/x"),
        (vec![file("a\0b", 0)], "a\\x00b"),
        (vec![file("", 0)], "\"\""),
        (vec![link("l", "."), file("l/x", 0)], "l/x"),
        (vec![file(&"n".repeat(256), 0)], "nnn"),
    ] {
        match call(&cluster, &entries) {
            (_, ToSource::Refused(reason)) => assert!(reason.contains(name), "{name}: {reason}"),
            (_, other) => panic!("{name}: {other:?}"),
        }
    }
    assert_well(&cluster);
}

#[test]
fn a_second_source_is_told_that_a_receiver_is_busy() {
    let cluster = Cluster::new(1);
    let (first, ready) = call(&cluster, &[file("f", 5000)]);
    assert!(matches!(ready, ToSource::Ready(_)), "{ready:?}");
    // Their names fill the connection, so that it is closed in the middle of the offer.
    (0..3000).for_each(|i| fs::write(cluster.from(&format!("{i:0>200}")), "").unwrap());
    let error = cluster.push(&cluster.options()).receivers.remove(0).error.unwrap();
    assert!(error.contains("a is busy with another transfer: push again when that is over"), "{error}");
    drop(first);
    assert!(cluster.push(&cluster.options()).is_complete(), "it comes once the first is gone");
}

/// Starts a receiver `b` that claims to lack file 0, and reports `over` of its n-th group, as long as the source
/// listens.
fn liar(cluster: &Cluster, over: fn(u64) -> (Holding, Option<String>)) -> thread::JoinHandle<()> {
    let listener = listen(cluster.name(), "b").unwrap();
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap();
        greet(&mut stream).unwrap();
        expect_greeting(&mut stream).unwrap();
        let mut groups = 0;
        loop {
            let word = match read::<ToReceiver>(&mut stream) {
                Ok(ToReceiver::Offer(_)) => ToSource::Ready(Lacking { whole: vec![0], ..Lacking::default() }),
                Ok(ToReceiver::Join(join)) => {
                    groups += 1;
                    let (holding, failure) = over(groups);
                    let failure = failure.map(|reason| (None, reason));
                    ToSource::Over(Over { instance: join.instance, holding, failure })
                }
                Ok(_) => continue,
                Err(_) => return,
            };
            if write(&mut stream, &word).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_receiver_that_lies_about_its_groups_is_given_up_and_costs_the_others_nothing() {
    type Lie = fn(u64) -> (Holding, Option<String>);
    let lies: [Lie; 4] = [
        |_| (Holding::default(), None),
        |n| (Holding { segments: n % 2, ..Holding::default() }, Some("lie".to_owned())),
        |n| (Holding { partial: vec![0; n as usize % 2], ..Holding::default() }, Some("lie".to_owned())),
        |_| (Holding { segments: u64::MAX, partial: vec![u64::MAX] }, None),
    ];
    for lie in lies {
        let cluster = Cluster::new(1);
        fs::write(cluster.from("f"), [7; 300_000]).unwrap();
        let liar = liar(&cluster, lie);
        let mut options = cluster.options();
        options.to.push("b".to_owned());
        options.silence = Duration::from_secs(10);
        let report = cluster.push(&options);
        assert_eq!((&report.receivers[0].error, report.receivers[0].placed), (&None, 1), "{report:?}");
        assert!(report.receivers[1].error.is_some(), "{report:?}");
        liar.join().unwrap();
    }
}

#[test]
fn a_source_that_finishes_too_early_puts_nothing_in_place() {
    let cluster = Cluster::new(1);
    let (mut stream, _) = call(&cluster, &[file("f", 5000)]);
    let verdict = Verdict::Intact(blake3::hash(b"").into());
    write(&mut stream, &ToReceiver::Verdicts(vec![(0, verdict)])).unwrap();
    write(&mut stream, &ToReceiver::Finish).unwrap();
    assert!(matches!(answer(&mut stream).unwrap(), ToSource::Done(report) if report.outcome.failures == 1));
    assert!(!cluster.at("a", "f").exists());
    let (mut stream, _) = call(&cluster, &[file("f", 5000)]);
    write(&mut stream, &plan(&cluster, 0, 5000)).unwrap();
    write(&mut stream, &ToReceiver::Finish).unwrap();
    assert!(matches!(answer(&mut stream).unwrap(), ToSource::Failed(_)));
    assert!(!cluster.at("a", "f").exists());
}

/// A plan that sends bytes of the first entry to receiver `a`.
fn plan(cluster: &Cluster, at: u64, len: u64) -> ToReceiver {
    let receivers = vec![node_id(cluster.name(), "a").0];
    let parts = vec![PlanPart { receivers, extents: vec![Extent { entry: 0, at, len }] }];
    ToReceiver::Plan { receivers: Vec::new(), parts }
}

#[test]
fn a_receiver_that_lies_about_what_it_lacks_is_given_up() {
    for lacking in [
        Lacking { whole: vec![7], ..Lacking::default() },
        Lacking { whole: vec![0, 0], ..Lacking::default() },
        Lacking { whole: vec![0], other: vec![0], ..Lacking::default() },
        Lacking { other: vec![u32::MAX], ..Lacking::default() },
    ] {
        let cluster = Cluster::new(1);
        fs::write(cluster.from("f"), [7; 3000]).unwrap();
        let listener = listen(cluster.name(), "b").unwrap();
        let liar = thread::spawn(move || {
            let mut stream = listener.accept().unwrap();
            greet(&mut stream).unwrap();
            expect_greeting(&mut stream).unwrap();
            while let Ok(word) = read::<ToReceiver>(&mut stream) {
                let answer = match word {
                    ToReceiver::Offer(_) => ToSource::Ready(lacking.clone()),
                    _ => ToSource::Missing { entry: 0, ranges: vec![(u64::MAX, 2)] },
                };
                if write(&mut stream, &answer).is_err() {
                    break;
                }
            }
        });
        let mut options = cluster.options();
        options.to.push("b".to_owned());
        let report = cluster.push(&options);
        assert_eq!((&report.receivers[0].error, report.receivers[0].placed), (&None, 1), "{report:?}");
        assert!(
            report.receivers[1].error.as_ref().is_some_and(|error| error.contains("broke the protocol")),
            "{report:?}"
        );
        liar.join().unwrap();
    }
}

/// A request to join a group of a stranger.
fn join() -> Join {
    Join {
        group: 1,
        instance: 1,
        members: vec![7],
        algorithm: Layer { name: "pipeline".to_owned(), racks: Vec::new() },
        network: false,
        block_bytes: 4096,
        first: 0,
        end: 1,
        partial: false,
    }
}

#[test]
fn garbage_and_broken_protocol_end_the_conversation_only() {
    let cluster = Cluster::new(1);
    let join = join();
    let impossible = [
        Join { first: 1, end: 2, ..join.clone() },
        Join { end: 9, ..join.clone() },
        Join { block_bytes: 0, ..join.clone() },
        Join { block_bytes: 1 << 30, ..join.clone() },
        Join { end: 0, ..join.clone() },
        // It is to send what it has not received.
        Join { members: vec![node_id(cluster.name(), "a").0, 7], ..join.clone() },
        Join { algorithm: Layer { name: "pigeons".to_owned(), racks: Vec::new() }, ..join.clone() },
    ];
    for (at, len) in [(0, 5001), (u64::MAX, 2), (5000, 1)] {
        let (mut stream, _) = call(&cluster, &[file("f", 5000)]);
        write(&mut stream, &plan(&cluster, at, len)).unwrap();
        assert!(matches!(answer(&mut stream).unwrap(), ToSource::Failed(_)), "{at} {len}");
    }
    for join in impossible {
        let (mut stream, ready) = call(&cluster, &[file("f", 5000)]);
        assert!(matches!(ready, ToSource::Ready(_)), "{ready:?}");
        write(&mut stream, &plan(&cluster, 0, 5000)).unwrap();
        write(&mut stream, &ToReceiver::Join(join.clone())).unwrap();
        let answered = answer(&mut stream).unwrap();
        assert!(matches!(answered, ToSource::Failed(_)), "{join:?}: {answered:?}");
    }
    // The receiver is not a member of its own group: it reports the group's end, so that the source may recover.
    let (mut stream, ready) = call(&cluster, &[file("f", 5000)]);
    assert!(matches!(ready, ToSource::Ready(_)), "{ready:?}");
    write(&mut stream, &plan(&cluster, 0, 5000)).unwrap();
    write(&mut stream, &ToReceiver::Join(join)).unwrap();
    assert!(matches!(answer(&mut stream).unwrap(), ToSource::Over(over) if over.failure.is_some()));
    drop(stream);
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"squallcp\x06\0\0\0\xff\xff\xff\xff", b"squallcp\x06\0\0\0\x08\0\0\0garbage!"]
    {
        let mut said = b"busy".to_vec();
        while said.windows(4).any(|word| word == b"busy") {
            said.clear();
            let mut stream = dial(cluster.name(), "a").unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let _ = stream.write_all(garbage);
            // The receiver hangs up; with a reset, if bytes were left unread.
            let _ = stream.read_to_end(&mut said);
        }
    }
    assert_well(&cluster);
}

#[test]
fn open_files_that_do_not_come_or_are_too_many_end_the_conversation_only() {
    let cluster = Cluster::new(1);
    let (mut stream, _) = call(&cluster, &[file("f", 5000)]);
    write(&mut stream, &ToReceiver::Files(vec![HandedFile { entry: 0, verdict: None }])).unwrap();
    assert!(answer(&mut stream).is_err(), "none came along");
    let (mut stream, _) = call(&cluster, &[file("f", 5000)]);
    let damaged = HandedFile { entry: 0, verdict: Some(Verdict::Damaged("x".into())) };
    // They are more than it may have at once, unless it has copied the first before the last come.
    for _ in 0..1000 {
        if write(&mut stream, &ToReceiver::Files(vec![damaged.clone(); MAX_FILES])).is_err() {
            break;
        }
    }
    drop(stream);
    assert_well(&cluster);
}

#[test]
fn a_receiver_that_claims_more_files_than_it_was_handed_is_given_up() {
    let cluster = Cluster::by(Way::OpenFiles, 1);
    fs::write(cluster.from("f"), [7; 3000]).unwrap();
    let listener = listen(cluster.name(), "b").unwrap();
    let liar = thread::spawn(move || {
        let mut stream = listener.accept().unwrap();
        greet(&mut stream).unwrap();
        expect_greeting(&mut stream).unwrap();
        while let Ok(word) = read::<ToReceiver>(&mut stream) {
            let answer = match word {
                ToReceiver::Offer(_) => ToSource::Ready(Lacking { whole: vec![0], ..Lacking::default() }),
                _ => ToSource::Copied { files: 2 },
            };
            if write(&mut stream, &answer).is_err() {
                break;
            }
        }
    });
    let mut options = cluster.options();
    options.to.push("b".to_owned());
    let report = cluster.push(&options);
    assert_eq!((&report.receivers[0].error, report.receivers[0].placed), (&None, 1), "{report:?}");
    assert!(report.receivers[1].error.as_ref().is_some_and(|error| error.contains("broke the protocol")), "{report:?}");
    liar.join().unwrap();
}

#[test]
fn what_the_source_says_of_unknown_files_is_ignored_and_missing_words_fail_files() {
    let cluster = Cluster::new(1);
    let (mut stream, ready) = call(&cluster, &[directory("d"), file("d/f", 0)]);
    assert!(matches!(ready, ToSource::Ready(_)), "{ready:?}");
    let verdicts =
        vec![(0, Verdict::Intact([0; 32])), (9, Verdict::Intact([0; 32])), (u32::MAX, Verdict::Damaged("x".into()))];
    write(&mut stream, &ToReceiver::Verdicts(verdicts)).unwrap();
    write(&mut stream, &ToReceiver::Finish).unwrap();
    match answer(&mut stream).unwrap() {
        ToSource::Done(report) => assert_eq!(report.outcome.failures, 1, "{report:?}"),
        other => panic!("{other:?}"),
    }
    assert!(!cluster.at("a", "d/f").exists());
}

#[test]
fn a_source_ends_a_group_that_it_is_not_in() {
    let cluster = Cluster::new(1);
    let (mut stream, _) = call(&cluster, &[file("f", 5000)]);
    write(&mut stream, &plan(&cluster, 0, 5000)).unwrap();
    // A stranger that never comes is to send.
    let members = vec![7, node_id(cluster.name(), "a").0];
    write(&mut stream, &ToReceiver::Join(Join { members, end: 2, ..join() })).unwrap();
    write(&mut stream, &ToReceiver::EndGroup { instance: 1 }).unwrap();
    let Ok(ToSource::Over(Over { instance: 1, failure: Some((None, reason)), .. })) = answer(&mut stream) else {
        panic!("it did not leave")
    };
    assert_eq!(reason, "the source ended it");
    drop(stream);
    assert_well(&cluster);
}

#[test]
fn a_receiver_sends_no_file_that_the_transfer_did_not_bring() {
    let cluster = Cluster::new(1);
    let mine = cluster.at("a", "f");
    fs::write(&mine, [7; 5000]).unwrap();
    let mtime = UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    fs::File::options().write(true).open(&mine).unwrap().set_modified(mtime).unwrap();
    let (mut stream, ready) = call(&cluster, &[file("f", 5000)]);
    assert!(
        matches!(ready, ToSource::Ready(lacking) if lacking == Lacking::default()),
        "it takes its own for the same"
    );
    let parts = vec![PlanPart { receivers: vec![7], extents: vec![Extent { entry: 0, at: 0, len: 5000 }] }];
    write(&mut stream, &ToReceiver::Plan { receivers: Vec::new(), parts }).unwrap();
    let members = vec![node_id(cluster.name(), "a").0, 7];
    write(&mut stream, &ToReceiver::Join(Join { members: members.clone(), end: 2, ..join() })).unwrap();
    let Ok(ToSource::Over(Over { failure: Some((_, reason)), .. })) = answer(&mut stream) else { panic!("it sends") };
    assert!(reason.contains("\"f\" was not put in place here"), "{reason}");
    // A group that it is not in can be ended, too.
    write(&mut stream, &ToReceiver::EndGroup { instance: 1 }).unwrap();
    write(&mut stream, &ToReceiver::Join(Join { members, end: 2, partial: true, ..join() })).unwrap();
    assert!(matches!(answer(&mut stream).unwrap(), ToSource::Failed(_)), "nothing is partial where all is there");
    drop(stream);
    fs::remove_file(mine).unwrap();
    assert_well(&cluster);
}
