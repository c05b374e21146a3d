//! The shards and settings that follow from a configuration and the declared groups.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::NodeId;
use squall_membership::{
    Counts, GroupLayout, Layout, LayoutError, LayoutPolicy, Parameters, Settings, ShardId, ShardOptions, StallLimits,
};
use squall_ordered::{BulkPath, Mode, ShardConfig};

use crate::{
    config::{Config, GroupConfig, NameError, check_name},
    node::placements::NodePolicy,
    replica::schema::Schema,
};

/// The reason for which the declared groups do not fit the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A group of the configuration was not declared by the application.
    #[error(
        "the configuration has a group {0:?}, which this program does not serve: remove [groups.{0}] or declare it"
    )]
    UnknownGroup(String),
    /// The number of a group's shards differs from the number of replicas that the program declares.
    #[error(
        "the group {name:?} has shards = {configured}, and is declared with {declared}: declare it with `NodeBuilder::sharded` or \
             `serve_sharded`, or configure as many"
    )]
    Shards {
        /// The group.
        name: String,
        /// The number of shards in the configuration.
        configured: u32,
        /// The number of shards that were declared.
        declared: usize,
    },
    /// The groups' shards make no sense.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A group's name breaks the rule for names.
    #[error("{name:?} can't be the name of a group: {rule}")]
    Name {
        /// The name that was declared.
        name: String,
        /// The rule that it breaks.
        rule: NameError,
    },
    /// The same group was declared twice.
    #[error("the group {0:?} is declared twice")]
    DuplicateGroup(String),
    /// A 1Pipe group has options.
    #[error("the configuration has [groups.{0}], which is a 1Pipe group and has no options: remove that")]
    PipeOptions(String),
}

/// The shards and settings that follow from a configuration and the declared groups.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    /// The parameters that the members compare when they meet.
    pub(crate) parameters: Parameters,
    /// The shards of replicated groups.
    pub(crate) shards: BTreeMap<ShardId, ShardConfig>,
    /// The shards of 1Pipe groups, in the order of their names.
    pub(crate) pipes: Vec<ShardId>,
}

/// The kind of a declared name.
#[derive(Clone, Copy)]
enum Declared {
    /// A group, with the number of its declarations and its schema.
    Group(usize, Schema),
    Pipe,
}

/// The time that connections may take to come up, however soon a silent member is given up.
const SLOWEST_CONNECT: Duration = Duration::from_millis(100);

impl Plan {
    /// Makes the plan. `groups` are the names of the declared groups with their schemas, a group's once for each shard.
    /// `pipes` are the names of the 1Pipe groups.
    pub(crate) fn new<'a>(
        config: &Config,
        bulk_path: BulkPath,
        groups: impl Iterator<Item = (&'a str, Schema)>,
        pipes: impl Iterator<Item = &'a str>,
    ) -> Result<Plan, PlanError> {
        let (weights, moves_at_once) = (config.weights().clone(), config.moves_at_once());
        let mut layout = Layout { groups: Vec::new(), weights, moves_at_once };
        let (mut shards, mut pipe_shards) = (BTreeMap::new(), Vec::new());
        let mut parameters = Parameters::default();
        parameters.set("read_lease_ms", config.read_lease().as_secs_f64() * 1e3);
        parameters.set("moves_at_once", moves_at_once);
        layout.weights.iter().for_each(|(node, weight)| parameters.set(format!("weights.{}", node.0), weight));
        let declared = declared(groups, pipes)?;
        if let Some(unknown) = config.group_names().find(|name| !declared.contains_key(name)) {
            return Err(PlanError::UnknownGroup(unknown.to_owned()));
        }
        let mut next = 0;
        for (name, declared) in declared {
            check_name(name).map_err(|rule| PlanError::Name { name: name.to_owned(), rule })?;
            let (declared, schema) = match declared {
                Declared::Group(declared, schema) => (declared, schema),
                Declared::Pipe if config.group_names().any(|group| group == name) => {
                    return Err(PlanError::PipeOptions(name.to_owned()));
                }
                Declared::Pipe => {
                    parameters.set(format!("groups.{name}"), "a 1Pipe group");
                    layout.groups.push(GroupLayout { counts: Counts::Passed, ..GroupLayout::of_all(name.to_owned()) });
                    pipe_shards.push(ShardId(next));
                    next += 1;
                    continue;
                }
            };
            let group: GroupConfig = config.group(name);
            match group.shards {
                1 if declared > 1 => return Err(PlanError::DuplicateGroup(name.to_owned())),
                configured if configured as usize != declared => {
                    return Err(PlanError::Shards { name: name.to_owned(), configured, declared });
                }
                _ => {}
            }
            describe(name, &group, schema, &mut parameters);
            let config = group.shard_config(bulk_path, config.read_lease(), config.failure_timeout());
            shards.extend((next..next + group.shards).map(|shard| (ShardId(shard), config)));
            next += group.shards;
            layout.groups.push(layout_of(name, group));
        }
        layout.check()?;
        let settings = Settings {
            layout,
            policy: LayoutPolicy::default(),
            fingerprint: parameters.fingerprint(),
            connect_timeout: config.failure_timeout().max(SLOWEST_CONNECT),
            failure_timeout: config.failure_timeout(),
            read_lease: config.read_lease(),
            // A missing member must not be able to read any more when the others go on.
            restart_wait: config.restart_wait().max(config.read_lease() * 2),
            stall_limits: StallLimits { disk: config.disk_timeout(), application: config.apply_timeout() },
        };
        Ok(Plan { settings, parameters, shards, pipes: pipe_shards })
    }

    /// The plan in which shards lie where a policy says.
    pub(crate) fn heeding(mut self, policy: &NodePolicy) -> Plan {
        self.settings.policy = policy.of(&self.settings.layout);
        self
    }
}

fn layout_of(name: &str, group: GroupConfig) -> GroupLayout {
    let GroupConfig { shards, min_replicas, max_replicas, senders, reserved, shard_options: options, .. } = group;
    let (name, counts) = (name.to_owned(), Counts::Received);
    GroupLayout { name, shards, min_replicas, max_replicas, senders, counts, reserved, options }
}

/// Adds the parameters of a group that all members must have alike.
fn describe(name: &str, group: &GroupConfig, schema: Schema, parameters: &mut Parameters) {
    let mut set = |field: &str, value: &dyn std::fmt::Display| parameters.set(format!("groups.{name}.{field}"), value);
    let mode = match group.mode {
        Mode::Ordered => "ordered",
        Mode::Unordered => "unordered",
        Mode::Durable => "durable",
    };
    set("mode", &mode);
    set("schema", &schema);
    set("ring_bytes", &squall_units::show_size(group.ring_bytes));
    set("bulk_threshold", &squall_units::show_size(group.bulk_threshold));
    set("bulk_reserve", &squall_units::show_size(group.bulk_reserve));
    set("shards", &group.shards);
    set("min_replicas", &group.min_replicas);
    if let Some(most) = group.max_replicas {
        set("max_replicas", &most);
    }
    if let Some(senders) = &group.senders {
        set("senders", &numbers(senders));
    }
    if !group.reserved.is_empty() {
        set("reserved", &numbers(&group.reserved));
    }
    for (number, ShardOptions { min_replicas, max_replicas, pinned, racks, only }) in &group.shard_options {
        let mut set = |field: &str, value: &dyn std::fmt::Display| set(&format!("shard.{number}.{field}"), value);
        min_replicas.iter().for_each(|least| set("min_replicas", least));
        max_replicas.iter().for_each(|most| set("max_replicas", most));
        set("pinned", &numbers(pinned));
        set("racks", &format_args!("{racks:?}"));
        set("only", only);
    }
}

fn numbers(nodes: &[NodeId]) -> String {
    format!("{:?}", nodes.iter().map(|node| node.0).collect::<Vec<_>>())
}

/// The kind of each declared name.
fn declared<'a>(
    groups: impl Iterator<Item = (&'a str, Schema)>,
    pipes: impl Iterator<Item = &'a str>,
) -> Result<BTreeMap<&'a str, Declared>, PlanError> {
    let mut all = BTreeMap::new();
    for (name, schema) in groups {
        let Declared::Group(shards, _) = all.entry(name).or_insert(Declared::Group(0, schema)) else { continue };
        *shards += 1;
    }
    for name in pipes {
        if all.insert(name, Declared::Pipe).is_some() {
            return Err(PlanError::DuplicateGroup(name.to_owned()));
        }
    }
    Ok(all)
}
