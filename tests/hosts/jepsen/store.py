"""Replicas of the key-value store on the hosts of `tests/hosts/hosts`, and what can be done to them."""

import asyncio
import ctypes
import glob
import os
import random
import shutil
import signal
import socket
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HOSTS = ROOT / "tests/hosts/hosts"
FIRST_PORT = 7001

# How long a healthy cluster may take until all replicas serve.
SERVING_SECONDS = 60

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1


def die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def binary(name):
    release = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    path = Path(os.environ.get("SQUALL_BIN", release)) / name
    if not path.exists():
        raise SystemExit(
            f"jepsen: {path} is missing: run "
            "`cargo build --release -p squall-redis --bins`"
        )
    return str(path)


def faketime_library():
    found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    return found[0] if found else None


class Hosts:
    """A set of hosts: network namespaces with a link each."""

    def __init__(self, name):
        self.name = name

    async def do(self, *words):
        command = [str(HOSTS), "--name", self.name, *map(str, words)]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: {said.decode().strip()}")

    def command(self, host, *words):
        return [str(HOSTS), "--name", self.name, "run", str(host), *map(str, words)]

    def socket(self, host):
        """A TCP socket of that host: it stays in the namespace in which it was made."""
        with open("/proc/self/ns/net", "rb") as own, open(f"/run/netns/{self.name}-host{host}", "rb") as other:
            if _libc.setns(other.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            finally:
                _libc.setns(own.fileno(), CLONE_NEWNET)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


class Broken(Exception):
    """A connection gave no answer."""


class Connection:
    """A client's connection, in RESP2. Replies are bytes, int, None, lists, and Refusal."""

    def __init__(self, made):
        self.socket, self.buffer = made, b""
        self.loop = asyncio.get_running_loop()

    @staticmethod
    async def open(hosts, host, replica, patience=2):
        made = hosts.socket(host)
        try:
            async with asyncio.timeout(patience):
                await asyncio.get_running_loop().sock_connect(made, (f"10.77.0.{replica}", FIRST_PORT + replica - 1))
        except (OSError, TimeoutError) as error:
            made.close()
            raise Broken(f"no connection: {error}") from error
        except BaseException:
            made.close()
            raise
        return Connection(made)

    def close(self):
        self.socket.close()

    async def call(self, commands, patience):
        """Sends commands together, and returns their replies."""
        packed = b"".join(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
            for words in commands
        )
        try:
            async with asyncio.timeout(patience):
                await self.loop.sock_sendall(self.socket, packed)
                return [await self.reply() for _ in commands]
        except (OSError, TimeoutError) as error:
            raise Broken(f"no answer: {error or 'it takes too long'}") from error

    async def more(self):
        got = await self.loop.sock_recv(self.socket, 1 << 16)
        if not got:
            raise ConnectionResetError("closed")
        self.buffer += got

    async def line(self):
        while (end := self.buffer.find(b"\r\n")) < 0:
            await self.more()
        line, self.buffer = self.buffer[:end], self.buffer[end + 2 :]
        return line

    async def reply(self):
        line = await self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            return Refusal(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind == b"*":
            return None if rest == b"-1" else [await self.reply() for _ in range(int(rest))]
        length = int(rest)
        if length < 0:
            return None
        while len(self.buffer) < length + 2:
            await self.more()
        value, self.buffer = self.buffer[:length], self.buffer[length + 2 :]
        return value


class Refusal(str):
    """An error that a server answers with."""


class Replica:
    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.process = self.strace = None
        self.wanted = False
        self.log = cluster.directory / f"replica{number}.log"
        self.clock = cluster.directory / f"clock{number}"
        self.clock.write_text("+0\n")

    @property
    def disk(self):
        return self.cluster.directory / "disk" / str(self.number)

    async def start(self):
        """Starts its process. Each start has clocks of its own, as hosts have: none counts from the same moment."""
        self.wanted = True
        offset = self.cluster.rng.randrange(1, 10_000_000)
        environment = {}
        if library := faketime_library():
            environment = {
                "LD_PRELOAD": library,
                "FAKETIME_TIMESTAMP_FILE": self.clock,
                "FAKETIME_CACHE_DURATION": 1,
                "FAKETIME_DONT_FAKE_MONOTONIC": 1,
                "DONT_FAKE_MONOTONIC": 1,
            }
        command = self.cluster.hosts.command(
            self.number, "unshare", "--time", "--boottime", offset, "--monotonic", offset,
            "env", "RUST_LOG=info", *[f"{name}={value}" for name, value in environment.items()],
            binary("squall-redis"), "--id", self.number, "--config", self.cluster.directory / "cluster.toml",
            "--port", FIRST_PORT, "--listen", f"10.77.0.{self.number}", "--protected-mode", "no",
        )  # fmt: skip
        with open(self.log, "ab") as log:
            log.write(f"--- {self.cluster.now():.3f}: started\n".encode())
            log.flush()
            self.process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        asyncio.create_task(self.watch(self.process))

    async def watch(self, process):
        """Starts it again if it ends by itself, as a supervisor does."""
        status = await process.wait()
        if process is self.process and self.wanted:
            self.cluster.tell(f"replica {self.number} has ended by itself ({status}): {self.last_line()}")
            self.cluster.ended += 1
            await asyncio.sleep(0.5)
            if process is self.process and self.wanted:
                await self.start()

    def last_line(self):
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def signal(self, number):
        if self.process and self.process.returncode is None:
            self.process.send_signal(number)

    async def kill(self):
        self.wanted = False
        self.signal(signal.SIGKILL)
        # Who is traced does not end before the tracer has looked. A write that hung is not carried out any more.
        await self.release_disk()
        if self.process:
            await self.process.wait()

    def threads(self, name):
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                if (task / "comm").read_text().strip() == name:
                    yield task.name
            except OSError:
                pass

    async def hang_disk(self, whole, milliseconds):
        """Delays each write of the log's thread, or of all threads."""
        if self.process is None or self.process.returncode is not None:
            return
        threads = [str(self.process.pid)] if whole else list(self.threads("squall-storage"))
        who = ["-f"] * whole + [word for thread in threads for word in ("-p", thread)]
        if not threads:
            return
        calls = "fdatasync,fsync,pwrite64,pwritev,pwritev2"
        what = ["-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={milliseconds * 1000}"]
        self.strace = await asyncio.create_subprocess_exec(
            *["strace", "-qq", "-o", "/dev/null", *what, *who],
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    async def release_disk(self):
        strace, self.strace = self.strace, None
        if strace and strace.returncode is None:
            # With the children by which it finds out at its start what the kernel can do.
            os.killpg(strace.pid, signal.SIGKILL)
            await strace.wait()

    async def serves(self):
        """Whether a client of its own host can write and read."""
        try:
            connection = await Connection.open(self.cluster.hosts, self.number, self.number)
        except Broken:
            return False
        try:
            key = b"probe%d" % self.number
            said = await connection.call([[b"SET", key, b"1"], [b"GET", key]], 3)
            return said == [b"OK", b"1"]
        except Broken:
            return False
        finally:
            connection.close()

    async def info(self):
        try:
            connection = await Connection.open(self.cluster.hosts, self.number, self.number)
            said = await connection.call([[b"INFO", b"squall"]], 3)
            connection.close()
            return (said[0] or b"").decode() if not isinstance(said[0], Refusal) else said[0]
        except Broken as error:
            return str(error)


class Cluster:
    """All replicas. `tell` takes each sentence on what happens."""

    def __init__(self, hosts, directory, seed, replicas, durable, tell):
        self.hosts, self.directory, self.durable = hosts, directory, durable
        self.rng = random.Random(seed)
        self.begun = time.monotonic()
        self.tell = tell
        self.ended = 0
        self.configure(replicas)
        self.replicas = {k: Replica(self, k) for k in range(1, replicas + 1)}

    def now(self):
        return time.monotonic() - self.begun

    def configure(self, replicas):
        lines = [f'cluster = "jepsen-{os.getpid()}"', 'security = "none"']
        if self.durable:
            lines += [f'storage = "{self.directory}/disk/{{id}}"', "restart_wait_ms = 5000"]
            (self.directory / "disk").mkdir()
        lines += ["[fabric]", 'backend = "tcp"', "[addresses]"]
        lines += [f'{k} = "host{k}:7700"' for k in range(1, replicas + 1)]
        lines += ["[groups.kv]", 'bulk_reserve = "64MiB"']
        if self.durable:
            lines += ['mode = "durable"']
        (self.directory / "cluster.toml").write_text("\n".join(lines) + "\n")

    async def start(self):
        for replica in self.replicas.values():
            await replica.start()

    async def until_serving(self, patience=SERVING_SECONDS):
        """How long it takes until all serve, in seconds; None if some don't in time."""
        begun, missing = time.monotonic(), set(self.replicas)
        while missing:
            if time.monotonic() - begun > patience:
                return None
            asked = sorted(missing)
            serving = await asyncio.gather(*(self.replicas[k].serves() for k in asked))
            missing -= {k for k, serves in zip(asked, serving) if serves}
            await asyncio.sleep(0.02)
        return time.monotonic() - begun

    async def stop(self):
        for replica in self.replicas.values():
            replica.wanted = False
            replica.signal(signal.SIGKILL)
            await replica.release_disk()
        for replica in self.replicas.values():
            if replica.process:
                await replica.process.wait()

    def remove_disks(self):
        shutil.rmtree(self.directory / "disk", ignore_errors=True)
