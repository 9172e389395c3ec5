"""Three real workers learn, with every kind of options."""

import json
import os
import re
import signal
import subprocess
import unittest

from runs import EPOCHS, WORKERS, Run, command, environment, load_tests, long  # noqa: F401  unittest calls load_tests


class Train(Run):
    def test_three_workers_learn_and_agree(self):
        stdout, stderr = self.train("--mixing.topology", "base-2")
        summary = self.check_run("cta")
        self.assertIn(f"test accuracy, average model   {100 * summary['accuracy']:.2f} %\n", stdout)
        self.assertRegex(stderr, r"^step 1/160  epoch 0.05/8  loss ")  # not a terminal: plain lines
        self.assertNotIn("\r", stderr)
        # They agree: their distance to the average is far smaller than their distance to the start,
        # with weights of about 0.1.
        self.assertGreater(summary["consensus_distance"], 0)
        self.assertLess(summary["consensus_distance"], 0.01)

    @long
    def test_fewer_bytes_learn_as_fp32_does(self):
        summaries = {}
        for wire, one_in in (("fp32", 1), ("int8", 1), ("int4", 1), ("fp32", 4)):
            self.train("--mixing.topology", "base-2", "--mixing.wire", wire, "--mixing.one_in", str(one_in))
            summaries[wire, one_in] = self.check_run("cta")
            self.assertEqual(summaries[wire, one_in]["one_in"], one_in)
        fp32 = summaries["fp32", 1]
        for wire, one_in, share in (("int8", 1, 1 / 4), ("int4", 1, 1 / 8), ("fp32", 4, 1 / 4)):
            summary = summaries[wire, one_in]
            self.assertLess(abs(summary["accuracy"] - fp32["accuracy"]), 0.02)
            self.assertLess(summary["consensus_distance"], 1e-3)  # of weights of about 0.1
            self.assertAlmostEqual(summary["payload_sent_per_worker"] / fp32["payload_sent_per_worker"], share, delta=0.02)

    @long
    def test_narrow_weights_learn_as_fp32_do(self):
        self.train("--mixing.topology", "base-2")
        fp32 = self.check_run("cta")
        for dtype in ("bf16", "fp16"):
            # A scale so large that the first gradients in fp16 overflow.
            arguments = ("--mixing.topology", "base-2", "--model.dtype", dtype, "--checkpoint-every", "80",
                         "--train.loss_scale", "1073741824", "--train.loss_scale_steps", "30")
            self.out = self.out.with_name(dtype)
            self.train(*arguments)
            narrow = self.check_run("cta")
            self.assertLess(abs(narrow["accuracy"] - fp32["accuracy"]), 0.03)
            self.assertLess(narrow["consensus_distance"], 0.01)
            skipped = narrow["steps_skipped"]
            self.assertTrue(3 < skipped < 40 if dtype == "fp16" else skipped == 0, skipped)
            # The masters cross the link.
            self.assertAlmostEqual(narrow["payload_sent_per_worker"] / fp32["payload_sent_per_worker"], 1, delta=0.02)
            # The second half again, from the checkpoint: equal to the bit.
            losses = self.losses()
            self.train(*arguments, "--resume", str(self.out / "checkpoints" / "step-80"))
            self.assertEqual(losses, self.losses())
            self.assertEqual(narrow["accuracy"], self.summary()["accuracy"])

    def test_all_reduce_keeps_workers_equal(self):
        stdout, _ = self.train("--mixing.scheme", "all-reduce", "--optimizer.rule", "adam", "--json")
        summary = self.check_run("all-reduce")
        self.assertEqual(json.loads(stdout), summary)
        self.assertEqual(summary["consensus_distance"], 0)
        self.assertTrue(summary["bytes_computed"])

    def test_same_seed_gives_the_same_run(self):
        self.train("--run.steps", "12")
        first = self.losses()
        accuracy = self.summary()["accuracy"]
        self.train("--run.steps", "12")  # in the same folder: the first run's files are gone
        self.assertEqual(first, self.losses())
        self.assertEqual(accuracy, self.summary()["accuracy"])
        self.train("--run.steps", "12", "--run.seed", "2")
        self.assertNotEqual(first, self.losses())

    @long
    def test_a_run_that_ends_together_waits_for_nobody(self):
        arguments = ("--mixing.scheme", "a2cid2", "--mixing.topology", "complete", "--run.ends", "together")
        process = self.start(*arguments, "--run.epochs", "16", "--log.timeline", "true")
        together = 16 * 960 // 16  # gradients of all
        slow = self.until_step(process, 5)[2]
        os.kill(slow, signal.SIGSTOP)
        self.until(process, lambda steps: steps[0] + steps[1] >= 2 * (together // WORKERS + 40))
        os.kill(slow, signal.SIGCONT)
        self.finish(process, 0)
        steps = [records[-1]["step"] for _, records in sorted(self.metrics().items())]
        self.assertGreaterEqual(sum(steps), together)
        self.assertLess(sum(steps), 1.1 * together)  # each goes on until it hears of the end
        self.assertLess(steps[2], together // WORKERS)
        summary = self.summary()
        self.assertEqual((summary["samples"], summary["workers_lost"]), (16 * sum(steps), 0))
        self.assertGreaterEqual(summary["accuracy"], 0.95)
        curves = {event["name"] for event in json.loads((self.out / "timeline-0.json").read_text())["traceEvents"]
                  if event["ph"] == "C"}
        self.assertEqual(curves, {"rate", *(f"{curve}, worker {j}" for curve in ("distance", "gap") for j in (1, 2))})
        self.assertIn("run.ends = together: with scheme cta", self.usage_error("--run.ends", "together"))

    @long
    def test_a_run_that_ends_together_is_tested_and_goes_on_where_the_mean_of_its_workers_was(self):
        arguments = ("--mixing.scheme", "a2cid2", "--mixing.topology", "complete", "--run.ends", "together",
                     "--checkpoint-every", "40", "--checkpoint.keep", "4", "--log.eval_every", "40")
        process = self.start(*arguments)
        slow = self.until_step(process, 3)[2]
        os.kill(slow, signal.SIGSTOP)  # for much less than 40 steps of the mean
        self.until(process, lambda steps: steps[0] + steps[1] >= 90)
        os.kill(slow, signal.SIGCONT)
        _, stderr = self.finish(process, 0)
        self.assertEqual(re.findall(r"step (\d+): average model: test accuracy", stderr), ["40", "80", "120"])

        def made(step):  # by each worker, at the checkpoint of this step
            manifest = json.loads((self.out / "checkpoints" / f"step-{step}" / "manifest.json").read_text())
            return [file["step"] for file in manifest["files"]]

        for step in (40, 80, 120, 160):
            self.assertGreaterEqual(sum(made(step)), WORKERS * step)
            self.assertLess(sum(made(step)), WORKERS * step + 60)
        self.assertLess(made(40)[2], 40)  # of 120 it had at most 30
        before = made(80)
        _, stderr = self.train(*arguments, "--resume", self.out / "checkpoints" / "step-80")
        self.assertEqual(re.findall(r"step (\d+): average model: test accuracy", stderr), ["120"])
        for rank, records in sorted(self.metrics().items()):
            self.assertEqual([record["step"] for record in records], list(range(1, records[-1]["step"] + 1)))
            self.assertGreater(records[-1]["step"], before[rank])
        last = [records[-1]["step"] for _, records in sorted(self.metrics().items())]
        self.assertGreaterEqual(sum(last), WORKERS * 160)
        self.assertLess(sum(last), WORKERS * 160 + 60)
        self.assertGreaterEqual(self.summary()["accuracy"], 0.95)

    def test_the_compute_of_every_worker_is_recorded(self):
        path = self.out.with_suffix(".json")
        self.train("--profile-out", path, "--run.steps", "12", "--train.accumulate", "2")
        recorded = json.loads(path.read_text())
        self.assertNotIn("hosts", recorded)
        lines = self.metrics()
        self.assertEqual([entry["worker"] for entry in recorded["compute"]], list(range(WORKERS)))
        for entry in recorded["compute"]:
            self.assertEqual(len(entry["forward"]), 12 - 12 // 5)
            self.assertEqual(len(entry["backward"]), len(recorded["blocks"]))
            own = sum(entry["data_wait"]) + sum(entry["forward"])
            for block in entry["backward"] + entry["update"]:
                self.assertGreater(sum(block), 0)
                own += sum(block)
            self.assertLess(own, lines[entry["worker"]][-1]["seconds"])
        self.assertEqual(sorted(path.parent.glob("timeline*")), [])
        network = self.out / "network.json"
        probe = command("probe", "--workers", 2, "--seconds", 0.1, "--out", network)
        plan = command("plan", "--json", "--profile", network, "--compute", path)
        self.assertEqual(json.loads(plan.stdout)["worlds"][0]["workers"], 2, probe.stdout)

    @long
    def test_the_planner_chooses_the_topology(self):
        # Hosts on slow links.
        path = self.folder / "slow.json"
        blocks = 2
        slow = {"format": "starling-profile", "version": 2, "units": {"time": "s", "data": "B", "rate": "B/s"},
                "hosts": [{"name": f"h{i}", "workers": [i], "send": 1e4, "receive": 1e4} for i in range(WORKERS)],
                "between": {"latency": 1e-4}, "blocks": [{"bytes": 1e4}] * blocks,
                "compute": [{"worker": i, "data_wait": [0], "forward": [0.01], "backward": [[0.01]] * blocks,
                             "update": [[0.001]] * blocks} for i in range(WORKERS)]}
        path.write_text(json.dumps(slow))
        said = re.fullmatch(f"{path}: its compute is of a model of 20000 bytes, and this one has (\\d+): "
                            "record it anew, or leave compute out", self.usage_error("--topology", "auto", "--profile", path))
        slow["blocks"] = [{"bytes": int(said[1]) / blocks}] * blocks
        path.write_text(json.dumps(slow))
        few = ("--topology", "auto", "--run.steps", "8", "--run.threads", "1", "--mixing.workers_per_node", "1")
        _, stderr = self.train(*few, "--profile", path, "--checkpoint-every", "4")
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        chosen = lines[0]
        self.assertEqual(sorted(chosen), ["step", "topology", "why"])
        self.assertEqual(stderr.count(f"topology auto: {chosen['topology']}, by {path}: a step of "), 1)
        self.assertEqual(self.summary()["schedule"], chosen["topology"])
        manifest = json.loads((self.out / "checkpoints" / "step-4" / "manifest.json").read_text())
        self.assertIn(chosen["topology"], json.dumps(manifest))
        # `starling plan` gives the same result for this wire: the least step, and the first of
        # those that are as good.
        plan = json.loads(command("plan", "--json", "--profile", path).stdout)
        rows = [row for row in plan["worlds"][0]["gossip"] if row["wire"] == "fp32"]
        least = min(row["step"] for row in rows)
        self.assertEqual(chosen["topology"], next(row["schedule"] for row in rows if row["step"] <= 1.02 * least))
        # A resumed run keeps the choice, whatever the profile is now.
        slow["hosts"][0]["send"] = 1e9
        path.write_text(json.dumps(slow))
        _, stderr = self.train(*few, "--profile", path, "--checkpoint-every", "4", "--resume",
                               self.out / "checkpoints" / "step-4")
        self.assertNotIn("topology auto", stderr)
        self.assertEqual(self.summary()["schedule"], chosen["topology"])

        # Without a profile all is measured, and the run is the same as with the chosen topology, to
        # the bit.
        self.out = self.out.with_name("measured")
        _, stderr = self.train(*few)
        chosen, *lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        self.assertRegex(stderr, f"topology auto: {chosen['topology']}, by what was measured now: a step of ")
        self.assertEqual(self.summary()["schedule"], chosen["topology"])
        self.out = self.out.with_name("named")
        self.train("--topology", chosen["topology"], *few[2:])
        losses = {(record["rank"], record["step"]): record["loss"] for record in lines}
        self.assertEqual({(rank, record["step"]): record["loss"] for rank, records in self.metrics().items()
                          for record in records}, losses)

        # A scheme that takes only one of the schedules: of three workers it is the complete graph.
        self.out = self.out.with_name("diffusion")
        _, stderr = self.train(*few, "--profile", path, "--mixing.scheme", "exact-diffusion")
        self.assertRegex(stderr, f"topology auto: base-3, by {path}: a step of [0-9.]+ ms\n")

        self.assertEqual(self.usage_error("--topology", "auto", "--profile", path, workers=2),
                         f"{path}: it is of 3 workers, and there are 2: probe these")
        self.assertEqual(self.usage_error("--profile", path),
                         f"mixing.profile = {path}: it is for mixing.topology = auto, not base-2")
        path.write_text(path.read_text()[:200])
        self.assertIn(f"{path}:1: ", self.usage_error("--topology", "auto", "--profile", path))
        path.write_text(json.dumps({key: slow[key] for key in ("format", "version", "units", "blocks", "compute")}))
        self.assertEqual(self.usage_error("--topology", "auto", "--profile", path),
                         f"{path}: it holds no network (hosts): `starling probe` measures one")
        for key, value in (("scheme", "a2cid2"), ("scheme", "ceca-2p"), ("hierarchy", "node")):
            self.assertIn(f"{value}: name a topology", self.usage_error("--topology", "auto", f"--mixing.{key}", value))

    def test_one_worker_alone(self):
        # One thread: OpenMP's threads spin, which takes minutes if the cores are busy.
        self.train("--train.accumulate", "2", "--train.clip", "1", "--log.eval_every", "10",
                   "--run.threads", "1", workers=0)
        summary = self.summary()
        self.assertEqual((summary["workers"], summary["steps"], summary["samples"]), (1, 240, 240 * 32))
        self.assertEqual(summary["consensus_distance"], 0)
        self.assertEqual(summary["accuracy"], summary["worst_accuracy"])
        self.assertGreaterEqual(summary["accuracy"], 0.95)

    # A libtorch archive has no torchrun; torch's wheel has.
    @unittest.skipUnless(os.access(os.environ.get("TORCHRUN", ""), os.X_OK), "there is no torchrun")
    @long
    def test_torchrun_starts_it_too(self):
        launch = [os.environ["TORCHRUN"], "--no-python", f"--nproc-per-node={WORKERS}", "--standalone",
                  os.environ["STARLING"], "train", self.recipe, "--out", self.out, "--json"]
        result = subprocess.run(launch, env=environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL,
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout), self.check_run("cta"))
