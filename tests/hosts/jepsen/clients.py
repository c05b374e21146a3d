"""Clients that append to lists and read them, alone and in transactions, and note what they see."""

import asyncio
import random
import time

from checker import Transaction
from store import Broken, Connection, Refusal

# How long a client waits for an answer.
PATIENCE = 15


class History:
    """What clients saw, in a file; and how long nothing was answered."""

    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")
        self.path = path
        self.begun = time.monotonic_ns()
        self.outcomes = {}
        self.last = self.begun
        # (nanoseconds, when it ended, what was under way)
        self.gaps = {}
        # Of the lists in use: when an answer had to do with it.
        self.by_key = {}
        self.longest_of_key = (0, "")
        self.longest_answer = 0

    def now(self):
        return time.monotonic_ns() - self.begun

    def add(self, transaction, label):
        self.file.write(transaction.line() + "\n")
        kinds = {operation[0] for operation in transaction.operations}
        kind = "transaction" if len(transaction.operations) > 1 else kinds.pop()
        counts = self.outcomes.setdefault(kind, {"ok": 0, "fail": 0, "info": 0})
        counts[transaction.outcome] += 1
        if transaction.end is not None:
            self.longest_answer = max(self.longest_answer, transaction.end - transaction.start)
        if transaction.outcome == "ok":
            now = self.begun + transaction.end
            self.gap(now, label)
            for _, key, *_ in transaction.operations:
                if key in self.by_key:
                    self.longest_of_key = max(self.longest_of_key, (now - self.by_key[key], key))
                    self.by_key[key] = now

    def gap(self, now, label):
        gap, self.last = now - self.last, max(now, self.last)
        if gap > self.gaps.get(label[0], (0,))[0]:
            self.gaps[label[0]] = (gap, (now - self.begun) / 1e9, label[1])

    def begin(self, key):
        self.by_key[key] = time.monotonic_ns()

    def forget(self, key):
        self.by_key.pop(key, None)

    def close(self):
        self.file.close()


class Workload:
    """Lists of which some are in use at a time: each until it has got so many elements."""

    def __init__(self, rng, history, keys=5, most=40):
        self.rng, self.history, self.most = rng, history, most
        self.next_key, self.next_value, self.appended = 0, 0, {}
        self.active = [self.fresh() for _ in range(keys)]
        self.retired = []

    def fresh(self):
        self.next_key += 1
        self.appended[f"l{self.next_key}"] = 0
        self.history.begin(f"l{self.next_key}")
        return f"l{self.next_key}"

    def append(self, key):
        self.next_value += 1
        self.appended[key] += 1
        if self.appended[key] >= self.most and key in self.active:
            self.active[self.active.index(key)] = self.fresh()
            self.retired.append(key)
            self.history.forget(key)
        return ["append", key, self.next_value, None]

    def next(self):
        rng = self.rng
        count = 1 if rng.random() < 0.6 else rng.randint(2, 4)
        operations = []
        for _ in range(count):
            # At times one that is no longer written.
            key = rng.choice(self.active) if rng.random() < 0.95 or not self.retired else rng.choice(self.retired[-20:])
            is_read = rng.random() < 0.5 or key not in self.active
            operations.append(["read", key, None] if is_read else self.append(key))
        return operations


def words(operation):
    name, key, value, *_ = operation
    if name == "append":
        return [b"RPUSH", key.encode(), b"%d" % value]
    return [b"LRANGE", key.encode(), b"0", b"-1"]


def seen(operation, reply):
    """An operation with what came of it; None if that makes no sense."""
    if operation[0] == "append":
        return operation[:3] + [reply] if isinstance(reply, int) else None
    return ["read", operation[1], [int(value) for value in reply]] if isinstance(reply, list) else None


def outcome(operations, replies):
    """What is known after these replies, and the operations with them."""
    only_reads = all(operation[0] == "read" for operation in operations)
    refused = [reply for reply in replies if isinstance(reply, Refusal)]
    if len(operations) > 1 and not refused:
        replies = replies[-1] if isinstance(replies[-1], list) else []
        refused = [reply for reply in replies if isinstance(reply, Refusal)]
    if refused:
        # Of what was refused so, nothing was done.
        nothing = only_reads or (len(refused) == 1 or len(operations) > 1) and all(
            reply.startswith(("CLUSTERDOWN", "EXECABORT")) for reply in refused
        )
        return ("fail" if nothing else "info"), operations
    if len(replies) != len(operations):
        return "info", operations
    told = [seen(operation, reply) for operation, reply in zip(operations, replies)]
    return ("info", operations) if None in told else ("ok", told)


async def carry_out(connection, operations, patience=PATIENCE):
    """Carries operations out: several as one transaction. Returns the outcome, and the operations with their
    results."""
    commands = [words(operation) for operation in operations]
    if len(commands) > 1:
        commands = [[b"MULTI"], *commands, [b"EXEC"]]
    return outcome(operations, await connection.call(commands, patience))


class Clients:
    """All clients of a run: some on the hosts of replicas, which ask their own replica only, and some on another
    host."""

    def __init__(self, cluster, history, seed, label):
        self.cluster, self.history, self.label = cluster, history, label
        self.rng = random.Random(seed)
        self.workload = Workload(self.rng, history)
        self.processes = iter(range(1 << 60))
        self.stopping = False
        self.tasks = []

    def begin(self, near, far, pause):
        replicas = sorted(self.cluster.replicas)
        for k in replicas:
            self.tasks += [asyncio.create_task(self.client(k, [k], pause)) for _ in range(near)]
        client_host = len(replicas) + 1
        self.tasks += [asyncio.create_task(self.client(client_host, replicas, pause)) for _ in range(far)]

    async def end(self):
        self.stopping = True
        await asyncio.gather(*self.tasks)

    def cancel(self):
        """Ends all at once, whatever they wait for."""
        for task in self.tasks:
            task.cancel()

    async def client(self, host, replicas, pause):
        connection, process, turn = None, next(self.processes), self.rng.randrange(len(replicas))
        while not self.stopping:
            if connection is None:
                try:
                    connection = await Connection.open(self.cluster.hosts, host, replicas[turn % len(replicas)])
                except Broken:
                    turn += 1
                    await asyncio.sleep(0.1)
                    continue
            await asyncio.sleep(self.rng.random() * 2 * pause)
            operations = self.workload.next()
            start = self.history.now()
            try:
                how, operations = await carry_out(connection, operations)
            except Broken:
                only_reads = all(operation[0] == "read" for operation in operations)
                how = "fail" if only_reads else "info"
                connection.close()
                connection, turn = None, turn + 1
            end = None if how == "info" else self.history.now()
            self.history.add(Transaction(process, start, end, how, operations), self.label())
            if how != "ok":
                process = next(self.processes)
                if connection and len(replicas) > 1:
                    connection.close()
                    connection, turn = None, turn + 1
                await asyncio.sleep(0.02)
        if connection:
            connection.close()

    async def read_all(self):
        """Reads all lists once more, at each replica."""
        keys = [f"l{key}" for key in range(1, self.workload.next_key + 1)]
        for k in sorted(self.cluster.replicas):
            connection, process = await Connection.open(self.cluster.hosts, k, k), next(self.processes)
            for key in keys:
                start = self.history.now()
                how, operations = await carry_out(connection, [["read", key, None]], 60)
                self.history.add(Transaction(process, start, self.history.now(), how, operations), self.label())
                if how != "ok":
                    raise Broken(f"replica {k} does not answer for {key} in the end")
            connection.close()
