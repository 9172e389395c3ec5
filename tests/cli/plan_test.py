import json
import os
import tempfile
import unittest

from command import CommandTest


def profile(hosts=4, per_host=1, rate=1e8, forward=(0.02,), blocks=4, block_bytes=1e6):
    """Blocks take block_bytes / rate on a link; 40 ms are forward and backward, 4 ms updates."""
    n, count = hosts * per_host, len(forward)
    return {
        "format": "starling-profile", "version": 1,
        "units": {"time": "s", "data": "B", "rate": "B/s"},
        "hosts": [{"name": f"node{h}", "workers": list(range(h * per_host, (h + 1) * per_host)), "send": rate,
                   "receive": rate} for h in range(hosts)],
        "between": {"latency": 0},
        "inside": {"latency": 0, "rate": 1e12},
        "blocks": [{"bytes": block_bytes}] * blocks,
        "compute": [{"worker": i, "data_wait": [0] * count, "forward": list(forward),
                     "backward": [[0.02 / blocks] * count] * blocks, "update": [[0.004 / blocks] * count] * blocks}
                    for i in range(n)],
    }


class Plan(CommandTest):
    def write(self, content):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "profile.json")
        with open(path, "w") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def plan(self, content, *arguments):
        return json.loads(self.starling("plan", "--profile", self.write(content), "--json", *arguments))

    def row(self, world, schedule, wire):
        return next(row for row in world["gossip"] if (row["schedule"], row["wire"]) == (schedule, wire))

    def test_where_the_link_is_hidden(self):
        plan = self.plan(profile())  # 40 ms of link behind 44 ms of compute
        self.assertEqual(plan["measured_workers"], 4)
        world, = plan["worlds"]
        self.assertEqual((world["workers"], world["extrapolated"]), (4, False))
        base = self.row(world, "base-2", "fp32")
        self.assertAlmostEqual(base["step"], 0.044, delta=0.0002)
        self.assertEqual(base["bottleneck"], "compute")
        self.assertEqual(world["recommended"], {"schedule": "base-2", "wire": "fp32"})
        # All-reduce: 1.5 models; all but the first 5 ms of backward overlap.
        self.assertAlmostEqual(world["all_reduce"]["step"], 0.02 + 0.005 + 0.060 + 0.004, delta=1e-6)
        self.assertAlmostEqual(base["speed_up"], 0.089 / 0.044, delta=0.02)

    def test_where_the_link_decides(self):
        world, = self.plan(profile(rate=2e7))["worlds"]  # 200 ms of link
        base = self.row(world, "base-2", "fp32")
        self.assertAlmostEqual(base["step"], 0.2, delta=0.002)
        self.assertRegex(base["bottleneck"], "^the interface of node[0-3]$")
        self.assertAlmostEqual(self.row(world, "base-2", "bf16")["step"], 0.1, delta=0.002)
        self.assertAlmostEqual(self.row(world, "base-2", "int8")["step"], 0.05, delta=0.001)
        self.assertEqual(world["recommended"]["wire"], "int8")
        self.assertAlmostEqual(base["efficiency"], 0.22, delta=0.005)

    def test_more_workers_than_were_measured(self):
        plan = self.plan(profile(hosts=2, per_host=2, forward=(0.02, 0.02, 0.04)), "--workers", "4..20")
        self.assertEqual([world["workers"] for world in plan["worlds"]], [4, 8, 16, 20])
        self.assertEqual([world["extrapolated"] for world in plan["worlds"]], [False, True, True, True])
        reduced = [world["all_reduce"]["step"] for world in plan["worlds"]]
        self.assertEqual(reduced, sorted(reduced))  # more to send, and the slowest of more
        self.assertIn(plan["knee"], (4, 8, 16, 20))
        self.assertGreaterEqual(plan["knee"], plan["knee_of_all_reduce"])

    def test_table(self):
        text = self.starling("plan", "--profile", self.write(profile()), "--workers", "4,6")
        self.assertIn("4 workers on 4 hosts\n", text)
        self.assertIn("6 workers on 6 hosts (extrapolated: 4 were measured)\n", text)
        self.assertRegex(text, r"\nall-reduce +fp32 +89.00 ms +89.00 to 89.00 ms +49 % +1.00 +the network\n")
        self.assertRegex(text, r"\nbase-2 +fp32 +44.\d\d ms ")
        self.assertIn("\nRecommended: base-2 over fp32", text)
        self.assertIn("up to 6 workers", text)

    def test_one_worker(self):
        world, = self.plan(profile(hosts=1))["worlds"]
        self.assertAlmostEqual(world["all_reduce"]["step"], 0.044, delta=1e-9)
        self.assertAlmostEqual(self.row(world, "base-2", "fp32")["step"], 0.044, delta=1e-9)

    def test_bad_profiles(self):
        good = json.dumps(profile(), indent=1)
        for content, message in [
                (good[:len(good) // 2], "not JSON"),
                (good.replace('"version": 1', '"version": 7'), "version must be 1, not 7"),
                (good.replace('"worker": 3', '"worker": 2'), "compute of worker 2: it stands twice"),
                (good.replace("0.02", "-0.02", 1), "forward is -0.02 seconds, must be above 0 and at most 1e+06"),
                (good.replace('"B/s"', '"Gbit/s"'), 'rate must be "B/s"')]:
            path = self.write(content)
            error = self.usage_error("plan", "--profile", path)
            self.assertTrue(error.startswith(path + ":"), error)
            self.assertIn(message, error)

    def test_wrong_arguments(self):
        path = self.write(profile())
        self.assertEqual(self.usage_error("plan"), "--profile is required")
        self.assertEqual(self.usage_error("plan", "--profile", "no/such.json"),
                         "no/such.json: cannot be opened: No such file or directory")
        for value in ("0", "4..2", "8,4", "4..", "1025", "four", "4,", "4..8,16"):
            self.assertEqual(self.usage_error("plan", "--profile", path, "--workers", value),
                             f"--workers: Value {value} must be rising numbers as in 8,12,16 or 8..64, from 1 to 1024")


if __name__ == "__main__":
    unittest.main()
