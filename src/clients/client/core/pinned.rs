//! A client's connection to one chosen member, beside the one over which its commands go.
//!
//! It has no session of its own. It listens to the answers that its member gives in the session of the client's
//! commands, it asks the member's replica, and it measures the way there. Without calls it ends after a while.

use std::time::Duration;

use squall_fabric::Time;
use squall_services::DialTarget;

use super::{Ask, CallId, ClientCore, ClientEffect, ClientError, ConnectionState};
use crate::{
    calls::session::SessionId,
    clients::{contacts::Contacts, wire::ToNode},
};

/// The time without a call after which the connection ends.
const IDLE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Pinned {
    /// The session to whose answers it listens, on the present connection, and the number from which on.
    listens: Option<(SessionId, u64)>,
    /// The time of the ping that is not answered yet.
    pinged: Option<Time>,
    /// The time at which there was last a call.
    used: Time,
}

impl ClientCore {
    /// Makes the part of a client that talks to this member alone.
    pub(crate) fn pinned(group: String, member: DialTarget, random: fastrand::Rng) -> ClientCore {
        let contacts = Contacts::new(vec![member], 0).only_first();
        ClientCore { pinned: Some(Pinned::default()), ..ClientCore::new(group, contacts, random) }
    }

    /// Does on an established connection what calls to its member need.
    pub(super) fn go_on_pinned(&mut self, now: Time, out: &mut Vec<ClientEffect>) {
        let Some(pinned) = &mut self.pinned else { return };
        let answers = self.calls.values().filter_map(|call| match call.ask {
            Ask::Answer(session, number) => Some((session, number)),
            _ => None,
        });
        // One message covers all later requests of a session. Calls of an earlier session end with that.
        let newest = answers.clone().map(|(session, _)| session).max();
        if let Some(session) = newest.filter(|&newest| pinned.listens.is_none_or(|(session, _)| session != newest)) {
            let first = answers.filter(|(of, _)| *of == session).map(|(_, number)| number).min().unwrap_or_default();
            pinned.listens = Some((session, first));
            out.push(ClientEffect::Send(ToNode::Listen { session, first }));
        }
        if pinned.pinged.is_none() && self.calls.values().any(|call| matches!(call.ask, Ask::Probe)) {
            pinned.pinged = Some(now);
            out.push(ClientEffect::Send(ToNode::Ping));
        }
    }

    /// Takes what the member says of a request in the session to which this listens.
    pub(super) fn answered_here(
        &mut self,
        number: u64,
        result: Result<Vec<u8>, ClientError>,
        out: &mut Vec<ClientEffect>,
    ) {
        let Some((session, _)) = self.listens() else { return };
        self.contacts.succeed();
        let of = |ask: &Ask| matches!(ask, Ask::Answer(of, asked) if (*of, *asked) == (session, number));
        self.resolve_those(of, &result, out);
    }

    /// Handles the refusal to let this listen from `number` on, since the session has ended.
    pub(super) fn lose_session_here(&mut self, number: u64, out: &mut Vec<ClientEffect>) {
        // One that comes late is of an earlier session.
        let Some((session, _)) = self.listens().filter(|(_, first)| *first == number) else { return };
        let of = |ask: &Ask| matches!(ask, Ask::Answer(of, _) if *of == session);
        self.resolve_those(of, &Err(ClientError::SessionEnded), out);
    }

    /// Handles a pong.
    pub(super) fn ponged(&mut self, now: Time, out: &mut Vec<ClientEffect>) {
        let Some(pinged) = self.pinned.as_mut().and_then(|pinned| pinned.pinged.take()) else { return };
        self.contacts.succeed();
        let way = now.since(pinged).as_nanos() as u64;
        self.resolve_those(|ask| matches!(ask, Ask::Probe), &Ok(way.to_le_bytes().to_vec()), out);
    }

    /// Handles the end of a connection. Calls that another member may take do not wait for the next one.
    pub(super) fn cut_off(&mut self, out: &mut Vec<ClientEffect>) {
        let Some(pinned) = &mut self.pinned else { return };
        (pinned.listens, pinned.pinged) = (None, None);
        let error = Err(ClientError::Gone(self.trouble.clone()));
        self.resolve_those(|ask| matches!(ask, Ask::TryQuery(..) | Ask::Probe), &error, out);
    }

    /// Ends the connection if there was no call for long. Returns whether it has ended.
    pub(super) fn rest(&mut self, now: Time, out: &mut Vec<ClientEffect>) -> bool {
        if !self.calls.is_empty()
            && let Some(pinned) = &mut self.pinned
        {
            pinned.used = now;
        }
        let is_over = self.rests_at().is_some_and(|at| at <= now);
        if is_over {
            out.push(ClientEffect::HangUp);
            self.link = ConnectionState::Down(now);
            self.cut_off(out);
        }
        is_over
    }

    /// Returns the time at which the connection ends, if there is no call until then.
    pub(super) fn rests_at(&self) -> Option<Time> {
        self.pinned.as_ref().filter(|_| self.calls.is_empty()).map(|pinned| pinned.used + IDLE)
    }

    fn listens(&self) -> Option<(SessionId, u64)> {
        self.pinned.as_ref().and_then(|pinned| pinned.listens)
    }

    fn resolve_those(
        &mut self,
        of: impl Fn(&Ask) -> bool,
        result: &Result<Vec<u8>, ClientError>,
        out: &mut Vec<ClientEffect>,
    ) {
        let those: Vec<CallId> = self.calls.iter().filter(|(_, call)| of(&call.ask)).map(|(&id, _)| id).collect();
        those.into_iter().for_each(|id| self.resolve(id, result.clone(), out));
    }
}
