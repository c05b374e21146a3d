"""Blocking clients. Any threads may use one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import _library
from ._library import LIBRARY, Config, Connection, Key


class Shard:
    """The calls to a group's shard."""

    def __init__(self, connection: Connection, shard: int) -> None:
        self._connection = connection
        self._shard = shard

    def submit(self, command: Any, *, timeout: float | None = None) -> Any:
        """Submits a command, a value that JSON has, and returns its reply.

        The command is applied once, whatever fails meanwhile. If the call fails, ``applied`` of the error says what is
        known.
        """
        command, limit = _library.encoded(command), _library.milliseconds(timeout)
        number = self._connection.open()
        return _library.value(LIBRARY.squall_submit(number, self._shard, command, len(command), limit))

    def query(self, query: Any, *, consistency: str = "linearizable", timeout: float | None = None) -> Any:
        """Asks a query and returns its answer.

        It shows all that any caller was told before, unless ``consistency`` is ``"local"``: then it may be behind.
        """
        query, how, limit = _library.encoded(query), _library.consistency(consistency), _library.milliseconds(timeout)
        number = self._connection.open()
        return _library.value(LIBRARY.squall_query(number, self._shard, how, query, len(query), limit))

    def call(self, method: str, /, **arguments: Any) -> Any:
        """Calls a command of a service that ``#[squall::service(json)]`` has made, and returns its result."""
        return _library.result_of(method, self.submit({method: arguments}))

    def ask(self, method: str, /, **arguments: Any) -> Any:
        """Calls a query of such a service, and returns its result."""
        return _library.result_of(method, self.query({method: arguments}))


class Client(Shard):
    """A client of a group without shards.

    ``config`` is the path of a TOML file that describes the cluster; members' file will do. Or ``toml`` is its text.
    Opening waits until a member has answered, for ``timeout`` seconds at most, which is also the limit of each call
    that has none of its own.
    """

    def __init__(
        self, config: Config | None, group: str, *, toml: str | None = None, timeout: float = 10.0
    ) -> None:
        connection = Connection(config, group, toml, timeout)
        super().__init__(connection, connection.only_shard())

    def close(self) -> None:
        """Closes the client. Calls of other threads end with ``ClosedError``."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Shards:
    """A client of a group of any number of shards. Its arguments are those of ``Client``."""

    def __init__(
        self, config: Config | None, group: str, *, toml: str | None = None, timeout: float = 10.0
    ) -> None:
        self._connection = Connection(config, group, toml, timeout)

    def __len__(self) -> int:
        return self._connection.shards

    def __getitem__(self, shard: int) -> Shard:
        return Shard(self._connection, self._connection.checked(shard))

    def __iter__(self) -> Iterator[Shard]:
        return (self[shard] for shard in range(len(self)))

    def of(self, key: Key) -> Shard:
        """The shard that has a key, in a group that divides its keys by ``squall::shard_of_bytes``."""
        return self[self._connection.shard_of(key)]

    def close(self) -> None:
        """Closes the client. Calls of other threads end with ``ClosedError``."""
        self._connection.close()

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
