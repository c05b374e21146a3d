"""Members of a cluster of examples/counter_service.rs, each a process of this host."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The programs that were built: SQUALL_BIN, or those of the tests' profile.
PROGRAMS = pathlib.Path(os.environ.get("SQUALL_BIN") or ROOT / "target/debug")
MEMBERS = (1, 2, 3)


def free_ports(count):
    """Ports of this host that no program uses."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def make_keys(directory, cluster, *owners):
    """Makes a CA, and keys of these owners."""
    squall = PROGRAMS / "squall"
    subprocess.run([squall, "keys", "init", "--cluster", cluster, "--dir", directory], check=True, capture_output=True)
    for owner in owners:
        subprocess.run([squall, "keys", "add", "--dir", directory, *owner], check=True, capture_output=True)


class Cluster:
    """Three members, which share memory, or talk TCP at ports of this host, with TLS or without."""

    def __init__(self, shards=1, tcp=False, tls=False):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="squall-python-"))
        self.name = f"python-{os.getpid()}-{self.directory.name[-8:]}"
        self.file = self.directory / "cluster.toml"
        self._members = {}
        text = f'cluster = "{self.name}"\n'
        if tcp or tls:
            self.addresses = [f"127.0.0.1:{port}" for port in free_ports(len(MEMBERS))]
        if tls:
            make_keys(
                self.directory / "keys",
                self.name,
                ["--node", "1,2,3"],
                ["--client", "web"],
                ["--client", "reader", "--read-only"],
            )
            text += self.security("keys", "node-{id}")
        elif tcp:
            text += self.table_of_addresses()
        else:
            text += f"members = {list(MEMBERS)}\n"
        self.file.write_text(text + f"[groups.counters]\nshards = {shards}\n")

    def table_of_addresses(self):
        return "[addresses]\n" + "".join(f'{id} = "{at}"\n' for id, at in zip(MEMBERS, self.addresses))

    def security(self, keys, owner):
        """The part of a configuration with the members' addresses and an owner's keys."""
        keys = self.directory / keys
        files = f'ca = "{keys}/ca.pem"\ncertificate = "{keys}/{owner}.pem"\nkey = "{keys}/{owner}.key"\n'
        return f"{self.table_of_addresses()}[security]\n{files}"

    def client(self, keys, owner):
        """The text of a client's configuration."""
        return f'cluster = "{self.name}"\n' + self.security(keys, owner)

    def begin(self, id):
        """Starts a member, which is to be waited for."""
        member = subprocess.Popen(
            [PROGRAMS / "examples/counter_service", self.file],
            env={**os.environ, "SQUALL_ID": str(id)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._members[id] = member

    def wait(self, id):
        """Waits until a member has the group's state."""
        said = self._members[id].stdout.readline()
        if said != b"ready\n":
            raise RuntimeError(f"member {id} said {said!r}")

    def signal(self, number):
        """Sends a signal to all members."""
        for member in self._members.values():
            member.send_signal(number)

    def kill(self, id):
        """Kills a member, as `kill -9` does."""
        member = self._members.pop(id)
        member.send_signal(signal.SIGKILL)
        member.communicate()

    def __enter__(self):
        try:
            for id in MEMBERS:
                self.begin(id)
            for id in MEMBERS:
                self.wait(id)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for id in list(self._members):
            self.kill(id)
        shutil.rmtree(self.directory)
