"""The errors of calls. Each has a class, and says whether a command was applied."""

from __future__ import annotations

import enum


class Applied(enum.IntEnum):
    """The knowledge of a command whose call failed."""

    NO = 0
    """No member applies it, so it may be submitted again, unless the error is a ``SkippedError``."""
    MAYBE = 1
    """It may have been applied, or may yet be."""
    YES = 2
    """It was applied, once."""


class Error(Exception):
    """A call failed, or a client could not be opened."""

    def __init__(self, message: str, applied: Applied = Applied.NO) -> None:
        super().__init__(message)
        self.applied = applied


class ArgumentError(Error, ValueError):
    """An argument can't be right."""


class ConfigError(Error, ValueError):
    """The configuration can't be used."""


class FullError(Error):
    """As many calls wait as may: wait for some. Clients for asyncio let further ones wait for their turns."""


class RejectedError(Error):
    """The group does not take the command: it is malformed or too long, an argument is refused, or there is no room."""


class DeniedError(Error, PermissionError):
    """The client's certificate does not permit the call, or the group is not served in JSON."""


class SkippedError(Error):
    """The service has panicked with the command, and an operator has said that it is skipped: don't submit it again."""


class NoReplyError(Error):
    """The command was applied, and its reply is too long to be kept for clients."""


class ReplyError(Error):
    """The reply could not be read. A command was applied."""


class QueryError(Error):
    """The query was not answered."""


class DeadlineError(Error, TimeoutError):
    """The deadline has passed. ``applied`` says whether a command may have been applied."""


class SessionEndedError(Error):
    """The group has ended the client's session: reconnecting took too long."""


class UnknownOutcomeError(Error):
    """It is unknown whether the command was applied."""


class ClosedError(Error):
    """The client was closed, or is of the process that has forked this one."""


class StartError(Error):
    """The system did not give what the client needs."""


# By the code of the library, see squall_client.h.
BY_CODE: dict[int, type[Error]] = {
    1: ArgumentError,
    2: ConfigError,
    3: FullError,
    4: RejectedError,
    5: DeniedError,
    6: SkippedError,
    7: NoReplyError,
    8: ReplyError,
    9: QueryError,
    10: DeadlineError,
    11: SessionEndedError,
    12: UnknownOutcomeError,
    13: ClosedError,
    14: StartError,
}
