//! A simulation of 1Pipe on the testbed of the paper (Li, Zuo, Bai, Zhang: *1Pipe: Scalable Total Order Communication
//! in Data Center Networks*, SIGCOMM 2021), for its Figures 8, 9 and 10. Sections on these pages are the paper's.
//!
//! It is a model of the protocols' event flow, and has nothing to do with the machines of `squall_onepipe`, of which it
//! uses only the tournament tree. Only here do data and barriers pass the same links and switches, which lets switches
//! use the plain minimum.
//!
//! # What is simulated
//!
//! - **The network**: a [fat tree](Profile) whose links are queues, first in, first out, with a rate and a delay. Each
//!   switch is two nodes, one for each direction, up and down, so that links make no circle. Messages are followed from
//!   link to link; acknowledgements and tokens, which carry no barrier, queue at both ends of their way only.
//! - **Clocks** that are off by as much as the testbed's, and stay so: a run is short beside the time between two
//!   synchronisations.
//! - **Hosts** send beacons when their clocks show multiples of the interval. Messages and beacons carry two barriers,
//!   for best effort and for what is committed.
//! - **Switches** have two registers for each input link, keep their minima in a tournament tree, and send beacons when
//!   the minimum has passed a multiple of the interval. So all beacons of a network are in phase: one leaves each host,
//!   waits for none of its own at any switch, and goes on as soon as the last input has told (assumed: §6.2.2 and
//!   §6.2.3 say "periodically"). A message then waits for half an interval on average, in total, and not at each hop.
//!   With [`Switches::Chip`] each message's barriers are read and replaced too; with [`Switches::Representative`]
//!   beacons alone carry barriers, and take a detour.
//! - **Receivers** deliver below their barrier, by stamp and sender. Reliable delivery needs the commit barrier, which
//!   a sender holds back until all receivers have acknowledged. A lost message is sent again after a timeout.
//! - **Sequencers**, on a switch or on a server's interface: a queue that all messages go through, with a rate;
//!   receivers deliver by number. **The token**: the process that has it sends one scattering, and hands it on.
//!   **Lamport's timestamps**: logical clocks, told to all processes at intervals; receivers deliver below the least
//!   that they know.
//! - **Failures**: a dead part is silent. A switch that hears nothing on a link for ten intervals tells the controller.
//!   The controller has survivors wedge, writes the greatest of their barriers into its log, and has them drop and
//!   recall what can't be completed. Then it lets switches wait for the link no longer.
//!
//! # What is simplified
//!
//! - Messages of one scattering to the processes of one host travel as one packet of their size, and are lost each on
//!   its own.
//! - The processes of a host share its clock and interface, so their beacons leave as one packet, with a register for
//!   each at the switch. They receive the same, so that one receiving thread and one barrier stand for all.
//! - Parallel links between two switches are one of their joint rate.
//! - A process prepares a scattering before it stamps it, as fast as its thread can; the interface then sends it at the
//!   rate of the link.
//! - Links have no limit to their queues; flow control is a window of messages.
//!
//! Each figure of [`Profile::TESTBED`] says whether the paper gives it, or what was assumed.

mod error;
mod failure;
mod figures;
mod order;
mod packet;
mod process;
mod profile;
mod queue;
mod receiver;
mod skew;
mod switch;
mod topology;
mod world;

#[cfg(test)]
mod tests;

pub(super) use error::ScenarioError;
pub(super) use failure::{FailedComponent, Recovery};
pub(super) use figures::{Figures, Latencies};
pub(super) use order::{Destinations, OrderProtocol, Switches, Traffic};
pub(super) use profile::Profile;
pub(super) use world::Scenario;
