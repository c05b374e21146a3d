"""A client of the counters of examples/counter_service.rs: adds to one, all at a time, and prints it.

    python3 counter.py cluster.toml NAME AMOUNT..
"""

import asyncio
import sys

import squall


async def main(file, name, *amounts):
    async with await squall.aio.Shards.open(file, "counters", timeout=30) as counters:
        shard = counters.of(name)
        try:
            await asyncio.gather(*(shard.call("add", name=name, amount=int(amount)) for amount in amounts))
        except squall.Error as error:
            # `applied` says whether a command may be submitted again.
            sys.exit(f"{type(error).__name__}, applied: {error.applied.name}: {error}")
        print(await shard.ask("get", name=name))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: counter.py FILE NAME AMOUNT..")
    asyncio.run(main(*sys.argv[1:]))
