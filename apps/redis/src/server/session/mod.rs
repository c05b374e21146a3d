//! The order of one connection: pipelined requests take effect, and are answered, one after the other.
//!
//! A session does no I/O. It decides when a request may be handed to the replica, and keeps the answers that are owed:
//!
//! - *Writes* that follow each other are submitted back to back; the group keeps their order. One that waits for room
//!   in the ring holds up the rest, since a later one could be accepted first.
//! - *Reads* that follow each other become one look at the replica. A look takes no turn in the order, so it would not
//!   show what is still on its way. A short read behind this connection's writes therefore takes a turn itself. A long
//!   one waits for their answers.
//! - A *write* after a look waits for it, or the look could show the write.
//! - A request that changes the session itself waits until everything before it was answered.
//! - Nothing is taken behind a request that may *wait for an element*, until that is answered.

mod admission;
mod answered;
mod authentication;
mod look;
mod measure;
#[cfg(test)]
mod measure_tests;
mod replica;
mod requests;
#[cfg(test)]
mod tests;
mod waiting;

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use self::{
    answered::AnsweredBatch,
    authentication::{Authentication, WRONG_PASSWORD},
    measure::PendingAnswers,
    waiting::Wait,
};
pub(super) use self::{
    look::Look,
    replica::{Replica, ServerReport, Write},
};
use super::{
    connected_client::ConnectedClient,
    operations::Operations,
    subscriptions::{Hub, Subscriptions},
    transaction::{Locals, Transaction},
};
use crate::{
    Error, Reply,
    command::{CommandFn, Spec},
    encode::Protocol,
    message::StoreCommand,
    words,
};

/// The most writes of one connection that are under way at once, and about the most bytes of their requests. Each
/// answer may be some times as large as its request, and arrives whether or not the client reads.
const MAX_WRITES: usize = 512;
const MAX_WRITE_BYTES: usize = 1 << 20;

/// The most answers that are owed, and the most bytes of those that are known: behind a slow write they pile up.
const MAX_OWED: usize = 1024;
const MAX_OWED_BYTES: usize = 1 << 20;

/// The next step towards the client.
#[derive(Debug, PartialEq)]
pub(super) enum SessionStep {
    Answer(Reply),
    /// No answer: the connection ends.
    Close,
}

/// The session's response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    /// The request must wait for earlier ones.
    NotYet,
    /// The request waits for the end of a pause that holds such requests: those that may change the state, or others.
    Paused {
        is_write: bool,
    },
}

/// The bytes from which a command is handed over by another thread. It is copied twice, for which other connections
/// should not wait.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// The state of one connection.
pub(super) struct Session<R: Replica> {
    replica: R,
    operations: Arc<Operations>,
    client: Arc<ConnectedClient>,
    hub: Arc<Hub>,
    subscriptions: Subscriptions,
    transaction: Transaction,
    protocol: Protocol,
    /// Whether the client has given the password, or need not.
    is_trusted: bool,
    authentication: Authentication<R>,
    owed: VecDeque<Owed<R>>,
    /// The bytes of the owed answers that are known, and of the lines of transactions under way.
    owed_bytes: usize,
    /// The requests of the owed answers.
    pending: PendingAnswers,
    /// The answers that were given since they were last counted.
    answered: AnsweredBatch,
    /// The number of owed writes, and the bytes of their requests.
    writes: usize,
    write_bytes: usize,
    /// Requests that the next look will answer.
    queries: Look,
    /// The look that is under way, and the number of requests that it answers.
    looking: Option<(R::Look, usize)>,
    /// The requests that the last look has left for another one, which begins when their answers are needed.
    unlooked: Option<Look>,
    /// The answers of looks that are still owed.
    looked: VecDeque<Reply>,
    /// An empty look, to be used for the next one.
    spare: Look,
    /// Whether the last write waits for room.
    is_stuck: bool,
    is_closing: bool,
    /// The time of the present batch of requests; 0 until it is read.
    clock_ms: u64,
    /// The last command's name.
    command: &'static str,
}

enum Owed<R: Replica> {
    Answer(Reply),
    Write(Sent<R>),
    /// The look's next answer.
    Look,
    Watch(R::Watch),
    Info(R::Info),
    Wait(Wait<R>),
    /// The answer to a wrong password, which is held for a while.
    WrongPassword(R::Timer),
}

struct Sent<R: Replica> {
    write: R::Write,
    /// The bytes of the request.
    bytes: usize,
    /// The server's own part in a transaction.
    exec: Option<Executing>,
}

/// A transaction on its way.
struct Executing {
    /// The requests that the server itself answers.
    locals: Locals,
    /// The lines of its requests and of `EXEC`, if there are monitors; `None` for those that are too long for any.
    lines: Vec<Option<String>>,
    /// The bytes that the lines take.
    line_bytes: usize,
}

impl<R: Replica> Session<R> {
    /// A session without requests. `max_command_bytes` is the longest message that the group takes.
    pub(super) fn new(
        replica: R,
        client: &Arc<ConnectedClient>,
        hub: &Arc<Hub>,
        operations: &Arc<Operations>,
        max_command_bytes: usize,
    ) -> Self {
        Session {
            is_trusted: !replica.wants_password(),
            authentication: Authentication::default(),
            replica,
            operations: Arc::clone(operations),
            client: Arc::clone(client),
            hub: Arc::clone(hub),
            subscriptions: Subscriptions::new(hub, client.id, client.bell()),
            transaction: Transaction::new(max_command_bytes),
            protocol: Protocol::default(),
            owed: VecDeque::new(),
            owed_bytes: 0,
            pending: PendingAnswers::default(),
            answered: AnsweredBatch::default(),
            writes: 0,
            write_bytes: 0,
            queries: Look::default(),
            looking: None,
            unlooked: None,
            looked: VecDeque::new(),
            spare: Look::default(),
            is_stuck: false,
            is_closing: false,
            clock_ms: 0,
            command: "",
        }
    }

    /// The version of the protocol for the answers.
    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether the client may send more than the smallest requests.
    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// The bytes kept for the client, of its transaction, of lines for monitors, and of answers that are known; an
    /// estimate.
    pub(super) fn bytes(&self) -> usize {
        self.transaction.bytes() + self.owed_bytes + self.pending.bytes()
    }

    /// Whether everything was answered.
    pub(super) fn is_idle(&self) -> bool {
        self.owed.is_empty()
    }

    /// Whether the connection ends once everything was answered, and takes no more requests.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing || self.client.is_leaving()
    }

    /// Whether another request may be looked at.
    pub(super) fn is_open(&self) -> bool {
        !self.is_stuck
            && !self.is_awaited()
            && !self.is_closing()
            && self.owed.len() < MAX_OWED
            && self.owed_bytes + self.pending.bytes() < MAX_OWED_BYTES
    }

    /// Whether later requests may depend on the last owed answer: keys are about to be watched, a request may wait for
    /// an element, it gave a wrong password, or the server itself has to add to the answer of a transaction. The
    /// requests of a transaction are shown to monitors once it was carried out, and before later ones.
    fn is_awaited(&self) -> bool {
        match self.owed.back() {
            Some(Owed::Watch(_) | Owed::Wait(_) | Owed::WrongPassword(_)) => true,
            Some(Owed::Write(Sent { exec: Some(exec), .. })) => !exec.locals.is_empty() || !exec.lines.is_empty(),
            _ => false,
        }
    }

    /// Begins a batch of requests, which take effect at one time.
    pub(super) fn begin_batch(&mut self) {
        self.clock_ms = 0;
        self.pending.begin_batch();
        self.answered.begin();
    }

    /// Shows other clients the last command, and the transaction.
    pub(super) fn note(&self) {
        self.client.note(self.command, self.transaction.queued());
    }

    fn clock_ms(&mut self) -> u64 {
        if self.clock_ms == 0 {
            self.clock_ms = self.replica.now_ms();
        }
        self.clock_ms
    }

    /// Takes the next request. The buffer may be used again afterwards.
    fn take_request(&mut self, request: &mut Vec<u8>, context: &mut Context<'_>) -> Taken {
        let words = words::split(request).expect("the request was made of words");
        let spec = match self.check(&words) {
            Ok(spec) => spec,
            Err(_) if requests::is_of_a_browser(&words) => {
                tracing::warn!(
                    client = self.client.id,
                    "an HTTP request was sent here: a web page may attack through a browser"
                );
                self.end(None);
                return Taken::Yes;
            }
            Err(error) => {
                self.refuse(error);
                return Taken::Yes;
            }
        };
        if let Some(is_write) = self.paused_as(spec, &words) {
            return Taken::Paused { is_write };
        }
        let is_queued = self.is_queued(spec);
        if !is_queued && !self.may_take(spec, context) {
            return Taken::NotYet;
        }
        if !is_queued && self.poll_turn(spec, &words, context).is_pending() {
            return Taken::NotYet;
        }
        // From here on it is certain to be taken, so this is done once for each request.
        self.begin(spec, request, &words);
        self.command = spec.name;
        if matches!(spec.run, CommandFn::Local) && !is_queued {
            self.take_local(spec, &words);
            return Taken::Yes;
        }
        drop(words);
        match spec.run {
            _ if is_queued => self.queue(spec, request),
            CommandFn::Read(_) => self.take_read(spec, request),
            CommandFn::Block(read) => self.take_waiting(read, request),
            CommandFn::Write(_) | CommandFn::Local => self.take_write(request),
        }
        Taken::Yes
    }

    /// Whether nothing is under way for which a request of this command must wait.
    fn may_take(&mut self, spec: &Spec, context: &mut Context<'_>) -> bool {
        match spec.run {
            CommandFn::Local if spec.name == "exec" => self.may_write(context),
            CommandFn::Local => self.is_idle() || !requests::waits(spec),
            CommandFn::Read(_) if self.writes == 0 => !self.is_looking() && !self.queries.is_full(),
            // A turn in the order costs less than waiting for the earlier writes.
            CommandFn::Read(_) => spec.is_fast && self.may_write(context),
            CommandFn::Block(_) | CommandFn::Write(_) => self.may_write(context),
        }
    }

    fn take_write(&mut self, request: &mut Vec<u8>) {
        let bytes = request.len();
        let answered_by = self.replica.answered_by();
        let command = StoreCommand::Run { at_ms: self.clock_ms(), request: mem::take(request), answered_by };
        let write = if bytes > LARGE_BYTES {
            self.replica.write_large(command)
        } else {
            let write = self.replica.write(&command);
            if let StoreCommand::Run { request: back, .. } = command {
                *request = back;
            }
            write
        };
        self.owe_write(Sent { write, bytes, exec: None });
    }

    fn take_read(&mut self, spec: &Spec, request: &mut Vec<u8>) {
        if self.writes > 0 {
            return self.take_write(request);
        }
        self.queries.push(request, spec.is_fast);
        self.owed.push_back(Owed::Look);
    }

    /// Whether nothing is under way that a write must not overtake.
    fn may_write(&mut self, context: &mut Context<'_>) -> bool {
        self.look(context);
        !self.is_looking() && self.writes < MAX_WRITES && self.write_bytes < MAX_WRITE_BYTES
    }

    /// Whether requests of an earlier look are not answered yet.
    fn is_looking(&self) -> bool {
        self.looking.is_some() || self.unlooked.is_some()
    }

    fn owe_write(&mut self, sent: Sent<R>) {
        self.is_stuck = !sent.write.is_accepted();
        self.writes += 1;
        self.write_bytes += sent.bytes;
        self.owed_bytes += sent.exec.as_ref().map_or(0, |exec| exec.line_bytes);
        self.owed.push_back(Owed::Write(sent));
    }

    /// Adds a known answer to the owed ones.
    pub(super) fn owe(&mut self, answer: Reply) {
        self.owed_bytes += answer.payload_bytes();
        self.owed.push_back(Owed::Answer(answer));
    }

    /// Refuses a request. A transaction that it belongs to is broken off.
    pub(super) fn refuse(&mut self, error: Error) {
        self.transaction.break_off();
        self.owe(Reply::Error(error));
    }

    /// Takes no more requests, and ends once everything is answered, `answer` last.
    pub(super) fn end(&mut self, answer: Option<Reply>) {
        self.is_closing = true;
        answer.into_iter().for_each(|answer| self.owe(answer));
    }

    /// Begins the look for which the reads taken so far wait. To be called when no further request is at hand.
    pub(super) fn look(&mut self, context: &mut Context<'_>) {
        if self.queries.left() == 0 || self.is_looking() {
            return;
        }
        let mut look = mem::replace(&mut self.queries, mem::take(&mut self.spare));
        look.clock_ms = self.clock_ms();
        self.unlooked = Some(look);
        // If no other replica must be asked, it is answered at once.
        self.poll_look(context);
    }

    fn poll_look(&mut self, context: &mut Context<'_>) {
        if let Some(look) = self.unlooked.take() {
            let count = look.left();
            self.looking = Some((self.replica.look(look), count));
        }
        let Some((look, count)) = &mut self.looking else { return };
        let Poll::Ready(result) = Pin::new(look).poll(context) else { return };
        match result {
            Ok(mut look) => {
                self.owed_bytes += look.answers.iter().map(Reply::payload_bytes).sum::<usize>();
                self.looked.append(&mut look.answers);
                if look.left() > 0 {
                    self.unlooked = Some(look);
                } else {
                    look.clear();
                    self.spare = look;
                }
            }
            Err(error) => {
                self.owed_bytes += *count * error.as_str().len();
                self.looked.extend(std::iter::repeat_n(Reply::Error(error), *count));
            }
        }
        self.looking = None;
    }

    /// Continues a write that waits for room. Returns whether requests can be taken again.
    pub(super) fn poll_stuck(&mut self, context: &mut Context<'_>) -> bool {
        if !self.is_stuck {
            return false;
        }
        let Some(Owed::Write(last)) = self.owed.back_mut() else {
            unreachable!("nothing is taken behind a stuck write")
        };
        match Pin::new(&mut last.write).poll(context) {
            Poll::Ready(result) => {
                self.is_stuck = false;
                let sent = self.owed.pop_back();
                let answer = self.settled(result, sent);
                self.owe(answer);
            }
            Poll::Pending => self.is_stuck = !last.write.is_accepted(),
        }
        !self.is_stuck
    }

    /// The next answer that the client is owed, once it is known.
    ///
    /// Only the oldest write is waited for: the later ones are delivered after it.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<SessionStep> {
        let Some(first) = self.owed.front_mut() else {
            return if self.is_closing() { Poll::Ready(SessionStep::Close) } else { Poll::Pending };
        };
        let answer = match first {
            Owed::Write(sent) => {
                let result = ready!(Pin::new(&mut sent.write).poll(context));
                if self.owed.len() == 1 {
                    self.is_stuck = false;
                }
                let sent = self.owed.pop_front();
                return Poll::Ready(SessionStep::Answer(self.settled(result, sent)));
            }
            Owed::Look => {
                if self.looked.is_empty() {
                    self.poll_look(context);
                }
                let Some(answer) = self.looked.pop_front() else { return Poll::Pending };
                self.owed_bytes -= answer.payload_bytes();
                answer
            }
            Owed::Watch(watch) => {
                let watched = ready!(Pin::new(watch).poll(context));
                watched.and_then(|watched| self.transaction.watch(watched).map(|()| Reply::OK)).into()
            }
            Owed::Info(info) => ready!(Pin::new(info).poll(context)),
            Owed::Wait(_) => ready!(self.poll_wait(context)),
            Owed::WrongPassword(timer) => {
                ready!(Pin::new(timer).poll(context));
                Reply::Error(WRONG_PASSWORD)
            }
            Owed::Answer(_) => {
                let Some(Owed::Answer(answer)) = self.owed.pop_front() else { unreachable!("it was just seen") };
                self.owed_bytes -= answer.payload_bytes();
                return Poll::Ready(SessionStep::Answer(answer));
            }
        };
        self.owed.pop_front();
        Poll::Ready(SessionStep::Answer(answer))
    }

    /// The answer to a write whose result is known.
    fn settled(&mut self, result: Result<Reply, Error>, owed: Option<Owed<R>>) -> Reply {
        let Some(Owed::Write(sent)) = owed else { unreachable!("only a write comes back") };
        self.writes -= 1;
        self.write_bytes -= sent.bytes;
        let reply = Reply::from(result);
        let Some(Executing { locals, lines, line_bytes }) = sent.exec else { return reply };
        self.owed_bytes -= line_bytes;
        self.show_executed(lines, &reply);
        locals.join(reply, |request| self.answer_queued(request))
    }
}
