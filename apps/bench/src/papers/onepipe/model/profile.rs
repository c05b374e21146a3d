//! The figures of a testbed, on which the model is based.

/// The figures of a simulated testbed: times in nanoseconds, sizes in bytes.
///
/// [`TESTBED`](Profile::TESTBED) is that of the paper's evaluation; each field says where its value there comes from.
/// "Assumed" means that the paper gives no figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Profile {
    /// The time between two beacons of a host: 3 µs (§7.1).
    pub(crate) beacon_ns: u64,
    /// The time from a host to its switch, or back, with that of the host's interface: 0.5 µs, so that a round trip
    /// through one switch takes the 2 µs of §7.2.
    pub(crate) host_hop_ns: u64,
    /// The time from switch to switch: 1 µs, so that a round trip of five hops takes the 10 µs of §7.2.
    pub(crate) switch_hop_ns: u64,
    /// The rate of a link: 100 Gb/s (§7.1).
    pub(crate) bits_per_ns: u64,
    /// The number of such links between two switches: 4, which carry eight hosts through two spines without
    /// oversubscription (§7.1).
    pub(crate) parallel_links: u64,
    /// The size of a message of 64 bytes on the wire. 80 M messages per second and host (§7.2) leave 156 bytes of 100
    /// Gb/s to each, with its acknowledgement and its share of the beacons. An Ethernet frame of its own would be
    /// longer, so messages must share frames. Assumed: 138.
    pub(crate) message_bytes: u64,
    /// The size of one message's acknowledgement, which shares a packet with others. Assumed: 8.
    pub(crate) acknowledgement_bytes: u64,
    /// The size of a beacon on the wire: the shortest Ethernet frame with what is before and after it, 84.
    pub(crate) beacon_bytes: u64,
    /// The time of a process's sending thread, and of its receiving thread, for one message: 200 ns, since a process
    /// with a core for each reaches 5 M messages per second (§7.2).
    pub(crate) message_cpu_ns: u64,
    /// The additional time of each of the two if a message is reliable, for its acknowledgement. Assumed: 67 ns, a
    /// third of a message.
    pub(crate) prepare_cpu_ns: u64,
    /// The time from a switch to its representative, through it, and back: 2 µs (§7.2).
    pub(crate) representative_ns: u64,
    /// The time of a sequencer on a programmable switch for one message. Assumed: 1 ns, one pipeline's clock of about 1
    /// GHz, since one counter lies in one pipeline.
    pub(crate) sequencer_ns: u64,
    /// The number of messages that a process may have under way in experiments with flow control: 2048, a send buffer
    /// of 128 KiB. Assumed.
    pub(crate) window: u64,
    /// The time beyond the longest round trip after which a message that was not acknowledged is sent again. Assumed: 2
    /// µs.
    pub(crate) retransmit_ns: u64,
    /// The scale of clock errors. Clocks are off by plus or minus this, times the power
    /// [`skew_exponent`](Profile::skew_exponent) of an exponentially distributed number.
    pub(crate) skew_ns: f64,
    /// The exponent of clock errors. 1.5 and 137.5 ns make the difference of two clocks 0.3 µs in the mean, and 1.0 µs
    /// at the 95th percentile: §7.1 says so of the "clock skew". That it means the difference of two clocks, and not of
    /// each from the true time, is assumed.
    pub(crate) skew_exponent: f64,
    /// The number of silent beacon intervals after which a link is given up. Assumed: 10, where §6.2.1 says
    /// "significantly lags behind".
    pub(crate) silent_intervals: u64,
    /// The time of the controller to receive or to send one message. Assumed: 2 µs, one small call through the kernel.
    pub(crate) controller_ns: u64,
    /// The time to write a decision to the replicated log. Assumed: 100 µs, one round of consensus between servers.
    pub(crate) log_ns: u64,
}

impl Profile {
    /// 32 servers, 100 Gb/s, three layers of switches (§7.1).
    pub(crate) const TESTBED: Profile = Profile {
        beacon_ns: 3_000,
        host_hop_ns: 500,
        switch_hop_ns: 1_000,
        bits_per_ns: 100,
        parallel_links: 4,
        message_bytes: 138,
        acknowledgement_bytes: 8,
        beacon_bytes: 84,
        message_cpu_ns: 200,
        prepare_cpu_ns: 67,
        representative_ns: 2_000,
        sequencer_ns: 1,
        window: 2_048,
        retransmit_ns: 2_000,
        skew_ns: 137.5,
        skew_exponent: 1.5,
        silent_intervals: 10,
        controller_ns: 2_000,
        log_ns: 100_000,
    };

    /// The time for which `bytes` bytes keep `links` parallel links busy.
    pub(super) fn wire_ns(&self, bytes: u64, links: u64) -> u64 {
        (bytes * 8).div_ceil(self.bits_per_ns * links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_carries_what_a_host_of_the_paper_sends() {
        // 80 M messages per second, each with its acknowledgement, and beacons of 16 processes.
        let testbed = Profile::TESTBED;
        let messages = 80 * testbed.beacon_ns / 1_000;
        let each = testbed.message_bytes + testbed.acknowledgement_bytes;
        let bytes = messages * each + 16 * testbed.beacon_bytes;
        assert!(testbed.wire_ns(bytes, 1) <= testbed.beacon_ns, "{bytes} bytes in an interval");
    }

    #[test]
    fn a_link_is_busy_until_the_last_bit_has_left() {
        assert_eq!(
            [(138, 1), (138, 4), (25, 2), (0, 1)].map(|(bytes, links)| Profile::TESTBED.wire_ns(bytes, links)),
            [12, 3, 1, 0]
        );
    }
}
