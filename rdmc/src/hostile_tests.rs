//! A member that breaks the rules: the other fails with a reason, and nothing worse.

use std::sync::Arc;

use squall_fabric::{
    Completion, EndpointId, Fabric, NodeId, Op, Region, RegionKey, RegionKind, Slice, Source, Target, Time, Token,
    sim::{SimConfig, SimFabric, SimNet},
};

use crate::{
    Buffer, Event, Group, GroupConfig, GroupId, Hearsay,
    group::{BLOCKS, CONTROL, READY},
};

const BLOCK: usize = 100;

/// A hand-made member, mostly the root, and an honest one.
struct Pair {
    net: SimNet,
    hostile: SimFabric,
    blocks: EndpointId,
    control: EndpointId,
    /// The hostile member's memory for notices and for blocks, and the honest one's memory for notices.
    words: Region,
    source: Region,
    target: Option<RegionKey>,
    fabric: SimFabric,
    member: Group,
    events: Vec<Event>,
}

impl Pair {
    fn new() -> Pair {
        Pair::with(NodeId(0))
    }

    fn with(hostile: NodeId) -> Pair {
        let honest = NodeId(1 - hostile.0);
        let net = SimNet::new(SimConfig::fast(), 1);
        let id = GroupId { group: 1, instance: 1 };
        let config = GroupConfig { block_bytes: BLOCK, ..GroupConfig::new(id, vec![NodeId(0), NodeId(1)]) };
        let (mut hostile, mut fabric) = (net.fabric(hostile), net.fabric(honest));
        let member = Group::create(&mut fabric, config.clone()).expect("a sound configuration");
        let words = hostile.register(RegionKind::Polled, 64).expect("memory");
        let source = hostile.register(RegionKind::Bulk, 10 * BLOCK).expect("memory");
        let expose = [words.clone()];
        let mut connect = |layer, expose| hostile.connect(honest, member.tag(layer), expose, &config.hello(0));
        let (blocks, control) = (connect(BLOCKS, &[]), connect(CONTROL, &expose[..]));
        connect(READY, &expose);
        for _ in 0..4 {
            let into = Slice { region: &words, offset: 0, len: 0 };
            hostile.post(control, Op::Recv { into }, Token(2)).expect("a new endpoint");
        }
        let mut pair =
            Pair { net, hostile, blocks, control, words, source, target: None, fabric, member, events: Vec::new() };
        pair.run();
        pair
    }

    fn run(&mut self) {
        let mut completions = Vec::new();
        loop {
            let mut ready = Vec::new();
            let now = self.net.advance(Time::MAX, &mut ready);
            self.hostile.poll(now, &mut completions);
            for completion in completions.drain(..) {
                if let Completion::Connected { remote, .. } = completion {
                    self.target = remote.first().map(|region| region.key).or(self.target);
                }
            }
            self.fabric.poll(now, &mut completions);
            for completion in completions.drain(..) {
                self.member.on_completion(&mut self.fabric, &completion);
            }
            while self.member.step(&mut self.fabric, &mut self.events) {
                while let Some(at) = self.events.iter().position(|event| matches!(event, Event::Incoming { .. })) {
                    let Event::Incoming { message, max_bytes, .. } = self.events.remove(at) else { unreachable!() };
                    let buffer = Buffer::register(&mut self.fabric, max_bytes).expect("memory");
                    // Where the group has failed meanwhile, it needs none.
                    let _ = self.member.accept(message, buffer);
                }
            }
            if ready.is_empty() {
                return;
            }
        }
    }

    fn send(&mut self, len: usize, imm: Option<u32>) {
        let source = Source::Region(Slice { region: &self.source, offset: 0, len });
        self.hostile.post(self.blocks, Op::Send { source, imm }, Token(1)).expect("is connected");
        self.run();
    }

    /// Writes a word of the memory that the honest member gives the other.
    fn say(&mut self, offset: usize, word: u64) {
        let target = Target { region: self.target.expect("is connected"), offset };
        let write = Op::WriteWithImm { source: Source::Inline(&word.to_ne_bytes()), target, imm: 0 };
        self.hostile.post(self.control, write, Token::UNSIGNALED).expect("is connected");
        self.run();
    }

    fn failure(&self) -> &str {
        let failures: Vec<_> = self
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Failed(failure) => Some(failure),
                _ => None,
            })
            .collect();
        let [failure] = failures[..] else { panic!("not one failure: {:?}", self.events) };
        assert_eq!(failure.suspect, Some(NodeId(0)));
        &failure.reason
    }
}

#[test]
fn blocks_that_make_no_sense_break_the_group_with_a_reason() {
    type Sends = &'static [(usize, Option<u32>)];
    let cases: [(Sends, &str); 7] = [
        (&[(BLOCK, None)], "it sent a block without saying how many the message has"),
        (&[(BLOCK, Some(0))], "it sent a block without saying how many the message has"),
        (&[(BLOCK - 1, Some(2))], "it sent 99 bytes as block 0 of 2"),
        (&[(0, Some(2))], "it sent 0 bytes as block 0 of 2"),
        (&[(BLOCK, Some(3)), (BLOCK, Some(2))], "it says that the message has 2 blocks, which has 3"),
        (&[(BLOCK, Some(3)), (BLOCK - 1, Some(3))], "it sent 99 bytes as block 1 of 3"),
        (&[(BLOCK, Some(2)), (0, Some(2))], "it sent 0 bytes as block 1 of 2"),
    ];
    for (sends, reason) in cases {
        let mut pair = Pair::new();
        sends.iter().for_each(|&(len, imm)| pair.send(len, imm));
        assert_eq!(pair.failure(), reason, "{sends:?}");
    }
}

#[test]
fn a_block_that_is_too_long_or_was_not_asked_for_never_lands() {
    let mut pair = Pair::new();
    pair.send(BLOCK + 1, Some(1));
    assert!(matches!(pair.events.last(), Some(Event::Failed(_))), "{:?}", pair.events);
    // The fabric itself refuses a block that finds no receive (G3), so a flood breaks the endpoint.
    let mut pair = Pair::new();
    for _ in 0..5 {
        let source = Source::Region(Slice { region: &pair.source, offset: 0, len: BLOCK });
        pair.hostile.post(pair.blocks, Op::Send { source, imm: Some(9) }, Token(1)).expect("is connected");
    }
    pair.run();
    assert!(matches!(pair.events.last(), Some(Event::Failed(_))), "{:?}", pair.events);
}

#[test]
fn a_count_of_blocks_beyond_all_memory_is_the_applications_to_refuse() {
    let mut pair = Pair::new();
    let source = Source::Region(Slice { region: &pair.source, offset: 0, len: BLOCK });
    pair.hostile.post(pair.blocks, Op::Send { source, imm: Some(u32::MAX) }, Token(1)).expect("is connected");
    let (mut completions, mut ready, mut events) = (Vec::new(), Vec::new(), Vec::new());
    while events.is_empty() {
        let now = pair.net.advance(Time::MAX, &mut ready);
        assert!(!ready.is_empty(), "nothing is left to happen");
        ready.clear();
        pair.hostile.poll(now, &mut completions);
        completions.clear();
        pair.fabric.poll(now, &mut completions);
        completions.drain(..).for_each(|completion| pair.member.on_completion(&mut pair.fabric, &completion));
        pair.member.step(&mut pair.fabric, &mut events);
    }
    let [Event::Incoming { max_bytes, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(max_bytes, u32::MAX as usize * BLOCK);
    assert!(pair.member.leave(&mut pair.fabric).len() == 1, "nothing of it was allocated");
}

#[test]
fn control_words_that_make_no_sense_change_nothing_or_fail_the_group() {
    let mut pair = Pair::new();
    // Closed, before any member was done.
    pair.say(32, 1);
    assert!(!pair.events.iter().any(|event| matches!(event, Event::Destroyed)), "{:?}", pair.events);
    // More messages than there ever were.
    pair.say(16, u64::MAX);
    assert!(!pair.member.is_ended());
    // An unknown member failed: until it is named, or the root is gone, no event comes.
    pair.say(8, u64::MAX);
    assert!(!pair.events.iter().any(|event| matches!(event, Event::Failed(_))));
    pair.hostile.disconnect(pair.control);
    pair.run();
    assert_eq!(pair.failure(), "it closed the connection");
    assert_eq!(pair.words.load(8), 1 << 32 | 3, "the member knows no member, and heard it from the root");
}

#[test]
fn words_of_failures_are_hearsay_whatever_they_name() {
    for (hostile, turn) in [(NodeId(0), 4), (NodeId(1), 3)] {
        let halves = [0, 1, 2, 3, 4, 1 << 31, u64::from(u32::MAX)];
        for word in halves.into_iter().flat_map(|high| halves.map(|low| high << 32 | low)) {
            let mut pair = Pair::with(hostile);
            pair.say(8, word);
            // What it says of the one from which it heard it makes no difference: that one told nothing.
            let expected = (word != 0).then_some(Hearsay { teller: hostile, turn });
            assert_eq!(pair.member.hearsay(), expected, "{word:#x} of {hostile}");
            pair.say(8, 1);
            assert_eq!(pair.member.hearsay(), Some(Hearsay { teller: hostile, turn }), "{word:#x} of {hostile}");
            let failed = pair.events.iter().filter(|event| matches!(event, Event::Failed(_))).count();
            assert_eq!(failed, 1, "{word:#x} of {hostile}");
        }
    }
}

#[test]
fn receivers_words_of_the_end_change_nothing_before_the_root_ends_the_group() {
    let mut pair = Pair::with(NodeId(1));
    let message = Arc::new(Buffer::register(&mut pair.fabric, BLOCK).expect("memory"));
    pair.member.send(message, BLOCK).expect("it is the root");
    // The number of messages, and that all are done, are the root's to say.
    for (offset, word) in [(16, 1), (16, u64::MAX), (24, 1), (32, 1)] {
        pair.say(offset, word);
    }
    pair.member.destroy().expect("it is the root");
    pair.run();
    assert!(matches!(pair.events[..], [Event::Connected]), "its message is not sent: {:?}", pair.events);
}

#[test]
fn a_receiver_that_says_to_be_ready_for_more_than_it_is_breaks_its_own_connection() {
    let mut pair = Pair::with(NodeId(1));
    let message = Arc::new(Buffer::register(&mut pair.fabric, BLOCK).expect("memory"));
    pair.member.send(message, BLOCK).expect("it is the root");
    pair.say(0, u64::MAX);
    pair.say(0, 0);
    let [Event::Connected, Event::Failed(failure)] = &pair.events[..] else { panic!("{:?}", pair.events) };
    assert_eq!((failure.suspect, pair.member.hearsay()), (Some(NodeId(1)), None));
}
