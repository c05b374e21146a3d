"""The clients' protocol as its page describes it (docs/src/internals/client-protocol.md), with nothing but sockets."""

import json
import os
import random
import socket
import ssl
import struct
import unittest

from cluster import Cluster

MAGIC = b"squallIP"[::-1]
PORT_VERSION, STREAM_VERSION, VERSION, CLIENTS = 2, 5, 5, 5


def number(value):
    """A number of variable length."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes(encoded + bytes([value]))


def data(value):
    """A text or bytes, behind its length."""
    value = value.encode() if isinstance(value, str) else value
    return number(len(value)) + value


class Reader:
    """The fields of a message, in order."""

    def __init__(self, message):
        self.rest = message

    def take(self, length):
        taken, self.rest = self.rest[:length], self.rest[length:]
        assert len(taken) == length, "a message ends within a field"
        return taken

    def number(self):
        value, shift = 0, 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def data(self):
        return self.take(self.number())

    def members(self):
        epoch, count = self.number(), self.number()
        return epoch, {self.number(): [self.data().decode() for _ in range(self.number())] for _ in range(count)}

    def end(self):
        assert not self.rest, "bytes are left over"


class Stream:
    """A connection with a node, once both have greeted."""

    def __init__(self, sock, cluster):
        self.sock = sock
        sock.settimeout(30)
        kind, challenge = self.greeting()
        version, challenge = struct.unpack("<I16s", challenge)
        assert (kind, version) == (1, PORT_VERSION)
        me, nonce = random.randrange(2**31, 2**32 - 1), os.urandom(16)
        hello = MAGIC + struct.pack("<IIIQ", PORT_VERSION, me, 2**32 - 1, 0) + challenge + nonce
        self.send(b"\2" + hello + struct.pack("<BIH", 2, CLIENTS, len(cluster)) + cluster.encode())
        kind, welcome = self.greeting()
        assert kind == 3, (kind, welcome)
        version, node, _incarnation, echo = struct.unpack("<IIQ16s", welcome)
        assert (version, echo) == (PORT_VERSION, nonce)
        sock.sendall(b"squallct" + struct.pack("<4I", STREAM_VERSION, CLIENTS, me, node))
        answer = self.receive(24)
        assert answer == b"squallct" + struct.pack("<4I", STREAM_VERSION, 0, node, 0), answer

    def receive(self, length):
        received = b""
        while len(received) < length:
            part = self.sock.recv(length - len(received))
            assert part, "the node has hung up"
            received += part
        return received

    def frame(self):
        return self.receive(struct.unpack("<I", self.receive(4))[0])

    def greeting(self):
        frame = self.frame()
        assert frame[1:9] == MAGIC
        return frame[0], frame[9:]

    def send(self, message):
        self.sock.sendall(struct.pack("<I", len(message)) + message)

    def hear(self):
        """The number of a node's next message, and its fields."""
        while True:
            fields = Reader(self.frame())
            kind = fields.number()
            if kind not in (1, 12):
                return kind, fields
            # Members of a new view, and those that hold the shard's state, which may come at any time.
            fields.members()
            fields.end()


def hello(stream, group):
    """Names a group, and returns the number of its shards and its members."""
    stream.send(number(0) + number(VERSION) + data(group))
    kind, fields = stream.hear()
    shards = 1
    if kind == 11:
        shards = fields.number()
        fields.end()
        kind, fields = stream.hear()
    assert kind == 0, (kind, fields.rest)
    _epoch, members = fields.members()
    timeout, longest = fields.number(), fields.number()
    fields.end()
    assert timeout > 0 and longest > 0
    return shards, members


class ByThePage(unittest.TestCase):
    def calls(self, connect):
        first = connect()
        shards, members = hello(first, "counters/0/json")
        self.assertEqual((shards, len(members)), (2, 3))
        key = random.randrange(2**64)
        first.send(number(1) + number(key))
        kind, fields = first.hear()
        self.assertEqual(kind, 3)
        session = number(fields.number()) + number(fields.number())
        self.assertGreater(fields.number(), 0)
        fields.end()
        command = {"add": {"name": "a", "amount": 5}}
        request = number(3) + session + number(0) + number(0) + data(json.dumps(command))

        def answer(stream):
            kind, fields = stream.hear()
            self.assertEqual((kind, fields.number(), fields.number()), (5, 0, 0))
            reply = json.loads(fields.data())
            fields.end()
            return reply

        first.send(request)
        reply = answer(first)
        self.assertEqual(reply, {"add": {"sum": 5, "adds": 1}})
        first.send(number(3) + session + number(1) + number(1) + data("{"))
        kind, fields = first.hear()
        self.assertEqual((kind, fields.number()), (7, 1))
        self.assertIn("EOF", fields.data().decode())
        first.sock.close()
        # A copy, over another connection, is applied no second time, and gets the same reply.
        second = connect()
        hello(second, "counters/0/json")
        second.send(number(2) + session)
        second.send(request)
        self.assertEqual(answer(second), reply)
        second.send(number(6) + number(9) + number(0) + data(json.dumps({"get": {"name": "a"}})))
        kind, fields = second.hear()
        self.assertEqual((kind, fields.number(), fields.number()), (8, 9, 0))
        self.assertEqual(json.loads(fields.data()), {"get": {"sum": 5, "adds": 1}})
        second.send(number(7))
        self.assertEqual(second.hear()[0], 9)
        second.send(number(5) + session)
        second.sock.close()

    def test_without_keys(self):
        with Cluster(shards=2, tcp=True) as cluster:
            ports = [int(address.rsplit(":")[1]) for address in cluster.addresses]

            def connect():
                sock = socket.create_connection(("127.0.0.1", ports.pop(0)))
                self.addCleanup(sock.close)
                return Stream(sock, cluster.name)

            self.calls(connect)

    def test_with_keys(self):
        with Cluster(shards=2, tls=True) as cluster:
            keys = cluster.directory / "keys"
            context = ssl.create_default_context(cafile=keys / "ca.pem")
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(keys / "client-web.pem", keys / "client-web.key")
            hashed = 0xCBF29CE484222325
            for byte in cluster.name.encode() + struct.pack("<Q", len(cluster.name)):
                hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
            nodes = [(id, int(address.rsplit(":")[1])) for id, address in enumerate(cluster.addresses, 1)]

            def connect():
                id, port = nodes.pop(0)
                plain = socket.create_connection(("127.0.0.1", port))
                sock = context.wrap_socket(plain, server_hostname=f"node-{id}.c{hashed:016x}.squall")
                self.addCleanup(sock.close)
                return Stream(sock, cluster.name)

            self.calls(connect)


if __name__ == "__main__":
    unittest.main()
