"""Loads an etcd cluster with puts, so many under way at a time, and prints one JSON object: rate, latencies in
microseconds, and the processor time that this client itself took.

    load.py --endpoints URL,URL,.. --outstanding N [--size BYTES] [--seconds S] [--processes N]

The client is PyPI's etcd-client-py: Rust's etcd-client under asyncio. Each writer has a connection of its own, since
that client has one call under way on each, and waits for its put before it begins the next; the writers are spread
evenly over the endpoints. A put that fails ends the run.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import sys
import time

import etcd_client

WARM_UP_SECONDS = 1.0


async def write(connection, prefix, value, begin, end, latencies):
    """One writer. Only what was answered between `begin` and `end` counts."""
    number = 0
    while (sent := time.monotonic()) < end:
        await connection.put(b"%s/%d" % (prefix, number), value)
        answered = time.monotonic()
        if begin <= answered < end:
            latencies.append(answered - sent)
        number += 1


async def load(endpoints, writers, process, begin, end, size):
    latencies = []
    value = os.urandom(size)
    connections = [etcd_client.Client([endpoints[n % len(endpoints)]]).connect() for n in range(writers)]
    opened = [await connection.__aenter__() for connection in connections]
    try:
        await asyncio.gather(
            *(
                write(opened[n], b"%d/%d" % (process, n), value, begin, end, latencies)
                for n in range(writers)
            )
        )
    finally:
        for connection in connections:
            await connection.__aexit__(None, None, None)
    return latencies


def run(job):
    endpoints, writers, process, begin, end, size = job
    # So that few writers of several processes do not all meet the same member.
    endpoints = endpoints[process % len(endpoints) :] + endpoints[: process % len(endpoints)]
    latencies = asyncio.run(load(endpoints, writers, process, begin, end, size)) if writers else []
    used = resource.getrusage(resource.RUSAGE_SELF)
    return latencies, used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoints", required=True, help="URLs, separated by commas")
    parser.add_argument("--outstanding", type=int, required=True, help="puts under way at a time, in all")
    parser.add_argument("--size", type=int, default=1024, help="a value's size in bytes")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure, after a second of warm-up")
    parser.add_argument("--processes", type=int, default=1, help="of this client")
    arguments = parser.parse_args()
    endpoints = arguments.endpoints.split(",")
    # All processes on this host have the same monotonic clock.
    begin = time.monotonic() + WARM_UP_SECONDS
    end = begin + arguments.seconds
    n = arguments.processes
    jobs = [
        (endpoints, (arguments.outstanding + n - 1 - process) // n, process, begin, end, arguments.size)
        for process in range(n)
    ]
    with multiprocessing.get_context("spawn").Pool(n) as pool:
        parts = pool.map(run, jobs, chunksize=1)
    latencies = sorted(latency for part, _ in parts for latency in part)
    if not latencies:
        sys.exit(f"no put was answered within {arguments.seconds} s")
    at = lambda quantile: 1e6 * latencies[min(len(latencies) - 1, int(quantile * len(latencies)))]
    figures = {
        "bench": "etcd",
        "outstanding": arguments.outstanding,
        "size_bytes": arguments.size,
        "appends_per_second": len(latencies) / arguments.seconds,
        "latency_p50_us": at(0.5),
        "latency_p99_us": at(0.99),
        "client_cpu_seconds": sum(cpu for _, cpu in parts),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
