//! G1 and G2 where they are hardest: a thread spins on the memory while a peer's thread writes it.
//!
//! For backends whose memory is written by another thread, process or device. Node 0 writes, node 1 exposes.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use squall_fabric::{
    Completion, EndpointId, Fabric, Op, PostError, Region, RegionKind, RemoteRegion, Slice, Source, Target, Time, Token,
};

use crate::rig::tag;

/// The number of rounds that a race takes.
const ROUNDS: u64 = 20_000;

/// The longest time of any wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Spins until `done`, polling.
fn poll_until(fabric: &mut impl Fabric, mut done: impl FnMut(&[Completion]) -> bool) {
    let limit = Time::boot_clock() + PATIENCE;
    let mut completions = Vec::new();
    loop {
        completions.clear();
        let now = Time::boot_clock();
        fabric.poll(now, &mut completions);
        let broken = completions.iter().find(|c| matches!(c, Completion::Broken { .. }));
        assert!(broken.is_none(), "{broken:?}");
        if done(&completions) {
            return;
        }
        assert!(now < limit, "waited in vain");
        thread::yield_now();
    }
}

fn connect(fabric: &mut impl Fabric, peer: u32, expose: &[Region]) -> (EndpointId, Vec<RemoteRegion>) {
    let e = fabric.connect(squall_fabric::NodeId(peer), tag(1), expose, b"");
    let mut regions = None;
    poll_until(fabric, |completions| {
        for completion in completions {
            if let Completion::Connected { remote, .. } = completion {
                regions = Some(remote.clone());
            }
        }
        regions.is_some()
    });
    (e, regions.unwrap_or_default())
}

fn post(fabric: &mut impl Fabric, e: EndpointId, op: Op<'_>) {
    loop {
        match fabric.post(e, op, Token::UNSIGNALED) {
            Ok(()) => return fabric.poll(Time::boot_clock(), &mut Vec::new()),
            Err(PostError::Full) => poll_until(fabric, |_| true),
            Err(other) => panic!("{op:?}: {other}"),
        }
        thread::yield_now();
    }
}

/// Node 0 runs `write` with node 1's regions. Node 1 polls all the time, while `read` spins on its memory in another
/// thread until it returns; then both end.
fn run<F: Fabric + Send>(
    mut writer: F,
    mut reader: F,
    regions: &[Region],
    write: impl FnOnce(&mut F, EndpointId, &[RemoteRegion], &AtomicBool) + Send,
    read: impl FnOnce() + Send,
) {
    let over = AtomicBool::new(false);
    let writer_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (e, remote) = connect(&mut writer, 1, &[]);
            write(&mut writer, e, &remote, &over);
            poll_until(&mut writer, |_| over.load(Ordering::Relaxed));
            writer_over.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            connect(&mut reader, 0, regions);
            poll_until(&mut reader, |_| writer_over.load(Ordering::Relaxed));
        });
        scope.spawn(|| {
            /// For whatever reason the reader ends, the others end too.
            struct Over<'a>(&'a AtomicBool);
            impl Drop for Over<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _over = Over(&over);
            read();
        });
    });
}

/// Yields now and then, so that the threads take turns also on few cores.
fn breathe(i: u64) {
    if i.is_multiple_of(256) {
        thread::yield_now();
    }
}

/// A reader never sees a part of a word, inline or from a region that its owner changes meanwhile.
pub(crate) fn words_are_whole<F: Fabric + Send>(mut writer: F, mut reader: F) {
    const WORDS: usize = 16;
    let table = reader.register(RegionKind::Polled, 8 * WORDS).expect("a region");
    let staging = writer.register(RegionKind::Polled, 8 * WORDS).expect("a region");
    let uniform = |round: u64| u64::from_ne_bytes([(round % 251) as u8 + 1; 8]);
    let write = |fabric: &mut F, e, remote: &[RemoteRegion], over: &AtomicBool| {
        for round in (0..ROUNDS).take_while(|_| !over.load(Ordering::Relaxed)) {
            for i in 0..WORDS {
                staging.store(8 * i, uniform(round));
            }
            let target = Target { region: remote[0].key, offset: 0 };
            let bytes = uniform(round).to_ne_bytes().repeat(WORDS);
            let whole = Source::Region(Slice { region: &staging, offset: 0, len: 8 * WORDS });
            let source = if round % 2 == 0 { whole } else { Source::Inline(&bytes) };
            post(fabric, e, Op::Write { source, target });
        }
        let end = Source::Inline(&[0xff; 8]);
        post(fabric, e, Op::Write { source: end, target: Target { region: remote[0].key, offset: 0 } });
    };
    let read = || {
        let limit = Time::boot_clock() + PATIENCE;
        for i in 0.. {
            for word in (0..WORDS).map(|i| table.load(8 * i)) {
                assert_eq!(word, u64::from_ne_bytes([word as u8; 8]), "G2: a torn word");
            }
            if table.load(0) == u64::MAX {
                return;
            }
            assert!(Time::boot_clock() < limit, "waited in vain");
            breathe(i);
        }
    };
    run(writer, reader, std::slice::from_ref(&table), write, read);
}

/// A reader that sees a write sees all earlier ones of its endpoint.
pub(crate) fn writes_are_ordered<F: Fabric + Send>(writer: F, mut reader: F) {
    const WORDS: usize = 512;
    let table = reader.register(RegionKind::Polled, 8 * WORDS).expect("a region");
    let write = |fabric: &mut F, e, remote: &[RemoteRegion], over: &AtomicBool| {
        for round in (1..=ROUNDS).take_while(|_| !over.load(Ordering::Relaxed)) {
            // The writes go in turn to both ends of the memory, so that they lie on different pages or lines.
            for word in [WORDS - 1, WORDS / 2, 0] {
                let target = Target { region: remote[0].key, offset: 8 * word };
                post(fabric, e, Op::Write { source: Source::Inline(&round.to_ne_bytes()), target });
            }
        }
    };
    let read = || {
        let limit = Time::boot_clock() + PATIENCE;
        let mut last = 0;
        for i in 0.. {
            let [third, second, first] = [0, WORDS / 2, WORDS - 1].map(|word| table.load(8 * word));
            assert!(first >= second && second >= third, "G1: saw write {third}, but only {second} and {first} before");
            assert!(third >= last, "G1: a word went back from {last} to {third}");
            last = third;
            if third == ROUNDS {
                return;
            }
            assert!(Time::boot_clock() < limit, "waited in vain");
            breathe(i);
        }
    };
    run(writer, reader, std::slice::from_ref(&table), write, read);
}

/// A reader that sees an announcing word sees all bytes that it announces.
pub(crate) fn a_word_announces_its_bytes<F: Fabric + Send>(mut writer: F, mut reader: F) {
    /// The number of bodies that are in use at a time.
    const SLOTS: usize = 4;
    const BODY_BYTES: usize = 1500;
    let body = reader.register(RegionKind::Bulk, SLOTS * BODY_BYTES).expect("a region");
    let words = reader.register(RegionKind::Polled, 8 * SLOTS).expect("a region");
    let staging = writer.register(RegionKind::Bulk, SLOTS * BODY_BYTES).expect("a region");
    let read_up_to = std::sync::atomic::AtomicU64::new(0);
    let fill = |round: u64| (round % 251) as u8 + 1;
    let rounds = ROUNDS / 4;
    let write = |fabric: &mut F, e, remote: &[RemoteRegion], over: &AtomicBool| {
        for round in 1..=rounds {
            // A slot is free when its last round was read, as a ring's credits would tell.
            poll_until(fabric, |_| {
                round <= read_up_to.load(Ordering::Acquire) + SLOTS as u64 || over.load(Ordering::Relaxed)
            });
            if over.load(Ordering::Relaxed) {
                return;
            }
            let slot = round as usize % SLOTS;
            staging.write(slot * BODY_BYTES, &[fill(round); BODY_BYTES]);
            let op = Op::WriteThenWord {
                source: Source::Region(Slice { region: &staging, offset: slot * BODY_BYTES, len: BODY_BYTES }),
                target: Target { region: remote[0].key, offset: slot * BODY_BYTES },
                word: round,
                word_target: Target { region: remote[1].key, offset: 8 * slot },
            };
            post(fabric, e, op);
        }
    };
    let read = || {
        let limit = Time::boot_clock() + PATIENCE;
        for round in 1..=rounds {
            let slot = round as usize % SLOTS;
            for i in 0u64.. {
                if words.load(8 * slot) == round {
                    break;
                }
                assert!(Time::boot_clock() < limit, "waited in vain");
                breathe(i);
            }
            let mut bytes = [0; BODY_BYTES];
            body.read(slot * BODY_BYTES, &mut bytes);
            let stale = bytes.iter().filter(|byte| **byte != fill(round)).count();
            assert_eq!(stale, 0, "G1: word {round} is there, but {stale} of {BODY_BYTES} bytes are not");
            read_up_to.store(round, Ordering::Release);
        }
    };
    run(writer, reader, &[body.clone(), words.clone()], write, read);
}
