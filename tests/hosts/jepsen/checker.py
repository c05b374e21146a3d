"""A check for strict serializability, after Elle.

("Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB 2020.) A transaction is a list of operations
on keys. Every value is written once, so each read says which writes came before it, and the order of a key's versions
follows from what was observed:

- lists:     ["append", key, value, length or None] and ["read", key, list]; a read is the whole order so far, and an
             append's reply, the new length, is its place in it;
- registers: ["write", key, value] and ["read", key, value or None]; a transaction that reads a key before it writes it
             says which version it replaces.

Between transactions there are edges: ww (the next version), wr (a version and its reader), rw (a reader and the next
version), and rt (one had ended before the other began). Transactions are strictly serializable only if no cycle exists.
Knows nothing of the store: no time stamp, version or log of its own goes in.

A transaction that was answered is "ok"; one that certainly did nothing is "fail"; of any other ("info") it is unknown
whether, and when, it takes effect. It never ends.
"""

import bisect
import json
from array import array
from collections import defaultdict, deque
from dataclasses import dataclass

KINDS = ("ww", "wr", "rw", "rt")


@dataclass(slots=True)
class Transaction:
    process: int
    start: int
    end: int | None
    outcome: str
    operations: list

    def line(self):
        return json.dumps([self.process, self.start, self.end, self.outcome, self.operations], separators=(",", ":"))

    @staticmethod
    def parse(line):
        return Transaction(*json.loads(line))

    def __str__(self):
        end = "?" if self.end is None else f"{self.end / 1e9:.6f}"
        words = []
        for operation in self.operations:
            name, key, value, *rest = operation
            length = f" -> {rest[0]}" if rest and rest[0] is not None else ""
            words.append(f"{name} {key} {value}{length}")
        return f"[{self.start / 1e9:.6f} .. {end}] process {self.process} {self.outcome}: {'; '.join(words)}"


class Versions:
    """The versions of keys in their order, as far as it is known, and each transaction's place among them."""

    def __init__(self):
        # By key (of a register: key and chain), the writers in order.
        self.writers = {}
        # (transaction, key, the number of versions that it saw)
        self.reads = []
        # (key, a writer whose version comes after all of its versions)
        self.later = []


class Checker:
    def __init__(self, transactions):
        self.all = transactions
        self.anomalies = []
        self.writer = {}
        self.failed = {}
        for index, transaction in enumerate(transactions):
            for name, key, value, *_ in transaction.operations:
                if name != "read":
                    known = self.failed if transaction.outcome == "fail" else self.writer
                    assert (key, value) not in known, f"the workload wrote {value} to {key} twice"
                    known[key, value] = index

    def found(self, kind, text, *indices):
        self.anomalies.append((kind, text, [str(self.all[index]) for index in indices]))

    # --- lists

    def lists(self):
        """Infers the versions of lists."""
        longest, external, places = {}, [], defaultdict(dict)
        for index, transaction in enumerate(self.all):
            if transaction.outcome == "ok":
                for key, (seen, base, own) in self.list_states(index).items():
                    if seen is not None:
                        external.append((index, key, seen))
                        if len(seen) > len(longest.get(key, (index, []))[1]):
                            longest[key] = (index, seen)
                    if base is not None:
                        for place, value in enumerate(own, base):
                            self.place(places[key], key, place, value, index)
        for key, (index, seen) in longest.items():
            for place, value in enumerate(seen):
                self.place(places[key], key, place, value, index)
        versions, ordered = Versions(), {}
        for key, placed in places.items():
            at = sorted(placed)
            ordered[key] = at
            values = [placed[place] for place in at]
            if len(set(values)) != len(values):
                twice = sorted({value for value in values if values.count(value) > 1})
                writers = [self.writer[key, value] for value in twice if (key, value) in self.writer]
                self.found("duplicate", f"{key} has {twice} more than once", *writers)
            versions.writers[key] = [self.writer.get((key, value)) for value in values]
        for index, key, seen in external:
            if seen != longest.get(key, (index, []))[1][: len(seen)]:
                text = f"two reads of {key}, of which neither is a prefix of the other"
                self.found("incompatible order", text, index, longest[key][0])
                continue
            self.check_last(index, key, seen)
            versions.reads.append((index, key, bisect.bisect_left(ordered.get(key, []), len(seen))))
        return versions

    def place(self, placed, key, place, value, index):
        if placed.setdefault(place, value) != value:
            self.found("incompatible order", f"{key} has {placed[place]} and {value} at place {place}", index)
        if (key, value) not in self.writer:
            is_refused = (key, value) in self.failed
            kind, why = ("aborted read", "was refused") if is_refused else ("phantom", "no transaction wrote")
            self.found(kind, f"{key} has {value}, which {why}", index)

    def list_states(self, index):
        """By key: the list before this transaction, if it is known; its length, if that is; and what it appended."""
        states = {}
        for name, key, value, *rest in self.all[index].operations:
            seen, base, own = states.get(key, (None, None, []))
            if name == "append":
                own = own + [value]
                if rest and rest[0] is not None:
                    if base is not None and base != rest[0] - len(own):
                        self.found("internal", f"{key} has {rest[0]} elements, after {base} and {own}", index)
                    base = rest[0] - len(own)
            else:
                before = value[: len(value) - len(own)]
                has_changed = (base is not None and len(before) != base) or (seen is not None and before != seen)
                if has_changed or before + own != value:
                    self.found("internal", f"the transaction reads {value} of {key} after {seen} and its own {own}", index)
                seen, base = before, len(before)
            states[key] = (seen, base, own)
        return states

    def check_last(self, index, key, seen):
        """Nobody sees half of what a transaction appends."""
        if not seen or (writer := self.writer.get((key, seen[-1]))) is None or writer == index:
            return
        own = [value for name, of, value, *_ in self.all[writer].operations if name == "append" and of == key]
        if own[-1] != seen[-1]:
            text = f"{key} ends with {seen[-1]}, behind which the same transaction has {own[-1]}"
            self.found("intermediate read", text, index, writer)

    # --- registers

    def registers(self):
        """Infers the versions of registers, whose writers say what they replace."""
        after, external = {}, []
        for index, transaction in enumerate(self.all):
            if transaction.outcome == "fail":
                continue
            now, wrote = {}, {}
            for name, key, value, *_ in transaction.operations:
                if name == "write":
                    if key in now:
                        first = after.setdefault((key, now[key]), (index, value))
                        if first[0] != index:
                            text = f"{now[key]} of {key} was replaced by {first[1]} and by {value}"
                            self.found("lost update", text, first[0], index)
                    wrote[key] = now[key] = value
                elif transaction.outcome == "ok":
                    if key in now and now[key] != value:
                        self.found("internal", f"the transaction reads {value} of {key}, after {now[key]}", index)
                    if key not in wrote:
                        now[key] = value
                        external.append((index, key, value))
                        if value is not None and (key, value) not in self.writer:
                            kind = "aborted read" if (key, value) in self.failed else "phantom"
                            self.found(kind, f"{key} has {value}, which no transaction wrote, or was refused", index)
                elif value is not None:
                    now[key] = value
        versions, places = Versions(), {}
        replaced = {(key, value) for (key, _), (_, value) in after.items()}
        heads = [(key, value) for key, value in self.writer if (key, value) not in replaced]
        heads += [(key, None) for key in {key for key, _ in self.writer} | {key for _, key, _ in external}]
        for key, value in heads:
            chain = (key, value)
            writers = versions.writers.setdefault(chain, [])
            if value is not None:
                writers.append(self.writer[key, value])
            places[key, value] = (chain, len(writers))
            while (key, value) in after:
                value = after[key, value][1]
                writers.append(self.writer[key, value])
                places[key, value] = (chain, len(writers))
        for index, key, value in external:
            if (key, value) in places:
                chain, seen = places[key, value]
                versions.reads.append((index, chain, seen))
        self.follow_first(versions)
        return versions

    @staticmethod
    def follow_first(versions):
        """Nothing comes between the versions of a chain, so the one that begins with nothing is before all others of
        its key.

        Others begin with a write of unknown outcome, which counts if a transaction has seen it or what replaced it.
        """
        seen = {chain for _, chain, _ in versions.reads}
        for chain in versions.writers:
            key, head = chain
            if head is not None and chain in seen:
                versions.later.append(((key, None), versions.writers[chain][0]))

    # --- cycles

    def edges(self, versions):
        """(from, to, kind). Behind the transactions' numbers come those of moments, which only carry rt edges."""
        for key, writers in versions.writers.items():
            for one, next_one in zip(writers, writers[1:]):
                if one is not None and next_one is not None and one != next_one:
                    yield one, next_one, 0
        for index, key, seen in versions.reads:
            writers = versions.writers.get(key, [])
            if seen and writers[seen - 1] not in (None, index):
                yield writers[seen - 1], index, 1
            # Its own write is the next version at times; what replaces that is behind it by ww.
            if seen < len(writers) and writers[seen] not in (None, index):
                yield index, writers[seen], 2
        readers = defaultdict(list)
        for index, key, seen in versions.reads:
            if seen == len(versions.writers.get(key, [])):
                readers[key].append(index)
        for key, writer in versions.later:
            if versions.writers[key]:
                yield versions.writers[key][-1], writer, 0
            for index in readers[key]:
                if index != writer:
                    yield index, writer, 2
        count = len(self.all)
        ended = sorted((t.end, index) for index, t in enumerate(self.all) if t.outcome == "ok")
        ends = [end for end, _ in ended]
        for moment, (_, index) in enumerate(ended):
            yield index, count + moment, 3
            if moment:
                yield count + moment - 1, count + moment, 3
        for index, transaction in enumerate(self.all):
            before = bisect.bisect_left(ends, transaction.start)
            if transaction.outcome != "fail" and before:
                yield count + before - 1, index, 3

    def cycles(self, versions):
        """Finds cycles: removes what nothing precedes until nothing is left, or only cycles and their successors."""
        sources, targets, kinds = array("i"), array("i"), bytearray()
        for source, target, kind in self.edges(versions):
            sources.append(source)
            targets.append(target)
            kinds.append(kind)
        count = 2 * len(self.all)
        first = array("i", bytes(4 * (count + 1)))
        degree = array("i", bytes(4 * count))
        for source in sources:
            first[source + 1] += 1
        for target in targets:
            degree[target] += 1
        for node in range(count):
            first[node + 1] += first[node]
        filled, out = array("i", first), array("i", bytes(4 * len(sources)))
        for edge, source in enumerate(sources):
            out[filled[source]] = edge
            filled[source] += 1
        free = deque(node for node in range(count) if degree[node] == 0)
        while free:
            node = free.popleft()
            for at in range(first[node], first[node + 1]):
                target = targets[out[at]]
                degree[target] -= 1
                if degree[target] == 0:
                    free.append(target)
        left = {node for node in range(count) if degree[node] > 0}

        def onward(node):
            for at in range(first[node], first[node + 1]):
                if targets[out[at]] in left:
                    yield targets[out[at]], kinds[out[at]]

        told = set()
        for node in sorted(left):
            if node < len(self.all) and node not in told and len(self.anomalies) < 20:
                if cycle := shortest_cycle(node, onward):
                    told.update(step for step, _ in cycle)
                    self.tell_cycle(cycle)

    def tell_cycle(self, cycle):
        """A cycle is nodes, each with the kind of the edge that leads on from it."""
        kinds = [KINDS[kind] for _, kind in cycle]
        waits = sum(kind == "rw" for kind in kinds)
        name = "G0" if set(kinds) <= {"ww", "rt"} else "G1c" if not waits else "G-single" if waits == 1 else "G2"
        if "rt" in kinds:
            name += "-realtime"
        nodes = [(node, kind) for node, kind in cycle if node < len(self.all)]
        steps = " ".join(f"T{number} -{KINDS[kind]}->" for number, (_, kind) in enumerate(nodes))
        self.found(name, f"cycle: {steps} T0", *[node for node, _ in nodes])


def shortest_cycle(start, onward):
    """From a node to itself, breadth first."""
    came, queue = {}, deque([start])
    while queue:
        node = queue.popleft()
        for target, kind in onward(node):
            if target == start:
                cycle = [(node, kind)]
                while node != start:
                    node, kind = came[node]
                    cycle.append((node, kind))
                return cycle[::-1]
            if target not in came:
                came[target] = (node, kind)
                queue.append(target)
    return None


def check(transactions, what="lists"):
    """The anomalies of a history: (name, sentence, the transactions concerned)."""
    checker = Checker(transactions)
    checker.cycles(checker.lists() if what == "lists" else checker.registers())
    return checker.anomalies


def load(path):
    with open(path, encoding="utf-8") as file:
        return [Transaction.parse(line) for line in file if line.endswith("]\n")]


if __name__ == "__main__":
    import sys

    if len(sys.argv) != 3 or sys.argv[1] not in ("lists", "registers"):
        sys.exit("usage: checker.py lists|registers HISTORY")
    history = load(sys.argv[2])
    anomalies = check(history, sys.argv[1])
    for kind, text, concerned in anomalies:
        print(f"{kind}: {text}", *concerned, sep="\n    ")
    print(f"{len(history)} transactions, {len(anomalies)} anomalies")
    sys.exit(1 if anomalies else 0)
