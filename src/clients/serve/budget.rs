//! A node's limit of the bytes that it holds for its clients, over all connections.
//!
//! Half is for requests. A request counts from the moment when it is announced until the group has taken it, or its
//! query is answered. A request that does not fit is not read yet, so its client's stream fills. Its writer waits, or
//! goes to another member. The bytes are [shared](squall_fabric::share) among the clients by their certificates,
//! however many connections they have. A client that has its share waits for itself alone, even if it announces
//! requests and does not send them. The requests of others are admitted in the order in which they came, so that large
//! ones are admitted too. Those of members come first, but not for ever: behind a request that waits for their bytes
//! alone they wait in the end.
//!
//! Half is for bytes that clients have not read. A reply can't wait, since the delivery thread brings it. When there is
//! too much, the node hangs up on the client that leaves most unread. The client may come again, and then gets its
//! replies, which its session keeps.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use squall_fabric::{
    share::{Holder, Shares},
    sync::{Condition, Lock},
};

use super::{outbox::Outbox, watch_limit::WatchLimit};

/// The later requests of members that may come before a client's that waits for the bytes of members alone.
const OVERTAKES: u64 = 64;

/// The count of the bytes that a node holds for clients.
#[derive(derive_more::Debug)]
#[debug("Budget {{ half: {half}, requests: {requests:?}, unread: {unread:?} }}")]
pub(crate) struct Budget {
    /// The size of each half, in bytes.
    half: usize,
    requests: Lock<Requests>,
    /// The number of bytes that clients have not read.
    unread: AtomicUsize,
    /// The outboxes of all connections.
    boxes: Lock<Vec<Weak<Outbox>>>,
    pub(super) watches: Arc<WatchLimit>,
}

#[derive(Debug)]
struct Requests {
    shares: Shares,
    /// The requests that wait, by holder, each in the order of its turn.
    waiting: BTreeMap<Holder, VecDeque<Waiting>>,
    next_turn: u64,
    /// The turns of requests that were admitted, and whose threads have not noticed yet.
    admitted: BTreeSet<u64>,
}

#[derive(Debug)]
struct Waiting {
    turn: u64,
    bytes: usize,
    /// Wakes the thread of this request.
    wake: Arc<Condition>,
}

impl Requests {
    fn new(most: usize) -> Requests {
        Requests { shares: Shares::new(most), waiting: BTreeMap::new(), next_turn: 0, admitted: BTreeSet::new() }
    }

    /// Adds a request that waits.
    fn enqueue(&mut self, holder: &Holder, bytes: usize) -> (u64, Arc<Condition>) {
        self.next_turn += 1;
        let wake = Arc::new(Condition::new());
        let waiting = Waiting { turn: self.next_turn, bytes, wake: Arc::clone(&wake) };
        self.waiting.entry(holder.clone()).or_default().push_back(waiting);
        (self.next_turn, wake)
    }

    /// The holder whose first request is the next one: that of members, or the one that came first among the first of
    /// each holder that is within its share.
    fn next_holder(&self) -> Option<Holder> {
        let first = self.waiting.iter().filter_map(|(holder, waiting)| Some((holder, waiting.front()?)));
        let (trusted, others): (Vec<_>, Vec<_>) = first.partition(|(holder, _)| **holder == Holder::Trusted);
        let within = others.into_iter().filter(|(holder, first)| self.shares.is_within(holder, first.bytes));
        let (trusted, other) = (trusted.first(), within.min_by_key(|(_, first)| first.turn));
        let is_others_turn = |(_, other): &(_, &Waiting)| {
            trusted.is_none_or(|(_, trusted)| {
                trusted.turn > other.turn + OVERTAKES && self.shares.is_for_others(other.bytes)
            })
        };
        other.filter(is_others_turn).or(trusted.copied()).map(|(holder, _)| holder.clone())
    }

    /// Admits the requests whose turn it is, as far as there is room.
    fn admit(&mut self) {
        while let Some(holder) = self.next_holder() {
            let Some(waiting) = self.waiting.get_mut(&holder) else { return };
            let Some(first) = waiting.pop_front_if(|first| self.shares.take(&holder, first.bytes)) else { return };
            if waiting.is_empty() {
                self.waiting.remove(&holder);
            }
            self.admitted.insert(first.turn);
            first.wake.notify_one();
        }
    }

    /// Ends the wait of a request. Returns whether it was admitted.
    fn end_wait(&mut self, holder: &Holder, turn: u64) -> bool {
        if let Some(waiting) = self.waiting.get_mut(holder) {
            waiting.retain(|other| other.turn != turn);
            if waiting.is_empty() {
                self.waiting.remove(holder);
            }
        }
        self.admitted.remove(&turn)
    }
}

/// A permit for a request's bytes. The budget gets them back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    holder: Holder,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(max_bytes: usize) -> Arc<Budget> {
        let half = max_bytes / 2;
        Arc::new(Budget {
            half,
            requests: Lock::new(Requests::new(half)),
            unread: AtomicUsize::new(0),
            boxes: Lock::default(),
            watches: WatchLimit::new(),
        })
    }

    /// Waits until there is room for a request of `bytes` bytes. Returns None once its client's connection is closed.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize, of: &Outbox) -> Option<Permit> {
        let holder = of.holder();
        let mut requests = self.requests.lock();
        if !requests.waiting.is_empty() || !requests.shares.take(holder, bytes) {
            let (turn, wake) = requests.enqueue(holder, bytes);
            // Those that wait may all have their shares.
            requests.admit();
            while !requests.admitted.contains(&turn) && !of.is_closed() {
                requests = wake.wait(requests);
            }
            if !requests.end_wait(holder, turn) {
                requests.admit();
                return None;
            }
        }
        Some(Permit { budget: Arc::clone(self), holder: holder.clone(), bytes })
    }

    /// Wakes the threads that wait, after a connection was closed, so that they look again.
    pub(super) fn nudge(&self) {
        // The lock is taken so that a thread that is about to wait notices.
        let requests = self.requests.lock();
        requests.waiting.values().flatten().for_each(|waiting| waiting.wake.notify_one());
    }

    /// Adds bytes that a client is to read. Returns whether there are too many, so that some must be
    /// [shed](Budget::shed).
    pub(super) fn add_unread(&self, bytes: usize) -> bool {
        self.unread.fetch_add(bytes, Ordering::Relaxed) + bytes > self.half
    }

    /// Subtracts bytes that a client has read, or never will.
    pub(super) fn sub_unread(&self, bytes: usize) {
        self.unread.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Hangs up on the clients that leave most unread, until the rest is not too much: each time on the largest
    /// connection of the holder that leaves most. Members are told apart by their connections.
    #[cold]
    pub(super) fn shed(&self) {
        let boxes = self.boxes.lock();
        let open = boxes.iter().filter_map(Weak::upgrade).filter(|outbox| !outbox.is_closed());
        let mut open: Vec<(usize, Arc<Outbox>)> = open.map(|outbox| (outbox.unread(), outbox)).collect();
        drop(boxes);
        // Closed outboxes are about to be freed, so they do not count.
        let mut held: usize = open.iter().map(|(bytes, _)| bytes).sum();
        let mut sums = BTreeMap::<Holder, usize>::new();
        for (bytes, outbox) in open.iter().filter(|(_, outbox)| *outbox.holder() != Holder::Trusted) {
            *sums.entry(outbox.holder().clone()).or_default() += bytes;
        }
        while held > self.half
            && let Some(most) = (0..open.len()).max_by_key(|&index| {
                let (bytes, outbox) = &open[index];
                (sums.get(outbox.holder()).copied().unwrap_or(*bytes), *bytes)
            })
        {
            let (bytes, outbox) = open.swap_remove(most);
            tracing::warn!(
                bytes,
                limit = self.half,
                "clients leave more unread than this node may hold for them (half of `client_bytes`): the one that leaves most \
                 is hung up on"
            );
            outbox.hang_up();
            held -= bytes;
            if let Some(sum) = sums.get_mut(outbox.holder()) {
                *sum -= bytes;
            }
        }
    }

    /// Adds the outbox of a new client.
    pub(super) fn enter(&self, outbox: &Arc<Outbox>) {
        let mut boxes = self.boxes.lock();
        boxes.retain(|other| other.strong_count() > 0);
        boxes.push(Arc::downgrade(outbox));
    }

    /// Returns the outboxes of the clients that are connected.
    pub(super) fn connected(&self) -> Vec<Arc<Outbox>> {
        self.boxes.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Permit {
    /// Lets the permit be for `bytes` bytes at least, without waiting. Returns whether there is room for them.
    pub(super) fn cover(&mut self, bytes: usize) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let mut requests = self.budget.requests.lock();
        if requests.shares.total() == self.bytes {
            // One that is alone may have anything, and gets it again below.
            requests.shares.give_back(&self.holder, std::mem::take(&mut self.bytes));
        }
        let has_room = requests.shares.take(&self.holder, bytes - self.bytes);
        if has_room {
            self.bytes = bytes;
        }
        has_room
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut requests = self.budget.requests.lock();
        requests.shares.give_back(&self.holder, self.bytes);
        requests.admit();
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::{
        sync::mpsc,
        thread,
        time::{Duration, Instant},
    };

    use squall_fabric::Time;

    use super::*;
    use crate::clients::wire::ToClient;

    impl Budget {
        /// Returns the bytes of requests, the number of requests that wait, and the unread bytes.
        pub(crate) fn held(&self) -> (usize, usize, usize) {
            let requests = self.requests.lock();
            let waiting = requests.waiting.values().map(VecDeque::len).sum();
            (requests.shares.total(), waiting, self.unread.load(Ordering::Relaxed))
        }
    }

    fn outbox(budget: &Arc<Budget>) -> Arc<Outbox> {
        outbox_of(budget, Holder::Trusted)
    }

    fn outbox_of(budget: &Arc<Budget>, holder: Holder) -> Arc<Outbox> {
        let outbox = Arc::new(Outbox::new(usize::MAX, Time::ZERO, holder, Arc::clone(budget)));
        budget.enter(&outbox);
        outbox
    }

    #[test]
    fn one_client_with_many_connections_that_announce_and_do_not_send_holds_up_only_itself() {
        let budget = Budget::new(2000);
        let [greedy, web] = ["greedy", "web"].map(|name| outbox_of(&budget, Holder::Client(name.into())));
        let mut held = Vec::new();
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            for _ in 0..50 {
                let (tell, budget, greedy) = (tell.clone(), &budget, &greedy);
                scope.spawn(move || {
                    budget.reserve(100, greedy).into_iter().for_each(|permit| tell.send(permit).unwrap());
                });
            }
            while budget.held().0 + 100 * budget.held().1 < 5000 {
                thread::yield_now();
            }
            held.extend(told.try_iter());
            assert!(budget.held().0 <= 400, "{:?}", budget.held());
            let of_web = budget.reserve(300, &web).expect("it fits, whoever waits before");
            let of_member = budget.reserve(250, &outbox(&budget)).expect("members have room of their own");
            drop((of_web, of_member));
            // The end of a connection ends the waits of its requests alone.
            greedy.close();
        });
        drop(held);
        assert_eq!(budget.held().1, 0);
    }

    #[test]
    fn the_client_that_leaves_most_unread_over_all_its_connections_is_hung_up_on() {
        let budget = Budget::new(2000);
        let web = outbox_of(&budget, Holder::Client("web".into()));
        let answer = |bytes| ToClient::Told { number: 0, answer: Ok(vec![0; bytes]) };
        web.push(answer(300));
        let crowd: Vec<_> = (0..20).map(|_| outbox_of(&budget, Holder::Client("greedy".into()))).collect();
        crowd.iter().for_each(|outbox| outbox.push(answer(36)));
        assert!(!web.is_closed());
        assert!(crowd.iter().any(|outbox| outbox.is_closed()));
    }

    #[test]
    fn a_request_waits_for_room_and_later_ones_wait_behind_it() {
        let budget = Budget::new(200);
        let outbox = outbox(&budget);
        let [first, second] = [60, 40].map(|bytes| budget.reserve(bytes, &outbox).expect("it fits"));
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            for bytes in [90, 1] {
                let (tell, budget, outbox) = (tell.clone(), &budget, &outbox);
                scope.spawn(move || {
                    let permit = budget.reserve(bytes, outbox).expect("it is not hung up on");
                    tell.send((bytes, permit)).expect("the test waits");
                });
                while budget.held().1 == 0 {
                    thread::yield_now();
                }
            }
            while budget.held().1 < 2 {
                thread::yield_now();
            }
            drop(second);
            // There is room for the small one. Whether it has come or not, the limit holds.
            assert!(budget.held().0 <= 100);
            drop(first);
            let shares: Vec<_> = told.iter().take(2).collect();
            assert_eq!(shares.iter().map(|(bytes, _)| bytes).sum::<usize>(), 91);
        });
        assert_eq!(budget.held(), (0, 0, 0));
    }

    #[test]
    fn members_requests_overtake_a_large_one_of_a_client_only_for_a_while() {
        let budget = Budget::new(200);
        let (member, web) = (outbox(&budget), outbox_of(&budget, Holder::Client("web".into())));
        let mut held = budget.reserve(60, &member);
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| drop(budget.reserve(100, &web).map(|permit| tell.send(permit))));
            while budget.held().1 == 0 {
                thread::yield_now();
            }
            // At each moment a member has some of the bytes.
            for overtaken in 0..1000 {
                let next = scope.spawn(|| budget.reserve(60, &member));
                while budget.held().1 < 2 {
                    thread::yield_now();
                }
                drop(held.take());
                if overtaken >= OVERTAKES {
                    // The client's request is admitted, and gone before the member's is.
                    let permit = told.recv_timeout(Duration::from_secs(10));
                    web.close();
                    return drop(permit.expect("it comes in"));
                }
                held = next.join().expect("it does not panic");
            }
        });
    }

    /// Waits until so many requests wait.
    fn until_wait(budget: &Budget, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while budget.held().1 != count {
            assert!(Instant::now() < deadline, "{budget:?}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_small_request_that_comes_later_waits_behind_a_large_one_though_there_is_room() {
        let budget = Budget::new(200);
        let outbox = outbox(&budget);
        let first = budget.reserve(60, &outbox).expect("it fits");
        thread::scope(|scope| {
            scope.spawn(|| budget.reserve(90, &outbox));
            until_wait(&budget, 1);
            scope.spawn(|| budget.reserve(1, &outbox));
            until_wait(&budget, 2);
            drop(first);
        });
        assert_eq!(budget.held(), (0, 0, 0));
    }

    #[test]
    fn clients_requests_are_admitted_in_the_order_in_which_they_came() {
        let budget = Budget::new(200);
        // The second to come has the name that is first in the table.
        let [large, second, first] = ["large", "a", "b"].map(|name| outbox_of(&budget, Holder::Client(name.into())));
        let held = budget.reserve(100, &large);
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            for (count, outbox) in [&first, &second].into_iter().enumerate() {
                let (tell, budget) = (tell.clone(), &budget);
                scope.spawn(move || {
                    let permit = budget.reserve(75, outbox).expect("it is not hung up on");
                    tell.send((count, permit)).expect("the test waits");
                });
                until_wait(budget, count + 1);
            }
            drop(held);
            // The next one is admitted when the permit before is dropped.
            let order = told.iter().take(2).map(|(count, _)| count);
            assert_eq!(order.collect::<Vec<_>>(), [0, 1]);
        });
    }

    #[test]
    fn members_requests_do_not_wait_behind_one_that_waits_for_the_bytes_of_clients() {
        let budget = Budget::new(200);
        let member = outbox(&budget);
        let [large, web] = ["large", "web"].map(|name| outbox_of(&budget, Holder::Client(name.into())));
        let of_clients = budget.reserve(75, &large).expect("it fits");
        let mut held = budget.reserve(20, &member);
        thread::scope(|scope| {
            scope.spawn(|| budget.reserve(10, &web));
            until_wait(&budget, 1);
            for _ in 0..OVERTAKES + 9 {
                let next = scope.spawn(|| budget.reserve(20, &member));
                until_wait(&budget, 2);
                drop(held.take());
                until_wait(&budget, 1);
                held = next.join().expect("it does not panic");
            }
            drop(of_clients);
        });
        drop(held);
        assert_eq!(budget.held(), (0, 0, 0));
    }

    #[test]
    fn what_members_leave_unread_does_not_count_together() {
        let budget = Budget::new(2000);
        // 100 bytes each, so that all members together leave 600, and the client 500.
        let answer = || ToClient::Told { number: 0, answer: Ok(vec![0; 36]) };
        let members: Vec<_> = (0..6).map(|_| outbox(&budget)).collect();
        members.iter().for_each(|outbox| outbox.push(answer()));
        let greedy = outbox_of(&budget, Holder::Client("greedy".into()));
        (0..5).for_each(|_| greedy.push(answer()));
        assert!(greedy.is_closed() && members.iter().all(|outbox| !outbox.is_closed()));
    }

    #[test]
    fn one_that_is_larger_than_all_there_is_comes_in_alone() {
        let budget = Budget::new(200);
        let outbox = outbox(&budget);
        assert!(budget.reserve(1000, &outbox).is_some());
    }

    #[test]
    fn a_permit_grows_where_there_is_room_and_one_that_is_alone_grows_as_it_likes() {
        let budget = Budget::new(200);
        let outbox = outbox(&budget);
        let [mut first, second] = [30, 40].map(|bytes| budget.reserve(bytes, &outbox).expect("it fits"));
        assert!(first.cover(20) && first.cover(60) && !first.cover(61));
        assert_eq!(budget.held().0, 100);
        drop(second);
        assert!(first.cover(1000));
        assert_eq!(budget.held().0, 1000);
        drop(first);
        assert_eq!(budget.held(), (0, 0, 0));
    }

    #[test]
    fn who_is_hung_up_on_waits_no_longer() {
        let budget = Budget::new(200);
        let (here, gone) = (outbox(&budget), outbox(&budget));
        let _all = budget.reserve(100, &here).expect("it fits");
        thread::scope(|scope| {
            let waits = scope.spawn(|| budget.reserve(1, &gone).is_none());
            while budget.held().1 == 0 {
                thread::yield_now();
            }
            gone.close();
            assert!(waits.join().expect("it does not panic"));
        });
        assert_eq!(budget.held().1, 0);
    }
}
