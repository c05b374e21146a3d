"""Calls of both kinds of clients, and what is refused."""

import asyncio
import contextlib
import functools
import pathlib
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock

import squall
from squall import _library
from cluster import Cluster, make_keys


class Blocking(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())

    def client(self, timeout=30.0):
        return self.enterContext(squall.Client(self.cluster.file, "counters", timeout=timeout))

    def test_commands_and_queries(self):
        counters = self.client()
        self.assertEqual(counters.call("add", name="ä", amount=5), {"sum": 5, "adds": 1})
        self.assertEqual(counters.submit({"add": {"name": "ä", "amount": -7}}), {"add": {"sum": -2, "adds": 2}})
        self.assertEqual(counters.ask("get", name="ä"), {"sum": -2, "adds": 2})
        self.assertIsNone(counters.ask("get", name="none"))
        self.assertIn("ä", counters.query({"names": {}}, consistency="local")["names"])
        most = 2**63 - 1
        self.assertEqual(counters.call("add", name="most", amount=most)["sum"], most)
        self.assertIsNone(counters.call("add", name="most", amount=1))

    def test_a_configuration_is_a_file_or_a_text(self):
        with squall.Client(None, "counters", toml=self.cluster.file.read_text()) as counters:
            counters.ask("names")
        with self.assertRaises(squall.ArgumentError):
            squall.Client(None, "counters")
        with self.assertRaisesRegex(squall.ConfigError, "/nowhere.toml"):
            squall.Client("/nowhere.toml", "counters")
        with self.assertRaisesRegex(squall.ConfigError, "members"):
            squall.Client(None, "counters", toml='cluster = "bank"\nmembers = "all"')

    def test_errors_are_typed_and_say_what_is_known(self):
        counters = self.client()
        for command, said in [
            ({"add": {"name": "a"}}, "missing field `amount`"),
            ({"add": {"name": "a", "amount": 2**63}}, "expected i64"),
            ({"add": {"name": "a", "amount": 1, "at": 2}}, "unknown field `at`"),
            ({"take": {}}, "unknown variant `take`"),
        ]:
            with self.assertRaisesRegex(squall.RejectedError, said) as refused:
                counters.submit(command)
            self.assertEqual(refused.exception.applied, squall.Applied.NO)
        with self.assertRaisesRegex(squall.QueryError, "unknown variant"):
            counters.ask("sum")
        for wrong in [lambda: counters.submit({1, 2}), lambda: counters.submit(float("nan"))]:
            self.assertRaises(squall.ArgumentError, wrong)
        with self.assertRaises(squall.ArgumentError):
            counters.query({"names": {}}, consistency="any")
        with self.assertRaises(squall.ArgumentError):
            counters.submit({"clear": {}}, timeout=-1)
        with self.assertRaisesRegex(squall.DeadlineError, "serves no group"):
            squall.Client(self.cluster.file, "others", timeout=0.5)

    def test_a_closed_client_refuses_calls_and_ends_those_that_wait(self):
        counters = self.client()
        counters.close()
        counters.close()
        self.assertRaises(squall.ClosedError, counters.ask, "names")
        with Cluster() as other:
            # A call that was sent has surely waited. Whether it is sent when the client is closed, none can see from
            # outside, so it gets more time until it is.
            applied, patience = squall.Applied.NO, 0.01
            while applied == squall.Applied.NO:
                applied = self.applied_when_closed(other, patience)
                patience *= 2
                self.assertLess(patience, 60)
            self.assertEqual(applied, squall.Applied.MAYBE)

    def applied_when_closed(self, cluster, patience):
        """Closes a client during a call that no member answers, and returns what its error says."""
        counters, ended = squall.Client(cluster.file, "counters", timeout=60), []
        # So that there is a session.
        counters.call("add", name="a", amount=1)

        def add():
            try:
                counters.call("add", name="a", amount=1)
            except squall.ClosedError as error:
                ended.append(error.applied)

        waiting = threading.Thread(target=add)
        cluster.signal(signal.SIGSTOP)
        waiting.start()
        waiting.join(patience)
        counters.close()
        waiting.join()
        cluster.signal(signal.SIGCONT)
        return ended[0]

    def test_children_have_clients_of_their_own(self):
        with Cluster() as other:
            children = pathlib.Path(__file__).with_name("children.py")
            # Python warns of forks beside threads.
            run = [sys.executable, "-W", "ignore", children, other.file]
            ran = subprocess.run(run, capture_output=True, text=True, timeout=100)
            self.assertEqual((ran.returncode, ran.stdout), (0, "{'sum': 400, 'adds': 400}\n"), ran.stderr)

    def test_a_method_that_was_not_called_was_not_applied(self):
        with self.assertRaisesRegex(squall.RejectedError, "'add'") as refused:
            _library.result_of("add", "Undecodable")
        self.assertEqual(refused.exception.applied, squall.Applied.NO)
        with self.assertRaises(squall.ReplyError) as refused:
            _library.result_of("add", {"get": 1})
        self.assertEqual(refused.exception.applied, squall.Applied.YES)

    def test_threads_share_a_client(self):
        counters = self.client()
        adds = [
            threading.Thread(target=lambda: [counters.call("add", name="shared", amount=1) for _ in range(100)])
            for _ in range(8)
        ]
        for add in adds:
            add.start()
        for add in adds:
            add.join()
        self.assertEqual(counters.ask("get", name="shared"), {"sum": 800, "adds": 800})


class Sharded(unittest.TestCase):
    def test_keys_have_their_shards(self):
        with Cluster(shards=4) as cluster:
            with squall.Shards(cluster.file, "counters", timeout=30) as counters:
                self.assertEqual(len(counters), 4)
                names = [f"name {i}" for i in range(40)]
                for i, name in enumerate(names):
                    counters.of(name).call("add", name=name, amount=i)
                by_shard = [shard.ask("names") for shard in counters]
                self.assertTrue(all(by_shard))
                self.assertEqual(sorted(sum(by_shard, [])), sorted(names))
                self.assertEqual(counters.of(b"name 7").ask("get", name="name 7"), {"sum": 7, "adds": 1})
                with self.assertRaises(IndexError):
                    counters[4]
            with self.assertRaisesRegex(squall.ArgumentError, "4 shards"):
                squall.Client(cluster.file, "counters", timeout=30)


class Example(unittest.TestCase):
    def test_it_adds_and_prints(self):
        example = pathlib.Path(__file__).parents[1] / "examples/counter.py"
        with Cluster(shards=2) as cluster:
            run = functools.partial(subprocess.run, capture_output=True, text=True)
            added = run([sys.executable, example, cluster.file, "ann", "5", "7", "-2"])
            self.assertEqual(added.stdout, "{'sum': 10, 'adds': 3}\n", added.stderr)
            refused = run([sys.executable, example, cluster.file, "ann", str(2**70)])
            self.assertIn("RejectedError, applied: NO", refused.stderr)


class Asyncio(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(shards=2))

    async def asyncSetUp(self):
        # A slow machine is no fault.
        asyncio.get_running_loop().slow_callback_duration = 60

    async def test_many_calls_at_a_time(self):
        async with await squall.aio.Shards.open(self.cluster.file, "counters", timeout=30) as counters:
            self.assertEqual(len(list(counters)), 2)
            names = [f"name {i}" for i in range(10)]
            adds = (counters.of(name).call("add", name=name, amount=1) for name in names * 1000)
            replies = await asyncio.gather(*adds)
            self.assertEqual(sorted(reply["adds"] for reply in replies), sorted(list(range(1, 1001)) * 10))
            self.assertEqual(await counters.of(names[0]).ask("get", name=names[0]), {"sum": 1000, "adds": 1000})

    async def test_errors_and_cancelled_tasks(self):
        async with await squall.aio.Shards.open(self.cluster.file, "counters", timeout=30) as counters:
            shard = counters[0]
            with self.assertRaisesRegex(squall.RejectedError, "missing field"):
                await shard.call("add", name="a")
            with self.assertRaises(squall.QueryError):
                await shard.ask("sum")
            given_up = [asyncio.create_task(shard.call("add", name="given up", amount=1)) for _ in range(50)]
            await asyncio.sleep(0)
            for task in given_up:
                task.cancel()
            done = await asyncio.gather(*given_up, return_exceptions=True)
            self.assertTrue(all(isinstance(each, asyncio.CancelledError) for each in done))
            self.assertEqual((await shard.call("add", name="later", amount=1))["adds"], 1)
        with self.assertRaises(squall.ClosedError):
            await shard.ask("names")
        with self.assertRaises(squall.ArgumentError):
            await squall.aio.Client.open(self.cluster.file, "counters", timeout=30)

    async def test_closing_ends_the_calls_that_wait(self):
        with Cluster() as other:
            counters = await squall.aio.Client.open(other.file, "counters", timeout=60)
            for id in (1, 2, 3):
                other.kill(id)
            add = asyncio.create_task(counters.call("add", name="a", amount=1))
            await asyncio.sleep(0)
            await counters.close()
            with self.assertRaises(squall.ClosedError):
                await add

    async def test_calls_wait_for_their_turns_within_their_limits(self):
        with Cluster(shards=2) as other, unittest.mock.patch.object(squall.aio, "MOST_OF_CLIENT", 2):
            async with await squall.aio.Shards.open(other.file, "counters", timeout=30) as counters:
                adds = (counters[0].call("add", name="a", amount=1) for _ in range(100))
                self.assertEqual(sorted(reply["adds"] for reply in await asyncio.gather(*adds)), list(range(1, 101)))
                for id in (1, 2, 3):
                    other.kill(id)

                async def is_refused():
                    with self.assertRaisesRegex(squall.DeadlineError, "turn") as late:
                        await counters[0].submit({"clear": {}}, timeout=0.05)
                    self.assertEqual(late.exception.applied, squall.Applied.NO)

                # It has the shard's only turn, until the library gives it up.
                first = asyncio.create_task(counters[0].submit({"clear": {}}, timeout=10))
                await asyncio.sleep(0)
                await is_refused()
                first.cancel()
                await is_refused()
                with self.assertRaises(squall.DeadlineError) as late:
                    await counters[0].submit({"clear": {}}, timeout=12)
                self.assertNotIn("turn", str(late.exception))
                behind = [asyncio.create_task(counters[1].call("add", name="a", amount=1)) for _ in range(3)]
                await asyncio.sleep(0)
            for error in await asyncio.gather(*behind, return_exceptions=True):
                self.assertIsInstance(error, squall.ClosedError)


class Tls(unittest.TestCase):
    def test_keys_say_who_may_call(self):
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(Cluster(tls=True))

            def client(text, timeout=30.0):
                return stack.enter_context(squall.Client(None, "counters", toml=text, timeout=timeout))

            web = client(cluster.client("keys", "client-web"))
            self.assertEqual(web.call("add", name="a", amount=1)["adds"], 1)
            reader = client(cluster.client("keys", "client-reader"))
            self.assertEqual(reader.ask("get", name="a"), {"sum": 1, "adds": 1})
            with self.assertRaisesRegex(squall.DeniedError, "read") as denied:
                reader.call("add", name="a", amount=1)
            self.assertEqual(denied.exception.applied, squall.Applied.NO)
            make_keys(cluster.directory / "others", cluster.name, ["--client", "web"])
            with self.assertRaises((squall.DeniedError, squall.DeadlineError)):
                client(cluster.client("others", "client-web"), timeout=2)
            without = cluster.client("keys", "client-web").split("[security]")[0]
            with self.assertRaises((squall.DeniedError, squall.DeadlineError)):
                client('security = "none"\n' + without, timeout=2)
            missing = cluster.client("keys", "client-none")
            with self.assertRaisesRegex(squall.ConfigError, "client-none"):
                client(missing)
            self.assertEqual(web.ask("get", name="a"), {"sum": 1, "adds": 1})


if __name__ == "__main__":
    unittest.main()
