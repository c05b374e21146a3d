//! The commands that the server answers by itself.

use super::{CommandFn, Group, Spec};

pub(super) const COMMANDS: &[Spec] = &Group("server").of([
    local("acl", -2).doc("6.0.0", "Tells which user a connection has: there is one."),
    local("auth", -2).doc("1.0.0", "Says the password.").in_group("connection"),
    local("client", -2).doc("2.4.0", "Asks about connections, names and ends them.").in_group("connection"),
    local("cluster", -2).doc("3.0.0", "Refused: this is no Redis cluster.").in_group("cluster"),
    local("command", -1).doc("2.8.13", "Describes the commands."),
    local("config", -2).doc("2.0.0", "Reads and changes this replica's settings."),
    local("discard", 1).doc("2.0.0", "Gives a transaction up.").in_group("transactions").fast(),
    local("echo", 2).doc("1.0.0", "Answers its argument.").in_group("connection").fast(),
    local("exec", 1).doc("1.2.0", "Carries out a transaction.").in_group("transactions"),
    local("hello", -1).doc("6.0.0", "Greets, and chooses the version of the protocol.").in_group("connection").fast(),
    local("info", -1).doc("1.0.0", "Describes this replica and its group."),
    local("latency", -2).doc("2.8.13", "Tells what took long at this replica."),
    local("module", -2).doc("4.0.0", "Lists modules: there are none."),
    local("monitor", 1).doc("1.0.0", "Shows the requests that this replica is asked."),
    local("multi", 1).doc("1.2.0", "Begins a transaction.").in_group("transactions").fast(),
    local("ping", -1).doc("1.0.0", "Answers PONG, or its argument.").in_group("connection").fast(),
    local("psubscribe", -2).doc("2.0.0", "Listens to the channels that match patterns.").in_group("pubsub"),
    local("pubsub", -2)
        .doc("2.8.0", "Tells to which channels and patterns clients of this replica listen.")
        .in_group("pubsub"),
    local("punsubscribe", -1).doc("2.0.0", "Stops listening to patterns.").in_group("pubsub"),
    local("quit", -1).doc("1.0.0", "Ends this connection.").in_group("connection").fast(),
    local("reset", 1).doc("6.2.0", "Resets this connection.").in_group("connection").fast(),
    local("select", 2).doc("1.0.0", "Selects database 0, the only one.").in_group("connection").fast(),
    local("shutdown", -1).doc("1.0.0", "Stops this replica, which leaves its group."),
    local("slowlog", -2).doc("2.2.12", "Lists the requests of this replica that took long."),
    local("subscribe", -2).doc("2.0.0", "Listens to channels.").in_group("pubsub"),
    local("time", 1).doc("2.6.0", "Returns this host's time.").fast(),
    local("unsubscribe", -1).doc("2.0.0", "Stops listening to channels.").in_group("pubsub"),
    local("unwatch", 1).doc("2.2.0", "Watches no key any more.").in_group("transactions").fast(),
    local("wait", 3)
        .doc("3.0.0", "Tells how many other replicas have this connection's writes: all.")
        .in_group("generic"),
    local("watch", -2)
        .doc("2.2.0", "Watches keys: the next transaction fails if one changes.")
        .in_group("transactions")
        .fast()
        .keys(1, -1, 1),
]);

const fn local(name: &'static str, arity: i8) -> Spec {
    Spec::new(name, arity, CommandFn::Local).no_keys()
}
