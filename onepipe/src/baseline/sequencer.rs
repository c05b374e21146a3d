//! A central sequencer: rank 0 numbers all scatterings, and passes them on.

use squall_fabric::{BreakReason, Completion, Fabric, Time};

use super::TotalOrder;
use crate::{
    CreateError, Delivery, Message, Mode, OnePipeConfig, ScatterError, ScatteringId,
    error::Misbehaved,
    inbound::Inbound,
    links::RankLinks,
    record::{max_payload, record_bytes},
    status::{Status, StatusWord},
};

/// The rank that numbers scatterings.
const SEQUENCER: usize = 0;

/// The mode whose rings lead to the sequencer, and the mode whose rings lead from it.
const REQUESTS: Mode = Mode::BestEffort;
const NUMBERED: Mode = Mode::Reliable;

/// A rank in a group in which rank 0 numbers all scatterings.
/// A scattering goes to rank 0 as one record with all its messages. There it gets its number and is passed on into the
/// rings of its receivers, which deliver by number.
#[derive(Debug)]
pub struct Sequencer {
    config: OnePipeConfig,
    links: RankLinks,
    /// The requests of each rank, at the sequencer.
    requests: Vec<Requests>,
    /// The ring of the messages that the sequencer has sent to this rank.
    numbered: Inbound,
    /// The last number that was delivered here.
    last: u64,
    next_number: u64,
    next: ScatteringId,
    /// The rank whose requests are read first.
    first: usize,
    /// The number of requests that were checked, and by rank: the last of them that had a message for it.
    looks: u64,
    named: Vec<u64>,
    record: Vec<u8>,
    payload: Vec<u8>,
    has_work: bool,
}

/// The requests of a rank at the sequencer.
#[derive(Debug)]
struct Requests {
    ring: Inbound,
    /// The number of requests that were taken from the ring.
    taken: u64,
    /// The last request that was taken.
    last: Vec<u8>,
    /// Whether the last request is not numbered yet.
    is_held: bool,
}

impl Sequencer {
    /// Registers the memory, and starts to connect this node to all others.
    pub fn create(fabric: &mut impl Fabric, config: OnePipeConfig) -> Result<Sequencer, CreateError> {
        let me = config.check(fabric.node())?;
        let links = RankLinks::create(fabric, &config, me, "squall sequencer 1")?;
        let requests = |ring| Requests { ring, taken: 0, last: Vec::new(), is_held: false };
        let requests = links.inbound(REQUESTS).into_iter().map(requests).collect();
        let numbered = links.inbound(NUMBERED).swap_remove(SEQUENCER);
        Ok(Sequencer {
            links,
            requests,
            numbered,
            last: 0,
            next_number: 1,
            next: ScatteringId(0),
            first: 0,
            looks: 0,
            named: vec![0; config.nodes.len()],
            record: Vec::new(),
            payload: Vec::new(),
            has_work: false,
            config,
        })
    }

    /// Reads the words and rings that a peer has written.
    fn read(&mut self, rank: usize) -> Result<bool, Misbehaved> {
        let peer = &mut self.links.peers[rank];
        let words = Status::load(&peer.region);
        let mut news = words != peer.seen;
        peer.seen = words;
        for mode in Mode::ALL {
            peer.out[mode.index()].free(words[StatusWord::Freed(mode).index()])?;
        }
        let ring = match (self.links.me, rank) {
            (SEQUENCER, _) => Some((&mut self.requests[rank].ring, REQUESTS)),
            (_, SEQUENCER) => Some((&mut self.numbered, NUMBERED)),
            _ => None,
        };
        if let Some((ring, mode)) = ring {
            let tail = peer.region.load(self.links.layout.tail(mode));
            news |= tail != ring.tail();
            ring.arrive(tail)?;
        }
        Ok(news)
    }

    /// Numbers the requests that have come and can be passed on.
    fn number_requests(&mut self, fabric: &mut impl Fabric) -> bool {
        let ranks = self.links.peers.len();
        let mut progress = false;
        for turn in 0..ranks {
            let rank = (self.first + turn) % ranks;
            loop {
                match self.number_one(rank) {
                    Ok(true) => progress = true,
                    Ok(false) => break,
                    Err(Misbehaved) => {
                        let reason = BreakReason::Refused("it asked for what can't be sent".into());
                        self.links.lose(fabric, rank, reason);
                        break;
                    }
                }
            }
        }
        self.first = (self.first + 1) % ranks;
        progress
    }

    /// Numbers the next scattering of a rank; false if there is none, or no room for it.
    fn number_one(&mut self, from: usize) -> Result<bool, Misbehaved> {
        let Requests { ring, taken, last, is_held } = &mut self.requests[from];
        if !*is_held {
            if ring.look(*taken)? == u64::MAX {
                return Ok(false);
            }
            ring.take(last);
            *taken += 1;
            *is_held = true;
        }
        let peers = &mut self.links.peers;
        self.looks += 1;
        for message in messages(last) {
            let Message { to, bytes } = message?;
            let mirror = &mut peers.get_mut(to).ok_or(Misbehaved)?.out[NUMBERED.index()];
            if std::mem::replace(&mut self.named[to], self.looks) == self.looks {
                return Err(Misbehaved);
            }
            if record_bytes(bytes.len()) > mirror.room() {
                return Ok(false);
            }
        }
        *is_held = false;
        for message in messages(last) {
            let Message { to, bytes } = message?;
            let mirror = &mut peers[to].out[NUMBERED.index()];
            mirror.write(self.next_number, from as u32, bytes);
            if to == SEQUENCER {
                self.numbered.arrive(mirror.written())?;
            }
        }
        self.next_number += 1;
        Ok(true)
    }

    /// Posts the written records, and acknowledges the records that were taken out.
    fn push(&mut self, fabric: &mut impl Fabric) -> bool {
        let mut progress = false;
        for rank in 0..self.links.peers.len() {
            for mode in Mode::ALL {
                progress |= self.links.push(fabric, rank, mode);
            }
            let peer = &mut self.links.peers[rank];
            let Some(link) = &peer.link else { continue };
            let requests = self.requests[rank].ring.credit(false).map(|freed| (REQUESTS, freed));
            let numbered = || self.numbered.credit(false).map(|freed| (NUMBERED, freed));
            let numbered = (rank == SEQUENCER).then(numbered).flatten();
            for (mode, freed) in requests.into_iter().chain(numbered) {
                peer.status.set(StatusWord::Freed(mode), freed);
            }
            peer.status.post(fabric, link);
        }
        progress
    }
}

impl TotalOrder for Sequencer {
    fn scatter(&mut self, _: Time, messages: &[Message<'_>]) -> Result<ScatteringId, ScatterError> {
        let (ranks, limit) = (self.links.peers.len(), max_payload(self.config.ring_bytes));
        if messages.is_empty() {
            return Err(ScatterError::Empty);
        }
        self.record.clear();
        self.record.extend_from_slice(&(messages.len() as u64).to_le_bytes());
        for (at, message) in messages.iter().enumerate() {
            let rank = message.to;
            if rank >= ranks {
                return Err(ScatterError::Rank { rank, ranks });
            }
            if messages[..at].iter().any(|other| other.to == rank) {
                return Err(ScatterError::Twice { rank });
            }
            let word = rank as u64 | (message.bytes.len() as u64) << 32;
            self.record.extend_from_slice(&word.to_le_bytes());
        }
        messages.iter().for_each(|message| self.record.extend_from_slice(message.bytes));
        // A request is one record.
        if self.record.len() > limit {
            return Err(ScatterError::TooLong { bytes: self.record.len(), limit });
        }
        let mirror = &mut self.links.peers[SEQUENCER].out[REQUESTS.index()];
        if record_bytes(self.record.len()) > mirror.room() {
            let waiting_bytes = self.config.ring_bytes - mirror.room() as usize;
            return Err(ScatterError::Full { waiting_bytes });
        }
        let id = self.next;
        mirror.write(id.0, 0, &self.record);
        if self.links.me == SEQUENCER {
            let arrived = self.requests[SEQUENCER].ring.arrive(mirror.written());
            debug_assert_eq!(arrived, Ok(()));
        }
        self.next = ScatteringId(id.0 + 1);
        self.has_work = true;
        Ok(id)
    }

    fn step(&mut self, fabric: &mut impl Fabric, _: Time) -> bool {
        let me = self.links.me;
        let mut progress = false;
        for rank in 0..self.links.peers.len() {
            if rank == me || !self.links.peers[rank].is_live() {
                continue;
            }
            match self.read(rank) {
                Ok(news) => progress |= news,
                Err(Misbehaved) => {
                    let reason = BreakReason::Refused("it wrote what no correct rank writes".into());
                    self.links.lose(fabric, rank, reason);
                }
            }
        }
        if me == SEQUENCER {
            let own = &mut self.links.peers[me].out;
            own[REQUESTS.index()].keep_locally(self.requests[me].ring.taken());
            own[NUMBERED.index()].keep_locally(self.numbered.taken());
            progress |= self.number_requests(fabric);
        }
        progress |= self.push(fabric);
        self.has_work = false;
        progress
    }

    fn on_completion(&mut self, fabric: &mut impl Fabric, _: Time, completion: &Completion) -> bool {
        self.links.on_completion(fabric, completion);
        self.has_work = true;
        self.links.is_mine(completion)
    }

    fn deliver(&mut self, max: usize, sink: &mut impl FnMut(Delivery<'_>)) -> usize {
        let mut delivered = 0;
        while delivered < max {
            // Bytes that are no record stay in the ring.
            let Ok(stamp) = self.numbered.look(self.last) else { break };
            let Some(sender) = self.numbered.take(&mut self.payload) else { break };
            self.last = stamp;
            sink(Delivery { mode: Mode::BestEffort, stamp, sender: sender as usize, bytes: &self.payload });
            delivered += 1;
        }
        self.has_work |= delivered > 0;
        delivered
    }

    fn deadline(&self) -> Time {
        if self.has_work { Time::ZERO } else { Time::MAX }
    }

    fn is_connected(&self) -> bool {
        self.links.is_connected()
    }

    fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.links.disconnect(fabric);
    }
}

/// The messages of a request: their count, for each its receiver and length, then their bytes.
fn messages(request: &[u8]) -> impl Iterator<Item = Result<Message<'_>, Misbehaved>> {
    let words = request.as_chunks::<8>().0;
    let count = words.first().map_or(0, |count| usize::try_from(u64::from_le_bytes(*count)).unwrap_or(usize::MAX));
    let mut at = count.saturating_add(1).saturating_mul(8);
    (1..=count).map(move |index| {
        let word = u64::from_le_bytes(*words.get(index).ok_or(Misbehaved)?);
        let (to, len) = (word as u32 as usize, (word >> 32) as usize);
        let bytes = request.get(at..at.saturating_add(len)).ok_or(Misbehaved)?;
        at += len;
        Ok(Message { to, bytes })
    })
}

#[cfg(test)]
mod tests {
    use squall_fabric::{
        GroupTag, NodeId,
        sim::{SimConfig, SimNet},
    };

    use super::*;

    #[test]
    fn a_request_with_two_messages_for_a_rank_is_refused() {
        let mut fabric = SimNet::new(SimConfig::fast(), 1).fabric(NodeId(0));
        let config = OnePipeConfig::new(vec![NodeId(0)], GroupTag { layer: 10, group: 0, epoch: 1 });
        let mut sequencer = Sequencer::create(&mut fabric, config).expect("a sound configuration");
        for (request, expected) in [(&[1_u64, 0][..], Ok(true)), (&[2, 0, 0], Err(Misbehaved))] {
            let bytes: Vec<u8> = request.iter().flat_map(|word| word.to_le_bytes()).collect();
            let mirror = &mut sequencer.links.peers[SEQUENCER].out[REQUESTS.index()];
            mirror.write(sequencer.next.0, 0, &bytes);
            sequencer.next.0 += 1;
            sequencer.requests[SEQUENCER].ring.arrive(mirror.written()).expect("a sound record");
            assert_eq!(sequencer.number_one(SEQUENCER), expected);
        }
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let sound = [words(&[2, 1 | 3 << 32, 0]), b"abc".to_vec()].concat();
        let read: Vec<_> = messages(&sound).collect();
        assert_eq!(read, [Ok(Message { to: 1, bytes: b"abc" }), Ok(Message { to: 0, bytes: b"" })]);
        let wrong = [words(&[3, 0]), words(&[1, 9 << 32]), words(&[1, u64::MAX]), words(&[u64::MAX, 0])];
        for request in wrong {
            assert!(messages(&request).take(9).any(|message| message.is_err()), "{request:?}");
        }
    }
}
