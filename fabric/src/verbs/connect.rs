//! Making an endpoint, and its meeting with its counterpart.

use std::{io, sync::Arc, time::Duration};

use rustix::io::Errno;

use super::{
    attachment::Attachment,
    bell::{self, BELL},
    endpoint::{ConnectionStage, Endpoint, READY, WAKE},
    fabric::{Core, VerbsFabric},
    memory, post,
    queue::{Cq, Path, Qp, Room},
    sending::Sending,
    setup::{Exposed, MAX_EXPOSED, SetUp},
    watch::{Announcement, Watch},
    window::MAX_WINDOW,
};
use crate::{
    BreakReason, Completion, EndpointId, GroupTag, HELLO_BYTES, NodeId, Region, RegionKind,
    endpoints::slot_of,
    net::{Command, Connect, Event},
    random,
    recvs::RecvQueue,
};

impl VerbsFabric {
    /// Makes this side's part of a connection.
    pub(super) fn new_endpoint(
        &mut self,
        id: EndpointId,
        peer: NodeId,
        tag: GroupTag,
        expose: &[Region],
        hello: &[u8],
    ) -> Result<Endpoint, BreakReason> {
        self.core.dead.clone().map_or(Ok(()), Err)?;
        self.endpoints.check(self.node, peer, tag)?;
        check_exposed(expose).map_err(BreakReason::Failed)?;
        let refused = |what: &'static str| {
            move |error: io::Error| BreakReason::Failed(format!("{what}: {error}{}", memory::hint(&error)))
        };
        let core = &mut self.core;
        let psn = random::number().map_err(|cause| refused("no random number could be drawn")(cause.into()))?;
        let psn = psn as u32 & 0x00ff_ffff;
        let room = if tag == BELL { bell::ROOM } else { self.room };
        let entries = room.entries();
        let (cq, queue) =
            self.completions.reserve(entries).map_err(refused("a completion queue could not be created"))?;
        let made = new_queue_pair(&self.attachment, &queue, room)
            .map_err(refused("a queue pair could not be created"))
            .and_then(|mut qp| {
                let exposed = expose_all(&mut qp, core, expose)
                    .and_then(|regions| Ok((regions, expose_watch(&mut qp, core, tag)?)))
                    .map_err(refused("a region could not be exposed"))?;
                Ok((qp, exposed))
            });
        let (qp, (regions, (watch, (watch_addr, watch_key)))) =
            made.inspect_err(|_| self.completions.release(cq, entries))?;
        let address = self.attachment.address;
        let set_up = SetUp {
            mtu: self.attachment.mtu as u8,
            link_layer: self.attachment.link_layer,
            served_reads: self.attachment.served_reads,
            lid: address.lid,
            number: qp.number(),
            psn,
            watch_addr,
            watch_key,
            gid: address.gid,
            slot: slot_of(id),
            hello: hello[..hello.len().min(HELLO_BYTES)].to_vec(),
            regions,
        };
        Ok(Endpoint {
            qp,
            id,
            peer,
            tag,
            cq,
            set_up,
            address,
            exposed: expose.to_vec(),
            recvs: RecvQueue::default(),
            sending: Sending::default(),
            stage: ConnectionStage::New,
            has_told_ready: false,
            watch,
            announcement: Announcement::default(),
            ending: None,
            is_active: false,
        })
    }

    /// Hands new endpoints to the control thread, which lets them meet their counterparts.
    pub(super) fn announce(&mut self) {
        for id in self.endpoints.take_new() {
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            endpoint.stage = ConnectionStage::Waiting;
            let set_up = endpoint.set_up.encode();
            let connect = Connect { endpoint: id, peer: endpoint.peer, tag: endpoint.tag, set_up };
            self.core.commands.push(Command::Connect(connect));
        }
    }

    /// Takes the control thread's events. Returns the endpoints that they say are no more.
    pub(super) fn take_events(&mut self, out: &mut Vec<Completion>) -> Vec<(EndpointId, BreakReason)> {
        let mut ends = Vec::new();
        if !self.events.are_pending() {
            return ends;
        }
        self.events.begin();
        loop {
            match self.events.next() {
                Ok(Some(Event::Paired(paired))) => self.on_paired(paired.endpoint, &paired.set_up),
                Ok(Some(Event::Told { endpoint, bytes, .. })) => {
                    let Some(endpoint) = self.endpoints.get_mut(endpoint) else { continue };
                    // A thread that armed before this must announce anew.
                    self.core.look_again = true;
                    match bytes[..] {
                        [READY] if endpoint.is_bell() => endpoint.connected(&mut self.core, &mut self.of_bells),
                        [READY] => endpoint.connected(&mut self.core, out),
                        [WAKE] => endpoint.on_wake(&mut self.core),
                        _ => tracing::debug!(peer = %endpoint.peer, "told what this release does not know"),
                    }
                }
                Ok(Some(Event::Broken { endpoint, reason })) => ends.push((endpoint, reason)),
                Ok(None) => return ends,
                Err(reason) => {
                    ends.extend(self.endpoints.ids().into_iter().map(|id| (id, reason.clone())));
                    return ends;
                }
            }
        }
    }

    fn on_paired(&mut self, id: EndpointId, set_up: &[u8]) {
        // The endpoint may have been closed meanwhile.
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let attachment = &self.attachment;
        let connected = SetUp::decode(set_up).map_err(|error| error.to_string()).and_then(|theirs| {
            if theirs.link_layer != endpoint.set_up.link_layer {
                return Err("one side's RDMA port is InfiniBand and the other's Ethernet: they can't meet".to_owned());
            }
            let path = Path {
                port: attachment.port,
                gid_index: endpoint.address.gid_index,
                traffic_class: self.traffic_class,
                service_level: self.service_level,
                link_layer: theirs.link_layer,
                mtu: attachment.mtu.min(theirs.mtu.into()),
                number: theirs.number,
                lid: theirs.lid,
                gid: theirs.gid,
                send_psn: endpoint.set_up.psn,
                recv_psn: theirs.psn,
                reads: attachment.reads.min(theirs.served_reads),
                served_reads: attachment.served_reads,
                timeout: self.timeout,
                retries: RETRIES,
                // Elsewhere, a message that finds no receive is a breach (G3), and waiting does not make it better.
                rnr_retries: if endpoint.is_bell() { bell::RNR_RETRIES } else { 0 },
            };
            match endpoint.qp.connect(&path) {
                Ok(()) => Ok(theirs),
                Err(error) => Err(format!(
                    "the queue pair could not be connected: {error} (are both nodes' RDMA addresses on one network?)"
                )),
            }
        });
        match connected {
            Ok(theirs) => {
                endpoint.stage = ConnectionStage::Ready(theirs);
                let Endpoint { qp, id, sending, .. } = endpoint;
                if let Err(error) = sending.bind(qp, *id, &mut self.core) {
                    endpoint.fail(&mut self.core, post::failed(&error));
                }
                endpoint.tell_ready(&mut self.core);
                endpoint.activate(&mut self.core);
                if !endpoint.is_bell() {
                    self.core.bells.met.push(endpoint.peer);
                }
            }
            Err(sentence) => endpoint.fail(&mut self.core, BreakReason::Failed(sentence)),
        }
    }
}

/// Checks what an endpoint is to expose.
fn check_exposed(expose: &[Region]) -> Result<(), String> {
    if expose.len() > MAX_EXPOSED {
        let count = expose.len();
        return Err(format!("an endpoint can't expose {count} regions: at most {MAX_EXPOSED}; put several into one"));
    }
    if expose.iter().any(|region| region.kind() == RegionKind::Phantom) {
        return Err("a phantom region can't be exposed on a real network: register a bulk region".to_owned());
    }
    match expose.iter().map(Region::len).find(|bytes| *bytes > MAX_WINDOW) {
        None => Ok(()),
        Some(bytes) => {
            Err(format!("a region of {bytes} bytes can't be exposed: at most {MAX_WINDOW}; make several of it"))
        }
    }
}

/// Makes windows for the regions that the peer of a queue pair may reach.
fn expose_all(qp: &mut Qp, core: &mut Core, expose: &[Region]) -> io::Result<Vec<Exposed>> {
    let mut regions = Vec::with_capacity(expose.len());
    for region in expose {
        let addr = post::address(region, 0, region.len());
        let key = match region.len() {
            // Nothing can be reached there.
            0 => 0,
            bytes => qp.add_window(core.memories.registration(region)?, addr, bytes, region.kind().peer_access())?,
        };
        regions.push(Exposed { describe: region.describe(), addr, key });
    }
    Ok(regions)
}

/// Makes a watch, of which a bell has none, and a window for it. Returns its address and key as well.
fn expose_watch(qp: &mut Qp, core: &mut Core, tag: GroupTag) -> io::Result<(Option<Watch>, (u64, u32))> {
    if tag == BELL {
        return Ok((None, (0, 0)));
    }
    let watch = core.watches.take(&core.memories)?;
    let place = watch.expose(qp, &mut core.memories)?;
    Ok((Some(watch), place))
}

/// The number of times that a request without acknowledgement is sent again. (7, the most, is without end to rxe.)
const RETRIES: u8 = 6;

/// The exponent of the time that an acknowledgement is waited for, 4.096 µs · 2^this: all tries together take at most
/// three quarters of the failure timeout. (A device may wait up to four times as long. Of peers that are idle, the
/// link's heartbeats tell.)
pub(super) fn ack_timeout(failure_timeout: Duration) -> u8 {
    let all_tries = |exponent: u32| Duration::from_nanos(4096 << exponent) * (1 + u32::from(RETRIES));
    (8..=20).rev().find(|&exponent| all_tries(exponent) <= failure_timeout * 3 / 4).unwrap_or(8) as u8
}

fn new_queue_pair(attachment: &Attachment, cq: &Arc<Cq>, room: Room) -> io::Result<Qp> {
    let mut inline = room.inline;
    let qp = loop {
        match Qp::new(&attachment.pd, cq, Room { inline, ..room }) {
            // A device that can't carry so much refuses, and does not report how much it can.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) && inline > 0 => inline /= 2,
            other => break other?,
        }
    };
    qp.initialize(attachment.port, attachment.address.pkey_index)?;
    Ok(qp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tries_are_over_within_the_failure_timeout() {
        for timeout in [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)] {
            let tries = Duration::from_nanos(4096 << ack_timeout(timeout)) * (1 + u32::from(RETRIES));
            assert!(tries <= timeout * 3 / 4 && tries > timeout * 3 / 8, "{timeout:?}: {tries:?} in all");
        }
    }
}
