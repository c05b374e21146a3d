//! A configuration as it was given, and the check of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use squall_fabric::NodeId;
use squall_membership::{MAX_WEIGHT, MOVES_AT_ONCE, ShardOptions};
use squall_ordered::Mode;
use squall_sst::ring;

use super::{
    Config, ConfigError, GroupConfig, ValuePlace,
    carrier::Carrier,
    check_name,
    security::{Protection, Security, SharedIdentity},
    settings::{GroupSettings, NodeSettings, Setting, ShardSettings},
};

/// The most members that a cluster may have.
const MAX_MEMBERS: usize = 64;

/// The shortest failure timeout: below, a busy host would make members suspect each other.
const MIN_FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// The most shards of a group: each takes memory, and a turn of its members' threads.
const MAX_SHARDS: u32 = 1024;

/// The most submits that may wait: a slot is kept for each.
const MAX_WAITING: usize = 1 << 24;

/// The limits of the reserve for a sender's bulk messages, in bytes: at least a page, and at most what a block's number
/// can count.
const RESERVES: RangeInclusive<usize> = 4 << 10..=1 << 40;

/// The limits of a sender's ring, in bytes.
const RINGS: RangeInclusive<usize> = ring::MIN_BYTES..=ring::MAX_BYTES;

/// The least bytes of log between two states of a durable group on disk.
const MIN_SNAPSHOT_BYTES: usize = 64 << 10;

/// The least number of bytes that a node holds for clients.
const MIN_CLIENT_BYTES: usize = 1 << 20;

/// All values that can be configured, unchecked. A later source overrides the values of an earlier one.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) node: NodeSettings,
    /// The addresses by member.
    pub(super) addresses: Setting<BTreeMap<u32, Setting<Vec<String>>>>,
    /// The weights by member.
    pub(super) weights: BTreeMap<u32, Setting<u32>>,
    pub(super) groups: BTreeMap<String, GroupDraft>,
}

/// A group's settings with those of its shards, and its name, which is given where their table is.
#[derive(Clone, Debug)]
pub(super) struct GroupDraft {
    name: Setting<String>,
    pub(super) settings: GroupSettings,
    shards: BTreeMap<u32, ShardSettings>,
}

impl Draft {
    /// Returns a draft without values. `place` is where a missing value should have been.
    pub(super) fn new(place: &ValuePlace) -> Draft {
        let addresses = Setting::new("addresses".into(), place);
        Draft { node: NodeSettings::new("", place), addresses, weights: BTreeMap::new(), groups: BTreeMap::new() }
    }

    /// Sets the protection, whatever was set before.
    pub(super) fn set_security(&mut self, security: Security) {
        let (protection, keys) = match security {
            Security::LoopbackOnly => (None, None),
            Security::None => (Some(Protection::None), None),
            Security::Tls(keys) => (Some(Protection::Tls), Some(keys)),
        };
        let node = &mut self.node;
        (node.security.value, node.security_mode.value) = (protection, None);
        let (keys, lists) = match keys {
            None => ([None, None, None], [None, None]),
            Some(keys) => ([Some(keys.ca), Some(keys.certificate), Some(keys.key)], [keys.crl, keys.denied]),
        };
        let settings = [&mut node.ca, &mut node.certificate, &mut node.key, &mut node.crl, &mut node.denied];
        for (setting, path) in settings.into_iter().zip(keys.into_iter().chain(lists)) {
            // Relative to the program, and not to a file.
            (setting.value, setting.place) = (path, ValuePlace::Builder);
        }
    }

    /// Returns the draft of a program that is no node, with its own protection if there is one. It needs no id.
    pub(super) fn for_client(mut self, security: Option<Security>) -> Result<Draft, ConfigError> {
        if let Some(security) = security {
            self.set_security(security);
        }
        let node = &mut self.node;
        if node.id.value.is_some() {
            return Ok(self);
        }
        for path in [&node.ca, &node.certificate, &node.key, &node.crl, &node.denied] {
            let is_shared = |path: &PathBuf| path.to_str().is_some_and(|text| text.contains("{id}"));
            let problem = "has `{id}` in it, and a client has no id: give the client's own keys, or set SQUALL_ID";
            path.check(|path| !is_shared(path), |_| problem)?;
        }
        // What concerns the node itself is checked for one of the members, and not used.
        let listed = node.members.value.as_ref().and_then(|members| members.first());
        let addressed = || self.addresses.value.as_ref()?.keys().next();
        node.id.value = Some(listed.or_else(addressed).copied().unwrap_or(NodeId::nameless().0));
        Ok(self)
    }

    pub(super) fn check(&self) -> Result<Config, ConfigError> {
        let node = &self.node;
        let cluster = node.cluster.required("give the cluster a name, `cluster = \"...\"`")?;
        node.cluster.check_name()?;
        let remedy = "give this node's number, `id = ...`, or set the environment variable SQUALL_ID";
        let id = NodeId(*node.id.required(remedy)?);
        let members = self.check_members()?;
        let mut membership = node.check_membership(id, &members)?;
        let network = self.check_network(id, &members, &mut membership)?;
        if network.carrier == Carrier::Shm {
            membership.check_on_host(&node.join)?;
        }
        let formation_timeout = positive(&node.formation_timeout, Duration::from_secs(30))?;
        let failure_timeout = positive(&node.failure_timeout, Duration::from_secs(1))?;
        node.failure_timeout.check(
            |&timeout| timeout >= MIN_FAILURE_TIMEOUT,
            |timeout| {
                let (is, least) = (timeout.as_millis(), MIN_FAILURE_TIMEOUT.as_millis());
                format!("is {is} ms: give at least {least} ms, since a thread may have to wait so long for its core")
            },
        )?;
        let clock_limit = positive(&node.clock_limit, Duration::from_secs(5))?;
        let restart_wait = positive(&node.restart_wait, Duration::from_secs(10))?;
        node.read_lease.check(
            |&lease| lease <= failure_timeout,
            |lease| {
                let (is, most) = (lease.as_millis(), failure_timeout.as_millis());
                format!(
                    "is {is} ms, longer than the failure timeout of {most} ms: give less, since a view that drops a member \
                     waits so long"
                )
            },
        )?;
        let short_limit = positive(&node.short_limit, Duration::from_millis(1))?;
        at_least(&node.client_bytes, MIN_CLIENT_BYTES)?;
        let (weights, moves_at_once) = self.check_placement(&members)?;
        let mut groups = BTreeMap::new();
        for (name, group) in &self.groups {
            group.name.check_name()?;
            let checked = group.check(&members, node.is_open(), network.carrier)?;
            if checked.mode == Mode::Durable && membership.storage.is_none() {
                return Err(ConfigError::value(&group.name.place, &group.settings.mode.key, NO_STORAGE));
            }
            groups.insert(name.clone(), checked);
        }
        Ok(Config {
            cluster: cluster.clone(),
            id,
            members,
            membership,
            formation_timeout,
            failure_timeout,
            clock_limit,
            read_lease: node.read_lease.value.unwrap_or(Duration::from_millis(15)),
            read_lease_given: node.read_lease.value.is_some(),
            restart_wait,
            disk_timeout: patience(&node.disk_timeout, Duration::from_secs(3)),
            apply_timeout: patience(&node.apply_timeout, Duration::from_secs(10)),
            spin: node.spin.value.unwrap_or_default(),
            short_limit,
            client_bytes: node.client_bytes.value.unwrap_or(256 << 20),
            weights,
            moves_at_once,
            // Some GiB within hours.
            scrub_bytes_per_second: node.scrub_bytes_per_second.value.unwrap_or(1 << 20),
            network,
            groups,
            identity: SharedIdentity::default(),
        })
    }

    /// Returns the weights, and the number of shards that move to a node at a time.
    fn check_placement(&self, members: &[NodeId]) -> Result<(BTreeMap<NodeId, u32>, u32), ConfigError> {
        one_to(&self.node.moves_at_once, MAX_SHARDS)?;
        let weight = |(&id, weight): (&u32, &Setting<u32>)| {
            weight.check(|&weight| weight <= MAX_WEIGHT, |weight| format!("is {weight}: give 0 to {MAX_WEIGHT}"))?;
            if !self.node.is_open() && !members.contains(&NodeId(id)) {
                return Err(weight.error("is of a node that is not among the members: add it there or remove it"));
            }
            Ok((NodeId(id), weight.value.unwrap_or(1)))
        };
        let mut weights = self.weights.iter().map(weight).collect::<Result<BTreeMap<_, _>, _>>()?;
        // As if it were not given: nodes compare what they have.
        weights.retain(|_, weight| *weight != 1);
        Ok((weights, self.node.moves_at_once.value.unwrap_or(MOVES_AT_ONCE)))
    }

    /// Returns the members in ascending order: those that are listed, or those with addresses.
    fn check_members(&self) -> Result<Vec<NodeId>, ConfigError> {
        let mut members = self.node.members.clone();
        // A node that joins may know no address but its own.
        if members.value.is_none() && !self.node.is_open() {
            if let Some(addresses) = &self.addresses.value {
                members.set(addresses.keys().copied().collect(), self.addresses.place.clone());
            }
            members.required("list all nodes, `members = [1, 2, 3]`, or give them `[addresses]`")?;
        }
        members.check(
            |ids| (1..=MAX_MEMBERS).contains(&ids.len()),
            |ids| format!("lists {} nodes: list 1 to {MAX_MEMBERS}", ids.len()),
        )?;
        Ok(members.node_ids()?.unwrap_or_default())
    }
}

impl GroupDraft {
    pub(super) fn new(name: &str, place: &ValuePlace) -> GroupDraft {
        let key = format!("groups.{name}");
        let settings = GroupSettings::new(&format!("{key}."), place);
        let name = Setting { key, value: Some(name.to_owned()), place: place.clone() };
        GroupDraft { name, settings, shards: BTreeMap::new() }
    }

    /// Returns the key of the group's table.
    pub(super) fn key(&self) -> &str {
        &self.name.key
    }

    /// Returns the settings of a shard.
    pub(super) fn shard(&mut self, number: u32, place: &ValuePlace) -> &mut ShardSettings {
        let prefix = format!("{}.shard.{number}.", self.name.key);
        self.shards.entry(number).or_insert_with(|| ShardSettings::new(&prefix, place))
    }

    fn check(&self, members: &[NodeId], is_open: bool, carrier: Carrier) -> Result<GroupConfig, ConfigError> {
        let group = self.settings.check(members, is_open, carrier)?;
        let shards = self.shards.iter().map(|(&number, shard)| Ok((number, shard.check(members, is_open)?)));
        Ok(GroupConfig { shard_options: shards.collect::<Result<_, _>>()?, ..group })
    }
}

impl ShardSettings {
    /// Checks each value by itself. The layout's check compares them with the group's.
    fn check(&self, members: &[NodeId], is_open: bool) -> Result<ShardOptions, ConfigError> {
        one_to(&self.min_replicas, MAX_MEMBERS as u32)?;
        one_to(&self.max_replicas, MAX_MEMBERS as u32)?;
        let racks = self.racks.value.clone().unwrap_or_default();
        if let Some((rack, error)) = racks.iter().find_map(|rack| Some((rack, check_name(rack).err()?))) {
            return Err(self.racks.error(format!("lists {rack:?}: {error}")));
        }
        Ok(ShardOptions {
            min_replicas: self.min_replicas.value,
            max_replicas: self.max_replicas.value,
            pinned: known(&self.pinned, members, is_open)?.unwrap_or_default(),
            racks: BTreeSet::from_iter(racks).into_iter().collect(),
            only: self.only.value.unwrap_or_default(),
        })
    }
}

impl GroupSettings {
    fn check(&self, members: &[NodeId], is_open: bool, carrier: Carrier) -> Result<GroupConfig, ConfigError> {
        let default = GroupConfig::suited_to(carrier);
        at_least(&self.snapshot_bytes, MIN_SNAPSHOT_BYTES)?;
        self.ring_bytes.check(
            |size| size.is_power_of_two() && RINGS.contains(size),
            |&size| {
                let near = size.clamp(ring::MIN_BYTES, ring::MAX_BYTES).next_power_of_two();
                let (is, range, near) =
                    (squall_units::show_size(size), squall_units::show_sizes(RINGS), squall_units::show_size(near));
                format!("is {is}: give a power of two from {range}, such as \"{near}\"")
            },
        )?;
        self.bulk_reserve.check(
            |size| *size == 0 || RESERVES.contains(size),
            |&size| {
                let (is, range) = (squall_units::show_size(size), squall_units::show_sizes(RESERVES));
                format!("is {is}: give {range}, or 0 for no messages above a quarter of the ring")
            },
        )?;
        let senders = known(&self.senders, members, is_open)?;
        let problem = "lists no member: name at least one, or leave it out if all may send";
        self.senders.check(|senders| !senders.is_empty(), |_| problem)?;
        one_to(&self.max_waiting, MAX_WAITING)?;
        one_to(&self.shards, MAX_SHARDS)?;
        one_to(&self.min_replicas, MAX_MEMBERS as u32)?;
        one_to(&self.max_replicas, MAX_MEMBERS as u32)?;
        let min_replicas = self.min_replicas.value.unwrap_or(default.min_replicas);
        self.max_replicas.check(
            |&max| max >= min_replicas,
            |max| format!("is {max}, fewer than min_replicas, which is {min_replicas}: give at least as many"),
        )?;
        Ok(GroupConfig {
            mode: self.mode.value.unwrap_or(default.mode),
            ring_bytes: self.ring_bytes.value.unwrap_or(default.ring_bytes),
            bulk_threshold: self.bulk_threshold.value.unwrap_or(default.bulk_threshold),
            bulk_reserve: self.bulk_reserve.value.unwrap_or(default.bulk_reserve),
            senders,
            max_waiting: self.max_waiting.value.unwrap_or(default.max_waiting),
            shards: self.shards.value.unwrap_or(default.shards),
            min_replicas,
            max_replicas: self.max_replicas.value,
            reserved: known(&self.reserved, members, is_open)?.unwrap_or_default(),
            shard_options: BTreeMap::new(),
            snapshot_bytes: self.snapshot_bytes.value.map_or(default.snapshot_bytes, |bytes| bytes as u64),
            retain: self.retain.value.map(|bytes| bytes as u64),
        })
    }
}

/// Returns the ids of a list. Fails if one is of no member, and no other nodes may join.
fn known(listed: &Setting<Vec<u32>>, members: &[NodeId], is_open: bool) -> Result<Option<Vec<NodeId>>, ConfigError> {
    let ids = listed.node_ids()?;
    match ids.iter().flatten().find(|id| !is_open && !members.contains(id)) {
        Some(stranger) => {
            let problem = format!("lists {}, which is not among the members: add it there or remove it", stranger.0);
            Err(listed.error(problem))
        }
        None => Ok(ids),
    }
}

/// Returns a time after which a member is given up; 0 means never.
fn patience(setting: &Setting<Duration>, default: Duration) -> Duration {
    let time = setting.value.unwrap_or(default);
    if time.is_zero() { Duration::MAX } else { time }
}

fn positive(setting: &Setting<Duration>, default: Duration) -> Result<Duration, ConfigError> {
    setting.check(|time| !time.is_zero(), |_| "is 0: give at least 1")?;
    Ok(setting.value.unwrap_or(default))
}

fn at_least(setting: &Setting<usize>, least: usize) -> Result<(), ConfigError> {
    let problem = |&size: &usize| {
        format!("is {}: give at least {}", squall_units::show_size(size), squall_units::show_size(least))
    };
    setting.check(|&size| size >= least, problem)
}

fn one_to<T: Copy + Display + From<u8> + PartialOrd>(setting: &Setting<T>, most: T) -> Result<(), ConfigError> {
    setting.check(|count| (1.into()..=most).contains(count), |count| format!("is {count}: give 1 to {most}"))
}

const NO_STORAGE: &str = "is \"durable\", and there is nowhere to keep its log: give a directory, `storage = \"state/{id}\"`, or \
                          set the environment variable SQUALL_STORAGE";
