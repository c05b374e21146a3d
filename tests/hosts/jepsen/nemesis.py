"""Faults, and episodes of them: some begin right after a view change has begun that an earlier one brought about."""

import asyncio
import re
import signal
import time

# What members log when a view ends or begins.
VIEW_CHANGE = re.compile(rb"suspected|wedged|proposed|decided|to be installed|node is back|is on its way|the view is connected")


class Fault:
    """Something that happens to some replicas, and ends."""

    def __init__(self, name, replicas, begin, end):
        self.name, self.replicas, self.begin, self.end = name, frozenset(replicas), begin, end

    def __str__(self):
        return f"{self.name} {' '.join(map(str, sorted(self.replicas)))}"


class Nemesis:
    def __init__(self, cluster, rng, only=None):
        """`only`: the names of the faults that there shall be; all, if it is None."""
        self.only = only
        self.cluster, self.hosts, self.rng = cluster, cluster.hosts, rng
        self.all = sorted(cluster.replicas)
        self.active = []
        self.counts = {}
        # The longest time until all served, after all faults were over.
        self.longest_recovery = 0.0
        # Whether more than half were whole in this episode.
        self.majority_is_whole = True

    # --- kinds of faults

    def kill(self, *ids, name="kill"):
        async def begin():
            await asyncio.gather(*(self.cluster.replicas[k].kill() for k in ids))

        async def end():
            for k in self.rng.sample(ids, len(ids)):
                await self.cluster.replicas[k].start()
                if self.rng.random() < 0.5:
                    await asyncio.sleep(self.rng.random() * 0.5)

        return Fault(name, ids, begin, end)

    def power(self, *ids):
        """A loss of power: what a disk was to get while it hung, it never gets."""
        kill = self.kill(*ids)

        async def begin():
            whole = self.rng.random() < 0.5
            await asyncio.gather(*(self.cluster.replicas[k].hang_disk(whole, 60_000) for k in ids))
            await asyncio.sleep(0.1 + self.rng.random())
            await kill.begin()

        return Fault("power loss", ids, begin, kill.end)

    def stop(self, *ids):
        async def send(number):
            for k in ids:
                self.cluster.replicas[k].signal(number)

        return Fault("stop", ids, lambda: send(signal.SIGSTOP), lambda: send(signal.SIGCONT))

    def cut(self, name, ids, *cuts):
        """`cuts` are arguments of `hosts cut`."""

        async def each(what):
            await asyncio.gather(*(self.hosts.do(what, *words) for words in cuts))

        return Fault(name, ids, lambda: each("cut"), lambda: each("heal"))

    def cut_off(self, k):
        return self.cut("cut off", [k], [k])

    def cut_pair(self, a, b):
        return self.cut("cut pair", [a], [a, b])

    def one_way(self, a, b):
        return self.cut("cut one way", [a], [a, "to", b])

    def mute(self, k):
        return self.cut("mute", [k], *([k, "to", other] for other in self.all if other != k))

    def deaf(self, k):
        return self.cut("deaf", [k], *([other, "to", k] for other in self.all if other != k))

    def halves(self, *side):
        others = [k for k in self.all if k not in side]
        return self.cut("halves", side, *([a, b] for a in side for b in others))

    def slow(self, k):
        rate = self.rng.choice(["200kbit", "1mbit", "5mbit"])
        return Fault("slow link", [k], lambda: self.hosts.do("rate", k, rate), lambda: self.hosts.do("rate", k, "200mbit"))

    def disk(self, k, name, whole, milliseconds):
        replica = self.cluster.replicas[k]
        return Fault(name, [k], lambda: replica.hang_disk(whole, milliseconds), replica.release_disk)

    def clock(self, *ids):
        async def jump(back):
            for k in ids:
                seconds = 0 if back else self.rng.choice([-3600, -30, -2, 2, 30, 3600])
                self.cluster.replicas[k].clock.write_text(f"{seconds:+d}s\n")

        return Fault("clock jump", ids, lambda: jump(False), lambda: jump(True))

    # --- episodes

    def any_fault(self, free, most):
        """One on replicas of these, at most so many."""
        rng = self.rng
        some = rng.sample(free, rng.randint(1, max(1, min(most, len(free)))))
        k = some[0]
        other = rng.choice([o for o in self.all if o != k])
        kinds = [
            self.kill(*some),
            self.kill(*some),
            self.stop(*some),
            self.stop(k),
            self.cut_off(k),
            self.cut_pair(k, other),
            self.one_way(k, other),
            self.one_way(k, other),
            self.mute(k),
            self.deaf(k),
            self.halves(*some),
            self.slow(k),
            self.clock(*some),
        ]
        if self.cluster.durable:
            kinds += [
                self.power(*some),
                self.disk(k, "hung log disk", False, 60_000),
                self.disk(k, "hung disk", True, 60_000),
                self.disk(k, "slow disk", True, self.rng.choice([20, 200])),
            ]
        return rng.choice([fault for fault in kinds if self.only is None or fault.name in self.only])

    async def episode(self):
        """Some faults, the later ones at times in the middle of a view change; then all is well again."""
        rng, minority = self.rng, (len(self.all) - 1) // 2
        # In memory, a majority that dies is gone for good.
        most = len(self.all) if self.cluster.durable and rng.random() < 0.3 else minority
        self.majority_is_whole = most == minority
        free, story = list(self.all), []
        for number in range(rng.choices([1, 2, 3], [4, 4, 1])[0]):
            room = most - (len(self.all) - len(free))
            if room <= 0:
                break
            if number:
                story.append(await self.moment())
            fault = self.any_fault(free, room)
            free = [k for k in free if k not in fault.replicas]
            self.counts[fault.name] = self.counts.get(fault.name, 0) + 1
            story.append(str(fault))
            self.active.append(fault)
            self.cluster.tell(f"begins: {fault}")
            await fault.begin()
        await asyncio.sleep(rng.choice([0.1, 0.7, 2, 4]) * (0.5 + rng.random()))
        await self.heal(at_random=True)
        return ", ".join(story)

    async def moment(self):
        """Waits for a view change, or some time."""
        if self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.random() * 1.5)
            return "then"
        logs = [replica.log for replica in self.cluster.replicas.values()]
        sizes = {log: log.stat().st_size for log in logs}
        until = time.monotonic() + 3
        skip = self.rng.choice([0, 0, 1, 2, 4])
        while time.monotonic() < until:
            seen = 0
            for log in logs:
                with open(log, "rb") as file:
                    file.seek(sizes[log])
                    seen += len(VIEW_CHANGE.findall(file.read()))
            if seen > skip:
                await asyncio.sleep(self.rng.choice([0, 0, 0.02, 0.2]))
                return "amid a view change"
            await asyncio.sleep(0.005)
        return "then, without a view change,"

    async def heal(self, at_random=False):
        """Ends all faults."""
        faults, self.active = self.active, []
        if at_random:
            self.rng.shuffle(faults)
        for fault in faults:
            self.cluster.tell(f"ends: {fault}")
            await fault.end()
            if at_random and self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random())
