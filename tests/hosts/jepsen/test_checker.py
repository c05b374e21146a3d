#!/usr/bin/env python3
"""Shows that the checker accepts what a serial store answers, and finds anomalies that are planted."""

import random
import unittest

from checker import Transaction, check


def kinds(history, what="lists"):
    return {kind for kind, _, _ in check(history, what)}


def ok(start, end, *operations):
    return Transaction(start, start, end, "ok", [list(operation) for operation in operations])


def info(start, *operations):
    return Transaction(start, start, None, "info", [list(operation) for operation in operations])


def fail(start, end, *operations):
    return Transaction(start, start, end, "fail", [list(operation) for operation in operations])


def serial(seed, what, count=400):
    """A history of overlapping transactions, each carried out at one moment between its start and its end."""
    rng, store, history, value = random.Random(seed), {}, [], 0
    for moment in range(10, 10 + 10 * count, 10):
        operations, outcome = [], rng.choices(["ok", "info", "fail"], [10, 1, 1])[0]
        acts = outcome == "ok" or (outcome == "info" and rng.random() < 0.5)
        for _ in range(rng.randint(1, 4)):
            key = f"k{rng.randrange(3)}"
            value += 1
            if what == "lists":
                if rng.random() < 0.5:
                    if acts:
                        store[key] = store.get(key, []) + [value]
                    is_told = outcome == "ok" and rng.random() < 0.7
                    operations.append(["append", key, value, len(store.get(key, [])) if is_told else None])
                elif outcome == "ok":
                    operations.append(["read", key, list(store.get(key, []))])
            else:
                if outcome == "ok":
                    operations.append(["read", key, store.get(key)])
                if rng.random() < 0.5:
                    operations.append(["write", key, value])
                    if acts:
                        store[key] = value
        start, end = moment - rng.randint(0, 60), moment + rng.randint(0, 60)
        history.append(Transaction(rng.randrange(5), start, None if outcome == "info" else end, outcome, operations))
    end = 10 * count + 100
    reads = [["read", f"k{key}", store.get(f"k{key}", [] if what == "lists" else None)] for key in range(3)]
    history.append(Transaction(9, end, end + 1, "ok", reads))
    rng.shuffle(history)
    return history


class Accepted(unittest.TestCase):
    def test_serial_histories(self):
        for what in ("lists", "registers"):
            for seed in range(30):
                self.assertEqual(check(serial(seed, what), what), [], f"{what}, seed {seed}")

    def test_unknown_outcomes_take_effect_late_or_never(self):
        a, late = info(0, ["append", "x", 1, None]), info(0, ["append", "x", 2, None])
        self.assertEqual(kinds([a, late, ok(10, 11, ["read", "x", []]), ok(20, 21, ["read", "x", [2]])]), set())


class Found(unittest.TestCase):
    def test_a_changed_reply_in_a_random_history(self):
        """Leaves out an element that a read had, or appends it twice: some of it is no anomaly, most is."""
        found = 0
        for seed in range(50):
            history = serial(seed, "lists")
            reads = [op for t in history if t.outcome == "ok" for op in t.operations if op[0] == "read" and len(op[2]) > 2]
            read = random.Random(seed).choice(reads)
            read[2] = read[2][:-1] if seed % 2 else read[2] + read[2][-1:]
            found += bool(kinds(history))
        self.assertGreaterEqual(found, 40)

    def test_a_stale_read(self):
        history = [ok(0, 1, ["append", "x", 1, 1]), ok(2, 3, ["read", "x", []]), ok(4, 5, ["read", "x", [1]])]
        self.assertEqual(kinds(history), {"G-single-realtime"})

    def test_a_lost_append_that_no_later_read_shows(self):
        self.assertEqual(kinds([ok(0, 1, ["append", "x", 1, 1]), ok(2, 3, ["read", "x", []])]), {"G-single-realtime"})

    def test_lost_appends_whose_places_went_to_others(self):
        history = [ok(0, 1, ["append", "x", 1, 1]), ok(2, 3, ["append", "x", 2, 1]), ok(4, 5, ["read", "x", [2]])]
        self.assertIn("incompatible order", kinds(history))

    def test_two_orders(self):
        history = [info(0, ["append", "x", 1, None]), info(0, ["append", "x", 2, None])]
        history += [ok(1, 9, ["read", "x", [1, 2]]), ok(1, 9, ["read", "x", [2, 1]])]
        self.assertIn("incompatible order", kinds(history))

    def test_an_append_that_took_effect_twice(self):
        self.assertIn("duplicate", kinds([ok(0, 1, ["append", "x", 1, 1]), ok(2, 3, ["read", "x", [1, 1]])]))

    def test_a_refused_append_that_is_there(self):
        self.assertIn("aborted read", kinds([fail(0, 1, ["append", "x", 1, None]), ok(2, 3, ["read", "x", [1]])]))

    def test_an_element_of_no_transaction(self):
        self.assertIn("phantom", kinds([ok(2, 3, ["read", "x", [7]])]))

    def test_half_a_transaction(self):
        history = [ok(0, 9, ["append", "x", 1, 1], ["append", "x", 2, 2]), ok(0, 9, ["read", "x", [1]])]
        self.assertIn("intermediate read", kinds(history))

    def test_half_a_transaction_of_two_keys(self):
        history = [ok(0, 9, ["append", "x", 1, 1], ["append", "y", 2, 1]), ok(0, 9, ["read", "x", [1]], ["read", "y", []])]
        self.assertEqual(kinds(history), {"G-single"})

    def test_a_transaction_that_does_not_see_itself(self):
        self.assertIn("internal", kinds([ok(0, 1, ["append", "x", 1, 1], ["read", "x", []])]))

    def test_write_skew(self):
        history = [ok(0, 9, ["read", "x", []], ["append", "y", 1, 1]), ok(0, 9, ["read", "y", []], ["append", "x", 2, 1])]
        self.assertEqual(kinds(history), {"G2"})

    def test_a_long_fork(self):
        history = [ok(0, 9, ["append", "x", 1, 1]), ok(0, 9, ["append", "y", 2, 1])]
        history += [ok(0, 9, ["read", "x", [1]], ["read", "y", []]), ok(0, 9, ["read", "x", []], ["read", "y", [2]])]
        self.assertEqual(kinds(history), {"G2"})

    def test_effects_against_real_time(self):
        history = [ok(0, 1, ["append", "x", 1, 2]), ok(2, 3, ["append", "x", 2, 1])]
        self.assertEqual(kinds(history), {"G0-realtime"})

    def test_registers_lost_update_and_stale_read(self):
        one = ok(0, 1, ["read", "x", None], ["write", "x", 1])
        self.assertIn("lost update", kinds([one, ok(2, 3, ["read", "x", None], ["write", "x", 2])], "registers"))
        self.assertEqual(kinds([one, ok(2, 3, ["read", "x", None])], "registers"), {"G-single-realtime"})

    def test_registers_half_a_transaction(self):
        both = ok(0, 9, ["read", "x", None], ["write", "x", 1], ["read", "y", None], ["write", "y", 2])
        self.assertEqual(kinds([both, ok(0, 9, ["read", "x", 1], ["read", "y", None])], "registers"), {"G-single"})

    def test_registers_a_refused_write_that_is_there(self):
        history = [fail(0, 1, ["write", "x", 1]), ok(2, 3, ["read", "x", 1])]
        self.assertIn("aborted read", kinds(history, "registers"))

    def test_registers_changed_reads_in_random_histories(self):
        """Nothing orders what follows two writes of unknown outcome."""
        found = 0
        for seed in range(50):
            history = serial(seed, "registers")
            last = max((t for t in history if t.outcome == "ok"), key=lambda t: t.start)
            earlier = [op[2] for t in history if t.outcome == "ok" for op in t.operations if op[0] == "write" and op[1] == "k0"]
            last.operations[0][2] = next(value for value in earlier if value != last.operations[0][2])
            found += bool(kinds(history, "registers"))
        self.assertGreaterEqual(found, 40)


if __name__ == "__main__":
    unittest.main()
