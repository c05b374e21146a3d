//! The simulated order of messages, and the simulated traffic.

/// The part of a switch that aggregates barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switches {
    /// The programmable chip (§6.2.1): every packet's barrier is read and replaced on its way through.
    Chip,
    /// A representative on a host (§6.2.3): beacons alone carry barriers, and each takes a detour at each switch.
    Representative,
}

/// The protocol by which messages get into one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderProtocol {
    /// 1Pipe. Best effort and reliable delivery of the same messages are both measured; `reliable` says whether
    /// processes pay for the prepare phase.
    OnePipe {
        /// The part of a switch that aggregates barriers.
        switches: Switches,
        /// Whether processes handle acknowledgements for each message.
        reliable: bool,
    },
    /// A switch that numbers all messages, which go through it.
    SwitchSequencer,
    /// A server of its own that numbers all messages, which go through its interface.
    HostSequencer,
    /// A token: only the process that has it sends, and hands it on after one scattering.
    Token,
    /// Lamport's timestamps. Each process tells all others its clock at intervals, and not with each message (§7.2).
    Lamport {
        /// The part of a process's time that goes into the exchange, in percent.
        exchange_percent: u64,
    },
}

/// The messages that processes send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Traffic {
    /// A load in which each process sends to all processes, itself among them, with flow control.
    Broadcast {
        /// The part of its rate that each tries to use, in percent.
        load_percent: u64,
    },
    /// A load in which each process sends scatterings at random times, without flow control.
    Scattered {
        /// The receivers.
        to: Destinations,
        /// The mean time from one scattering to the next, in nanoseconds.
        mean_gap_ns: u64,
    },
}

/// The receivers of one scattering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destinations {
    /// A number of processes of a random host, or all that it has.
    OneHost(usize),
    /// Every process.
    All,
}
