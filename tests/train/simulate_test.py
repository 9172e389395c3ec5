"""Simulates runs by the built command (its path is in the environment variable STARLING), beside a
real one."""

import json

from runs import Images, command, files_below, load_tests, long  # noqa: F401  unittest calls load_tests

STEPS = 16
# The first three are in a short test.
SCHEMES = (("cta", ()), ("all-reduce", ()), ("a2cid2", ("--mixing.topology", "ring", "--mixing.wire", "int8")),
           ("atc", ("--mixing.topology", "ring", "--mixing.mean_every", 5)),
           ("choco", ("--mixing.topology", "ring", "--mixing.one_in", 4)),
           ("push-sum", ("--mixing.topology", "n-peer-exponential-2", "--mixing.staleness", 2)),
           ("push-diging", ("--mixing.topology", "n-peer-exponential-2")),
           ("async-push-sum", ("--mixing.topology", "n-peer-exponential-2")),
           ("async-push-pull", ("--mixing.topology", "n-peer-exponential-2")),
           ("swarm", ("--mixing.topology", "complete", "--mixing.local_steps", 2)))


class Simulate(Images):
    flip = "true"
    recipe_text = f"""
[run]
steps = {STEPS}
threads = 1
[optimizer]
rule = "adam"
lr = 0.01
[train]
batch = 8
"""

    def simulate(self, *arguments, name="run"):
        out = self.folder / name
        said = command("simulate", self.recipe, "--out", out, "--json", *arguments).stdout
        self.assertEqual(said, (out / "simulate.jsonl").read_text())
        self.assertIn("<polyline", (out / "simulate.svg").read_text())
        return [json.loads(line) for line in said.splitlines()]

    def test_a_full_disk_costs_the_files_and_not_the_simulation(self):
        out = self.folder / "full"
        done = command("simulate", self.recipe, "--out", out, "--json", "--workers", 2, "--look-every", 1,
                       preexec_fn=files_below(1))
        self.assertGreater(len([json.loads(line) for line in done.stdout.splitlines()]), 1)
        for file in ("simulate.jsonl", "recipe.toml", "cluster.json", "simulate.svg", "summary.json"):
            named = [line for line in done.stderr.splitlines() if file in line]
            self.assertEqual(len(named), 1, done.stderr)
            self.assertIn("File too large", named[0])

    def test_the_same_seed_gives_the_same_run(self):
        self.check_seeds(SCHEMES[:3])

    @long
    def test_the_same_seed_gives_the_same_run_whatever_the_scheme(self):
        self.check_seeds(SCHEMES[3:])

    def check_seeds(self, schemes):
        for scheme, more in schemes:
            with self.subTest(scheme):
                asked = ("--workers", 4, "--cv", 0.3, "--gigabits", 0.01, "--link-cv", 0.2, "--look-every", 1,
                         "--mixing.scheme", scheme, *more)
                looks = self.simulate(*asked)
                self.assertEqual(looks, self.simulate(*asked))
                self.assertGreaterEqual(looks[-1]["gradients"], 4 * STEPS)
                self.assertLess(looks[-1]["loss"], looks[0]["loss"])
                for look in looks:
                    self.assertTrue(look["loss_least"] <= look["loss"] <= look["loss_most"], look)
                    self.assertTrue(0 <= look["waiting_share"] <= 1 and look["lr"] >= 0, look)
                self.assertIn("written to", command("report", self.folder / "run").stdout)
                self.assertEqual("rate" in looks[-1], scheme in ("a2cid2", "async-push-sum", "async-push-pull", "swarm"))
                if "rate" in looks[-1]:
                    self.assertTrue(0.3 < looks[-1]["rate"] < 1.5 and looks[-1]["longest_gap"] > 2, looks[-1])
                self.assertEqual([look["seconds"] for look in looks[:-1]], list(range(1, len(looks))))

    def test_it_learns_what_processes_learn(self):
        """Without max_wait nothing depends on the time of events."""
        for scheme in ("cta", "all-reduce"):
            with self.subTest(scheme):
                asked = ("--workers", 3, "--mixing.scheme", scheme)
                last = self.simulate(*asked, "--look-every", 100)[-1]
                summary = json.loads((self.folder / "run/summary.json").read_text())
                real = json.loads(command("train", self.recipe, *asked, "--json", "--out",
                                                   self.folder / "real").stdout)
                self.assertAlmostEqual(last["test_loss"], real["test_loss"], places=4)
                self.assertAlmostEqual(last["accuracy"], real["accuracy"], places=6)
                for key in ("accuracy", "test_loss", "loss", "consensus_distance", "seconds", "waiting_share"):
                    self.assertAlmostEqual(summary[key], last[key], places=9, msg=key)
                self.assertEqual(summary["bytes_sent_per_worker"], last["bytes_sent"] // 3)
                for key in ("scheme", "schedule", "rule", "wire", "workers", "steps", "samples", "seed", "class_counts",
                            "bytes_computed", "versions"):
                    self.assertEqual(summary[key], real[key], key)
                distance = last["consensus_distance"]
                self.assertAlmostEqual(distance, real["consensus_distance"], delta=1e-3 * distance + 1e-9)

    def test_a_folder_holds_one_run(self):
        out = self.folder / "one"
        asked = (self.recipe, "--workers", 2, "--out", out)
        command("simulate", *asked, "--look-every", 100)
        command("train", *asked)
        self.assertFalse((out / "simulate.jsonl").exists())
        self.assertIn("written to", command("report", out).stdout)
        before = {file: file.read_bytes() for file in out.glob("*.*")}
        done = command("simulate", *asked, "--look-every", 100, code=2)
        self.assertEqual((done.stdout, done.stderr),
                         ("", f"starling: {out} holds a run of `starling train`: give another folder (--out)\n"))
        self.assertEqual({file: file.read_bytes() for file in out.glob("*.*")}, before)
        # So is one that cannot be made.
        done = command("simulate", *asked[:-1], self.recipe / "out", code=1)
        self.assertEqual(done.stderr, f"starling: {self.recipe / 'out'}: cannot be made: Not a directory\n")

    def test_a_slow_worker_holds_up_those_that_wait_for_it(self):
        def step(*arguments):
            return self.simulate("--workers", 4, "--straggler", 4, "--look-every", 100, *arguments)[-1]["seconds"] / STEPS

        self.assertAlmostEqual(step("--mixing.topology", "ring"), 0.4, delta=0.02)
        # Three of the four workers wait for 0.3 s of each 0.4 s.
        look = json.loads((self.folder / "run" / "simulate.jsonl").read_text().splitlines()[-1])
        self.assertAlmostEqual(look["waiting_share"], 0.75 * 0.75, delta=0.08)
        gossip = ("--mixing.topology", "ring", "--mixing.scheme", "a2cid2")
        self.assertAlmostEqual(step(*gossip), 0.4, delta=0.02)  # it makes all of its steps, too
        # Three of four workers make a gradient in 0.1 s, and one in 0.4 s.
        self.assertAlmostEqual(step(*gossip, "--run.ends", "together"), 4 / (3 / 0.1 + 1 / 0.4), delta=0.4 / STEPS)

    @long
    def test_looks_every_hundred_gradients_if_nobody_says(self):
        asked = ("--workers", 2, "--gradient", 0.5, "--run.steps", 201, "--train.batch", 2, "--mixing.scheme", "ad-psgd",
                 "--mixing.topology", "ring")
        for passes in (1, 2):
            looks = self.simulate(*asked, "--train.accumulate", passes)
            self.assertEqual([round(look["seconds"], 3) for look in looks], [50, 100, 100.5])

    def test_looks_go_on_until_the_last_worker_is_through(self):
        looks = self.simulate("--workers", 2, "--straggler", 4, "--mixing.scheme", "a2cid2", "--mixing.topology", "ring",
                              "--look-every", 0.5)
        self.assertEqual([round(look["seconds"], 3) for look in looks[:-1]], [k / 2 for k in range(1, len(looks))])
        self.assertAlmostEqual(looks[-1]["seconds"], 0.4 * STEPS, delta=0.4)

    @long
    def test_links_vary_and_one_is_slow(self):
        for scheme in ("cta", "all-reduce"):
            def seconds(*arguments, scheme=scheme):
                return self.simulate("--workers", 4, "--gradient", 0.001, "--gigabits", 0.01, "--look-every", 1000,
                                     "--mixing.scheme", scheme, "--mixing.topology", "one-peer-ring",
                                     *arguments)[-1]["seconds"]

            with self.subTest(scheme):
                even = seconds()
                varying = seconds("--link-cv", 0.5)
                # Each waits for the slower of several.
                self.assertTrue(1.02 * even < varying < 3 * even, (even, varying))
                self.assertAlmostEqual(seconds("--slow-link", 4) / even, 4, delta=0.4)

    def test_an_all_reduce_overlaps_with_backward(self):
        compute, gigabits = 0.1, 0.1
        last = self.simulate("--workers", 2, "--gigabits", gigabits, "--gradient", compute, "--look-every", 100,
                             "--mixing.scheme", "all-reduce", "--model.width", 32)[-1]
        link = last["bytes_sent"] / 2 / STEPS / (gigabits * 1e9 / 8)
        step = last["seconds"] / STEPS
        self.assertGreater(step, compute / 3 + link)  # nothing can be sent before backward() begins
        self.assertLess(step, compute + link - compute / 4)

    def test_a_profile_is_the_cluster(self):
        profile = {
            "format": "starling-profile", "version": 2,
            "units": {"time": "s", "data": "B", "rate": "B/s"},
            "hosts": [{"name": f"host-{i}", "workers": [i], "send": 1e9, "receive": 1e9} for i in range(2)],
            "between": {"latency": 5e-5}, "inside": {"latency": 2e-6, "rate": 8e9},
            "blocks": [{"bytes": 4e6}],
            "compute": [{"worker": i, "data_wait": [0], "forward": [0.02], "backward": [[0.03]], "update": [[0.01]]}
                        for i in range(2)],
        }
        file = self.folder / "profile.json"
        file.write_text(json.dumps(profile))
        last = self.simulate("--profile", file, "--look-every", 100)[-1]
        self.assertEqual(last["gradients"], 2 * STEPS)
        self.assertAlmostEqual(last["seconds"] / STEPS, 0.06, delta=0.001)
        # One more such host.
        last = self.simulate("--profile", file, "--workers", 3, "--look-every", 100)[-1]
        self.assertEqual(last["gradients"], 3 * STEPS)
        self.assertAlmostEqual(last["seconds"] / STEPS, 0.06, delta=0.001)

    def test_what_only_processes_have_is_refused(self):
        for key, value in (("checkpoint.every", 10), ("log.timeline", "true"), ("log.tensorboard", "true"), ("train.ema", 0.9)):
            asked = ("--workers", 2, "--look-every", 1, f"--{key}", value)
            done = command("simulate", self.recipe, *asked, code=2)
            self.assertEqual(done.stdout, "")
            self.assertEqual(done.stderr, f"starling: simulate: {key} is for workers that are processes: leave it out\n")
        said = command("simulate", self.recipe, *asked[:4], "--mixing.topology", "auto", code=2).stderr
        self.assertIn("simulate: mixing.topology = auto is for workers that are processes", said)
        said = command("simulate", self.recipe, "--look-every", 1, code=2).stderr
        self.assertIn("--workers N, or --profile FILE", said)
