"""The example in C, while members are killed."""

import json
import pathlib
import subprocess
import tempfile
import unittest

from cluster import PROGRAMS, ROOT, Cluster

# The calls of one run of the program, all of which are under way at a time.
CALLS = 3000


class Kills(unittest.TestCase):
    def setUp(self):
        directory = self.enterContext(tempfile.TemporaryDirectory())
        self.program = pathlib.Path(directory) / "counter"
        source, header = ROOT / "bindings/c/examples/counter.c", ROOT / "bindings/c/include"
        linked = ["-L", PROGRAMS, "-lsquall_client", f"-Wl,-rpath,{PROGRAMS}"]
        subprocess.run(["cc", "-o", self.program, source, "-I", header, *linked], check=True)

    def test_each_call_of_a_program_in_c_is_applied_once(self):
        with Cluster(shards=2) as cluster:
            for round, victim in enumerate([1, 2, 3, 2, 1]):
                amounts = [str(amount) for amount in range(1, CALLS + 1)]
                command = [self.program, cluster.file, f"round {round}", *amounts]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
                    first = program.stdout.readline()
                    cluster.kill(victim)
                    *lines, last = [first, *program.stdout]
                self.assertEqual(program.returncode, 0)
                replies = [json.loads(line.split(": ", 1)[1])["add"] for line in lines]
                self.assertEqual(sorted(reply["adds"] for reply in replies), list(range(1, CALLS + 1)))
                self.assertEqual(json.loads(last), {"get": {"sum": CALLS * (CALLS + 1) // 2, "adds": CALLS}})
                cluster.begin(victim)
                cluster.wait(victim)


if __name__ == "__main__":
    unittest.main()
