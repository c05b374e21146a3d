//! Messages that a client is sent without asking for each: those of channels, and those of `MONITOR`.

use std::sync::Arc;

use crate::{
    Reply,
    encode::{Protocol, encode, encode_message},
};

/// The most bytes that wait for one client (Redis' `client-output-buffer-limit pubsub`).
pub(super) const MAX_MAIL_BYTES: usize = 32 << 20;

/// The bytes that a message takes besides its words.
const OVERHEAD: usize = 96;

/// One message for one client.
#[derive(Debug)]
pub(super) enum Mail {
    Message {
        /// The pattern, if the subscription is one of a pattern.
        pattern: Option<Arc<[u8]>>,
        published: Arc<Published>,
    },
    /// A request, as monitors are shown it.
    Request(Arc<str>),
}

/// A message of a channel.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) channel: Box<[u8]>,
    pub(super) text: Box<[u8]>,
}

impl Mail {
    /// The bytes that it takes while it waits.
    pub(super) fn bytes(&self) -> usize {
        let own = match self {
            Mail::Message { pattern, published } => {
                let Published { channel, text } = &**published;
                pattern.as_ref().map_or(0, |pattern| pattern.len()) + channel.len() + text.len()
            }
            Mail::Request(line) => line.len(),
        };
        own + OVERHEAD
    }

    /// Appends it to a connection's output.
    pub(super) fn encode(self, protocol: Protocol, out: &mut Vec<u8>) {
        match self {
            Mail::Message { pattern, published } => {
                encode_message(pattern.as_deref(), &published.channel, &published.text, protocol, out);
            }
            Mail::Request(_) => encode(&self.into_reply(), protocol, out),
        }
    }

    /// The same as an answer.
    pub(super) fn into_reply(self) -> Reply {
        let (pattern, published) = match self {
            Mail::Message { pattern, published } => (pattern, published),
            Mail::Request(line) => return Reply::Status(line.to_string().into()),
        };
        let (channel, text) = (Reply::bytes(&published.channel), Reply::bytes(&published.text));
        Reply::Push(match pattern {
            None => vec![Reply::bytes("message"), channel, text],
            Some(pattern) => vec![Reply::bytes("pmessage"), Reply::bytes(pattern), channel, text],
        })
    }
}
