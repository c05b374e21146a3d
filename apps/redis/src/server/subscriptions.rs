//! Published messages: the subscribers of this replica, and the messages that wait for them.
//!
//! Every replica applies a `PUBLISH`, on the engine's thread, and hands the message to its own subscribers. It goes
//! into a mailbox of each, which the connection's task empties. A client that does not read in time is disconnected, as
//! in Redis, before its mailbox exceeds a limit. The answer to a `PUBLISH` is the number of subscribers of the replica
//! that was asked.
//!
//! A monitor is sent the requests of all clients in the same way.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use foldhash::fast::RandomState;

use super::{
    counts::KeyCounts,
    lock,
    mail::{MAX_MAIL_BYTES, Mail, Published},
    operations::Operations,
    waits::Waits,
    wake::Bell,
};
use crate::{
    Error, Reply,
    encode::Protocol,
    keyspace::{Publish, WaitEnd},
    pattern::matches,
};

/// The most topics of one connection, and the most bytes of their names: each pattern is tried with each message, and
/// each name is kept.
const MAX_TOPICS: usize = 10_000;
const MAX_TOPIC_BYTES: usize = 1 << 20;

type Topic = Box<[u8]>;
type Audience = HashMap<Topic, BTreeMap<u64, Arc<Subscriber>>, RandomState>;

/// All subscriptions and waits at one server, and what its replica tells of it.
#[derive(Debug, Default)]
pub struct Hub {
    topics: Mutex<Topics>,
    monitors: Mutex<BTreeMap<u64, Arc<Subscriber>>>,
    is_monitored: AtomicBool,
    pub(super) keys: KeyCounts,
    pub(super) waits: Arc<Waits>,
    /// The number of subscribers that were cut off, because they did not read in time or messages were lost.
    cut_off: AtomicU64,
    /// The server's limit of memory, and the time when the server started.
    operations: OnceLock<(Arc<Operations>, Instant)>,
}

#[derive(Debug, Default)]
struct Topics {
    channels: Audience,
    patterns: Audience,
}

#[derive(Debug)]
struct Subscriber {
    bell: Arc<Bell>,
    mailbox: Mutex<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    mail: VecDeque<Mail>,
    bytes: usize,
    is_cut_off: bool,
}

impl Hub {
    /// Sets the operations of the server, which started at `since`.
    pub(super) fn set_operations(&self, operations: &Arc<Operations>, since: Instant) {
        // There is one server, so they are not set yet.
        let _ = self.operations.set((Arc::clone(operations), since));
    }

    /// The number of subscribers that were cut off.
    pub(super) fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// The number of channels, and of patterns, that have subscribers.
    pub(super) fn counts(&self) -> (usize, usize) {
        let topics = lock(&self.topics);
        (topics.channels.len(), topics.patterns.len())
    }

    /// Whether some client wants to see the requests.
    pub(super) fn is_monitored(&self) -> bool {
        self.is_monitored.load(Ordering::Relaxed)
    }

    /// Shows a request to all monitors; `None` stands for one that is too long for any.
    pub(super) fn show(&self, line: Option<String>) {
        let monitors = lock(&self.monitors);
        match line.map(Arc::from) {
            Some(line) => monitors.values().for_each(|monitor| self.post(monitor, Mail::Request(Arc::clone(&line)))),
            None => monitors.values().for_each(|monitor| {
                self.end(&mut monitor.mailbox());
                monitor.bell.ring();
            }),
        }
    }

    fn post(&self, to: &Arc<Subscriber>, mail: Mail) {
        let mut mailbox = to.mailbox();
        if mailbox.is_cut_off {
            return;
        }
        mailbox.bytes += mail.bytes();
        if mailbox.bytes > MAX_MAIL_BYTES {
            self.end(&mut mailbox);
        } else {
            mailbox.mail.push_back(mail);
        }
        drop(mailbox);
        to.bell.ring();
    }

    fn end(&self, mailbox: &mut Mailbox) {
        if mailbox.is_cut_off {
            return;
        }
        *mailbox = Mailbox { is_cut_off: true, ..Mailbox::default() };
        self.cut_off.fetch_add(1, Ordering::Relaxed);
    }

    /// Answers `PUBSUB ...`, of at least two words.
    pub(super) fn answer(&self, words: &[&[u8]]) -> Result<Reply, Error> {
        let topics = lock(&self.topics);
        match (&*words[1].to_ascii_lowercase(), &words[2..]) {
            (b"channels", []) => Ok(Reply::array_of_bytes(topics.channels.keys())),
            (b"channels", [pattern]) => {
                let chosen = topics.channels.keys().filter(|channel| matches(pattern, channel));
                Ok(Reply::array_of_bytes(chosen))
            }
            (b"numsub", channels) => {
                let count = |channel: &&[u8]| Reply::count(topics.channels.get(*channel).map_or(0, BTreeMap::len));
                let pairs = channels.iter().flat_map(|channel| [Reply::bytes(channel), count(channel)]);
                Ok(Reply::Array(pairs.collect()))
            }
            (b"numpat", []) => Ok(Reply::count(topics.patterns.len())),
            // There is no way to subscribe to a shard channel.
            (b"shardchannels", [] | [_]) => Ok(Reply::Array(Vec::new())),
            (b"shardnumsub", channels) => {
                let none = channels.iter().flat_map(|channel| [Reply::bytes(channel), Reply::Integer(0)]);
                Ok(Reply::Array(none.collect()))
            }
            (b"channels" | b"numpat" | b"shardchannels", _) => {
                let name = String::from_utf8_lossy(words[1]).to_ascii_lowercase();
                Err(Error::arity(&format!("pubsub|{name}")))
            }
            _ => Err(Error::unknown_subcommand("PUBSUB", words[1])),
        }
    }
}

impl Publish for Hub {
    fn publish(&self, channel: &[u8], message: &[u8]) -> usize {
        let topics = lock(&self.topics);
        if topics.channels.is_empty() && topics.patterns.is_empty() {
            return 0;
        }
        let mut published = None;
        let mut count = 0;
        let mut post_to_all = |subscribers: &BTreeMap<u64, Arc<Subscriber>>, pattern: Option<Arc<[u8]>>| {
            let published =
                published.get_or_insert_with(|| Arc::new(Published { channel: channel.into(), text: message.into() }));
            for subscriber in subscribers.values() {
                count += 1;
                self.post(subscriber, Mail::Message { pattern: pattern.clone(), published: Arc::clone(published) });
            }
        };
        if let Some(subscribers) = topics.channels.get(channel) {
            post_to_all(subscribers, None);
        }
        for (pattern, subscribers) in &topics.patterns {
            if matches(pattern, channel) {
                post_to_all(subscribers, Some(Arc::from(&**pattern)));
            }
        }
        count
    }

    fn count_lookups(&self, hits: u64, misses: u64) {
        for (count, more) in [(&self.keys.hits, hits), (&self.keys.misses, misses)] {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    fn count_expired(&self, keys: usize) {
        self.keys.expired.fetch_add(keys as u64, Ordering::Relaxed);
    }

    fn end_wait(&self, ticket: u64, end: WaitEnd) {
        self.waits.end(ticket, end);
    }

    fn is_out_of_memory(&self) -> bool {
        let is_exceeded =
            |(operations, since): &(Arc<Operations>, Instant)| operations.memory.is_exceeded(since.elapsed());
        self.operations.get().is_some_and(is_exceeded)
    }

    fn tell_of_gap(&self) {
        self.waits.end_all(&WaitEnd::Lost);
        let topics = lock(&self.topics);
        let subscribers = topics.channels.values().chain(topics.patterns.values()).flat_map(BTreeMap::values);
        for subscriber in subscribers {
            self.end(&mut subscriber.mailbox());
            subscriber.bell.ring();
        }
    }
}

impl Subscriber {
    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        lock(&self.mailbox)
    }
}

/// The kinds of topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopicKind {
    Channel,
    Pattern,
}

/// The subscriptions of one connection. They end on drop.
#[derive(Debug)]
pub(super) struct Subscriptions {
    hub: Arc<Hub>,
    id: u64,
    subscriber: Arc<Subscriber>,
    channels: HashSet<Topic, RandomState>,
    patterns: HashSet<Topic, RandomState>,
    /// The bytes of the names in both.
    topic_bytes: usize,
    is_monitor: bool,
}

/// A subscriber was cut off: it did not read in time, or messages were lost.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CutOff;

impl Subscriptions {
    /// The subscriptions of the connection `id`, none for now. `bell` rings when there is mail.
    pub(super) fn new(hub: &Arc<Hub>, id: u64, bell: &Arc<Bell>) -> Subscriptions {
        let subscriber = Arc::new(Subscriber { bell: Arc::clone(bell), mailbox: Mutex::default() });
        let hub = Arc::clone(hub);
        let (channels, patterns) = Default::default();
        Subscriptions { hub, id, subscriber, channels, patterns, topic_bytes: 0, is_monitor: false }
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Whether nothing is sent that was not asked for.
    pub(super) fn has_no_mail(&self) -> bool {
        self.is_empty() && !self.is_monitor
    }

    /// Begins to see the requests of all clients.
    pub(super) fn monitor(&mut self) {
        self.is_monitor = true;
        let mut monitors = lock(&self.hub.monitors);
        monitors.insert(self.id, Arc::clone(&self.subscriber));
        self.hub.is_monitored.store(true, Ordering::Relaxed);
    }

    pub(super) fn channels(&self) -> usize {
        self.channels.len()
    }

    pub(super) fn patterns(&self) -> usize {
        self.patterns.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty()
    }

    fn of_kind(&mut self, kind: TopicKind) -> &mut HashSet<Topic, RandomState> {
        match kind {
            TopicKind::Channel => &mut self.channels,
            TopicKind::Pattern => &mut self.patterns,
        }
    }

    /// Begins to listen. Returns the answer to the client.
    pub(super) fn subscribe(&mut self, kind: TopicKind, topic: &[u8]) -> Result<Reply, Error> {
        if !self.of_kind(kind).contains(topic) {
            let bytes = self.topic_bytes + topic.len();
            if self.channels.len() + self.patterns.len() == MAX_TOPICS || bytes > MAX_TOPIC_BYTES {
                return Err(Error::new(format!(
                    "ERR a connection may listen to {MAX_TOPICS} channels and patterns, whose names have together \
                     {MAX_TOPIC_BYTES} bytes"
                )));
            }
            self.topic_bytes = bytes;
            self.of_kind(kind).insert(topic.into());
            let mut topics = lock(&self.hub.topics);
            topics.of_kind(kind).entry(topic.into()).or_default().insert(self.id, Arc::clone(&self.subscriber));
        }
        Ok(self.confirm(if kind == TopicKind::Channel { "subscribe" } else { "psubscribe" }, Reply::bytes(topic)))
    }

    /// Stops listening to these topics, or to all of a kind if none is named. Appends the answers to `said`, behind the
    /// messages that came before.
    pub(super) fn unsubscribe(
        &mut self,
        kind: TopicKind,
        topics: &[&[u8]],
        said: &mut Vec<Reply>,
    ) -> Result<(), CutOff> {
        let topics: Vec<Topic> = match topics {
            [] => self.of_kind(kind).iter().cloned().collect(),
            some => some.iter().map(|&topic| topic.into()).collect(),
        };
        let name = if kind == TopicKind::Channel { "unsubscribe" } else { "punsubscribe" };
        if topics.is_empty() {
            said.push(self.confirm(name, Reply::Null));
        }
        let mut confirmed = Vec::new();
        for topic in topics {
            if self.of_kind(kind).remove(&topic) {
                self.topic_bytes -= topic.len();
                lock(&self.hub.topics).remove(kind, &topic, self.id);
            }
            confirmed.push(self.confirm(name, Reply::Bytes(topic)));
        }
        let Mailbox { mail, is_cut_off, .. } = mem::take(&mut *self.subscriber.mailbox());
        if is_cut_off {
            return Err(CutOff);
        }
        said.extend(mail.into_iter().map(Mail::into_reply));
        said.append(&mut confirmed);
        Ok(())
    }

    /// Ends all subscriptions, and shows no more requests.
    pub(super) fn clear(&mut self) {
        if mem::take(&mut self.is_monitor) {
            let mut monitors = lock(&self.hub.monitors);
            monitors.remove(&self.id);
            self.hub.is_monitored.store(!monitors.is_empty(), Ordering::Relaxed);
        }
        self.topic_bytes = 0;
        let (channels, patterns) = (mem::take(&mut self.channels), mem::take(&mut self.patterns));
        if !(channels.is_empty() && patterns.is_empty()) {
            let mut topics = lock(&self.hub.topics);
            channels.iter().for_each(|channel| topics.remove(TopicKind::Channel, channel, self.id));
            patterns.iter().for_each(|pattern| topics.remove(TopicKind::Pattern, pattern, self.id));
        }
        *self.subscriber.mailbox() = Mailbox::default();
    }

    fn confirm(&self, name: &str, topic: Reply) -> Reply {
        Reply::Push(vec![Reply::bytes(name), topic, Reply::count(self.channels.len() + self.patterns.len())])
    }

    /// Appends messages to the connection's output, until there are `max` bytes. Returns whether there were any.
    pub(super) fn deliver(&mut self, protocol: Protocol, max: usize, out: &mut Vec<u8>) -> Result<bool, CutOff> {
        let mut mailbox = self.subscriber.mailbox();
        if mailbox.is_cut_off {
            return Err(CutOff);
        }
        let before = out.len();
        while out.len() < max
            && let Some(mail) = mailbox.mail.pop_front()
        {
            mailbox.bytes -= mail.bytes();
            mail.encode(protocol, out);
        }
        Ok(out.len() > before)
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Topics {
    fn of_kind(&mut self, kind: TopicKind) -> &mut Audience {
        match kind {
            TopicKind::Channel => &mut self.channels,
            TopicKind::Pattern => &mut self.patterns,
        }
    }

    fn remove(&mut self, kind: TopicKind, topic: &[u8], id: u64) {
        let audience = self.of_kind(kind);
        if let Some(subscribers) = audience.get_mut(topic) {
            subscribers.remove(&id);
            if subscribers.is_empty() {
                audience.remove(topic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::wake::Bells, *};

    fn subscriptions(hub: &Arc<Hub>, id: u64) -> Subscriptions {
        Subscriptions::new(hub, id, &Bell::new(&Arc::new(Bells::default())))
    }

    fn subscribe(subscriptions: &mut Subscriptions, kind: TopicKind, topic: &[u8]) {
        subscriptions.subscribe(kind, topic).expect("it listens to little");
    }

    fn delivered(subscriptions: &mut Subscriptions) -> String {
        let mut out = Vec::new();
        subscriptions.deliver(Protocol::Resp2, usize::MAX, &mut out).expect("it was not cut off");
        String::from_utf8(out).expect("it is text")
    }

    #[test]
    fn a_message_reaches_all_who_listen_to_its_channel_or_a_pattern_of_it() {
        let hub = Arc::default();
        let (mut one, mut two) = (subscriptions(&hub, 1), subscriptions(&hub, 2));
        subscribe(&mut one, TopicKind::Channel, b"news");
        subscribe(&mut one, TopicKind::Pattern, b"n*");
        subscribe(&mut two, TopicKind::Pattern, b"n*");
        assert_eq!(hub.publish(b"news", b"hi"), 3);
        assert_eq!(hub.publish(b"other", b"hi"), 0);
        assert_eq!(delivered(&mut one).matches("message").count(), 2);
        assert_eq!(delivered(&mut two).matches("pmessage").count(), 1);
        assert_eq!(delivered(&mut two), "");
        drop(two);
        assert_eq!(hub.publish(b"news", b"hi"), 2);
        drop(one);
        assert_eq!(hub.counts(), (0, 0));
    }

    #[test]
    fn what_came_before_an_unsubscribe_is_said_before_its_confirmation() {
        let hub = Arc::default();
        let mut one = subscriptions(&hub, 1);
        subscribe(&mut one, TopicKind::Channel, b"news");
        hub.publish(b"news", b"hi");
        let mut said = Vec::new();
        assert_eq!(one.unsubscribe(TopicKind::Channel, &[], &mut said), Ok(()));
        let [Reply::Push(message), Reply::Push(confirmed)] = &said[..] else { panic!("{said:?}") };
        assert_eq!(message[0], Reply::bytes("message"));
        assert_eq!(confirmed[..], [Reply::bytes("unsubscribe"), Reply::bytes("news"), Reply::Integer(0)]);
        assert_eq!(hub.publish(b"news", b"hi"), 0);
    }

    #[test]
    fn who_does_not_read_is_cut_off() {
        let hub: Arc<Hub> = Arc::default();
        let mut one = subscriptions(&hub, 1);
        subscribe(&mut one, TopicKind::Channel, b"news");
        let text = vec![b'x'; 1 << 20];
        (0..40).for_each(|_| _ = hub.publish(b"news", &text));
        assert_eq!(one.deliver(Protocol::Resp2, usize::MAX, &mut Vec::new()), Err(CutOff));
        assert_eq!(hub.cut_off(), 1);
        assert_eq!(one.unsubscribe(TopicKind::Channel, &[], &mut Vec::new()), Err(CutOff), "messages were lost");
    }

    #[test]
    fn a_connection_listens_to_so_much_and_no_more() {
        let hub: Arc<Hub> = Arc::default();
        let mut one = subscriptions(&hub, 1);
        (0..MAX_TOPICS).for_each(|topic| subscribe(&mut one, TopicKind::Pattern, topic.to_string().as_bytes()));
        assert!(one.subscribe(TopicKind::Channel, b"news").is_err());
        assert!(one.subscribe(TopicKind::Pattern, b"0").is_ok(), "it listens to that already");
        assert_eq!(hub.counts(), (0, MAX_TOPICS));
        one.clear();
        assert!(one.subscribe(TopicKind::Channel, &vec![b'x'; MAX_TOPIC_BYTES + 1]).is_err());
        subscribe(&mut one, TopicKind::Channel, &vec![b'x'; MAX_TOPIC_BYTES]);
        assert!(one.subscribe(TopicKind::Channel, b"y").is_err());
        assert_eq!(one.unsubscribe(TopicKind::Channel, &[], &mut Vec::new()), Ok(()));
        subscribe(&mut one, TopicKind::Channel, b"y");
    }
}
