//! The commands' flags, as `COMMAND` shows them, and as the server acts on them.

use super::CommandFn;

/// The properties of a command that its table does not have. Those of Redis that have no meaning here are left out: no
/// script runs, so no command is allowed while one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// It may take more memory, and is refused beyond `maxmemory`.
    pub denies_oom: bool,
    /// It is for operators. Monitors don't see it.
    pub is_admin: bool,
    /// It concerns channels.
    pub is_pubsub: bool,
    /// A script may not contain it.
    pub is_no_script: bool,
    /// It may wait for other clients, so that the time until its answer says nothing about the server.
    pub is_blocking: bool,
    /// It is answered whether or not this replica has the group's data.
    pub is_stale: bool,
    /// It needs no password.
    pub needs_no_auth: bool,
    /// It can't be part of a transaction.
    pub is_no_multi: bool,
}

const DENY_OOM: &[&str] = &[
    "append",
    "bitfield",
    "bitop",
    "blmove",
    "brpoplpush",
    "copy",
    "decr",
    "decrby",
    "getset",
    "hincrby",
    "hincrbyfloat",
    "hmset",
    "hset",
    "hsetnx",
    "incr",
    "incrby",
    "incrbyfloat",
    "linsert",
    "lmove",
    "lpush",
    "lpushx",
    "lset",
    "mset",
    "msetnx",
    "psetex",
    "rpoplpush",
    "rpush",
    "rpushx",
    "sadd",
    "sdiffstore",
    "set",
    "setbit",
    "setex",
    "setnx",
    "setrange",
    "sinterstore",
    "sort",
    "sunionstore",
    "zadd",
    "zdiffstore",
    "zincrby",
    "zinterstore",
    "zrangestore",
    "zunionstore",
];

/// In Redis, some subcommands of the latter ones are not for operators alone.
const ADMIN: &[&str] = &["debug", "monitor", "shutdown", "config", "latency", "slowlog", "module", "cluster"];

const PUBSUB: &[&str] = &["psubscribe", "publish", "pubsub", "punsubscribe", "subscribe", "unsubscribe"];

const NO_SCRIPT: &[&str] = &[
    "acl",
    "auth",
    "blmove",
    "blpop",
    "brpop",
    "brpoplpush",
    "bzpopmax",
    "bzpopmin",
    "client",
    "config",
    "debug",
    "discard",
    "exec",
    "hello",
    "latency",
    "module",
    "monitor",
    "multi",
    "psubscribe",
    "punsubscribe",
    "quit",
    "reset",
    "shutdown",
    "slowlog",
    "subscribe",
    "unsubscribe",
    "unwatch",
    "wait",
    "watch",
];

const BLOCKING: &[&str] = &["blmove", "blmpop", "blpop", "brpop", "brpoplpush", "bzmpop", "bzpopmax", "bzpopmin"];

const NO_AUTH: &[&str] = &["auth", "hello", "quit", "reset"];

/// Commands that change the session, or whose answer does not come at once.
const NO_MULTI: &[&str] =
    &["auth", "hello", "info", "monitor", "psubscribe", "punsubscribe", "shutdown", "subscribe", "unsubscribe"];

impl Flags {
    /// No flags.
    pub(super) const NONE: Flags = Flags {
        denies_oom: false,
        is_admin: false,
        is_pubsub: false,
        is_no_script: false,
        is_blocking: false,
        is_stale: false,
        needs_no_auth: false,
        is_no_multi: false,
    };

    /// The flags of a command.
    pub(super) fn of(name: &str, run: CommandFn) -> Flags {
        Flags {
            denies_oom: DENY_OOM.contains(&name),
            is_admin: ADMIN.contains(&name),
            is_pubsub: PUBSUB.contains(&name),
            is_no_script: NO_SCRIPT.contains(&name),
            is_blocking: BLOCKING.contains(&name),
            is_stale: matches!(run, CommandFn::Local),
            needs_no_auth: NO_AUTH.contains(&name),
            is_no_multi: NO_MULTI.contains(&name),
        }
    }

    /// The flags' names in Redis.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.denies_oom, "denyoom"),
            (self.is_admin, "admin"),
            (self.is_pubsub, "pubsub"),
            (self.is_no_script, "noscript"),
            (self.is_blocking, "blocking"),
            (self.is_stale, "loading"),
            (self.is_stale, "stale"),
            (self.needs_no_auth, "no_auth"),
            (self.is_no_multi, "no_multi"),
        ];
        all.into_iter().filter_map(|(is_set, name)| is_set.then_some(name))
    }
}
