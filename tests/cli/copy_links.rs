//! Pushes over a network whose links are cut and come back; and gone on with.

use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use super::{
    copy::{number, report},
    copy_interrupted::sizes,
    copy_network::{Receiver, World},
    text,
};

/// The bytes that may move again: those of four blocks of the size that is used over a network.
const AGAIN: u64 = 4 * (256 << 10);

/// The only way to a receiver, for the source and for other receivers.
struct CuttableLink {
    address: String,
    /// Whether no connection gets through.
    is_cut: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl CuttableLink {
    fn to(receiver: &Receiver) -> CuttableLink {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (is_cut, connections) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let link = CuttableLink {
            address: listener.local_addr().unwrap().to_string(),
            is_cut: Arc::clone(&is_cut),
            connections: Arc::clone(&connections),
        };
        let to = receiver.address.clone();
        // It ends with this process.
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                let Ok(to) = TcpStream::connect(&to) else { continue };
                let mut all = connections.lock().unwrap();
                // What comes while it is cut is closed at once.
                if !is_cut.load(Ordering::Relaxed) {
                    pass_on(&from, &to);
                    pass_on(&to, &from);
                    all.extend([from, to]);
                }
            }
        });
        link
    }

    /// Breaks all connections. No other gets through until it is mended.
    fn cut(&self) {
        let mut connections = self.connections.lock().unwrap();
        self.is_cut.store(true, Ordering::Relaxed);
        for connection in connections.drain(..) {
            // The other end may have closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::Relaxed);
    }
}

/// Passes on what comes from a connection until it ends.
fn pass_on(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// Pushes a file while links are cut, and goes on with it.
fn interrupt(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let world = World::new();
    let bytes = random.u64(6 << 20..24 << 20);
    let mut contents = vec![0; bytes as usize];
    random.fill(&mut contents);
    std::fs::write(world.path("file"), contents).unwrap();
    let receivers = ["a", "b", "c"].map(|name| world.serve(name, &[]));
    let links = receivers.each_ref().map(CuttableLink::to);
    let to = links.each_ref().map(|link| link.address.as_str()).join(",");
    let push = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command.args(["cp", "push", "--quiet", "--json", "--no-sync", "--to", &to]).arg(world.path("file"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let rate = format!("{}MiB/s", random.u32(4..30));
    let pushed = push().args(["--limit-rate", &rate, "--silence", "2s"]).spawn().unwrap();
    for _ in 0..random.u32(1..4) {
        thread::sleep(Duration::from_millis(random.u64(20..400)));
        let link = &links[random.usize(..3)];
        link.cut();
        thread::sleep(Duration::from_millis(random.u64(0..800)));
        link.mend();
    }
    let first = pushed.wait_with_output().unwrap();
    let lacked = receivers.each_ref().map(|receiver| {
        let here = sizes(&receiver.directory);
        let is_content = |path: &&std::path::PathBuf| !path.to_str().unwrap().contains("/unsynced.");
        bytes.saturating_sub(here.keys().filter(is_content).map(|path| here[path]).sum())
    });
    let output = push().output().unwrap();
    let report = report(&output);
    let context = format!("seed {seed}: {report} {}, after {}", text(&output.stderr), text(&first.stdout));
    assert!(output.status.success() && report["complete"] == true, "{context}");
    for ((receiver, lacked), row) in receivers.iter().zip(lacked).zip(report["receivers"].as_array().unwrap()) {
        world.assert_copied(receiver);
        assert!(number(row, "bytes_moved") <= lacked + AGAIN, "{lacked} were missing; {context}");
    }
}

#[test]
fn a_push_whose_links_are_cut_goes_on_with_what_is_missing() {
    (0..5).for_each(interrupt);
}

/// `cargo test -p squall-cli --test cli copy_links -- --ignored`
#[test]
#[ignore = "takes some minutes"]
fn a_hundred_pushes_whose_links_are_cut_go_on_with_what_is_missing() {
    (100..200).for_each(interrupt);
}
