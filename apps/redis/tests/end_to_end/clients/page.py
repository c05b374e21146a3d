#!/usr/bin/env python3
"""A page of what applications do with Redis, by redis-py: python page.py HOST:PORT [HOST:PORT ...]

Each address is a replica of one store; with one address, it stands for all. What is written at one replica is read at
another. The page leaves the store as it was, apart from other keys' traffic, and ends with exit code 0 if all was as
Redis has it. Every part runs once for each version of the protocol.
"""

import asyncio
import sys
import threading
import time
import uuid

import redis
import redis.asyncio

PARTS = []


def part(check):
    PARTS.append(check)
    return check


def equal(got, expected):
    assert got == expected, f"expected {expected!r}, got {got!r}"


def refused(text, ask, *args, **kwargs):
    """The call must fail, with these words in the error."""
    try:
        got = ask(*args, **kwargs)
    except redis.RedisError as error:
        assert text in str(error), f"expected an error with {text!r}, got {error!r}"
    else:
        raise AssertionError(f"expected an error with {text!r}, got {got!r}")


def until(what, so, seconds=10):
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def floats(pairs):
    """Members with scores: tuples with RESP2, lists with RESP3, where ZPOPMIN without a count gives one bare pair."""
    pairs = [pairs] if pairs and isinstance(pairs[0], str) else pairs
    return [(member, float(score)) for member, score in pairs]


class Page:
    """Clients of three replicas, and keys that no other page has."""

    def __init__(self, addresses, protocol):
        self.addresses = addresses
        self.protocol = protocol
        self.prefix = f"page:{uuid.uuid4().hex}:"
        self.a, self.b, self.c = (self.client(index) for index in range(3))

    def options(self, index, **options):
        host, port = self.addresses[index % len(self.addresses)]
        return dict(host=host, port=port, protocol=self.protocol, decode_responses=True, socket_timeout=20, **options)

    def client(self, index, **options):
        return redis.Redis(**self.options(index, **options))

    def key(self, name):
        return self.prefix + name

    def close(self):
        left = list(self.a.scan_iter(match=self.prefix + "*", count=1000))
        if left:
            self.a.delete(*left)
        for client in (self.a, self.b, self.c):
            client.close()


@part
def connection(page):
    assert page.a.ping() is True
    equal(page.a.echo("hello"), "hello")
    named = page.client(0, client_name="page-of-use")
    equal(named.client_getname(), "page-of-use")
    with named.client() as one:
        assert one.client_setname("renamed") is True
        equal(one.client_getname(), "renamed")
        assert one.client_id() > 0
    named.close()
    seconds, micros = page.a.time()
    assert abs(seconds - time.time()) < 60 and 0 <= micros < 1_000_000
    if page.protocol == 3:
        connected = page.client(0)
        hello = connected.execute_command("HELLO", 3)
        hello = hello if isinstance(hello, dict) else dict(zip(hello[::2], hello[1::2]))
        equal(hello["proto"], 3)
        connected.close()


@part
def strings(page):
    a, b, c, key = page.a, page.b, page.c, page.key("string")
    assert a.set(key, "value") is True
    equal(b.get(key), "value")
    equal(c.exists(key, key), 2)
    equal(b.append(key, " and more"), 14)
    equal(c.getrange(key, 0, 4), "value")
    equal(a.setrange(key, 6, "AND"), 14)
    equal(b.get(key), "value AND more")
    equal(c.strlen(key), 14)
    equal(a.getset(key, "new"), "value AND more")
    equal(b.set(key, "newer", get=True), "new")
    assert c.set(key, "other", nx=True) is None
    assert c.set(page.key("absent"), "other", xx=True) is None
    assert a.setnx(page.key("fresh"), "1") is True
    assert b.setnx(page.key("fresh"), "2") is False
    equal(a.getdel(key), "newer")
    assert b.get(key) is None and c.exists(key) == 0
    many = {page.key(f"many{n}"): str(n) for n in range(10)}
    assert a.mset(many) is True
    equal(b.mget(list(many) + [key]), list(many.values()) + [None])
    assert c.msetnx({page.key("many3"): "x", page.key("many77"): "y"}) is False
    assert b.get(page.key("many77")) is None
    equal(a.delete(*many), 10)
    binary = bytes(range(256)) * 40
    raw = page.client(1)
    raw.connection_pool.connection_kwargs["decode_responses"] = False
    raw.connection_pool.reset()
    raw.set(key, binary)
    equal(raw.get(key), binary)
    raw.close()
    a.setbit(page.key("bits"), 7, 1)
    equal(b.getbit(page.key("bits"), 7), 1)
    equal(c.bitcount(page.key("bits")), 1)


@part
def expiry(page):
    a, b, c, key = page.a, page.b, page.c, page.key("expires")
    assert a.execute_command("SETEX", key, 100, "value")
    assert 90 < b.ttl(key) <= 100
    assert c.psetex(key, 100_000, "value") is True
    assert 90_000 < b.pttl(key) <= 100_000
    assert a.set(key, "kept", keepttl=True) is True
    assert 0 < b.ttl(key) <= 100
    assert a.set(key, "lost") is True
    equal(b.ttl(key), -1)
    equal(b.ttl(page.key("never")), -2)
    equal(c.getex(key, ex=50), "lost")
    assert 40 < a.ttl(key) <= 50
    equal(b.getex(key, persist=True), "lost")
    equal(a.ttl(key), -1)
    assert a.expire(key, 60) is True and b.persist(key) is True and c.ttl(key) == -1
    assert a.expire(key, 60, nx=True) and not b.expire(key, 50, nx=True) and not b.expire(key, 50, gt=True)
    at = int(time.time()) + 1000
    assert c.expireat(key, at) is True
    equal(a.expiretime(key), at)
    assert b.pexpire(key, 1) is True
    until("the key expires", lambda: a.exists(key) == 0)
    assert b.get(key) is None and c.get(key) is None
    assert a.set(key, "short", px=30) is True
    until("it expires at another replica", lambda: b.get(key) is None)
    assert c.set(key, "again", nx=True, ex=100) is True, "an expired key is free"
    assert a.expire(key, -1) is True and b.exists(key) == 0
    refused("invalid expire time", a.set, key, "x", ex=0)
    refused("invalid expire time", a.execute_command, "SETEX", key, -5, "x")


@part
def counters(page):
    a, b, c, key = page.a, page.b, page.c, page.key("counter")
    equal([a.incr(key), b.incr(key), c.incrby(key, 40), a.decr(key), b.decrby(key, 10)], [1, 2, 42, 41, 31])
    equal(float(c.incrbyfloat(key, 0.5)), 31.5)
    refused("not an integer", a.incr, key)
    a.set(key, 2**63 - 1)
    refused("overflow", b.incr, key)
    equal(c.get(key), str(2**63 - 1))


@part
def hashes(page):
    a, b, c, key = page.a, page.b, page.c, page.key("hash")
    equal(a.hset(key, mapping={"name": "Ada", "born": 1815, "field": "mathematics"}), 3)
    equal(b.hset(key, "name", "Ada Lovelace"), 0)
    equal(c.hgetall(key), {"name": "Ada Lovelace", "born": "1815", "field": "mathematics"})
    equal(a.hget(key, "born"), "1815")
    equal(b.hmget(key, ["born", "died"]), ["1815", None])
    assert c.hexists(key, "name") is True and c.hexists(key, "died") is False
    equal(a.hincrby(key, "born", 1), 1816)
    equal(float(b.hincrbyfloat(key, "height", "1.5")), 1.5)
    equal(c.hsetnx(key, "name", "Nobody"), 0)
    equal(sorted(a.hkeys(key)), ["born", "field", "height", "name"])
    equal(len(b.hvals(key)), c.hlen(key))
    equal(a.hstrlen(key, "name"), 12)
    equal(dict(b.hscan_iter(key)), a.hgetall(key))
    assert c.hrandfield(key) in a.hkeys(key)
    equal(a.hdel(key, "height", "field", "none"), 2)
    equal(b.hdel(key, "name", "born"), 2)
    equal(c.exists(key), 0)


@part
def lists(page):
    a, b, c, key, other = page.a, page.b, page.c, page.key("list"), page.key("list2")
    equal(a.rpush(key, "b", "c", "d"), 3)
    equal(b.lpush(key, "a"), 4)
    equal(c.lrange(key, 0, -1), ["a", "b", "c", "d"])
    equal([a.lindex(key, 0), b.lindex(key, -1), c.lindex(key, 9)], ["a", "d", None])
    equal(a.linsert(key, "BEFORE", "c", "b2"), 5)
    equal(b.lpos(key, "b2"), 2)
    assert c.lset(key, 2, "B") is True
    equal(a.lrem(key, 0, "B"), 1)
    assert b.ltrim(key, 1, -1) is True
    equal(c.lrange(key, 0, -1), ["b", "c", "d"])
    equal(a.lmove(key, other, "LEFT", "RIGHT"), "b")
    equal(b.rpoplpush(key, other), "d")
    equal(c.lrange(other, 0, -1), ["d", "b"])
    equal(a.rpop(other, 2), ["b", "d"])
    equal(b.lpop(key), "c")
    assert c.lpop(key) is None
    equal(a.exists(key, other), 0)
    equal(b.rpushx(key, "x"), 0)
    # A work queue: what producers push at two replicas, consumers of the third take, each item once.
    jobs = [f"job{n}" for n in range(60)]
    for n, job in enumerate(jobs):
        (a, b)[n % 2].rpush(key, job)
    taken = []
    consumers = [threading.Thread(target=lambda: [taken.append(job) for job in iter(lambda: c.lpop(key), None)]) for _ in "123"]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join()
    equal(sorted(taken), sorted(jobs))


@part
def waits(page):
    a, b, c, key, other = page.a, page.b, page.c, page.key("queue"), page.key("queue2")
    assert a.blpop([key, other], timeout=0.05) is None
    # Consumers of two replicas wait for what is pushed at the third; each job is given to one.
    jobs, taken = [f"job{n}" for n in range(60)], []

    def consume(client):
        while (job := client.blpop([other, key], timeout=0)[1]) != "stop":
            taken.append(job)

    consumers = [threading.Thread(target=consume, args=[client]) for client in (page.client(0), page.client(1)) * 2]
    for consumer in consumers:
        consumer.start()
    for job in jobs:
        c.rpush(key, job)
    c.rpush(other, *["stop"] * len(consumers))
    for consumer in consumers:
        consumer.join()
    equal(sorted(taken + a.lrange(key, 0, -1)), sorted(jobs))
    a.delete(key)
    a.rpush(key, "x", "y", "z")
    equal(list(b.brpop(key, timeout=1)), [key, "z"])
    equal(c.blmove(key, other, 1, "LEFT", "RIGHT"), "x")
    equal(a.brpoplpush(key, other, timeout=1), "y")
    equal(b.blmpop(1, 2, key, other, direction="LEFT", count=9), [other, ["y", "x"]])
    a.zadd(key, {"one": 1, "two": 2, "three": 3, "four": 4})
    equal(list(c.bzpopmin(key, timeout=1)), [key, "one", 1.0])
    equal(list(a.bzpopmax(key, timeout=1)), [key, "four", 4.0])
    name, popped = b.bzmpop(1, 1, [key], min=True, count=9)
    equal([name, floats(popped)], [key, [("two", 2.0), ("three", 3.0)]])


@part
def bits_and_sorts(page):
    a, b, c, key, other = page.a, page.b, page.c, page.key("bits"), page.key("bits2")
    a.set(key, b"\x0f")
    a.set(other, b"\x3c")
    equal([b.bitop("AND", page.key("and"), key, other), c.getbit(page.key("and"), 4)], [1, 1])
    equal(a.bitfield(page.key("field")).set("u8", "#1", 200).incrby("u8", "#1", 100, "SAT").get("u8", "#1").execute(), [0, 255, 255])
    a.mset({page.key("left"): "ohmytext", page.key("right"): "mynewtext"})
    equal(b.lcs(page.key("left"), page.key("right")), "mytext")
    equal(c.lcs(page.key("left"), page.key("right"), len=True), 6)
    numbers = page.key("numbers")
    a.rpush(numbers, 3, 1, 2)
    a.mset({page.key("weight1"): 9, page.key("weight2"): 8, page.key("weight3"): 7})
    equal(b.sort(numbers), ["1", "2", "3"])
    equal(c.sort(numbers, by=page.key("weight*"), get=["#", page.key("weight*")]), ["3", "7", "2", "8", "1", "9"])
    equal(a.sort(numbers, desc=True, start=0, num=2, store=page.key("sorted")), 2)
    equal(b.lrange(page.key("sorted"), 0, -1), ["3", "2"])
    equal(c.sort_ro(numbers, alpha=True, desc=True), ["3", "2", "1"])


@part
def sets(page):
    a, b, c, key, other = page.a, page.b, page.c, page.key("set"), page.key("set2")
    equal(a.sadd(key, "a", "b", "c", "a"), 3)
    equal(b.sadd(other, "b", "c", "d"), 3)
    equal(set(c.smembers(key)), {"a", "b", "c"})
    equal([a.scard(key), bool(b.sismember(key, "a")), bool(c.sismember(key, "d"))], [3, True, False])
    equal(list(a.smismember(key, ["a", "d"])), [1, 0])
    equal(set(a.sinter(key, other)), {"b", "c"})
    equal(set(b.sunion(key, other)), {"a", "b", "c", "d"})
    equal(set(c.sdiff(key, other)), {"a"})
    equal(a.sinterstore(page.key("set3"), key, other), 2)
    equal(b.sintercard(2, [key, other]), 2)
    assert c.srandmember(key) in {"a", "b", "c"}
    equal(set(a.sscan_iter(key)), {"a", "b", "c"})
    assert a.smove(key, other, "a")
    assert b.spop(key) in {"b", "c"}
    equal(c.scard(key), 1)
    equal(a.srem(other, "a", "b", "c", "d"), 4)
    equal(b.exists(other), 0)


@part
def sorted_sets(page):
    a, b, c, key = page.a, page.b, page.c, page.key("ranking")
    equal(a.zadd(key, {"ann": 10, "bob": 20, "cy": 30}), 3)
    equal(b.zadd(key, {"bob": 25}, ch=True), 1)
    equal(c.zadd(key, {"bob": 1}, gt=True), 0)
    equal(a.zincrby(key, 2.5, "ann"), 12.5)
    equal(b.zrange(key, 0, -1), ["ann", "bob", "cy"])
    equal(floats(c.zrange(key, 0, 0, withscores=True)), [("ann", 12.5)])
    equal(a.zrevrange(key, 0, 1), ["cy", "bob"])
    equal(b.zrangebyscore(key, 20, "+inf"), ["bob", "cy"])
    equal(c.zrange(key, "(25", "+inf", byscore=True), ["cy"])
    equal([a.zscore(key, "cy"), b.zscore(key, "none")], [30.0, None])
    equal(c.zmscore(key, ["ann", "none"]), [12.5, None])
    equal([a.zrank(key, "cy"), b.zrevrank(key, "cy"), c.zrank(key, "none")], [2, 0, None])
    equal([a.zcard(key), b.zcount(key, 10, 25)], [3, 2])
    equal({member: float(score) for member, score in c.zscan_iter(key)}, {"ann": 12.5, "bob": 25.0, "cy": 30.0})
    a.zadd(page.key("other"), {"bob": 1, "dan": 2})
    equal(b.zunionstore(page.key("union"), [key, page.key("other")]), 4)
    equal(c.zscore(page.key("union"), "bob"), 26.0)
    equal(a.zinterstore(page.key("inter"), [key, page.key("other")]), 1)
    equal(floats(b.zpopmin(key)), [("ann", 12.5)])
    equal(floats(c.zpopmax(key)), [("cy", 30.0)])
    equal(a.zremrangebyscore(key, "-inf", "+inf"), 1)
    equal(b.exists(key), 0)
    a.zadd(key, dict.fromkeys("abcde", 0))
    equal(b.zrangebylex(key, "[b", "(e"), ["b", "c", "d"])


@part
def keys(page):
    a, b, c, key, other = page.a, page.b, page.c, page.key("one"), page.key("two")
    a.set(key, "value", ex=100)
    assert b.rename(key, other) is True
    assert c.get(other) == "value" and 0 < a.ttl(other) <= 100 and b.exists(key) == 0
    assert a.renamenx(other, key) is True
    assert b.copy(key, other) is True and c.copy(key, other) is False and a.copy(key, other, replace=True) is True
    equal(b.get(other), "value")
    refused("no such key", c.rename, page.key("none"), key)
    a.rpush(page.key("l"), 1)
    a.hset(page.key("h"), "f", 1)
    a.sadd(page.key("s"), 1)
    a.zadd(page.key("z"), {"m": 1})
    equal([b.type(page.key(name)) for name in ["one", "l", "h", "s", "z", "none"]],
          ["string", "list", "hash", "set", "zset", "none"])
    a.set(page.key("int"), 12345)
    a.set(page.key("raw"), "x" * 100)
    encodings = {"int": {"int"}, "one": {"embstr"}, "raw": {"raw"}, "l": {"listpack", "quicklist"}, "h": {"listpack"},
                 "s": {"intset"}, "z": {"listpack"}}
    for name, known in encodings.items():
        encoding = b.object("ENCODING", page.key(name))
        assert encoding in known, f"{name}: {encoding}"
    assert c.memory_usage(page.key("raw")) > 100
    assert c.memory_usage(page.key("none")) is None
    equal(a.touch(key, other, page.key("none")), 2)
    equal(b.unlink(key, other), 2)
    assert c.randomkey() is not None
    assert a.dbsize() >= 6


@part
def scanning(page):
    expected = {page.key(f"scan:{n}") for n in range(1000)}
    with page.a.pipeline(transaction=False) as pipe:
        for n, key in enumerate(sorted(expected)):
            pipe.set(key, n)
        assert all(pipe.execute())
    found = list(page.b.scan_iter(match=page.key("scan:*"), count=100))
    equal(set(found), expected)
    equal(set(page.c.keys(page.key("scan:99*"))), {key for key in expected if ":scan:99" in key})
    equal(list(page.c.scan_iter(match=page.key("scan:*"), _type="hash")), [])
    equal(page.a.delete(*expected), 1000)


@part
def transactions(page):
    a, b, key, other = page.a, page.b, page.key("t1"), page.key("t2")
    with a.pipeline(transaction=True) as pipe:
        pipe.set(key, 1).incr(key).rpush(other, "x", "y").lrange(other, 0, -1)
        equal(pipe.execute(), [True, 2, 2, ["x", "y"]])
    equal(b.get(key), "2")
    with a.pipeline(transaction=True) as pipe:
        pipe.incr(key).incr(other).incr(key)
        answers = pipe.execute(raise_on_error=False)
    equal([answers[0], answers[2]], [3, 4])
    assert isinstance(answers[1], redis.ResponseError) and "WRONGTYPE" in str(answers[1]), answers
    with a.pipeline(transaction=True) as pipe:
        pipe.incr(key).execute_command("NOSUCHCOMMAND")
        refused("NOSUCHCOMMAND", pipe.execute)
    equal(b.get(key), "4")
    with a.pipeline() as pipe:
        pipe.watch(key)
        b.set(key, "another's")
        pipe.multi()
        pipe.set(key, "mine")
        try:
            pipe.execute()
            raise AssertionError("a change at another replica was overlooked")
        except redis.WatchError:
            pass
    equal(b.get(key), "another's")
    with a.pipeline() as pipe:
        pipe.watch(key)
        b.set(key, "another's again")
        pipe.unwatch()
        pipe.multi()
        pipe.set(key, "mine")
        equal(pipe.execute(), [True])


@part
def watch_with_a_retry_loop(page):
    key, clients, rounds = page.key("watched"), [page.a, page.b, page.c], 20
    page.a.set(key, 0)
    retries, failures = [], []

    def count(client):
        try:
            for _ in range(rounds):
                with client.pipeline() as pipe:
                    while True:
                        try:
                            pipe.watch(key)
                            value = int(pipe.get(key))
                            pipe.multi()
                            pipe.set(key, value + 1)
                            pipe.execute()
                            break
                        except redis.WatchError:
                            retries.append(1)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=count, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(failures, [])
    equal(page.b.get(key), str(rounds * len(clients)))
    # The library's own loop.
    page.c.transaction(lambda pipe: (pipe.multi(), pipe.incrby(key, 40)), key)
    equal(page.a.get(key), str(rounds * len(clients) + 40))


@part
def a_lock(page):
    key, token = page.key("lock"), uuid.uuid4().hex
    assert page.a.set(key, token, nx=True, px=10_000) is True
    assert page.b.set(key, "thief", nx=True, px=10_000) is None

    def release(pipe):
        held = pipe.get(key)
        pipe.multi()
        if held == token:
            pipe.delete(key)

    equal(page.c.transaction(release, key), [1])
    assert page.b.set(key, "next", nx=True, px=10_000) is True


@part
def pub_sub(page):
    channel, pattern = page.key("news"), page.key("w*")
    listener = page.a.pubsub(ignore_subscribe_messages=True)
    handled = []
    listener.subscribe(channel, **{page.key("handled"): lambda message: handled.append(message["data"])})
    listener.psubscribe(pattern)
    until("all are subscribed", lambda: dict(page.a.pubsub_numsub(channel)).get(channel) == 1
          and channel in page.a.pubsub_channels(page.prefix + "*") and page.a.pubsub_numpat() >= 1)
    for n in range(50):
        page.b.publish(channel, f"message {n}")
    page.c.publish(page.key("weather"), "rain")
    page.b.publish(page.key("handled"), "by a function")
    page.c.publish(page.key("nobody"), "lost")
    got, deadline = [], time.monotonic() + 10
    while (len(got) < 51 or not handled) and time.monotonic() < deadline:
        message = listener.get_message(timeout=0.5)
        if message:
            got.append((message["type"], message["pattern"], message["channel"], message["data"]))
    equal([m for m in got if m[0] == "message"], [("message", None, channel, f"message {n}") for n in range(50)])
    equal([m for m in got if m[0] == "pmessage"], [("pmessage", pattern, page.key("weather"), "rain")])
    equal(handled, ["by a function"])
    if page.protocol == 2:
        # With RESP3 a pong is an ordinary answer, which the library's listener makes nothing of.
        listener.ping("alive")
        pong = listener.get_message(timeout=5)
        equal((pong["type"], pong["data"]), ("pong", "alive"))
    listener.unsubscribe(channel)
    until("it is unsubscribed", lambda: (listener.get_message(timeout=0.01), channel not in listener.channels)[1])
    listener.close()


@part
def about_the_server(page):
    info = page.a.info()
    for field in ["redis_version", "redis_mode", "process_id", "tcp_port", "uptime_in_seconds", "connected_clients", "used_memory"]:
        assert field in info, f"INFO has no {field}"
    assert info["connected_clients"] >= 1
    assert "redis_version" in page.b.info("server") and "connected_clients" not in page.b.info("server")
    page.a.set(page.key("counted"), 1)
    assert page.c.info("keyspace")["db0"]["keys"] >= 1
    assert isinstance(page.a.config_get("maxmemory"), dict)
    assert page.a.command_count() > 100
    assert page.a.wait(0, 100) >= 0
    assert any(int(entry["id"]) > 0 for entry in page.a.client_list())
    assert page.a.select(0) is True


@part
def errors(page):
    a, key = page.a, page.key("wrong")
    a.set(key, "text")
    for ask, args in [(a.lpush, ["x"]), (a.hset, ["f", "v"]), (a.sadd, ["x"]), (a.zadd, [{"m": 1}]), (a.llen, []), (a.hgetall, [])]:
        refused("WRONGTYPE Operation against a key holding the wrong kind of value", ask, key, *args)
    equal(page.b.get(key), "text")
    refused("unknown command", a.execute_command, "NOSUCHCOMMAND", "x")
    refused("wrong number of arguments", a.execute_command, "GET")
    refused("syntax error", a.execute_command, "SET", key, "x", "NOSUCHOPTION")
    refused("not an integer", a.incr, key)
    refused("EXEC without MULTI", a.execute_command, "EXEC")
    a.rpush(page.key("list"), 1)
    refused("index out of range", a.lset, page.key("list"), 5, "x")
    equal(page.a.ping(), True)


@part
def asynchronous(page):
    async def run():
        here = redis.asyncio.Redis(**page.options(0))
        there = redis.asyncio.Redis(**page.options(1))
        key, channel = page.key("async"), page.key("async news")
        try:
            assert await here.set(key, 0, ex=100)
            answers = await asyncio.gather(*(client.incr(key) for client in [here, there] * 50))
            equal(sorted(answers), list(range(1, 101)))
            async with there.pipeline(transaction=True) as pipe:
                equal(await pipe.incr(key).get(key).execute(), [101, "101"])
            equal([found async for found in here.scan_iter(match=key)], [key])
            async with here.pubsub(ignore_subscribe_messages=True) as listener:
                await listener.subscribe(channel)
                # Its confirmation.
                assert await listener.get_message(timeout=5) is None
                await there.publish(channel, "hello")
                message = await listener.get_message(timeout=5)
                equal(message and message["data"], "hello")
        finally:
            await here.aclose()
            await there.aclose()

    asyncio.run(run())


def main():
    addresses = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in sys.argv[1:])]
    if not addresses:
        sys.exit(__doc__)
    failed = 0
    for protocol in [2, 3]:
        page = Page(addresses, protocol)
        for check in PARTS:
            name = f"RESP{protocol} {check.__name__.replace('_', ' ')}"
            begun = time.monotonic()
            try:
                check(page)
                print(f"ok     {name} ({(time.monotonic() - begun) * 1000:.0f} ms)", flush=True)
            except Exception as error:
                failed += 1
                trace = error.__traceback__
                here = [frame for frame in iter_frames(trace) if frame[0] == __file__]
                places = ", ".join(f"line {line}" for _, line in here[1:])
                print(f"FAILED {name}: {type(error).__name__}: {error} ({places})", flush=True)
        page.close()
    sys.exit(1 if failed else 0)


def iter_frames(trace):
    while trace:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


if __name__ == "__main__":
    main()
