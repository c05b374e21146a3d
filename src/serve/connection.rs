//! One client's connection: a thread reads what it says, another writes what it is told.
//!
//! Two, since streams block (see [`control`](crate::control)), and since a request that waits for room must not keep back the
//! answers to those before it.

use std::{
    io::{self, BufReader, BufWriter, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use squall_fabric::Time;

use super::{
    backend::Query,
    outbox::Outbox,
    server::{Server, Station},
    wire::{self, Members, ToClient, ToNode, VERSION},
};
use crate::{
    control::{ControlStream, StreamWriter, frame::FrameError},
    error::SubmitError,
    session::{Opening, SessionId, Trailer},
};

/// A client may have so many queries waiting for answers; it is told at once of more.
const MAX_QUERIES: usize = 1024;

/// Before a client has said which group it wants it can't say more than this, in bytes.
const HELLO_BYTES: usize = 0;

/// A client that reads nothing for so long is given up.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// Serves a client, until its connection ends.
pub(super) fn converse(server: &Server, stream: ControlStream, outbox: &Arc<Outbox>) -> io::Result<()> {
    let ControlStream { reader, writer, .. } = stream;
    writer.set_timeout(Some(WRITE_LIMIT))?;
    let hang_up = writer.hang_up()?;
    outbox.set_stream(hang_up.clone());
    let of_writer = Arc::clone(outbox);
    thread::Builder::new().name("squall-served".to_owned()).spawn(move || {
        if let Err(error) = write(writer, &of_writer) {
            tracing::debug!(%error, "a client does not listen");
        }
        of_writer.close();
        hang_up.now();
    })?;
    let mut attached = None;
    if let Err(error) = listen(server, &mut BufReader::new(reader), outbox, &mut attached) {
        tracing::debug!(%error, "a client's connection ended");
    }
    if let Some((station, key)) = attached {
        station.clients.detach(key, outbox);
    }
    outbox.close();
    Ok(())
}

/// Writes until the outbox is closed and empty.
fn write(to: StreamWriter, outbox: &Outbox) -> Result<(), FrameError> {
    let mut to = BufWriter::new(to);
    while let Some(messages) = outbox.take() {
        messages.iter().try_for_each(|message| wire::write(&mut to, message))?;
        to.flush()?;
    }
    Ok(())
}

fn listen<'a>(
    server: &'a Server,
    from: &mut impl io::Read,
    outbox: &Arc<Outbox>,
    attached: &mut Option<(&'a Station, u64)>,
) -> Result<(), FrameError> {
    let ToNode::Hello { version, group } = wire::read(from, HELLO_BYTES)? else {
        return Err(FrameError::Malformed("the first message is no hello".to_owned()));
    };
    let other = format!("clients speak version {VERSION} here, not {version}: run one version of squall everywhere");
    let unknown = format!("this node serves no group {group:?}: declare it with `NodeBuilder::serve`");
    let station = match server.station(&group) {
        _ if version != VERSION => Err(other),
        None => Err(unknown),
        Some(station) => Ok(station),
    };
    let station = match station {
        Ok(station) => station,
        Err(why) => {
            outbox.push(ToClient::Away { why, members: Members::default() });
            return Ok(());
        }
    };
    if !station.welcome(outbox) {
        return Ok(());
    }
    loop {
        // Held until the group has taken it.
        let reserve = |bytes| server.budget.reserve(bytes, outbox);
        let Some((message, share)) = wire::read_within(from, station.options.request_bytes, reserve)? else {
            return Ok(());
        };
        outbox.hear(Time::boot_clock());
        let mut attach = |key| {
            if let Some((_, before)) = attached.replace((station, key)).filter(|&(_, before)| before != key) {
                station.clients.detach(before, outbox);
            }
            station.clients.attach(key, outbox);
        };
        let sent = match message {
            ToNode::Hello { .. } => return Err(FrameError::Malformed("a second hello".to_owned())),
            ToNode::Open { key } => {
                attach(key);
                let options = &station.options;
                let (sessions, window, reply_bytes) = (options.max_sessions, options.window, options.reply_bytes);
                station.backend.send(&[], Trailer::Open(Opening { key, sessions, window, reply_bytes }))
            }
            ToNode::Resume { session: SessionId { key, .. } } => {
                attach(key);
                Ok(())
            }
            ToNode::Request { session, number, acknowledged, command } => {
                match station.backend.send(&command, Trailer::Request { session, number, acknowledged }) {
                    Err(error @ SubmitError::TooLarge { .. }) => {
                        outbox.push(ToClient::Rejected { number, why: error.to_string() });
                        Ok(())
                    }
                    sent => sent,
                }
            }
            ToNode::Touch { session, acknowledged } => {
                station.backend.send(&[], Trailer::Touch { session, acknowledged })
            }
            ToNode::Close { session } => station.backend.send(&[], Trailer::Close(session)),
            ToNode::Query { number, freshness, query } => {
                if outbox.ask(MAX_QUERIES) {
                    station.backend.query(Query { number, freshness, query, outbox: Arc::clone(outbox), share });
                } else {
                    let why =
                        format!("{MAX_QUERIES} queries of this client wait for answers already: ask fewer at once");
                    outbox.push(ToClient::Told { number, answer: Err(why) });
                }
                Ok(())
            }
            ToNode::Ping => {
                outbox.push(ToClient::Pong);
                Ok(())
            }
        };
        // Whatever keeps this member from sending may not keep another.
        if let Err(error) = sent {
            outbox.push(ToClient::Away { why: error.to_string(), members: station.members() });
            return Ok(());
        }
    }
}
