//! The reports that a device gives unasked: that it failed, that a queue failed, or that its port changed.
//!
//! The thread that polls takes them. A device that fails takes all endpoints with it, a queue those on it. After a
//! change of the port, new endpoints take its present address at once. Endpoints that exist are looked at a little
//! later: a port that is down by then, or has lost their address, ends them. They outlive a short interruption, since
//! devices send lost packets again.

use std::{io, mem::MaybeUninit, os::fd::BorrowedFd};

use rdma_sys::{ibv_ack_async_event, ibv_async_event, ibv_event_type as event, ibv_get_async_event};
use rustix::{
    event::epoll,
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
};

use super::{
    address::PortAddress,
    device::Context,
    endpoint::{Ending, Endpoint},
    fabric::VerbsFabric,
};
use crate::{BreakReason, EndpointId, Time};

/// A report of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceReport {
    /// The device can't be used any more.
    DeviceFailed,
    /// Something about a port is other than before.
    PortChanged { port: u8 },
    /// A completion queue, by its address, lost completions.
    CqFailed { address: usize },
    /// A queue pair of that number failed by itself.
    QpFailed { number: u32 },
    /// A queue pair refused a request of its peer, or could not carry it out.
    QpRefused { number: u32 },
    /// Nothing that concerns an endpoint.
    Other,
}

/// The classes of reports, by what they concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Device,
    Port,
    Cq,
    QpFailure,
    QpRefusal,
    Other,
}

/// The class of a report's number.
fn classify(number: u32) -> Class {
    let is_one_of = |kinds: &[event]| kinds.iter().any(|kind| *kind as u32 == number);
    if is_one_of(&[event::IBV_EVENT_DEVICE_FATAL]) {
        Class::Device
    } else if is_one_of(&[
        event::IBV_EVENT_PORT_ACTIVE,
        event::IBV_EVENT_PORT_ERR,
        event::IBV_EVENT_LID_CHANGE,
        event::IBV_EVENT_PKEY_CHANGE,
        event::IBV_EVENT_GID_CHANGE,
        event::IBV_EVENT_SM_CHANGE,
        event::IBV_EVENT_CLIENT_REREGISTER,
    ]) {
        Class::Port
    } else if is_one_of(&[event::IBV_EVENT_CQ_ERR]) {
        Class::Cq
    } else if is_one_of(&[event::IBV_EVENT_QP_FATAL, event::IBV_EVENT_PATH_MIG_ERR]) {
        Class::QpFailure
    } else if is_one_of(&[event::IBV_EVENT_QP_REQ_ERR, event::IBV_EVENT_QP_ACCESS_ERR]) {
        Class::QpRefusal
    } else {
        // Of shared receive queues and of states of a queue pair that the control plane reports better.
        Class::Other
    }
}

impl Context {
    /// A descriptor that is readable when there are reports.
    pub(super) fn reports(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and with it the descriptor.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    /// Has [`next_report`](Context::next_report) return at once.
    pub(super) fn do_not_block(&self) -> io::Result<()> {
        let flags = fcntl_getfl(self.reports())?;
        Ok(fcntl_setfl(self.reports(), flags | OFlags::NONBLOCK)?)
    }

    /// Takes the next report. Each is acknowledged at once: to destroy what one concerns waits for that.
    pub(super) fn next_report(&self) -> io::Result<Option<DeviceReport>> {
        let mut taken = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and there is room for a report.
        if unsafe { ibv_get_async_event(self.raw(), taken.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            let nothing = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if nothing { Ok(None) } else { Err(error) };
        }
        let taken = taken.as_mut_ptr();
        // SAFETY: the report was filled in. Its kind is read as a number, since later systems may have more kinds. Its
        // class says which field is set; objects that it names can't be destroyed before it is acknowledged, which is
        // done once.
        unsafe {
            let element = &(*taken).element;
            let report = match classify((&raw const (*taken).event_type).cast::<u32>().read()) {
                Class::Device => DeviceReport::DeviceFailed,
                Class::Port => DeviceReport::PortChanged { port: element.port_num as u8 },
                Class::Cq => DeviceReport::CqFailed { address: element.cq.addr() },
                Class::QpFailure => DeviceReport::QpFailed { number: (*element.qp).qp_num },
                Class::QpRefusal => DeviceReport::QpRefused { number: (*element.qp).qp_num },
                Class::Other => DeviceReport::Other,
            };
            ibv_ack_async_event(taken);
            Ok(Some(report))
        }
    }
}

impl VerbsFabric {
    /// Takes in the device's reports.
    #[cold]
    pub(super) fn take_reports(&mut self, now: Time) {
        loop {
            match self.attachment.context().next_report() {
                Ok(Some(report)) => self.on_report(report, now),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, device = self.device(), "a device's reports could not be read");
                    // They would end each sleep at once.
                    let _ = epoll::delete(&self.signal, self.attachment.context().reports());
                    self.core.reports_due = Time::MAX;
                    return self.on_report(DeviceReport::DeviceFailed, now);
                }
            }
        }
    }

    pub(super) fn on_report(&mut self, report: DeviceReport, now: Time) {
        let device = self.attachment.device().to_owned();
        tracing::debug!(device, ?report, "the device reports");
        let failed = |what: &str| BreakReason::Failed(format!("the RDMA device {device} of {} {what}", self.node));
        match report {
            DeviceReport::DeviceFailed => {
                let reason = failed("failed; see `dmesg`, and start the node again once the device is back");
                tracing::error!(device, "the RDMA device failed");
                self.core.dead = Some(reason.clone());
                self.fail_all(|_| Some(reason.clone()));
            }
            DeviceReport::CqFailed { address } => {
                let reason = failed("lost completions");
                let lost = self.completions.retire(address);
                self.fail_all(|endpoint| (Some(endpoint.cq) == lost).then(|| reason.clone()));
            }
            DeviceReport::QpFailed { number } => {
                let reason = failed("reported that the endpoint's queue pair failed");
                self.fail_all(|endpoint| (endpoint.qp.number() == number).then(|| reason.clone()));
            }
            DeviceReport::QpRefused { number } => {
                // The peer knows better what it asked for.
                let suspected = Ending::Suspected(BreakReason::Access, now + self.core.failure_timeout / 4);
                let of_it = |endpoint: &&mut Endpoint| endpoint.qp.number() == number && endpoint.ending.is_none();
                if let Some(endpoint) = self.endpoints.all_mut().find(of_it) {
                    // A bell's rings are to be told by other means at once.
                    let known = endpoint.is_bell().then_some(Ending::Known(BreakReason::Access));
                    endpoint.ending = Some(known.unwrap_or(suspected));
                    self.core.has_endings = true;
                }
            }
            DeviceReport::PortChanged { port } if port == self.attachment.port => {
                if let Err(error) = self.attachment.refresh() {
                    tracing::warn!(%error, device, port, "the port changed, and new connections can't use it yet");
                }
                self.core.look_at_port.get_or_insert(now + self.core.failure_timeout / 4);
                self.core.has_endings = true;
            }
            DeviceReport::PortChanged { .. } | DeviceReport::Other => {}
        }
    }

    /// Ends the endpoints that the port does not serve any more, once it is time to.
    pub(super) fn look_at_port(&mut self, now: Time) {
        if self.core.look_at_port.is_none_or(|at| now < at) {
            return;
        }
        self.core.look_at_port = None;
        let (node, device, port) = (self.node, self.attachment.device().to_owned(), self.attachment.port);
        let lost = |what: &str| BreakReason::Lost(format!("port {port} of the RDMA device {device} of {node} {what}"));
        let attachment = &self.attachment;
        let is_up = attachment.is_up();
        let reason = |address: &PortAddress| match is_up {
            false => Some(lost("is down")),
            true => (!attachment.has(address)).then(|| lost("has another address than before")),
        };
        let ends: Vec<(EndpointId, BreakReason)> =
            self.endpoints.all().filter_map(|endpoint| Some((endpoint.id, reason(&endpoint.address)?))).collect();
        for (id, reason) in ends {
            if let Some(endpoint) = self.endpoints.get_mut(id) {
                endpoint.fail(&mut self.core, reason);
            }
        }
    }

    fn fail_all(&mut self, reason: impl Fn(&Endpoint) -> Option<BreakReason>) {
        for endpoint in self.endpoints.all_mut() {
            if let Some(reason) = reason(endpoint) {
                endpoint.fail(&mut self.core, reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_told_apart_by_what_they_concern() {
        for (kinds, class) in [
            (&[event::IBV_EVENT_DEVICE_FATAL][..], Class::Device),
            (&[event::IBV_EVENT_PORT_ERR, event::IBV_EVENT_GID_CHANGE, event::IBV_EVENT_PKEY_CHANGE], Class::Port),
            (&[event::IBV_EVENT_CQ_ERR], Class::Cq),
            (&[event::IBV_EVENT_QP_FATAL], Class::QpFailure),
            (&[event::IBV_EVENT_QP_ACCESS_ERR], Class::QpRefusal),
            (&[event::IBV_EVENT_COMM_EST, event::IBV_EVENT_SRQ_ERR, event::IBV_EVENT_WQ_FATAL], Class::Other),
        ] {
            kinds.iter().for_each(|kind| assert_eq!(classify(*kind as u32), class, "{}", *kind as u32));
        }
        assert_eq!(classify(u32::MAX), Class::Other, "a kind of a later system");
    }
}
