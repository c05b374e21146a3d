"""Clients of groups that Squall replicates.

A group is served by members of a cluster. A client is a program outside. It talks to any member, goes to another one
when that fails, and each of its commands is applied once, however often the connection broke.

    import squall

    with squall.Client("cluster.toml", "counters") as counters:
        counters.call("add", name="visits", amount=1)
        print(counters.ask("get", name="visits"))

``squall.aio`` has the same for asyncio. Commands and queries are JSON, which the group's service has by
``#[squall::service(json)]``.
"""

from . import aio
from .client import Client, Shards
from .errors import (
    Applied,
    ArgumentError,
    ClosedError,
    ConfigError,
    DeadlineError,
    DeniedError,
    Error,
    FullError,
    NoReplyError,
    QueryError,
    RejectedError,
    ReplyError,
    SessionEndedError,
    SkippedError,
    StartError,
    UnknownOutcomeError,
)

__all__ = [
    "Applied",
    "ArgumentError",
    "Client",
    "ClosedError",
    "ConfigError",
    "DeadlineError",
    "DeniedError",
    "Error",
    "FullError",
    "NoReplyError",
    "QueryError",
    "RejectedError",
    "ReplyError",
    "SessionEndedError",
    "Shards",
    "SkippedError",
    "StartError",
    "UnknownOutcomeError",
    "aio",
]
