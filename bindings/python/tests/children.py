"""Forks processes that call, each with a client of its own: the one of their parent is not for them."""

import multiprocessing
import sys

import squall

FILE = sys.argv[1]
PROCESSES, CALLS = 4, 100
parents = None


def adds(_):
    try:
        parents.ask("get", name="a")
    except squall.ClosedError as error:
        assert "forked" in str(error), error
    else:
        raise AssertionError("a child has called with its parent's client")
    # All have begun before one ends, so that each process takes one of the tasks.
    together.wait(60)
    with squall.Client(FILE, "counters", timeout=60) as counters:
        for _ in range(CALLS):
            counters.call("add", name="a", amount=1)


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(PROCESSES)
    with squall.Client(FILE, "counters", timeout=60) as parents:
        parents.ask("get", name="a")
        with fork.Pool(PROCESSES) as pool:
            pool.map(adds, range(PROCESSES), chunksize=1)
        print(parents.ask("get", name="a"))
