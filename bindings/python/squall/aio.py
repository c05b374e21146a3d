"""Clients for asyncio. Each belongs to the event loop in which it was opened.

    async with await squall.aio.Client.open("cluster.toml", "counters") as counters:
        await asyncio.gather(*(counters.call("add", name="visits", amount=1) for _ in range(100)))
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

from . import _library
from ._library import LIBRARY, Config, Connection, Key
from .errors import Applied, ClosedError, DeadlineError

# The results that are taken in one turn of the loop: the rest waits for the next, so that others have their turns.
MOST_TAKEN = 256

# The calls that wait at a time, of a shard and of a client: the library refuses more. Others wait for their turn.
MOST_OF_SHARD = 4096
MOST_OF_CLIENT = 65536


class Calls:
    """The calls of a connection that have no result yet."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._tags = itertools.count(1)
        # The calls by tag, each with its shard, whose turn it has until the library gives its result.
        self._waiting: dict[int, tuple[asyncio.Future[Any], int]] = {}
        turns = max(1, min(MOST_OF_SHARD, MOST_OF_CLIENT // connection.shards))
        self._turns = [asyncio.Semaphore(turns) for _ in range(connection.shards)]
        self._descriptor = LIBRARY.squall_descriptor(connection.number)
        self._loop.add_reader(self._descriptor, self._take)

    async def call(self, start: Any, shard: int, timeout: float | None, *arguments: Any) -> Any:
        limit = await self._turn(shard, timeout)
        try:
            number, tag, future = self.connection.open(), next(self._tags), self._loop.create_future()
            refused = start(number, shard, *arguments, limit, tag)
            if refused:
                _library.value(refused)
        except BaseException:
            self._turns[shard].release()
            raise
        self._waiting[tag] = (future, shard)
        return await future

    async def _turn(self, shard: int, timeout: float | None) -> int:
        """Waits for a turn of a shard, within a call's limit. Returns what is left of the limit, for the library."""
        limit, turn = _library.milliseconds(timeout), self._turns[shard]
        if not turn.locked():
            await turn.acquire()
            return limit
        timeout = self.connection.timeout if timeout is None else timeout
        deadline = self._loop.time() + timeout
        try:
            await asyncio.wait_for(turn.acquire(), timeout)
        except asyncio.TimeoutError:
            why = "the deadline has passed before the turn of the call has come; nothing was applied"
            raise DeadlineError(why, Applied.NO) from None
        return _library.milliseconds(max(0, deadline - self._loop.time()))

    def _take(self, most: int = MOST_TAKEN) -> None:
        for _ in range(most):
            result = LIBRARY.squall_next(self.connection.number)
            if not result:
                return
            future, shard = self._waiting.pop(LIBRARY.squall_result_tag(result))
            self._turns[shard].release()
            try:
                value = _library.value(result)
            except Exception as error:
                # The caller may have given up, which takes nothing back.
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(value)

    def close(self) -> None:
        if not self.connection.is_open():
            return
        self._take(len(self._waiting))
        self._loop.remove_reader(self._descriptor)
        self.connection.close()
        waiting, self._waiting = self._waiting, {}
        for future, shard in waiting.values():
            self._turns[shard].release()
            if not future.done():
                known = "it is unknown whether the command was applied"
                future.set_exception(ClosedError(f"the client was closed; {known}", Applied.MAYBE))


async def _open(config: Config | None, group: str, toml: str | None, timeout: float) -> Connection:
    # It waits for a member, so a thread does it.
    return await asyncio.get_running_loop().run_in_executor(None, Connection, config, group, toml, timeout)


class Shard:
    """The calls to a group's shard."""

    def __init__(self, calls: Calls, shard: int) -> None:
        self._calls = calls
        self._shard = shard

    async def submit(self, command: Any, *, timeout: float | None = None) -> Any:
        """Submits a command, a value that JSON has, and returns its reply.

        The command is applied once, whatever fails meanwhile. If the call fails, ``applied`` of the error says what is
        known. A task that is cancelled takes nothing back: the command may be applied.
        """
        command = _library.encoded(command)
        return await self._calls.call(LIBRARY.squall_start_submit, self._shard, timeout, command, len(command))

    async def query(self, query: Any, *, consistency: str = "linearizable", timeout: float | None = None) -> Any:
        """Asks a query and returns its answer.

        It shows all that any caller was told before, unless ``consistency`` is ``"local"``: then it may be behind.
        """
        query, how = _library.encoded(query), _library.consistency(consistency)
        return await self._calls.call(LIBRARY.squall_start_query, self._shard, timeout, how, query, len(query))

    async def call(self, method: str, /, **arguments: Any) -> Any:
        """Calls a command of a service that ``#[squall::service(json)]`` has made, and returns its result."""
        return _library.result_of(method, await self.submit({method: arguments}))

    async def ask(self, method: str, /, **arguments: Any) -> Any:
        """Calls a query of such a service, and returns its result."""
        return _library.result_of(method, await self.query({method: arguments}))


class Client(Shard):
    """A client of a group without shards: see ``open``."""

    @classmethod
    async def open(
        cls, config: Config | None, group: str, *, toml: str | None = None, timeout: float = 10.0
    ) -> Client:
        """Opens a client, with the arguments of ``squall.Client``."""
        connection = await _open(config, group, toml, timeout)
        connection.only_shard()
        return cls(Calls(connection), 0)

    async def close(self) -> None:
        """Closes the client. Calls without a result end with ``ClosedError``."""
        self._calls.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Shards:
    """A client of a group of any number of shards: see ``open``."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @classmethod
    async def open(
        cls, config: Config | None, group: str, *, toml: str | None = None, timeout: float = 10.0
    ) -> Shards:
        """Opens a client, with the arguments of ``squall.Client``."""
        return cls(Calls(await _open(config, group, toml, timeout)))

    def __len__(self) -> int:
        return self._calls.connection.shards

    def __getitem__(self, shard: int) -> Shard:
        return Shard(self._calls, self._calls.connection.checked(shard))

    def __iter__(self) -> Iterator[Shard]:
        return (self[shard] for shard in range(len(self)))

    def of(self, key: Key) -> Shard:
        """The shard that has a key, in a group that divides its keys by ``squall::shard_of_bytes``."""
        return self[self._calls.connection.shard_of(key)]

    async def close(self) -> None:
        """Closes the client. Calls without a result end with ``ClosedError``."""
        self._calls.close()

    async def __aenter__(self) -> Shards:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
