//! The errors of scenarios that cannot be simulated.

use super::{Destinations, OrderProtocol, Profile, Recovery, Scenario, Traffic, packet::Members, topology::HOSTS};

/// The reason why something cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ScenarioError {
    /// Processes do not fill hosts evenly, or there are none.
    #[error("{0} processes cannot be simulated: give 1 to 32, or a multiple of 32 up to 2048")]
    Processes(usize),
    /// A number of hosts with which none would be left, or for which the racks have no room.
    #[error("failures among {0} hosts cannot be simulated: give 2 to 32")]
    Hosts(usize),
    /// The loss is no likelihood.
    #[error("a loss of {0} cannot be simulated: give 0 to 1")]
    Loss(f64),
    /// The percentage is no share of a process's time.
    #[error("{0} % of a process's time cannot go into the exchange of clocks: give 1 to 100")]
    ExchangePercent(u64),
    /// A quantity is zero, without which nothing would happen, or time would not pass.
    #[error("{0} is 0: give at least 1")]
    Zero(&'static str),
}

impl Scenario {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let share = self.processes / HOSTS;
        let is_even = self.processes.is_multiple_of(HOSTS) && share <= Members::BITS as usize;
        if self.processes == 0 || (self.processes > HOSTS && !is_even) {
            return Err(ScenarioError::Processes(self.processes));
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(ScenarioError::Loss(self.loss));
        }
        if let OrderProtocol::Lamport { exchange_percent } = self.order
            && !(1..=100).contains(&exchange_percent)
        {
            return Err(ScenarioError::ExchangePercent(exchange_percent));
        }
        match self.traffic {
            Traffic::Broadcast { load_percent: 0 } => return Err(ScenarioError::Zero("load_percent")),
            Traffic::Scattered { mean_gap_ns: 0, .. } => return Err(ScenarioError::Zero("mean_gap_ns")),
            Traffic::Scattered { to: Destinations::OneHost(0), .. } => {
                return Err(ScenarioError::Zero("how many a scattering goes to"));
            }
            _ => {}
        }
        self.profile.check()
    }
}

impl Recovery {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        if !(2..=HOSTS).contains(&self.hosts) {
            return Err(ScenarioError::Hosts(self.hosts));
        }
        self.profile.check()
    }
}

impl Profile {
    fn check(&self) -> Result<(), ScenarioError> {
        let needed = [
            ("beacon_ns", self.beacon_ns),
            ("bits_per_ns", self.bits_per_ns),
            ("parallel_links", self.parallel_links),
            ("message_cpu_ns", self.message_cpu_ns),
        ];
        needed.iter().try_for_each(|&(name, value)| if value == 0 { Err(ScenarioError::Zero(name)) } else { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::onepipe::model::FailedComponent;

    const BROADCAST: Scenario = Scenario {
        profile: Profile::TESTBED,
        processes: 2,
        order: OrderProtocol::Token,
        traffic: Traffic::Broadcast { load_percent: 100 },
        loss: 0.0,
        warm_up_ns: 0,
        measured_ns: 1_000,
        seed: 1,
    };

    #[test]
    fn what_cannot_be_simulated_is_refused() {
        let no_beacons = Profile { beacon_ns: 0, ..Profile::TESTBED };
        let scattered = |to, mean_gap_ns| Traffic::Scattered { to: Destinations::OneHost(to), mean_gap_ns };
        for (scenario, error) in [
            (Scenario { processes: 0, ..BROADCAST }, ScenarioError::Processes(0)),
            (Scenario { processes: 33, ..BROADCAST }, ScenarioError::Processes(33)),
            (Scenario { processes: 2_080, ..BROADCAST }, ScenarioError::Processes(2_080)),
            (Scenario { loss: 1.5, ..BROADCAST }, ScenarioError::Loss(1.5)),
            (
                Scenario { order: OrderProtocol::Lamport { exchange_percent: 0 }, ..BROADCAST },
                ScenarioError::ExchangePercent(0),
            ),
            (
                Scenario { traffic: Traffic::Broadcast { load_percent: 0 }, ..BROADCAST },
                ScenarioError::Zero("load_percent"),
            ),
            (Scenario { traffic: scattered(1, 0), ..BROADCAST }, ScenarioError::Zero("mean_gap_ns")),
            (Scenario { traffic: scattered(0, 1), ..BROADCAST }, ScenarioError::Zero("how many a scattering goes to")),
            (Scenario { profile: no_beacons, ..BROADCAST }, ScenarioError::Zero("beacon_ns")),
        ] {
            assert_eq!(scenario.run(), Err(error));
        }
        for hosts in [0, 1, 33] {
            let recovery = Recovery { profile: Profile::TESTBED, failure: FailedComponent::Host, hosts, seed: 1 };
            assert_eq!(recovery.run(), Err(ScenarioError::Hosts(hosts)));
        }
    }

    #[test]
    fn the_least_and_the_most_can_be_simulated() {
        for processes in [1, 2_048] {
            assert!(Scenario { processes, ..BROADCAST }.run().is_ok(), "{processes}");
        }
    }
}
