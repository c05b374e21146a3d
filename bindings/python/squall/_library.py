"""The functions of libsquall_client, and the values that they take and return."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
from typing import Any, Union

from .errors import BY_CODE, Applied, ArgumentError, ClosedError, Error, RejectedError, ReplyError

Config = Union[str, "os.PathLike[str]"]
Key = Union[str, bytes]

JSON = 0
CONSISTENCIES = {"linearizable": 0, "local": 1}


def _load() -> ctypes.CDLL:
    beside = pathlib.Path(__file__).with_name("libsquall_client.so")
    # SQUALL_LIBRARY is for tests of another build.
    library = ctypes.CDLL(os.environ.get("SQUALL_LIBRARY") or str(beside))
    number, short, size = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t
    text, result, place = ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(number)
    for name, returned, *arguments in [
        ("open", result, text, text, short, number, place),
        ("open_toml", result, text, text, short, number, place),
        ("close", None, number),
        ("shards", short, number),
        ("shard_of", short, number, text, size),
        ("submit", result, number, short, text, size, number),
        ("query", result, number, short, short, text, size, number),
        ("start_submit", result, number, short, text, size, number, number),
        ("start_query", result, number, short, short, text, size, number, number),
        ("descriptor", ctypes.c_int, number),
        ("next", result, number),
        ("result_code", ctypes.c_int, result),
        ("result_applied", ctypes.c_int, result),
        ("result_bytes", ctypes.c_void_p, result),
        ("result_length", size, result),
        ("result_message", text, result),
        ("result_tag", number, result),
        ("result_free", None, result),
    ]:
        function = getattr(library, f"squall_{name}")
        function.restype, function.argtypes = returned, arguments
    return library


LIBRARY = _load()


def value(result: int) -> Any:
    """The value of a result, which is freed. Raises the error that it is."""
    try:
        code = LIBRARY.squall_result_code(result)
        if code == 0:
            length = LIBRARY.squall_result_length(result)
            text = ctypes.string_at(LIBRARY.squall_result_bytes(result), length)
            return json.loads(text) if text else None
        message = LIBRARY.squall_result_message(result).decode(errors="replace")
        applied = Applied(LIBRARY.squall_result_applied(result))
        raise BY_CODE.get(code, Error)(message, applied)
    finally:
        LIBRARY.squall_result_free(result)


def milliseconds(timeout: float | None) -> int:
    """The limit of a call for the library, where 0 stands for the client's own."""
    if timeout is None:
        return 0
    if not 0 <= timeout < 2**32:
        raise ArgumentError(f"a timeout is a number of seconds, and not {timeout}")
    return max(1, int(timeout * 1000))


def encoded(value: Any) -> bytes:
    """A command or query as the library takes it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"it has no form in JSON: {error}") from error


def consistency(name: str) -> int:
    try:
        return CONSISTENCIES[name]
    except KeyError:
        raise ArgumentError(f'a consistency is "linearizable" or "local", and not {name!r}') from None


def result_of(method: str, reply: Any) -> Any:
    """The result of a method of a service that ``#[squall::service(json)]`` has made."""
    if isinstance(reply, dict) and list(reply) == [method]:
        return reply[method]
    if reply == "Undecodable":
        raise RejectedError(f"the type of an argument of {method!r} has refused it, so it was not called", Applied.NO)
    raise ReplyError(f"it has no result of {method!r}", Applied.YES)


class Connection:
    """A client of the library: the shards of a group."""

    def __init__(self, config: Config | None, group: str, toml: str | None, timeout: float) -> None:
        number, limit = ctypes.c_uint64(), milliseconds(timeout)
        if config is not None and toml is None:
            open_, described = LIBRARY.squall_open, os.fsencode(config)
        elif toml is not None and config is None:
            open_, described = LIBRARY.squall_open_toml, toml.encode()
        else:
            raise ArgumentError("give a configuration's file, or its text as `toml`")
        if b"\0" in described or "\0" in group:
            raise ArgumentError("an argument has a null character")
        value(open_(described, group.encode(), JSON, limit, ctypes.byref(number)))
        self.number: int = number.value
        self.group = group
        self.timeout = timeout
        self._process = os.getpid()
        self.shards: int = LIBRARY.squall_shards(self.number)

    def is_open(self) -> bool:
        """Tells whether the client is open, and in this process: its threads do not come along to a forked child."""
        return self.number != 0 and self._process == os.getpid()

    def close(self) -> None:
        if self.is_open():
            number, self.number = self.number, 0
            LIBRARY.squall_close(number)

    def open(self) -> int:
        """The client's number, while it is open."""
        if not self.is_open():
            why = "is of the process that has forked this one: open one here" if self.number else "was closed"
            raise ClosedError(f"the client {why}; nothing was applied")
        return self.number

    def shard_of(self, key: Key) -> int:
        key = key.encode() if isinstance(key, str) else key
        shard: int = LIBRARY.squall_shard_of(self.open(), key, len(key))
        return shard

    def only_shard(self) -> int:
        """The number of the group's only shard."""
        if self.shards != 1:
            raise ArgumentError(f"the group {self.group!r} has {self.shards} shards: call them by `Shards`")
        return 0

    def checked(self, shard: int) -> int:
        if not 0 <= shard < self.shards:
            raise IndexError(f"the group {self.group!r} has shards 0 to {self.shards - 1}, and no shard {shard}")
        return shard

    def __del__(self) -> None:
        # It has no number if it could not be opened.
        if getattr(self, "number", 0):
            self.close()
