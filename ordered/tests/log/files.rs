//! Real directories: one process each, full disks, and operations that the system refuses.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use fastrand::Rng;
use squall_fabric::NodeId;
use squall_ordered::log::{
    Aside, CutAt, DirectoryError, End, Files, Hlc, Log, OpenError, Options, Storage, WriteError, asides, cut, repair,
};

use super::model::{Kept, KeptBody, SIGNER, key, known, next_record, options, read_all, records, write};

/// The variable that holds the directory in which a child process is to make its log.
const DIRECTORY: &str = "SQUALL_TEST_LOG";

/// A directory that is removed after the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory for the test");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The directory may be a mount's, and gone.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path, options: Options) -> Log<Files> {
    let files = Files::open(path).expect("no other log has it");
    Log::open(files, options, &mut Rng::with_seed(1)).expect("it opens").log
}

#[test]
fn a_log_is_read_back_from_its_files() {
    let directory = Directory::new("read-back");
    let options = options(64 << 10, 10_000);
    let all = records(&mut Rng::with_seed(1), 2000);
    let mut log = open(&directory.0, options);
    write(&mut log, &all[..1000], 30);
    drop(log);
    let mut log = open(&directory.0, options);
    assert_eq!(read_all(&log), (all[..1000].to_vec(), vec![]));
    write(&mut log, &all[1000..], 30);
    log.cut_to(all[1700].end()).expect("the disk is well");
    let begin = log.trim_before(all[300].end()).expect("the disk is well").position;
    drop(log);
    let left = all[..=1700].iter().filter(|record| record.end() > begin).cloned().collect();
    assert_eq!(read_all(&open(&directory.0, options)), (left, vec![]));
}

#[test]
fn a_directory_has_one_owner() {
    let directory = Directory::new("lock");
    let files = Files::open(&directory.0).expect("no other log has it");
    let log = Log::open(files.clone(), options(8192, 1), &mut Rng::with_seed(1)).expect("it opens");
    drop(files);
    let error = Files::open(&directory.0).expect_err("the log has it");
    assert!(matches!(error, DirectoryError::InUse(_)), "{error}");
    drop(log);
    Files::open(&directory.0).expect("no other log has it any more");
}

#[test]
fn an_operator_works_on_directories() {
    let (mine, theirs) = (Directory::new("mine"), Directory::new("theirs"));
    let (options, rng) = (options(16 << 10, 10_000), &mut Rng::with_seed(1));
    let all = records(rng, 300);
    for directory in [&mine, &theirs] {
        let mut log = open(&directory.0, options);
        write(&mut log, &all, 30);
        log.set_acknowledged(u64::MAX);
        log.save_acknowledged().expect("the disk is well");
        let in_use = Files::open(&directory.0).map(drop).expect_err("it has one");
        assert!(matches!(in_use, DirectoryError::InUse(_)), "{in_use}");
    }
    // Zeros in the first segment, and no bytes left of the last.
    let damage = |segment: &str, from: usize, to: usize| {
        let path = mine.0.join(segment);
        let mut bytes = fs::read(&path).expect("it is there");
        let to = to.min(bytes.len());
        bytes[from..to].fill(0);
        fs::write(&path, bytes).expect("it can be written");
    };
    let mut names: Vec<String> =
        Files::look(&mine.0).expect("it is there").0.list().expect("it can be read").into_iter().collect();
    names.retain(|name| name.starts_with("segment-"));
    names.sort();
    let begun = |name: &&String| fs::read(mine.0.join(name)).expect("it is there").iter().any(|&byte| byte != 0);
    let last = names.iter().rev().find(begun).expect("one has begun");
    damage("segment-0000000000", 5000, 6000);
    damage(last, 4096, usize::MAX);

    let files = || Files::open(&mine.0).expect("no other log has it");
    let copy = Files::look(&theirs.0).expect("it is there").0;
    let done = repair(files(), [copy], rng).expect("the disk is well");
    assert!(done.replaced == 1 && done.appended > 0 && done.left.is_empty(), "{done:?}");
    assert_eq!((done.missing, read_all(&open(&mine.0, options))), (None, (all.clone(), vec![])));

    let version = all[200].version;
    let (cut, _) = cut(files(), CutAt::Version(version), true, rng).expect("the disk is well");
    assert_eq!((cut.end.version, asides(&files()).expect("it can be read")), (version, vec!["aside-1".to_string()]));
    let aside = Aside::new(files(), &cut.aside.expect("records went"));
    let kept = read_all(&Log::look(aside, false).expect("it is a log").log).0;
    assert!(
        all.ends_with(&kept) && kept.iter().any(|record| record.version <= version),
        "from the segment that was cut"
    );
    assert!(open(&mine.0, options).missing().is_none());
}

#[test]
fn a_log_in_use_can_be_looked_at_and_is_whole_at_any_moment() {
    let directory = Directory::new("look");
    let options = options(32 << 10, 10_000);
    let all = records(&mut Rng::with_seed(1), 3000);
    let mut log = open(&directory.0, options);
    log.sign_with(SIGNER, key(1)).expect("the disk is well");
    write(&mut log, &all[..10], 3);
    let mut seen = 0;
    thread::scope(|scope| {
        let writer = scope.spawn(|| write(&mut log, &all[10..], 7));
        loop {
            let is_last = writer.is_finished();
            let (files, is_live) = Files::look(&directory.0).expect("it is there");
            assert!(is_live);
            let opened = Log::look(files, is_live).expect("it can be read");
            let found = opened.log.verify_signed(&[known(SIGNER, 1)], |_| {}).expect("it can be read");
            assert_eq!((opened.torn, opened.damage, found.damage, found.flaws), (None, vec![], vec![], vec![]));
            assert!(found.records >= seen);
            seen = found.records;
            if is_last {
                break;
            }
        }
    });
    assert_eq!(seen, all.len() as u64);
    drop(log);
    let (files, is_live) = Files::look(&directory.0).expect("it is there");
    assert!(!is_live);
    assert_eq!(read_all(&Log::look(files, is_live).expect("it can be read").log), (all, vec![]));
}

#[test]
fn a_look_writes_nothing() {
    let directory = Directory::new("read-only");
    write(&mut open(&directory.0, options(8192, 4096)), &records(&mut Rng::with_seed(1), 20), 3);
    fs::remove_file(directory.0.join("lock")).expect("a copy has none");
    let (files, is_live) = Files::look(&directory.0).expect("it is there");
    assert!(!is_live);
    let read_only = |result: std::io::Result<()>| result.expect_err("it is only read").kind();
    let segment = files.list().expect("its files").into_iter().find(|name| name.starts_with("segment")).expect("one");
    assert_eq!(read_only(files.create("segment.new", 0).map(drop)), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(read_only(files.remove(&segment)), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(read_only(files.rename(&segment, "other")), ErrorKind::ReadOnlyFilesystem);
    let file = files.open(&segment).expect("it can be read");
    assert!(files.write_at(&file, 0, b"x").is_err());
    assert!(!directory.0.join("lock").exists());
}

#[test]
fn where_there_is_no_log_there_is_nothing_to_look_at() {
    let directory = Directory::new("nothing");
    let (files, _) = Files::look(&directory.0).expect("it is there");
    let error = Log::look(files, false).map(drop).expect_err("there is none");
    assert!(matches!(error, OpenError::NoLog(_)), "{error}");
    let error = Files::look(directory.0.join("below")).expect_err("it is not there");
    assert!(matches!(error, DirectoryError::Read { .. }), "{error}");
    assert_eq!(fs::read_dir(&directory.0).expect("it is there").count(), 0);
}

#[test]
fn what_is_no_directory_is_refused_by_name() {
    let directory = Directory::new("no-directory");
    let file = directory.0.join("file");
    fs::write(&file, "").expect("it can be written");
    for path in [file.clone(), file.join("below")] {
        let error = Files::open(&path).expect_err("it is a file");
        assert!(error.to_string().contains(path.to_str().expect("a name")), "{error}");
    }
}

#[test]
fn a_files_space_is_there_before_it_is_written() {
    let directory = Directory::new("space");
    let files = Files::open(&directory.0).expect("no other log has it");
    let file = files.create("file", 1 << 20).expect("there is space");
    let metadata = file.metadata().expect("it is there");
    assert_eq!(metadata.len(), 1 << 20);
    assert!(metadata.blocks() * 512 >= 1 << 20, "{} blocks", metadata.blocks());
}

/// Fills the disk, in a child that a shell has prepared.
fn fill_up(directory: &Directory, shell: &[&str], prepare: &str) {
    let script =
        format!("{prepare} && exec \"$0\" --exact --ignored --nocapture log::files::appends_until_there_is_no_space");
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-c", &script]).arg(std::env::current_exe().expect("this program"));
    let output = command.env(DIRECTORY, &directory.0).output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_file_that_may_not_grow_costs_nothing_that_was_acknowledged() {
    // SIGXFSZ would end the process before the write could fail.
    fill_up(&Directory::new("limit"), &["sh"], "trap '' XFSZ && ulimit -f 200");
}

#[test]
fn a_full_disk_costs_nothing_that_was_acknowledged() {
    let directory = Directory::new("full");
    let shell = ["unshare", "--mount", "sh"];
    let mount = format!("mount -t tmpfs -o size=600k squall \"${DIRECTORY}\"");
    let may = Command::new(shell[0]).args(&shell[1..]).args(["-c", &mount]).env(DIRECTORY, &directory.0).output();
    if may.is_ok_and(|output| output.status.success()) {
        return fill_up(&directory, &shell, &mount);
    }
    assert!(std::env::var_os("SQUALL_FORBID_SKIPS").is_none(), "this user can't mount a tmpfs");
    eprintln!("skipped: only root can mount a small tmpfs");
}

#[test]
#[ignore = "a child of the tests of full disks runs it"]
fn appends_until_there_is_no_space() {
    let path = PathBuf::from(std::env::var_os(DIRECTORY).expect("its parent says where"));
    let options = options(64 << 10, 10_000);
    let mut rng = Rng::with_seed(1);
    let mut log = open(&path, options);
    let mut appender = log.appender();
    let (mut appended, mut acknowledged): (Vec<Kept>, _) = (Vec::new(), log.persisted().position);
    let error = loop {
        let record = next_record(&mut rng, appender.end());
        if record.append_to(&mut appender).is_ok() {
            appended.push(record);
            continue;
        }
        // A write that is too large for a file of this process, or for the disk, comes sooner or later.
        let mut batch = appender.take_batch().expect("it is full");
        match log.commit(&mut batch) {
            Ok(end) => acknowledged = end.position,
            Err(error) => break error,
        }
        appender.give_back(batch);
        if appended.len() > 200 {
            let body = KeptBody::Message(NodeId(1), vec![1; 200 << 10]);
            let End { position, version, time } = appender.end();
            let record = Kept { position, time: Hlc(time.0 + 1), version: version + 1, body };
            if record.append_to(&mut appender).is_ok() {
                appended.push(record);
            }
        }
    };
    let is_full = matches!(error, WriteError::NoRoom { .. });
    let is_too_large = |source: &std::io::Error| source.kind() == ErrorKind::FileTooLarge;
    assert!(is_full || matches!(&error, WriteError::Io { source, .. } if is_too_large(source)), "{error}");
    match log.prepare() {
        // It would go on if there were room.
        Ok(()) | Err(WriteError::NoRoom { .. }) if is_full => {}
        again => assert!(matches!(again, Err(WriteError::Poisoned(_))), "{again:?}"),
    }
    drop(log);

    let (found, damage) = read_all(&open(&path, options));
    assert_eq!(damage, []);
    assert_eq!(found, appended[..found.len()]);
    assert!(appended.get(found.len()).is_none_or(|lost| lost.end() > acknowledged));
    eprintln!("{} records, then: {error}", found.len());
}
