import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile

from command import CommandTest
from plan_test import profile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train"))
from runs import processes_of  # noqa: E402


class Probe(CommandTest):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="starling-probe-")))
        self.out = self.folder / "network.json"

    def test_workers_of_one_host(self):
        topology = self.folder / "fast-links.json"
        text = self.starling("probe", "--workers", "4", "--seconds", "0.2", "--out", self.out, "--bandwidths", topology)
        self.assertRegex(text, r"^4 workers on 1 host, measured in \d+\.\d s\n")
        self.assertRegex(text, r"\ninside hosts +\d+\.\d+ ms, [\d.]+ [MG]B/s\n")
        self.assertRegex(text, r"\nall-reduce of 0\.07 MB +[\d.]+ ms\n")
        network = json.loads(self.out.read_text())
        self.assertEqual([host["workers"] for host in network["hosts"]], [[0, 1, 2, 3]])
        self.assertNotIn("send", network["hosts"][0])
        self.assertGreater(network["inside"]["rate"], 1e6)
        self.assertGreater(network["inside"]["latency"], 0)
        sizes = [1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 4 << 20, 12 << 20, 25 << 20]
        reduced = network["all_reduce"]
        self.assertEqual([entry["bytes"] for entry in reduced], sizes[:len(reduced)])
        # Up to the first that takes long.
        self.assertTrue(len(reduced) == len(sizes) or reduced[-1]["seconds"] > 0.3)
        self.assertTrue(all(entry["seconds"] <= 0.3 for entry in reduced[1:-1]))
        # Bandwidth-aware matchings: on even links three of them, one peer each.
        bandwidth = json.loads(topology.read_text())["bandwidth"]
        self.assertEqual([[rate > 0 for rate in row] for row in bandwidth], [[i != j for j in range(4)] for i in range(4)])
        shown = json.loads(self.starling("topology", topology, "--workers", "4", "--json"))
        self.assertEqual(shown["peers"], 1)
        # plan reads what probe writes.
        compute = self.folder / "compute.json"
        whole = profile(hosts=4)
        compute.write_text(json.dumps({key: whole[key] for key in ("format", "version", "units", "blocks", "compute")}))
        plan = json.loads(self.starling("plan", "--profile", self.out, "--compute", compute, "--json"))
        self.assertEqual(plan["worlds"][0]["workers"], 4)

    def test_a_worker_that_dies_ends_it_and_is_named(self):
        for victim in (0, 2):
            terminal, end = pty.openpty()  # the probe's progress goes to this terminal
            with subprocess.Popen([os.environ["STARLING"], "probe", "--workers", "3", "--out", self.out],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=end) as probe:
                os.close(end)
                said = b""
                while b" of 3: " not in said:
                    said += os.read(terminal, 1000)
                os.kill(processes_of(probe.pid)[victim], signal.SIGKILL)
                stdout, _ = probe.communicate()
            try:
                while more := os.read(terminal, 1000):
                    said += more
            except OSError:  # the writer has closed it
                pass
            os.close(terminal)
            self.assertEqual((probe.returncode, stdout), (1, b""), said)
            last = said.decode().split("\r\x1b[K")[-1]
            self.assertRegex(last, f"^\x1b\\[1;31mstarling:\x1b\\[0m probe: worker {victim} was lost during it: [^\n]+\r\n$")
            self.assertFalse(self.out.exists())

    def test_wrong_arguments(self):
        self.assertEqual(self.usage_error("probe"),
                         "probe: one worker alone has no network: start several with --workers N, or with a launcher")
        self.assertIn("--workers: Value 1 not in range", self.usage_error("probe", "--workers", "1"))
        self.assertEqual(self.usage_error("probe", "--workers", "2", "--bandwidths", "x.txt"),
                         "--bandwidths: Value x.txt must end in .json, as a topology does")
        self.assertIn("--seconds: Value 0 not in range", self.usage_error("probe", "--seconds", "0"))
