//! The commands that the server answers by itself.

use super::{CommandFn, Spec};

pub(super) const COMMANDS: &[Spec] = &[
    local("acl", -2, "server", "6.0.0", "Tells which user a connection has: there is one."),
    local("auth", -2, "connection", "1.0.0", "Says the password."),
    local("client", -2, "connection", "2.4.0", "Asks about connections, names and ends them."),
    local("cluster", -2, "cluster", "3.0.0", "Refused: this is no Redis cluster."),
    local("command", -1, "server", "2.8.13", "Describes the commands."),
    local("config", -2, "server", "2.0.0", "Reads and changes this replica's settings."),
    local("discard", 1, "transactions", "2.0.0", "Gives a transaction up.").fast(),
    local("echo", 2, "connection", "1.0.0", "Answers its argument.").fast(),
    local("exec", 1, "transactions", "1.2.0", "Carries out a transaction."),
    local("hello", -1, "connection", "6.0.0", "Greets, and chooses the version of the protocol.").fast(),
    local("info", -1, "server", "1.0.0", "Describes this replica and its group."),
    local("module", -2, "server", "4.0.0", "Lists modules: there are none."),
    local("multi", 1, "transactions", "1.2.0", "Begins a transaction.").fast(),
    local("ping", -1, "connection", "1.0.0", "Answers PONG, or its argument.").fast(),
    local("psubscribe", -2, "pubsub", "2.0.0", "Listens to the channels that match patterns."),
    local("pubsub", -2, "pubsub", "2.8.0", "Lists the channels to which clients of this replica listen."),
    local("punsubscribe", -1, "pubsub", "2.0.0", "Stops listening to patterns."),
    local("quit", -1, "connection", "1.0.0", "Ends this connection.").fast(),
    local("reset", 1, "connection", "6.2.0", "Resets this connection.").fast(),
    local("select", 2, "connection", "1.0.0", "Selects database 0, the only one.").fast(),
    local("subscribe", -2, "pubsub", "2.0.0", "Listens to channels."),
    local("time", 1, "server", "2.6.0", "Returns this host's time.").fast(),
    local("unsubscribe", -1, "pubsub", "2.0.0", "Stops listening to channels."),
    local("unwatch", 1, "transactions", "2.2.0", "Watches no key any more.").fast(),
    local("wait", 3, "generic", "3.0.0", "Tells how many other replicas have this connection's writes: all."),
    local("watch", -2, "transactions", "2.2.0", "Watches keys: the next transaction fails if one changes.")
        .fast()
        .keys(1, -1, 1),
];

const fn local(name: &'static str, arity: i8, group: &'static str, since: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, arity, CommandFn::Local, group, since, summary).no_keys()
}
