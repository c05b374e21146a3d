//! A configuration as it was given, with the place of each value, and the check of it.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use squall_fabric::NodeId;
use squall_ordered::Mode;
use squall_sst::ring;

use super::{
    Config, ConfigError, GroupConfig, Spin, ValuePlace, bytes, membership::MembershipDraft, network::NetworkDraft,
};
use crate::config::carrier::Carrier;

/// The most members that a cluster may have.
const MAX_MEMBERS: usize = 64;

/// The shortest failure timeout: below, a busy host would make members suspect each other.
const MIN_FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// The default lead that a clock may have over most others'.
const CLOCK_LIMIT: Duration = Duration::from_secs(5);

/// The default length of a lease.
const READ_LEASE: Duration = Duration::from_millis(15);

/// The default number of bytes of its logs that a node reads again per second: some GiB within hours.
const SCRUB_BYTES: usize = 1 << 20;

/// The default time for which members that come back wait for the others.
const RESTART_WAIT: Duration = Duration::from_secs(10);

/// The default times for which a member's disk, and its application, may stand still.
const DISK_TIMEOUT: Duration = Duration::from_secs(3);
const APPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The most shards of a group: each takes memory, and a turn of its members' threads.
const MAX_SHARDS: u32 = 1024;

/// The most submits that may wait: a slot is kept for each.
const MAX_WAITING: usize = 1 << 24;

/// The limits of the reserve for a sender's bulk messages, in bytes: at least a page, and at most what a block's number
/// can count.
const RESERVES: RangeInclusive<usize> = 4 << 10..=1 << 40;

/// The least bytes of log between two states of a durable group on disk.
const MIN_SNAPSHOT_BYTES: usize = 64 << 10;

/// The default and the least number of bytes that a node holds for clients.
const CLIENT_BYTES: usize = 256 << 20;
const MIN_CLIENT_BYTES: usize = 1 << 20;

/// A value and its origin.
#[derive(Clone, Debug)]
pub(super) struct Given<T> {
    pub(super) value: T,
    pub(super) place: ValuePlace,
}

/// All values that can be configured, unchecked. A later source overrides the values of an earlier one.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// The place where a missing value should have been.
    pub(super) place: ValuePlace,
    pub(super) cluster: Option<Given<String>>,
    pub(super) id: Option<Given<u32>>,
    pub(super) members: Option<Given<Vec<u32>>>,
    pub(super) formation_timeout: Option<Given<Duration>>,
    pub(super) failure_timeout: Option<Given<Duration>>,
    pub(super) clock_limit: Option<Given<Duration>>,
    pub(super) read_lease: Option<Given<Duration>>,
    pub(super) restart_wait: Option<Given<Duration>>,
    pub(super) disk_timeout: Option<Given<Duration>>,
    pub(super) apply_timeout: Option<Given<Duration>>,
    pub(super) spin: Option<Given<Spin>>,
    pub(super) short_limit: Option<Given<Duration>>,
    pub(super) client_bytes: Option<Given<usize>>,
    pub(super) scrub_bytes_per_second: Option<Given<usize>>,
    pub(super) membership: MembershipDraft,
    pub(super) network: NetworkDraft,
    pub(super) groups: BTreeMap<String, Given<GroupDraft>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct GroupDraft {
    pub(super) mode: Option<Given<Mode>>,
    pub(super) ring_bytes: Option<Given<usize>>,
    pub(super) bulk_threshold: Option<Given<usize>>,
    pub(super) bulk_reserve: Option<Given<usize>>,
    pub(super) senders: Option<Given<Vec<u32>>>,
    pub(super) max_waiting: Option<Given<usize>>,
    pub(super) shards: Option<Given<u32>>,
    pub(super) min_replicas: Option<Given<u32>>,
    pub(super) max_replicas: Option<Given<u32>>,
    pub(super) snapshot_bytes: Option<Given<usize>>,
    pub(super) retain: Option<Given<usize>>,
}

impl<T> Given<T> {
    pub(super) fn error(&self, key: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        value_error(&self.place, key, problem)
    }
}

pub(super) fn value_error(place: &ValuePlace, key: impl Into<String>, problem: impl Into<String>) -> ConfigError {
    ConfigError::Value { place: place.clone(), key: key.into(), problem: problem.into() }
}

impl Draft {
    pub(super) fn new(place: ValuePlace) -> Draft {
        Draft {
            place,
            cluster: None,
            id: None,
            members: None,
            formation_timeout: None,
            failure_timeout: None,
            clock_limit: None,
            read_lease: None,
            restart_wait: None,
            disk_timeout: None,
            apply_timeout: None,
            spin: None,
            short_limit: None,
            client_bytes: None,
            scrub_bytes_per_second: None,
            membership: MembershipDraft::default(),
            network: NetworkDraft::default(),
            groups: BTreeMap::new(),
        }
    }

    pub(super) fn check(self) -> Result<Config, ConfigError> {
        let missing = |key: &str, remedy: &str| {
            let problem = format!("is missing: {remedy} (if you did, the file may be only half written)");
            value_error(&self.place, key, problem)
        };
        let cluster =
            self.cluster.as_ref().ok_or_else(|| missing("cluster", "give the cluster a name, `cluster = \"...\"`"))?;
        if let Err(problem) = check_name(&cluster.value) {
            return Err(cluster.error("cluster", problem));
        }
        let id = self.id.as_ref().ok_or_else(|| {
            missing("id", "give this node's number, `id = ...`, or set the environment variable SQUALL_ID")
        })?;
        let is_open = self.membership.is_open();
        let (addressed, nobody) = (self.network.members(), Given { value: Vec::new(), place: self.place.clone() });
        let members = match (&self.members, &addressed) {
            (Some(members), _) => members,
            // A node that joins may know no address but its own.
            (None, _) if is_open => &nobody,
            (None, Some(addressed)) => addressed,
            (None, None) => {
                let remedy = "list all nodes, `members = [1, 2, 3]`, or give them `[addresses]`";
                return Err(missing("members", remedy));
            }
        };
        if members.value.len() > MAX_MEMBERS || (members.value.is_empty() && (self.members.is_some() || !is_open)) {
            let problem = format!("lists {} nodes: list 1 to {MAX_MEMBERS}", members.value.len());
            return Err(members.error("members", problem));
        }
        let ids = node_ids(members, "members")?;
        let mut membership = self.membership.check(id, &ids)?;
        let network = self.network.check(&self.place, NodeId(id.value), &ids, &mut membership, is_open)?;
        if network.carrier == Carrier::Shm {
            membership.check_on_host(&self.membership, &self.place)?;
        }
        let formation_timeout = positive(&self.formation_timeout, "formation_timeout_ms", Duration::from_secs(30))?;
        let failure_timeout = positive(&self.failure_timeout, "failure_timeout_ms", Duration::from_secs(1))?;
        if let Some(given) = self.failure_timeout.as_ref().filter(|given| given.value < MIN_FAILURE_TIMEOUT) {
            let problem = format!(
                "is {} ms: give at least {} ms, since a thread may have to wait so long for its core",
                given.value.as_millis(),
                MIN_FAILURE_TIMEOUT.as_millis()
            );
            return Err(given.error("failure_timeout_ms", problem));
        }
        let clock_limit = positive(&self.clock_limit, "clock_limit_ms", CLOCK_LIMIT)?;
        let restart_wait = positive(&self.restart_wait, "restart_wait_ms", RESTART_WAIT)?;
        let read_lease = self.read_lease.as_ref().map_or(READ_LEASE, |given| given.value);
        if let Some(given) = self.read_lease.as_ref().filter(|given| given.value > failure_timeout) {
            let problem = format!(
                "is {} ms, longer than the failure timeout of {} ms: give less, since whoever drops a member waits so long",
                given.value.as_millis(),
                failure_timeout.as_millis()
            );
            return Err(given.error("read_lease_ms", problem));
        }
        let short_limit = positive(&self.short_limit, "short_limit_us", Duration::from_millis(1))?;
        if let Some(given) = self.client_bytes.as_ref().filter(|given| given.value < MIN_CLIENT_BYTES) {
            let (is, least) = (bytes::show(given.value), bytes::show(MIN_CLIENT_BYTES));
            return Err(given.error("client_bytes", format!("is {is}: give at least {least}")));
        }
        let groups = self
            .groups
            .into_iter()
            .map(|(name, group)| {
                let checked = group.value.check(&name, &group.place, &ids, is_open, network.carrier)?;
                if checked.mode == Mode::Durable && membership.storage.is_none() {
                    return Err(value_error(&group.place, format!("groups.{name}.mode"), NO_STORAGE));
                }
                Ok((name, checked))
            })
            .collect::<Result<_, ConfigError>>()?;
        Ok(Config {
            cluster: cluster.value.clone(),
            id: NodeId(id.value),
            members: ids,
            membership,
            formation_timeout,
            failure_timeout,
            clock_limit,
            read_lease,
            read_lease_given: self.read_lease.is_some(),
            restart_wait,
            disk_timeout: patience(self.disk_timeout.as_ref(), DISK_TIMEOUT),
            apply_timeout: patience(self.apply_timeout.as_ref(), APPLY_TIMEOUT),
            spin: self.spin.map(|given| given.value).unwrap_or_default(),
            short_limit,
            client_bytes: self.client_bytes.map_or(CLIENT_BYTES, |given| given.value),
            scrub_bytes_per_second: self.scrub_bytes_per_second.map_or(SCRUB_BYTES, |given| given.value),
            network,
            groups,
        })
    }
}

/// Returns a time after which a member is given up; 0 means never.
fn patience(given: Option<&Given<Duration>>, otherwise: Duration) -> Duration {
    let time = given.map_or(otherwise, |given| given.value);
    if time.is_zero() { Duration::MAX } else { time }
}

impl GroupDraft {
    fn check(
        self,
        name: &str,
        place: &ValuePlace,
        members: &[NodeId],
        is_open: bool,
        carrier: Carrier,
    ) -> Result<GroupConfig, ConfigError> {
        let key = |field: &str| format!("groups.{name}.{field}");
        if let Err(problem) = check_name(name) {
            return Err(value_error(place, format!("groups.{name}"), problem));
        }
        let default = GroupConfig::suited_to(carrier);
        if let Some(given) = self.snapshot_bytes.as_ref().filter(|given| given.value < MIN_SNAPSHOT_BYTES) {
            let (is, least) = (bytes::show(given.value), bytes::show(MIN_SNAPSHOT_BYTES));
            return Err(given.error(key("snapshot_bytes"), format!("is {is}: give at least {least}")));
        }
        if let Some(given) = &self.ring_bytes {
            let size = given.value;
            if !size.is_power_of_two() || !(ring::MIN_BYTES..=ring::MAX_BYTES).contains(&size) {
                let near = size.clamp(ring::MIN_BYTES, ring::MAX_BYTES);
                let near = near.checked_next_power_of_two().unwrap_or(ring::MAX_BYTES);
                let problem = format!(
                    "is {}: give a power of two from {} to {}, such as \"{}\"",
                    bytes::show(size),
                    bytes::show(ring::MIN_BYTES),
                    bytes::show(ring::MAX_BYTES),
                    bytes::show(near)
                );
                return Err(given.error(key("ring_bytes"), problem));
            }
        }
        if let Some(given) = &self.bulk_reserve
            && given.value != 0
            && !RESERVES.contains(&given.value)
        {
            let problem = format!(
                "is {}: give {} to {}, or 0 for no messages above a quarter of the ring",
                bytes::show(given.value),
                bytes::show(*RESERVES.start()),
                bytes::show(*RESERVES.end())
            );
            return Err(given.error(key("bulk_reserve"), problem));
        }
        let senders = match &self.senders {
            None => None,
            Some(given) => {
                let senders = node_ids(given, &key("senders"))?;
                if senders.is_empty() {
                    let problem = "lists nobody: name at least one member, or leave it out if all may send";
                    return Err(given.error(key("senders"), problem));
                }
                if let Some(stranger) = senders.iter().find(|sender| !is_open && !members.contains(sender)) {
                    let problem =
                        format!("lists {}, which is not among the members: add it there or remove it", stranger.0);
                    return Err(given.error(key("senders"), problem));
                }
                Some(senders)
            }
        };
        if let Some(given) = self.max_waiting.as_ref().filter(|given| !(1..=MAX_WAITING).contains(&given.value)) {
            let problem = format!("is {}: give 1 to {MAX_WAITING}", given.value);
            return Err(given.error(key("max_waiting"), problem));
        }
        let (shards, min_replicas, max_replicas) = self.check_replicas(key)?;
        Ok(GroupConfig {
            mode: self.mode.map_or(default.mode, |given| given.value),
            ring_bytes: self.ring_bytes.map_or(default.ring_bytes, |given| given.value),
            bulk_threshold: self.bulk_threshold.map_or(default.bulk_threshold, |given| given.value),
            bulk_reserve: self.bulk_reserve.map_or(default.bulk_reserve, |given| given.value),
            senders,
            max_waiting: self.max_waiting.map_or(default.max_waiting, |given| given.value),
            shards,
            min_replicas,
            max_replicas,
            snapshot_bytes: self.snapshot_bytes.map_or(default.snapshot_bytes, |given| given.value as u64),
            retain: self.retain.map(|given| given.value as u64),
        })
    }

    fn check_replicas(&self, key: impl Fn(&str) -> String) -> Result<(u32, u32, Option<u32>), ConfigError> {
        let shards = self.shards.as_ref().map_or(1, |given| given.value);
        if let Some(given) = self.shards.as_ref().filter(|given| !(1..=MAX_SHARDS).contains(&given.value)) {
            return Err(given.error(key("shards"), format!("is {}: give 1 to {MAX_SHARDS}", given.value)));
        }
        let fewest = self.min_replicas.as_ref().map_or(1, |given| given.value);
        for (given, name) in [(&self.min_replicas, "min_replicas"), (&self.max_replicas, "max_replicas")] {
            if let Some(given) = given.as_ref().filter(|given| !(1..=MAX_MEMBERS as u32).contains(&given.value)) {
                return Err(given.error(key(name), format!("is {}: give 1 to {MAX_MEMBERS}", given.value)));
            }
        }
        if let Some(given) = self.max_replicas.as_ref().filter(|given| given.value < fewest) {
            let problem =
                format!("is {}, fewer than min_replicas, which is {fewest}: give at least as many", given.value);
            return Err(given.error(key("max_replicas"), problem));
        }
        Ok((shards, fewest, self.max_replicas.as_ref().map(|given| given.value)))
    }
}

/// Returns the ids in ascending order, so that nodes whose lists differ only in order agree.
pub(super) fn node_ids(given: &Given<Vec<u32>>, key: &str) -> Result<Vec<NodeId>, ConfigError> {
    let mut ids: Vec<NodeId> = given.value.iter().copied().map(NodeId).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(given.error(key, format!("lists {} twice: remove one", pair[0].0))),
        None => Ok(ids),
    }
}

fn positive(given: &Option<Given<Duration>>, key: &str, default: Duration) -> Result<Duration, ConfigError> {
    match given {
        Some(given) if given.value.is_zero() => Err(given.error(key, "is 0: give at least 1")),
        Some(given) => Ok(given.value),
        None => Ok(default),
    }
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    super::check_name(name).map_err(|error| format!("is {name:?}: {error}"))
}

/// Reads a [`Spin`].
pub(super) fn spin(text: &str) -> Result<Spin, String> {
    match text {
        "auto" => Ok(Spin::Auto),
        "always" => Ok(Spin::Always),
        "never" => Ok(Spin::Never),
        _ => Err(format!("is {text:?}: give \"auto\", \"always\" or \"never\"")),
    }
}

const NO_STORAGE: &str = "is \"durable\", and there is nowhere to keep its log: give a directory, `storage = \"state/{id}\"`, or \
                          set the environment variable SQUALL_STORAGE";

/// Reads a [`Mode`].
pub(super) fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "ordered" => Ok(Mode::Ordered),
        "unordered" => Ok(Mode::Unordered),
        "durable" => Ok(Mode::Durable),
        _ => Err(format!("is {text:?}: give \"ordered\", \"unordered\" or \"durable\"")),
    }
}
