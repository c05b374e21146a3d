"""Each of 100,000 calls is applied exactly once, across 20 kills of members."""

import asyncio
import collections
import os
import random
import time
import unittest

import squall
from cluster import MEMBERS, Cluster

KILLS = 20
CALLS_PER_KILL = 5000
# The calls that are under way at a time.
TASKS = 400
NAMES = [f"counter {i}" for i in range(16)]


class Kills(unittest.TestCase):
    def test_each_call_is_applied_once(self):
        asyncio.run(self.kills())

    async def kills(self):
        seed = int(os.environ.get("SQUALL_SEED") or time.time_ns())
        print(f"SQUALL_SEED={seed}", flush=True)
        self.random = random.Random(seed)
        self.places = collections.defaultdict(list)
        self.amount = 0
        with Cluster(shards=2) as cluster:
            async with await squall.aio.Shards.open(cluster.file, "counters", timeout=120) as counters:
                for _ in range(KILLS):
                    await self.round(cluster, counters)
                await self.check(counters)
            # A client that was not there sees the same, at whichever member.
            with squall.Shards(cluster.file, "counters", timeout=30) as counters:
                total = sum(counters.of(name).ask("get", name=name)["sum"] for name in NAMES)
                self.assertEqual(total, self.amount * (self.amount + 1) // 2)

    async def round(self, cluster, counters):
        """Makes calls, kills a member under way, and starts it again."""
        self.left, self.done = CALLS_PER_KILL, 0
        kill_at, victim = self.random.randrange(CALLS_PER_KILL // 2), self.random.choice(MEMBERS)
        self.due = asyncio.Event()
        adds = asyncio.gather(*(self.adds(counters, kill_at) for _ in range(TASKS)))
        due = asyncio.create_task(self.due.wait())
        # Without the calls it would never be due: they have failed then.
        await asyncio.wait([adds, due], return_when=asyncio.FIRST_COMPLETED)
        if not self.due.is_set():
            due.cancel()
            await adds
        cluster.kill(victim)
        await adds
        cluster.begin(victim)
        await asyncio.to_thread(cluster.wait, victim)

    async def adds(self, counters, kill_at):
        while self.left:
            self.left -= 1
            # Each amount is one that no other call has: a call that was applied twice, or never, shows in the sum.
            self.amount += 1
            amount, name = self.amount, self.random.choice(NAMES)
            reply = await counters.of(name).call("add", name=name, amount=amount)
            self.places[name].append((reply["adds"], amount, reply["sum"]))
            self.done += 1
            if self.done > kill_at:
                self.due.set()

    async def check(self, counters):
        """Checks that the replies tell of one order, in which each call has a place, and no other has one."""
        self.assertEqual(self.amount, KILLS * CALLS_PER_KILL)
        for name, places in self.places.items():
            expected = 0
            for place, (adds, amount, total) in enumerate(sorted(places), 1):
                expected += amount
                self.assertEqual((adds, total), (place, expected), name)
            counter = await counters.of(name).ask("get", name=name)
            self.assertEqual(counter, {"sum": expected, "adds": len(places)})


if __name__ == "__main__":
    unittest.main()
