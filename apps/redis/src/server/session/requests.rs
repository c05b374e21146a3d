//! The requests that concern the session itself.

use super::{Executing, LARGE_BYTES, Owed, Replica, Sent, ServerReport, Session};
use crate::{
    Error, Reply,
    command::{self, CommandFn, Spec},
    encode::Protocol,
    error::excerpt,
    number::integer,
    server::{
        VERSION,
        clients::valid_name,
        subscriptions::{CutOff, TopicKind},
        transaction::Exec,
    },
    words,
};

/// Whether a request takes effect even in an open transaction, instead of being queued.
pub(super) fn is_done_in_transaction(spec: &Spec) -> bool {
    matches!(spec.run, CommandFn::Local)
        && matches!(spec.name, "exec" | "discard" | "multi" | "watch" | "quit" | "reset")
}

/// Whether a client may ask this in RESP2 while it listens to channels.
pub(super) fn is_for_listeners(spec: &Spec) -> bool {
    matches!(spec.name, "subscribe" | "unsubscribe" | "psubscribe" | "punsubscribe" | "ping" | "quit" | "reset")
}

/// Whether this is a line of an HTTP request. The lines behind it are no requests.
pub(super) fn is_of_a_browser(words: &[&[u8]]) -> bool {
    words.first().is_some_and(|name| name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:"))
}

/// Whether a request waits until all earlier ones were answered.
pub(super) fn waits(spec: &Spec) -> bool {
    matches!(spec.name, "watch" | "wait" | "reset") || spec.flags.is_no_multi
}

/// Whether this is answered by a [`ServerReport`] on the replica.
fn report(spec: &Spec, words: &[&[u8]]) -> Option<ServerReport> {
    match spec.name {
        "info" => {
            let sections = words[1..].iter().map(|word| String::from_utf8_lossy(word).to_ascii_lowercase());
            Some(ServerReport::Info(sections.collect()))
        }
        "memory" if words.len() == 2 && words[1].eq_ignore_ascii_case(b"stats") => Some(ServerReport::Memory),
        _ => None,
    }
}

impl<R: Replica> Session<R> {
    /// Queues a request in the open transaction.
    pub(super) fn queue(&mut self, spec: &'static Spec, request: &mut Vec<u8>) {
        if spec.flags.is_no_multi {
            return self.refuse(Error::fixed("ERR Command not allowed inside a transaction"));
        }
        let answer = self.transaction.queue(request, spec).map(|()| Reply::status("QUEUED"));
        self.owe(answer.into());
    }

    /// The server's own answer to a request that was queued.
    pub(super) fn answer_queued(&self, request: &[u8]) -> Reply {
        let words = words::split(request).expect("the request was made of words");
        match command::check(&words) {
            // As in Redis: the transaction is over before it would have an effect.
            Ok(spec) if spec.name == "unwatch" => Reply::OK,
            Ok(spec) if spec.name == "wait" => self.wait(&words).into(),
            Ok(spec) => self.replica.local(&self.client, spec, &words),
            Err(error) => Reply::Error(error),
        }
    }

    pub(super) fn take_local(&mut self, spec: &'static Spec, words: &[&[u8]]) {
        if let Some(report) = report(spec, words) {
            return self.owed.push_back(Owed::Info(self.replica.info(report)));
        }
        let answer = match spec.name {
            "ping" if self.protocol == Protocol::Resp2 && !self.subscriptions.is_empty() => {
                let text = words.get(1).copied().unwrap_or_default();
                Reply::array_of_bytes([b"pong", text])
            }
            "multi" => self.transaction.open().map(|()| Reply::OK).into(),
            "discard" => self.transaction.discard().map(|()| Reply::OK).into(),
            "exec" => match self.exec() {
                Ok(()) => return,
                Err(error) => Reply::Error(error),
            },
            "watch" if self.transaction.is_open() => {
                Reply::Error(Error::fixed("ERR WATCH inside MULTI is not allowed"))
            }
            "watch" => {
                let keys = words[1..].iter().map(|key| key.to_vec()).collect();
                let clock_ms = self.clock_ms();
                return self.owed.push_back(Owed::Watch(self.replica.watch(keys, clock_ms)));
            }
            "unwatch" => {
                self.transaction.unwatch();
                Reply::OK
            }
            "wait" => self.wait(words).into(),
            "monitor" => {
                self.subscriptions.monitor();
                self.client.details().is_monitor = true;
                Reply::OK
            }
            "shutdown" => match self.operations.shutdown.ask(words) {
                Ok(()) => return self.end(None),
                Err(error) => Reply::Error(error),
            },
            "auth" => self.auth(words).map(|()| Reply::OK).into(),
            "hello" => self.hello(words).into(),
            "reset" => self.reset(),
            "quit" => return self.end(Some(Reply::OK)),
            "subscribe" => return self.subscribe(TopicKind::Channel, &words[1..]),
            "psubscribe" => return self.subscribe(TopicKind::Pattern, &words[1..]),
            "unsubscribe" => return self.unsubscribe(TopicKind::Channel, &words[1..]),
            "punsubscribe" => return self.unsubscribe(TopicKind::Pattern, &words[1..]),
            "client" => {
                // It may ask for what others see of it.
                self.note();
                self.replica.local(&self.client, spec, words)
            }
            _ => self.replica.local(&self.client, spec, words),
        };
        match self.authentication.held.take() {
            Some(timer) => self.owed.push_back(Owed::WrongPassword(timer)),
            None => self.owe(answer),
        }
    }

    fn exec(&mut self) -> Result<(), Error> {
        let mut lines = self.queued_lines();
        self.pending.push_transaction(self.transaction.take_specs());
        let now_ms = self.clock_ms();
        match self.transaction.exec(now_ms, self.replica.answered_by())? {
            Exec::Command { command, bytes, locals } => {
                let write = match bytes {
                    ..=LARGE_BYTES => self.replica.write(&command),
                    _ => self.replica.write_large(command),
                };
                lines.extend(self.pending.take_line());
                let line_bytes =
                    lines.iter().map(|line| size_of_val(line) + line.as_ref().map_or(0, String::capacity)).sum();
                self.owe_write(Sent { write, bytes, exec: Some(Executing { locals, lines, line_bytes }) });
            }
            Exec::Locals(locals) => {
                lines.into_iter().for_each(|line| self.subscriptions.hub().show(line));
                // Its own requests see it without the transaction.
                self.note();
                let answer = locals.join(Reply::Array(Vec::new()), |request| self.answer_queued(request));
                self.owe(answer);
            }
        }
        Ok(())
    }

    /// Answers `WAIT`. An answered write is at every member, so there is nothing to wait for.
    fn wait(&self, words: &[&[u8]]) -> Result<Reply, Error> {
        integer(words[1]).ok_or(Error::NOT_AN_INTEGER)?;
        let timeout = integer(words[2]).ok_or(Error::fixed("ERR timeout is not an integer or out of range"))?;
        if timeout < 0 {
            return Err(Error::fixed("ERR timeout is negative"));
        }
        Ok(Reply::count(self.replica.others()))
    }

    fn hello(&mut self, words: &[&[u8]]) -> Result<Reply, Error> {
        let protocol = match words.get(1) {
            None => self.protocol,
            Some(version) => match integer(version) {
                None => return Err(Error::fixed("ERR Protocol version is not an integer or out of range")),
                Some(2) => Protocol::Resp2,
                Some(3) => Protocol::Resp3,
                Some(_) => return Err(Error::fixed("NOPROTO unsupported protocol version")),
            },
        };
        let (mut name, mut said) = (None, None);
        let mut options = words.get(2..).unwrap_or_default();
        while let Some((option, rest)) = options.split_first() {
            options = match (&*option.to_ascii_lowercase(), rest) {
                (b"auth", [user, password, rest @ ..]) => {
                    said = Some((*user, *password));
                    rest
                }
                (b"setname", [word, rest @ ..]) => {
                    name = Some(valid_name(word)?);
                    rest
                }
                _ => return Err(Error::new(format!("ERR Syntax error in HELLO option '{}'", excerpt(option)))),
            };
        }
        if let Some((user, password)) = said {
            self.admit(user, password)?;
        }
        if !self.is_trusted {
            return Err(Error::fixed(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
                 same time",
            ));
        }
        self.protocol = protocol;
        let mut details = self.client.details();
        details.protocol = protocol;
        if let Some(name) = name {
            details.name = name;
        }
        let pairs = [
            ("server", Reply::bytes("redis")),
            ("version", Reply::bytes(VERSION)),
            ("proto", Reply::Integer(if protocol == Protocol::Resp3 { 3 } else { 2 })),
            ("id", Reply::Integer(self.client.id as i64)),
            ("mode", Reply::bytes("standalone")),
            ("role", Reply::bytes("master")),
            ("modules", Reply::Array(Vec::new())),
        ];
        Ok(Reply::Map(pairs.map(|(key, value)| (Reply::bytes(key), value)).into()))
    }

    fn reset(&mut self) -> Reply {
        // There may be no transaction.
        let _ = self.transaction.discard();
        self.transaction.unwatch();
        self.subscriptions.clear();
        self.protocol = Protocol::Resp2;
        self.is_trusted = !self.replica.wants_password();
        *self.client.details() = Default::default();
        Reply::status("RESET")
    }

    fn subscribe(&mut self, kind: TopicKind, topics: &[&[u8]]) {
        match self.replica.has_no_messages() {
            // No message would ever arrive.
            Some(error) => self.owe(Reply::Error(error)),
            None => topics.iter().for_each(|topic| {
                let said = self.subscriptions.subscribe(kind, topic);
                self.owe(said.into());
            }),
        }
        self.count_subscriptions();
    }

    fn unsubscribe(&mut self, kind: TopicKind, topics: &[&[u8]]) {
        let mut said = Vec::new();
        match self.subscriptions.unsubscribe(kind, topics, &mut said) {
            Ok(()) => said.into_iter().for_each(|said| self.owe(said)),
            // Messages were lost, which the client must learn.
            Err(CutOff) => self.end(None),
        }
        self.count_subscriptions();
    }

    fn count_subscriptions(&self) {
        let mut details = self.client.details();
        (details.channels, details.patterns) = (self.subscriptions.channels(), self.subscriptions.patterns());
    }
}
