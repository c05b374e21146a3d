//! A 1Pipe group of processes whose nodes' views settle failures. One process is killed, or stands still, in the midst
//! of reliable scatterings.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use rkyv::Archived;
use squall::{
    Applied, Config, EndReason, Node, NodeId, Replicated, Spin, Time,
    config::Backend,
    onepipe::{
        Controller, Directive, FormError, HostClock, Message, Mode, OnePipeConfig, Pipe, PipeEvent, ScatterError,
        Settlement, TakeError, Unsettled, tag,
    },
};
use squall_fabric::{Wait, Waker};

use crate::{
    process::{self, Cluster, PATIENCE, Process},
    sum::Sum,
};

/// The number of the last scattering before a pause, which goes to all.
const FENCE: u64 = u64::MAX;

/// The number of messages whose delivery shows that the group goes on.
const ENOUGH: usize = 2000;

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let config = process::config("none");
    let fabric = pipes(&format!("{}-pipes", config.cluster()), config.id().0, config.members().len() as u32);
    let fabric = fabric.open_fabric().expect("shared memory");
    let nodes = config.members().len();
    let mut builder = Node::builder(config);
    let handle = builder.onepipe("orders");
    let sum = builder.group("sum", Sum::default());
    let node = builder.start().expect("it becomes a member");
    let (config, controller) = handle.take(fabric.waker(), PATIENCE).expect("it is in a view");
    let mut pipe =
        Pipe::create(fabric, config, HostClock::default(), controller, Spin::Auto, nodes).expect("a sound group");
    pipe.form(PATIENCE).expect("all are there");
    process::say("ready").expect("the test listens");
    let (tell, told) = channel();
    let waker = pipe.waker();
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let _ = tell.send(line);
            waker.wake();
        }
    });
    let me = pipe.onepipe().rank();
    let mut there: BTreeSet<usize> = (0..nodes).collect();
    let (mut sends, mut submits) = (false, false);
    let (mut goes_at, mut number, mut fences) = (usize::MAX, 0, 0);
    let (mut log, mut back, mut sent) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut random = fastrand::Rng::with_seed(me as u64);
    loop {
        let scatter = |pipe: &mut Pipe<_, _>, number: u64, to: &BTreeSet<usize>, limit: Duration| {
            let mask = to.iter().fold(0u64, |mask, rank| mask | 1 << rank);
            let bytes: Vec<u8> = [number, mask].iter().flat_map(|word| word.to_le_bytes()).collect();
            let messages: Vec<_> = to.iter().map(|&to| Message { to, bytes: &bytes }).collect();
            pipe.scatter(Mode::Reliable, &messages, limit)
        };
        match told.try_recv().as_deref() {
            Ok("go") => (sends, goes_at) = (true, log.len() + ENOUGH),
            Ok("stop") => {
                (sends, submits) = (false, false);
                scatter(&mut pipe, FENCE, &there, PATIENCE).expect("there is room");
            }
            Ok("submit") => submits = true,
            Ok("leave") => {
                submits = false;
                assert!(node.leave(PATIENCE), "the others let it go");
                process::say("left").expect("the test listens");
            }
            Ok(line) => panic!("{line:?}"),
            Err(_) => {}
        }
        if sends {
            let to: BTreeSet<usize> = there.iter().copied().filter(|_| random.bool()).collect();
            match scatter(&mut pipe, number, &to, Duration::ZERO) {
                Ok(id) => {
                    sent.insert(id, number);
                    number += 1;
                }
                Err(ScatterError::Empty | ScatterError::Full { .. } | ScatterError::Ended) => {}
                Err(error) => panic!("{error}"),
            }
        }
        if submits {
            // While a view ends, the submit waits for the next.
            sum.submit(&1).deadline(PATIENCE).wait().expect("the group goes on");
        }
        let wait = Duration::from_micros(if sends { 50 } else { 1_000_000 });
        pipe.receive(Mode::Reliable, 1000, wait, |delivery| {
            let words: Vec<u64> =
                delivery.bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8"))).collect();
            match words[0] {
                FENCE => fences += 1,
                number => log.push(format!("{}:{number}:{}", delivery.sender, words[1])),
            }
        });
        if log.len() >= goes_at {
            goes_at = usize::MAX;
            process::say("going").expect("the test listens");
        }
        while let Some(event) = pipe.next_event() {
            match event {
                PipeEvent::Undeliverable { id, .. } => back.extend(sent.get(&id).map(u64::to_string)),
                PipeEvent::Removed { rank, .. } => {
                    there.remove(&rank);
                    process::say(&format!("removed {rank}")).expect("the test listens");
                }
                PipeEvent::Ended => {
                    sends = false;
                    process::say("ended").expect("the test listens");
                }
                PipeEvent::Broken { .. } => {}
            }
        }
        if fences == there.len() {
            fences = 0;
            process::say(&format!("back {} log {}", back.join(","), log.join(" "))).expect("the test listens");
        }
    }
}

fn pipes(cluster: &str, id: u32, nodes: u32) -> Config {
    Config::builder(cluster, id).members(1..=nodes).backend(Backend::Shm).build().expect("a sound configuration")
}

/// A scattering: its sender's rank and number, and the ranks that it is for.
type Name = (usize, u64);

/// A rank's report at a pause.
struct Told {
    rank: usize,
    back: Vec<u64>,
    /// The scatterings in the order of delivery, with the ranks that each is for.
    log: Vec<(Name, Vec<usize>)>,
}

impl Told {
    fn new(rank: usize, line: &str) -> Told {
        let ["back", back, "log", ref log @ ..] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let entry = |text: &&str| {
            let [sender, name, mask] = text.split(':').map(number).collect::<Vec<_>>()[..] else { panic!("{text:?}") };
            ((sender as usize, name), (0..64).filter(|rank| mask >> rank & 1 == 1).collect())
        };
        let back = back.split(',').filter(|text| !text.is_empty()).map(number).collect();
        let log = log.iter().filter(|text| !text.is_empty()).map(entry).collect();
        Told { rank, back, log }
    }
}

/// A process whose output is read all the time: one that waits for its output to be read drives no group.
struct Rank {
    rank: usize,
    process: Process,
    says: Receiver<Option<String>>,
}

impl Rank {
    fn new(rank: usize, mut process: Process) -> Rank {
        let (say, says) = channel();
        process.listen(move |answer| _ = say.send(answer));
        Rank { rank, process, says }
    }

    fn hear(&self) -> String {
        let said = self.says.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("rank {} says nothing", self.rank));
        said.unwrap_or_else(|| panic!("rank {} has ended", self.rank))
    }
}

/// Lets all ranks send, and waits until each has delivered enough.
fn go(ranks: &mut [Rank]) {
    ranks.iter_mut().for_each(|rank| rank.process.tell("go"));
    ranks.iter().for_each(|rank| assert_eq!(rank.hear(), "going"));
}

fn pause(ranks: &mut [Rank]) -> Vec<Told> {
    ranks.iter_mut().for_each(|rank| rank.process.tell("stop"));
    ranks.iter().map(|rank| Told::new(rank.rank, &rank.hear())).collect()
}

/// Checks that survivors have delivered each scattering everywhere or nowhere, in one order, and know of all that were
/// not delivered.
fn check(all: &[Told]) {
    let places: BTreeMap<usize, BTreeMap<Name, usize>> = all
        .iter()
        .map(|told| (told.rank, told.log.iter().enumerate().map(|(place, (name, _))| (*name, place)).collect()))
        .collect();
    for told in all {
        assert_eq!(places[&told.rank].len(), told.log.len(), "rank {} has one twice", told.rank);
        for (name, to) in &told.log {
            for (rank, places) in places.iter().filter(|(rank, _)| to.contains(rank)) {
                assert!(places.contains_key(name), "{name:?} was delivered at {}, not at {rank}", told.rank);
            }
        }
        for other in places.values() {
            let common: Vec<usize> = told.log.iter().filter_map(|(name, _)| other.get(name).copied()).collect();
            assert!(common.is_sorted(), "rank {} has another order", told.rank);
        }
        let delivered: BTreeSet<Name> = all.iter().flat_map(|told| told.log.iter().map(|(name, _)| *name)).collect();
        for number in &told.back {
            assert!(!delivered.contains(&(told.rank, *number)), "{number} of {} came back", told.rank);
        }
    }
}

/// Stops one of four processes with `stop` while all scatter; the others settle its scatterings and go on.
fn one_goes(test: &str, stop: impl Fn(&mut Process), then: impl Fn(&Rank)) {
    for victim in [3, 0] {
        let cluster = Cluster::new(&format!("onepipe-{test}-{victim}"), "shm", 4).with_own_node();
        let mut ranks: Vec<Rank> = (0..).zip(cluster.start()).map(|(rank, process)| Rank::new(rank, process)).collect();
        go(&mut ranks);
        let mut gone = ranks.remove(victim);
        stop(&mut gone.process);
        for rank in &ranks {
            assert_eq!(rank.hear(), format!("removed {victim}"));
        }
        let told = pause(&mut ranks);
        check(&told);
        let has_heard = |told: &Told| told.log.iter().any(|((sender, _), _)| *sender == victim);
        assert!(told.iter().all(has_heard), "it had sent");
        then(&gone);
        go(&mut ranks);
        check(&pause(&mut ranks));
    }
}

#[test]
fn one_is_killed_and_the_others_settle_what_it_sent() {
    one_goes("kill", Process::kill_now, |_| {});
}

#[test]
fn a_view_that_ends_does_not_wait_for_threads_that_wait_for_the_next() {
    let cluster = Cluster::new("onepipe-waits", "shm", 4).with_own_node();
    let mut ranks: Vec<Rank> = (0..).zip(cluster.start()).map(|(rank, process)| Rank::new(rank, process)).collect();
    ranks.iter_mut().for_each(|rank| rank.process.tell("submit"));
    go(&mut ranks);
    ranks.pop().expect("there are four").process.kill_now();
    ranks.iter().for_each(|rank| assert_eq!(rank.hear(), "removed 3"));
    check(&pause(&mut ranks));
    ranks.iter_mut().for_each(|rank| rank.process.tell("submit"));
    go(&mut ranks);
    // The thread that drives the rank of the node that leaves waits until it is out.
    let mut leaves = ranks.pop().expect("there are three");
    leaves.process.tell("leave");
    assert_eq!(leaves.hear(), "left");
    ranks.iter().for_each(|rank| assert_eq!(rank.hear(), "removed 2"));
    check(&pause(&mut ranks));
}

/// A replica that fails.
struct Fails;

impl Replicated for Fails {
    type Command = u64;
    type Reply = u64;

    fn apply(&mut self, _: &Archived<u64>, _: &Applied) -> u64 {
        panic!("on purpose");
    }
}

#[test]
fn a_group_hears_of_its_nodes_end_whatever_ended_it() {
    let config = pipes(&format!("onepipe-panics-{}", std::process::id()), 1, 1);
    let mut builder = Node::builder(config);
    let (handle, group) = (builder.onepipe("orders"), builder.group("fails", Fails));
    let node = builder.start().expect("it is alone");
    let (tell, told) = channel();
    let waker = Waker::new(move || _ = tell.send(()));
    let (_, mut controller) = handle.take(waker, PATIENCE).expect("it is in a view");
    group.submit(&1).wait().expect_err("no node answers");
    let ended = loop {
        told.recv_timeout(PATIENCE).expect("it is woken");
        if let Some(directive) = controller.poll(Time::ZERO) {
            break directive;
        }
    };
    assert!(matches!(ended, Directive::Settle(Settlement { failed, .. }) if failed == [0]));
    drop(controller);
    let taken = handle.take(Waker::new(|| ()), PATIENCE).map(drop);
    assert_eq!(taken, Err(TakeError::Ended(EndReason::Panicked)));
    drop(node);
}

#[test]
fn one_is_stopped_and_learns_that_it_is_out_when_it_goes_on() {
    let goes_on = |gone: &Rank| {
        gone.process.signal("-CONT");
        assert_eq!(gone.hear(), "ended");
    };
    one_goes("stop", |node| node.signal("-STOP"), goes_on);
}

#[test]
fn who_never_comes_is_named() {
    let cluster = format!("onepipe-missing-{}", std::process::id());
    let fabric = pipes(&cluster, 1, 3).open_fabric().expect("shared memory");
    let config = OnePipeConfig::new((1..=3).map(NodeId).collect(), tag(0, 1));
    let mut pipe = Pipe::create(fabric, config, HostClock::default(), Unsettled, Spin::Auto, 3).expect("a sound group");
    let limit = Duration::from_millis(50);
    let missing = FormError::Missing { missing: vec![NodeId(2), NodeId(3)], limit };
    assert_eq!(missing.to_string().split(" did not").next(), Some("node 2 and node 3"));
    assert_eq!(pipe.form(limit), Err(missing));
}
