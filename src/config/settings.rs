//! The settings that can be configured, unchecked, with the place of each value.
//!
//! A setting is declared here, once: its name, type, notation, key, and variable of the environment if it has one. The
//! file and the environment follow from that. Its check and its default are in `Draft::check`, or what that calls; its
//! field and accessor in [`Config`](super::Config); its method in the builder. The tests demand that the example of
//! [the module](super) and the book's page on the configuration show the key and the variable.

use std::{path::PathBuf, time::Duration};

use squall_fabric::NodeId;
use squall_ordered::Mode;

use super::{
    Backend, ConfigError, Spin, ValuePlace, check_name,
    notation::{self, Form, Written},
    security::Protection,
};

/// Declares the settings of a table, each as `name: Type as notation = "key" or "VARIABLE"`.
macro_rules! settings {
    ($(#[$doc:meta])* $Settings:ident {
        $($name:ident: $Type:ty as $notation:ident = $key:literal $(or $variable:literal)?;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(super) struct $Settings {
            $(pub(super) $name: Setting<$Type>,)*
        }

        impl $Settings {
            /// The keys, without the prefix of the table.
            pub(super) const KEYS: &[&str] = &[$($key),*];

            /// Returns the settings of a table without values. `place` is where a missing value should have been.
            pub(super) fn new(prefix: &str, place: &ValuePlace) -> $Settings {
                $Settings { $($name: Setting::new(format!("{prefix}{}", $key), place),)* }
            }

            /// Overrides the settings that a source has: a file by the key, the environment by the variable.
            pub(super) fn read<'a>(
                &mut self,
                source: impl Fn(&str, Option<&'static str>) -> Option<(ValuePlace, Form<'a>)>,
            ) -> Result<(), ConfigError> {
                $(if let Some((place, form)) = source($key, [$(Some($variable),)? None][0]) {
                    self.$name.read(place, form, notation::$notation)?;
                })*
                Ok(())
            }
        }
    };
}

settings! {
    /// The settings of a node.
    NodeSettings {
        cluster: String as text = "cluster" or "SQUALL_CLUSTER";
        id: u32 as id = "id" or "SQUALL_ID";
        // SQUALL_MEMBERS overrides the addresses too.
        members: Vec<u32> as ids = "members";
        join: Vec<String> as contacts = "join" or "SQUALL_JOIN";
        voters: Vec<u32> as ids = "voters" or "SQUALL_VOTERS";
        witnesses: Vec<u32> as ids = "witnesses" or "SQUALL_WITNESSES";
        rack: String as text = "rack" or "SQUALL_RACK";
        storage: PathBuf as path = "storage" or "SQUALL_STORAGE";
        sign_log: PathBuf as path = "sign_log" or "SQUALL_SIGN_LOG";
        scrub_bytes_per_second: usize as size = "scrub_bytes_per_second" or "SQUALL_SCRUB_BYTES_PER_SECOND";
        formation_timeout: Duration as millis = "formation_timeout_ms" or "SQUALL_FORMATION_TIMEOUT_MS";
        failure_timeout: Duration as millis = "failure_timeout_ms" or "SQUALL_FAILURE_TIMEOUT_MS";
        read_lease: Duration as millis = "read_lease_ms" or "SQUALL_READ_LEASE_MS";
        restart_wait: Duration as millis = "restart_wait_ms" or "SQUALL_RESTART_WAIT_MS";
        disk_timeout: Duration as millis = "disk_timeout_ms" or "SQUALL_DISK_TIMEOUT_MS";
        apply_timeout: Duration as millis = "apply_timeout_ms" or "SQUALL_APPLY_TIMEOUT_MS";
        clock_limit: Duration as millis = "clock_limit_ms" or "SQUALL_CLOCK_LIMIT_MS";
        spin: Spin as spin = "spin" or "SQUALL_SPIN";
        short_limit: Duration as micros = "short_limit_us" or "SQUALL_SHORT_LIMIT_US";
        client_bytes: usize as size = "client_bytes" or "SQUALL_CLIENT_BYTES";
        moves_at_once: u32 as number = "moves_at_once";
        listen: Vec<String> as addresses = "listen" or "SQUALL_LISTEN";
        security: Protection as protection = "security" or "SQUALL_SECURITY";
        security_mode: Protection as protection = "security.mode";
        ca: PathBuf as path = "security.ca" or "SQUALL_CA";
        certificate: PathBuf as path = "security.certificate" or "SQUALL_CERTIFICATE";
        key: PathBuf as path = "security.key" or "SQUALL_KEY";
        crl: PathBuf as path = "security.crl" or "SQUALL_CRL";
        denied: PathBuf as path = "security.denied" or "SQUALL_DENIED";
        backend: Backend as backend = "fabric.backend" or "SQUALL_FABRIC";
        send_buffer_bytes: usize as size = "fabric.tcp.send_buffer_bytes";
        receive_buffer_bytes: usize as size = "fabric.tcp.receive_buffer_bytes";
        device: String as text = "fabric.verbs.device" or "SQUALL_VERBS_DEVICE";
        port: u8 as number = "fabric.verbs.port" or "SQUALL_VERBS_PORT";
        gid_index: u8 as number = "fabric.verbs.gid_index" or "SQUALL_VERBS_GID_INDEX";
        traffic_class: u8 as number = "fabric.verbs.traffic_class" or "SQUALL_VERBS_TRAFFIC_CLASS";
        service_level: u8 as number = "fabric.verbs.service_level" or "SQUALL_VERBS_SERVICE_LEVEL";
        partition_key: u16 as number = "fabric.verbs.partition_key" or "SQUALL_VERBS_PARTITION_KEY";
    }
}

settings! {
    /// The settings of a group.
    GroupSettings {
        mode: Mode as mode = "mode";
        ring_bytes: usize as size = "ring_bytes";
        bulk_threshold: usize as size = "bulk_threshold";
        bulk_reserve: usize as size = "bulk_reserve";
        senders: Vec<u32> as ids = "senders";
        max_waiting: usize as number = "max_waiting";
        shards: u32 as number = "shards";
        min_replicas: u32 as number = "min_replicas";
        max_replicas: u32 as number = "max_replicas";
        reserved: Vec<u32> as ids = "reserved";
        snapshot_bytes: usize as size = "snapshot_bytes";
        retain: usize as size = "retain";
    }
}

settings! {
    /// The settings of one shard of a group.
    ShardSettings {
        min_replicas: u32 as number = "min_replicas";
        max_replicas: u32 as number = "max_replicas";
        pinned: Vec<u32> as ids = "pinned";
        racks: Vec<String> as names = "racks";
        only: bool as truth = "only";
    }
}

/// A setting: its value, if it is given, and the place of the value or where it is missing.
#[derive(Clone, Debug)]
pub(super) struct Setting<T> {
    /// The key, with the names of its tables before it.
    pub(super) key: String,
    pub(super) value: Option<T>,
    pub(super) place: ValuePlace,
}

impl<T> Setting<T> {
    pub(super) fn new(key: String, place: &ValuePlace) -> Setting<T> {
        Setting { key, value: None, place: place.clone() }
    }

    pub(super) fn set(&mut self, value: T, place: ValuePlace) {
        (self.value, self.place) = (Some(value), place);
    }

    /// Sets the value as it is written at `place`.
    pub(super) fn read(
        &mut self,
        place: ValuePlace,
        form: Form,
        notation: fn(&Written) -> Result<T, ConfigError>,
    ) -> Result<(), ConfigError> {
        let value = notation(&Written { key: &self.key, place: &place, form })?;
        self.set(value, place);
        Ok(())
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError::value(&self.place, &self.key, problem)
    }

    /// Returns the value, or the error that it is missing.
    pub(super) fn required(&self, remedy: &str) -> Result<&T, ConfigError> {
        let problem = || format!("is missing: {remedy} (if you did, the file may be only half written)");
        self.value.as_ref().ok_or_else(|| self.error(problem()))
    }

    /// Checks the value, if there is one.
    pub(super) fn check<P: Into<String>>(
        &self,
        is_valid: impl FnOnce(&T) -> bool,
        problem: impl FnOnce(&T) -> P,
    ) -> Result<(), ConfigError> {
        self.value.as_ref().filter(|value| !is_valid(value)).map_or(Ok(()), |value| Err(self.error(problem(value))))
    }
}

impl Setting<String> {
    pub(super) fn check_name(&self) -> Result<(), ConfigError> {
        let Some(name) = &self.value else { return Ok(()) };
        check_name(name).map_err(|error| self.error(format!("is {name:?}: {error}")))
    }
}

impl Setting<Vec<u32>> {
    /// Returns the ids in ascending order, so that nodes whose lists differ only in order agree.
    pub(super) fn node_ids(&self) -> Result<Option<Vec<NodeId>>, ConfigError> {
        let Some(ids) = &self.value else { return Ok(None) };
        let mut ids: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(self.error(format!("lists {} twice: remove one", pair[0].0))),
            None => Ok(Some(ids)),
        }
    }
}

impl Setting<PathBuf> {
    /// Returns the path, relative to the file that has it, with this node's id in the place of `{id}`. `if_empty` is
    /// what is wrong with an empty one.
    pub(super) fn path(&self, me: NodeId, if_empty: &str) -> Result<Option<PathBuf>, ConfigError> {
        self.check(|path| !path.as_os_str().is_empty(), |_| if_empty)?;
        // A path that is no UTF-8 text has no `{id}` either.
        let own = |path: &PathBuf| path.to_str().map_or_else(|| path.clone(), |text| with_id(text, me).into());
        Ok(self.value.as_ref().map(|path| self.place.beside(own(path))))
    }
}

/// Returns a text that all nodes share, with this node's id in the place of `{id}`.
pub(super) fn with_id(text: &str, me: NodeId) -> String {
    text.replace("{id}", &me.0.to_string())
}
