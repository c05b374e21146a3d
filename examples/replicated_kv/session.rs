//! The order of one connection: pipelined requests take effect, and are answered, one after the other.
//!
//! Nothing here does I/O. A session decides when a request may be handed to the replica, and keeps what is owed:
//!
//! - *Writes* that follow each other are submitted back to back; the group keeps their order. One that waits for room in
//!   the ring holds up the rest, since a later one could be accepted first.
//! - A *read* waits until this connection's earlier writes are delivered: it takes no turn in the order, so it would not
//!   show what is still on its way. Reads that follow each other become one look at the replica.
//! - A *write* after a read waits for it, or the read could show the write.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use crate::{
    command::{Local, Protocol, Request},
    reply::Answer,
    store::{Command, Query, Reply},
};

/// The most writes of one connection that are under way at once.
const MAX_WRITES: usize = 512;

/// The most queries in one look: it holds up the delivering thread.
const MAX_QUERIES: usize = 512;

/// The most answers that are owed, and of answers that are known the most bytes: behind a slow write they pile up.
const MAX_OWED: usize = 1024;
const MAX_OWED_BYTES: usize = 1 << 20;

/// What a session asks of its replica. Failures are answers to the client.
pub(crate) trait Replica {
    type Write: Write;
    type Read: Future<Output = Result<Vec<Reply>, Answer>> + Unpin;
    type Info: Future<Output = Answer> + Unpin;

    /// Hands a command to the group.
    fn write(&self, command: &Command) -> Self::Write;

    /// Answers these queries from one linearizable look at the state.
    fn read(&self, queries: Vec<Query>) -> Self::Read;

    /// Describes the replica as it is when this is called.
    fn info(&self, sections: Vec<String>) -> Self::Info;

    /// Answers what concerns neither the store nor the session's protocol. `client` is the connection.
    fn local(&self, client: u64, request: &Local) -> Answer;
}

/// A command on its way.
pub(crate) trait Write: Future<Output = Result<Reply, Answer>> + Unpin {
    /// Whether later commands keep their place behind it.
    fn is_accepted(&self) -> bool;
}

/// What comes next on the way to the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Answer(Answer),
    /// Nothing; the connection ends.
    Close,
}

/// The state of one connection.
pub(crate) struct Session<R: Replica> {
    replica: R,
    client: u64,
    /// The form that the client asked for last.
    asked: Protocol,
    /// The form of the answers, as of the last that was taken.
    protocol: Protocol,
    owed: VecDeque<Owed<R>>,
    owed_bytes: usize,
    under_way: UnderWay<R>,
    /// Queries that the next look will answer.
    queries: Vec<Query>,
    /// What the last look answered, for those who are owed it.
    looked: VecDeque<Answer>,
    /// The last write waits for room.
    stuck: bool,
    closing: bool,
}

enum Owed<R: Replica> {
    Answer(Answer),
    Write(R::Write),
    /// The next of what the look answers.
    Look,
    Info(Vec<String>),
    InfoUnderWay(R::Info),
    /// From here on, answers have this form.
    Switch(Protocol),
    Close,
}

/// What the replica is doing for this connection: writing or reading, never both.
enum UnderWay<R: Replica> {
    Writes(usize),
    Look(R::Read, usize),
}

impl<R: Replica> Session<R> {
    pub(crate) fn new(replica: R, client: u64) -> Session<R> {
        Session {
            replica,
            client,
            asked: Protocol::default(),
            protocol: Protocol::default(),
            owed: VecDeque::new(),
            owed_bytes: 0,
            under_way: UnderWay::Writes(0),
            queries: Vec::new(),
            looked: VecDeque::new(),
            stuck: false,
            closing: false,
        }
    }

    /// The form of the answer that was given last.
    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether everything was answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.owed.is_empty()
    }

    /// Whether the connection ends once everything was answered, and takes no more requests.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether another request may be looked at.
    pub(crate) fn is_open(&self) -> bool {
        !self.stuck && !self.closing && self.owed.len() < MAX_OWED && self.owed_bytes < MAX_OWED_BYTES
    }

    /// Takes the next request, or gives it back if it must wait for earlier ones.
    pub(crate) fn take(&mut self, request: Request) -> Result<(), Request> {
        if !self.is_open() {
            return Err(request);
        }
        match request {
            Request::Write(command) => match &mut self.under_way {
                UnderWay::Writes(count) if self.queries.is_empty() && *count < MAX_WRITES => {
                    let write = self.replica.write(&command);
                    self.stuck = !write.is_accepted();
                    *count += 1;
                    self.owed.push_back(Owed::Write(write));
                }
                _ => return Err(Request::Write(command)),
            },
            Request::Read(query) => match self.under_way {
                UnderWay::Writes(0) if self.queries.len() < MAX_QUERIES => {
                    self.queries.push(query);
                    self.owed.push_back(Owed::Look);
                }
                _ => return Err(Request::Read(query)),
            },
            Request::Local(local) => self.take_local(local),
        }
        Ok(())
    }

    fn take_local(&mut self, mut local: Local) {
        match &mut local {
            Local::Info(sections) => return self.owed.push_back(Owed::Info(std::mem::take(sections))),
            Local::CrossProtocol => {
                tracing::warn!(
                    client = self.client,
                    "an HTTP request was sent here: somebody may attack through a browser"
                );
                return self.end(None);
            }
            Local::Quit => return self.end(Some(Answer::Simple("OK"))),
            Local::Reset => self.switch(Protocol::Resp2),
            // A greeting that asks for no form is told the present one.
            Local::Hello(hello) => self.switch(*hello.protocol.get_or_insert(self.asked)),
            _ => {}
        }
        let answer = self.replica.local(self.client, &local);
        self.owe(answer);
    }

    fn switch(&mut self, protocol: Protocol) {
        self.asked = protocol;
        self.owed.push_back(Owed::Switch(protocol));
    }

    /// Owes an answer that is known.
    pub(crate) fn owe(&mut self, answer: Answer) {
        self.owed_bytes += answer.payload_bytes();
        self.owed.push_back(Owed::Answer(answer));
    }

    /// Takes no more requests, and ends once everything, this answer last, is answered.
    pub(crate) fn end(&mut self, answer: Option<Answer>) {
        self.closing = true;
        answer.into_iter().for_each(|answer| self.owe(answer));
        self.owed.push_back(Owed::Close);
    }

    /// Begins the look that the queries taken so far wait for. Call it when no further request is at hand.
    pub(crate) fn look(&mut self) {
        if !self.queries.is_empty() {
            let queries = std::mem::take(&mut self.queries);
            let count = queries.len();
            self.under_way = UnderWay::Look(self.replica.read(queries), count);
        }
    }

    /// Goes on with a write that waits for room. Returns whether requests can be taken again.
    pub(crate) fn poll_stuck(&mut self, context: &mut Context<'_>) -> bool {
        if !self.stuck {
            return false;
        }
        let Some(Owed::Write(write)) = self.owed.back_mut() else {
            unreachable!("nothing is taken behind a stuck write")
        };
        match Pin::new(&mut *write).poll(context) {
            Poll::Ready(result) => {
                self.owed.pop_back();
                self.owe(settled(result));
                self.one_write_less();
                self.stuck = false;
            }
            Poll::Pending => self.stuck = !write.is_accepted(),
        }
        !self.stuck
    }

    /// What the client is owed next, once it is known.
    ///
    /// Only the oldest write is waited for: the later ones are delivered after it.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        loop {
            let Some(first) = self.owed.front_mut() else { return Poll::Pending };
            let answer = match first {
                Owed::Write(write) => {
                    let result = ready!(Pin::new(write).poll(context));
                    if self.owed.len() == 1 {
                        self.stuck = false;
                    }
                    self.one_write_less();
                    settled(result)
                }
                Owed::Look => {
                    if self.looked.is_empty() {
                        let UnderWay::Look(read, count) = &mut self.under_way else { return Poll::Pending };
                        let count = *count;
                        self.looked = match ready!(Pin::new(read).poll(context)) {
                            Ok(replies) => replies.into_iter().map(Answer::from).collect(),
                            Err(failure) => std::iter::repeat_n(failure, count).collect(),
                        };
                        self.under_way = UnderWay::Writes(0);
                    }
                    self.looked.pop_front().expect("a look answers every query")
                }
                Owed::Info(sections) => {
                    *first = Owed::InfoUnderWay(self.replica.info(std::mem::take(sections)));
                    continue;
                }
                Owed::InfoUnderWay(info) => ready!(Pin::new(info).poll(context)),
                Owed::Switch(protocol) => {
                    self.protocol = *protocol;
                    self.owed.pop_front();
                    continue;
                }
                Owed::Close => return Poll::Ready(Next::Close),
                Owed::Answer(_) => {
                    let Some(Owed::Answer(answer)) = self.owed.pop_front() else { unreachable!("it was just seen") };
                    self.owed_bytes -= answer.payload_bytes();
                    return Poll::Ready(Next::Answer(answer));
                }
            };
            self.owed.pop_front();
            return Poll::Ready(Next::Answer(answer));
        }
    }

    fn one_write_less(&mut self) {
        match &mut self.under_way {
            UnderWay::Writes(count) => *count -= 1,
            UnderWay::Look(..) => unreachable!("no look begins before all writes are delivered"),
        }
    }
}

fn settled(result: Result<Reply, Answer>) -> Answer {
    result.map_or_else(|failure| failure, Answer::from)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc, task::Waker};

    use super::*;
    use crate::command::Hello;

    /// A replica whose commands are delivered, and whose looks are answered, when the test says so.
    #[derive(Clone, Default)]
    struct Puppet(Rc<RefCell<Strings>>);

    #[derive(Default)]
    struct Strings {
        /// How many commands find room.
        room: usize,
        submitted: usize,
        delivered: usize,
        looks: Vec<usize>,
        answer_looks: bool,
    }

    struct FakeWrite(Puppet, Option<usize>);

    impl Future for FakeWrite {
        type Output = Result<Reply, Answer>;
        fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            let puppet = self.0.clone();
            let mut strings = puppet.0.borrow_mut();
            if self.1.is_none() && strings.submitted < strings.room {
                strings.submitted += 1;
                self.1 = Some(strings.submitted);
            }
            match self.1 {
                Some(number) if number <= strings.delivered => Poll::Ready(Ok(Reply::Integer(number as i64))),
                _ => Poll::Pending,
            }
        }
    }

    impl Write for FakeWrite {
        fn is_accepted(&self) -> bool {
            self.1.is_some()
        }
    }

    struct FakeLook(Puppet, usize);

    impl Future for FakeLook {
        type Output = Result<Vec<Reply>, Answer>;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            let strings = self.0.0.borrow();
            if !strings.answer_looks {
                return Poll::Pending;
            }
            Poll::Ready(Ok(vec![Reply::Integer(-(strings.delivered as i64)); self.1]))
        }
    }

    impl Replica for Puppet {
        type Write = FakeWrite;
        type Read = FakeLook;
        type Info = std::future::Ready<Answer>;
        fn write(&self, _: &Command) -> FakeWrite {
            let mut write = FakeWrite(self.clone(), None);
            let _ = Pin::new(&mut write).poll(&mut Context::from_waker(Waker::noop()));
            write
        }
        fn read(&self, queries: Vec<Query>) -> FakeLook {
            self.0.borrow_mut().looks.push(queries.len());
            FakeLook(self.clone(), queries.len())
        }
        fn info(&self, _: Vec<String>) -> Self::Info {
            std::future::ready(Answer::Integer(self.0.borrow().delivered as i64))
        }
        fn local(&self, _: u64, _: &Local) -> Answer {
            Answer::Simple("LOCAL")
        }
    }

    fn session(room: usize) -> (Session<Puppet>, Puppet) {
        let puppet = Puppet::default();
        puppet.0.borrow_mut().room = room;
        (Session::new(puppet.clone(), 1), puppet)
    }

    fn write() -> Request {
        Request::Write(Command::Clear)
    }

    fn read() -> Request {
        Request::Read(Query::Count)
    }

    fn ping() -> Request {
        Request::Local(Local::Ping(None))
    }

    fn answers(session: &mut Session<Puppet>) -> Vec<Answer> {
        let mut context = Context::from_waker(Waker::noop());
        let next = || match session.poll_next(&mut context) {
            Poll::Ready(Next::Answer(answer)) => Some(answer),
            _ => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn writes_are_submitted_together_and_answered_in_turn() {
        let (mut session, puppet) = session(10);
        for request in [write(), ping(), write()] {
            session.take(request).expect("nothing holds it up");
        }
        assert_eq!(puppet.0.borrow().submitted, 2);
        assert_eq!(answers(&mut session), []);
        puppet.0.borrow_mut().delivered = 1;
        assert_eq!(answers(&mut session), [Answer::Integer(1), Answer::Simple("LOCAL")]);
        puppet.0.borrow_mut().delivered = 2;
        assert_eq!(answers(&mut session), [Answer::Integer(2)]);
        assert!(session.is_idle());
    }

    #[test]
    fn a_read_waits_for_earlier_writes_and_a_write_for_earlier_reads() {
        let (mut session, puppet) = session(10);
        session.take(write()).expect("nothing holds it up");
        let held = session.take(read()).expect_err("the write is under way");
        puppet.0.borrow_mut().delivered = 1;
        assert_eq!(answers(&mut session), [Answer::Integer(1)]);
        session.take(held).expect("the write is delivered");
        let held = session.take(write()).expect_err("a read was taken");
        session.look();
        let held = session.take(held).expect_err("the read is under way");
        puppet.0.borrow_mut().answer_looks = true;
        assert_eq!(answers(&mut session), [Answer::Integer(-1)]);
        session.take(held).expect("the read is answered");
    }

    #[test]
    fn reads_in_a_row_are_one_look() {
        let (mut session, puppet) = session(10);
        for request in [read(), read(), ping(), read()] {
            session.take(request).expect("nothing holds it up");
        }
        session.look();
        assert_eq!(session.take(read()), Err(read()), "the next look begins when this one is answered");
        puppet.0.borrow_mut().answer_looks = true;
        let (look, local) = (Answer::Integer(0), Answer::Simple("LOCAL"));
        assert_eq!(answers(&mut session), [look.clone(), look.clone(), local, look]);
        assert_eq!(puppet.0.borrow().looks, [3]);
    }

    #[test]
    fn nothing_overtakes_a_write_that_waits_for_room() {
        let (mut session, puppet) = session(1);
        let mut context = Context::from_waker(Waker::noop());
        session.take(write()).expect("there is room");
        session.take(write()).expect("it is taken, and waits for room");
        assert_eq!(session.take(write()), Err(write()));
        assert_eq!(session.take(ping()), Err(ping()));
        assert!(!session.poll_stuck(&mut context));
        puppet.0.borrow_mut().room = 2;
        assert!(session.poll_stuck(&mut context));
        session.take(ping()).expect("the write was accepted");
        puppet.0.borrow_mut().delivered = 2;
        assert_eq!(answers(&mut session).len(), 3);
    }

    #[test]
    fn info_shows_what_the_writes_before_it_did() {
        let (mut session, puppet) = session(10);
        session.take(write()).expect("nothing holds it up");
        session.take(Request::Local(Local::Info(Vec::new()))).expect("nothing holds it up");
        assert_eq!(answers(&mut session), []);
        puppet.0.borrow_mut().delivered = 1;
        assert_eq!(answers(&mut session), [Answer::Integer(1), Answer::Integer(1)]);
    }

    #[test]
    fn hello_changes_the_form_of_its_own_answer_and_of_later_ones() {
        let (mut session, puppet) = session(10);
        session.take(write()).expect("nothing holds it up");
        let hello = Hello { protocol: Some(Protocol::Resp3), name: None };
        session.take(Request::Local(Local::Hello(hello))).expect("nothing holds it up");
        assert_eq!(answers(&mut session), []);
        assert_eq!(session.protocol(), Protocol::Resp2);
        puppet.0.borrow_mut().delivered = 1;
        assert_eq!(answers(&mut session).len(), 2);
        assert_eq!(session.protocol(), Protocol::Resp3);
    }

    #[test]
    fn a_session_ends_after_what_it_owes() {
        let (mut session, puppet) = session(10);
        let mut context = Context::from_waker(Waker::noop());
        session.take(write()).expect("nothing holds it up");
        session.take(Request::Local(Local::Quit)).expect("nothing holds it up");
        assert!(session.is_closing());
        assert_eq!(session.poll_next(&mut context), Poll::Pending);
        puppet.0.borrow_mut().delivered = 1;
        assert_eq!(answers(&mut session), [Answer::Integer(1), Answer::Simple("OK")]);
        assert_eq!(session.poll_next(&mut context), Poll::Ready(Next::Close));
    }
}
