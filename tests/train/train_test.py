"""Trains with real processes, by the built command (its path is in the environment variable
STARLING), on synthetic images: ten kinds of bright squares in noise."""

import gzip
import json
import os
import pathlib
import random
import re
import resource
import signal
import struct
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORKERS = 3
EPOCHS = 8


def write_images(folder, name, count, seed):
    generator = random.Random(seed)
    images, labels = bytearray(), bytearray()
    for _ in range(count):
        label = generator.randrange(10)
        image = bytearray(generator.randrange(100) for _ in range(28 * 28))
        top, left = 2 + 10 * (label // 4), 1 + 7 * (label % 4)
        for y in range(top, top + 6):
            image[28 * y + left : 28 * y + left + 5] = bytes([200] * 5)
        images += image
        labels.append(label)
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, count, 28, 28) + images)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">II", 0x801, count) + labels)


def image_folder(cls, train=960, test=200):
    """Gives the class of tests a folder, and a folder of images in it, until its tests end."""
    folder = tempfile.TemporaryDirectory(prefix="starling-")
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    cls.data = cls.folder / "data"
    cls.data.mkdir()
    write_images(cls.data, "train", train, 1)
    write_images(cls.data, "t10k", test, 2)
    cls.recipe = cls.folder / "recipe.toml"


def environment(**changed):
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "STARLING_TOKEN")}
    return {**kept, **changed}


def processes_of(launcher):
    """Rank -> process id of the living workers that this launcher has started."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = dict(
                line.split(b"=", 1) for line in (entry / "environ").read_bytes().split(b"\0") if b"=" in line)
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, PermissionError):
            continue
        if variables.get(b"STARLING_LAUNCHER_PID") == str(launcher).encode() and state != "Z":
            found[int(variables[b"RANK"])] = int(entry.name)
    return found


class Train(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        image_folder(cls)
        cls.recipe.write_text(f"""
[run]
epochs = {EPOCHS}
[data]
dir = "{cls.data}"
flip = false
[model]
width = 8
[optimizer]
rule = "accum-adam"
lr = 0.01
window = 2
[schedule]
warmup = 0.1
[train]
batch = 16
[log]
every = 1
""")

    def setUp(self):
        self.out = self.folder / self.id().rsplit(".", 1)[1]

    def start(self, *arguments, workers=WORKERS, **changed):
        command = [os.environ["STARLING"], "train", self.recipe, "--out", self.out, *arguments]
        if workers:
            command += ["--workers", str(workers)]
        return subprocess.Popen(command, env=environment(**changed), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process, code):
        stdout, stderr = process.communicate()
        self.assertEqual(process.returncode, code, stderr)
        self.assertEqual(processes_of(process.pid), {})
        return stdout, stderr

    def kill(self, process):
        """Kills the launcher. Its workers must end."""
        process.kill()
        process.communicate()
        while processes_of(process.pid):
            time.sleep(0.02)

    def train(self, *arguments, code=0, workers=WORKERS, **changed):
        return self.finish(self.start(*arguments, workers=workers, **changed), code)

    def usage_error(self, *arguments, **changed):
        stdout, stderr = self.train(*arguments, code=2, **changed)
        self.assertEqual(stdout, "")
        self.assertEqual(stderr.count("\n"), 1, stderr)
        return stderr.removeprefix("starling: ").rstrip("\n")

    def metrics(self):
        """Rank -> its lines of metrics.jsonl."""
        lines = {}
        for line in (self.out / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            lines.setdefault(record["rank"], []).append(record)
        return lines

    def summary(self):
        return json.loads((self.out / "summary.json").read_text())

    def until(self, process, done):
        """Waits until done(the last step that each rank has logged)."""
        while True:
            try:
                steps = {rank: records[-1]["step"] for rank, records in self.metrics().items()}
            except (OSError, json.JSONDecodeError):
                steps = {}
            if steps and done(steps):
                return
            if process.poll() is not None:
                self.fail(f"ended after steps {steps}: {process.communicate()[1]}")
            time.sleep(0.02)

    def until_step(self, process, step, workers=WORKERS):
        """Waits until all workers have logged this step; returns their process ids by rank."""
        self.until(process, lambda steps: len(steps) == workers and min(steps.values()) >= step)
        return processes_of(process.pid)

    def check_run(self, scheme):
        lines = self.metrics()
        self.assertEqual(sorted(lines), list(range(WORKERS)))
        steps = EPOCHS * (960 // WORKERS // 16)
        for records in lines.values():
            self.assertEqual([record["step"] for record in records], list(range(1, steps + 1)))
            losses = [record["loss"] for record in records]
            self.assertLess(sum(losses[-10:]), 0.4 * sum(losses[:10]))
        summary = self.summary()
        self.assertEqual((summary["scheme"], summary["workers"], summary["workers_lost"]), (scheme, WORKERS, 0))
        self.assertEqual((summary["steps"], summary["samples"]), (steps, steps * 16 * WORKERS))
        self.assertGreaterEqual(summary["accuracy"], 0.95)
        self.assertGreaterEqual(summary["worst_accuracy"], 0.9)
        self.assertGreater(summary["bytes_sent_per_worker"], 0)
        self.assertEqual(summary["directed_aborted"], 0)
        # In gossip on a busy machine, a worker may answer too late, or stand still in an averaging.
        averaged = sum(edge["averaged"] for records in lines.values() for edge in records[-1].get("edges", []))
        self.assertLessEqual(summary["blocks_aborted"], 0.1 * averaged / WORKERS)
        return summary

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

    # --- save and resume ---

    def states(self, step, workers=WORKERS):
        """Each worker's file after this step, all its bytes."""
        folder = self.out / "checkpoints" / f"step-{step}"
        return [(folder / f"worker-{rank}.safetensors").read_bytes() for rank in range(workers)]

    def losses(self):
        return {rank: [record["loss"] for record in records] for rank, records in self.metrics().items()}

    def test_a_killed_run_resumes_to_the_bit(self):
        # In the middle of an accumulation window, in base-2, whose rounds differ.
        arguments = ("--run.steps", "40", "--optimizer.window", "4", "--data.flip", "true", "--checkpoint-every", "15",
                     "--checkpoint.keep", "3")
        self.train(*arguments)
        whole, losses = self.states(40), self.losses()
        self.out = self.out.with_name("resumed")
        process = self.start(*arguments)
        self.until_step(process, 25)
        self.kill(process)
        first = self.out / "checkpoints" / "step-15"
        self.train(*arguments, "--resume", first)
        self.assertEqual(self.states(40), whole)
        self.assertEqual(self.losses(), losses)
        lines = self.metrics()[0]
        self.assertEqual([line["step"] for line in lines], list(range(1, 41)))
        self.assertEqual(sorted(line["seconds"] for line in lines), [line["seconds"] for line in lines])
        self.assertEqual((self.summary()["steps"], self.summary()["samples"]), (40, 40 * 16 * WORKERS))
        self.check_refusals(arguments, first)

    def test_a_hierarchy_resumes_to_the_bit(self):
        # The model has several blocks, so that both workers of a node keep some of the state.
        arguments = ("--run.steps", "20", "--model.width", "32", "--train.batch", "4", "--checkpoint-every", "10",
                     "--mixing.hierarchy", "node", "--mixing.workers_per_node", "2")
        self.train(*arguments, workers=4)
        whole, losses = self.states(20, 4), self.losses()
        first = self.out / "checkpoints" / "step-10"
        self.train(*arguments, "--resume", first, workers=4)
        self.assertEqual(self.states(20, 4), whole)
        self.assertEqual(self.losses(), losses)
        sizes = [len(state) for state in whole]
        self.assertLess(max(sizes), 0.8 * len(self.whole_state(arguments)))
        for change in (("--mixing.workers_per_node", "4"), ("--mixing.block_bytes", "300000"),
                       ("--mixing.hierarchy", "none")):
            said = self.usage_error(*arguments, *change, "--resume", first, workers=4)
            self.assertTrue(said.startswith(f"checkpoint.resume: {change[0][2:]} = "), said)
            self.assertTrue(said.endswith(": it must be the same"), said)

    def whole_state(self, arguments):
        self.out = self.out.with_name("whole")
        self.train(*arguments, "--mixing.hierarchy", "none", "--run.steps", "1", workers=1)
        return self.states(1, 1)[0]

    def test_asynchronous_gossip_resumes(self):
        for scheme, *more in (("a2cid2",), ("swarm", "--mixing.local_steps", "2", "--mixing.wire", "int8",
                                            "--model.dtype", "bf16")):
            arguments = ("--mixing.scheme", scheme, "--mixing.topology", "ring", "--checkpoint-every", "40",
                         "--checkpoint.keep", "4", *more)
            self.out = self.out.with_name(scheme)
            process = self.start(*arguments)
            self.until_step(process, 60)
            self.kill(process)
            first = self.out / "checkpoints" / "step-40"
            self.train(*arguments, "--resume", first)
            summary = self.check_run(scheme)
            self.assertLess(summary["consensus_distance"], 0.05)
            last = json.loads((self.out / "metrics.jsonl").read_text().splitlines()[-1])
            self.assertEqual([edge["rank"] for edge in last["edges"]], [r for r in range(3) if r != last["rank"]])
            averaged = sum(edge["averaged"] for edge in last["edges"])
            gradients = (last["step"] - 40) // (2 if more else 1)
            self.assertAlmostEqual(last["rate"], averaged / gradients)
            self.assertGreater(averaged, 0)
            for edge in last["edges"]:
                self.assertLessEqual(edge["gap"] * edge["averaged"], gradients + 1e-6)
                self.assertLessEqual(edge["gap"], edge["longest_gap"])
            self.assertGreater(last["distance"], 0)

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

    def check_refusals(self, arguments, first):
        root = first.parent
        self.assertEqual(self.usage_error(*arguments),
                         f"{root} holds the checkpoints of another run: resume it (--resume {root}), remove them, or "
                         "give another folder (--out)")
        _, stderr = self.train(*arguments, "--resume", root, code=2)  # the latest
        self.assertIn("step-40 is of step 40: the run was done, there is nothing to resume\n", stderr)
        for change in (("--run.steps", "41"), ("--optimizer.window", "2"), ("--mixing.topology", "ring"),
                       ("--run.seed", "2")):
            said = self.usage_error(*arguments, *change, "--resume", first)
            self.assertTrue(said.startswith(f"checkpoint.resume: {change[0][2:]} = "), said)
            self.assertIn(change[1], said)
            self.assertTrue(said.endswith(": it must be the same"), said)
        self.assertIn("is of 3 workers, this run has 2", self.usage_error(*arguments, "--resume", first, workers=2))
        _, stderr = self.train(*arguments, "--resume", "/nowhere", code=1)
        self.assertEqual(stderr, "starling: /nowhere: there is no checkpoint: neither manifest.json nor latest is there\n")
        file = first / "worker-1.safetensors"
        text = bytearray(file.read_bytes())
        text[-1] ^= 1
        file.write_bytes(text)
        _, stderr = self.train(*arguments, "--resume", first, code=1)
        self.assertIn(f"starling: {file}: offset 0: damaged", stderr)

    def test_a_full_disk_costs_the_checkpoint_and_not_the_run(self):
        self.train("--run.steps", "10", "--checkpoint-every", "5")
        size = (self.out / "checkpoints" / "step-5" / "worker-0.safetensors").stat().st_size

        def limit():  # no file may become as large as a worker's
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, size - 1))

        command = [os.environ["STARLING"], "train", self.recipe, "--out", self.out, "--workers", str(WORKERS),
                   "--run.steps", "10", "--checkpoint-every", "5", "--resume", self.out / "checkpoints" / "step-5"]
        done = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              preexec_fn=limit)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("no checkpoint of step 10, the ones before it are kept"), 1, done.stderr)
        self.assertIn("File too large", done.stderr)
        self.assertEqual(self.summary()["steps"], 10)
        self.assertEqual((self.out / "checkpoints" / "latest").read_text(), "step-10\n")
        show = [os.environ["STARLING"], "checkpoint", "show", self.out / "checkpoints", "--json"]
        shown = json.loads(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
        self.assertEqual((shown["step"], shown["workers"], shown["verified"]), (10, WORKERS, True))
        self.assertEqual([file["file"] for file in shown["files"]],
                         [f"worker-{rank}.safetensors" for rank in range(WORKERS)])
        self.assertEqual(shown["recipe"]["run.steps"], "10")

    def test_a_full_disk_costs_the_outputs_and_not_the_run(self):
        def limit():  # as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

        command = [os.environ["STARLING"], "train", self.recipe, "--out", self.out, "--workers", str(WORKERS), "--json",
                   "--run.steps", "12", "--log.timeline", "true", "--log.tensorboard", "true",
                   "--profile-out", self.out / "compute.json"]
        done = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              preexec_fn=limit)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["steps"], 12)
        for file, count in (("metrics.jsonl", WORKERS), ("summary.json", 1), ("tfevents", WORKERS),
                            ("compute.json", 1), ("timeline-0.json", 1)):
            named = [line for line in done.stderr.splitlines() if file in line]
            self.assertEqual(len(named), count, done.stderr)
            self.assertTrue(all("cannot be written: File too large" in line for line in named), named)

    def test_strange_lines_of_metrics_are_dropped_with_a_warning(self):
        self.train("--run.steps", "4", "--checkpoint-every", "2")
        metrics = self.out / "metrics.jsonl"
        lines = metrics.read_text().splitlines()
        metrics.write_text("\n".join(['{"rank": "0", "step": 1}', *lines]) + "\n")
        _, stderr = self.train("--run.steps", "4", "--checkpoint-every", "2", "--resume",
                               self.out / "checkpoints" / "step-2")
        self.assertEqual(stderr.count(f"{metrics}:1: is no line of a run, and is dropped\n"), 1, stderr)
        self.assertEqual({rank: [record["step"] for record in records] for rank, records in self.metrics().items()},
                         {rank: [1, 2, 3, 4] for rank in range(WORKERS)})

    @unittest.skipUnless(os.access(os.environ.get("TORCH_PYTHON", ""), os.X_OK), "torch has no Python here")
    def test_the_host_of_the_store_may_go(self):
        serve = """
import sys, torch.distributed
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
        host = subprocess.Popen([os.environ["TORCH_PYTHON"], "-c", serve], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = host.stdout.readline().strip()
        profile = self.out / "compute.json"
        workers = [self.start("--profile-out", profile, workers=0, RANK=str(rank), WORLD_SIZE="2",
                              LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_ADDR="[127.0.0.1]",
                              MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="True") for rank in range(2)]
        self.until(workers[0], lambda steps: len(steps) == 2)
        host.kill()
        host.communicate()
        for rank, worker in enumerate(workers):
            stdout, stderr = worker.communicate()
            self.assertEqual(worker.returncode, 0, stderr)
            self.assertNotIn("frame #", stderr)
            self.assertIn(f"starling[{rank}]: the run is done, but a file is missing: store: cannot", stderr)
        self.assertFalse(profile.exists())
        self.assertEqual(self.summary()["workers_lost"], 0)

    @unittest.skipUnless(os.access(os.environ.get("TORCH_PYTHON", ""), os.X_OK), "torch has no Python here")
    def test_pythons_safetensors_reads_the_consensus(self):
        self.train("--run.steps", "4", "--checkpoint-every", "4")
        file = self.out / "mean.safetensors"
        folder = self.out / "checkpoints"
        done = subprocess.run([os.environ["STARLING"], "checkpoint", "consensus", folder, file], check=True,
                              capture_output=True, text=True)
        self.assertEqual(done.stdout, f"{file}: the average of {WORKERS} workers after step 4\n")
        self.assertEqual(done.stderr, "")
        read = """
import sys, torch
from safetensors.torch import load_file
mean, *workers = [load_file(name) for name in sys.argv[1:]]
names = {name.removeprefix("model.") for name in workers[0] if name.startswith("model.")}
assert set(mean) == names and len(names) > 10, sorted(mean)
for name, tensor in mean.items():
    theirs = torch.stack([worker["model." + name] for worker in workers])
    real = theirs.is_floating_point()
    wanted = theirs.double().mean(0).float() if real else theirs.amax(0)
    assert tensor.shape == wanted.shape and tensor.dtype == wanted.dtype, name
    assert torch.allclose(tensor, wanted, rtol=1e-6, atol=0), name
print(len(mean))
"""
        workers = sorted((folder / "step-4").glob("worker-*.safetensors"))
        self.assertEqual(len(workers), WORKERS)
        # Run by `make test`, which installs requirements-test.txt.
        done = subprocess.run([os.environ["TORCH_PYTHON"], "-c", read, file, *workers], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

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
        stdout = subprocess.run([os.environ["STARLING"], "probe", "--workers", "2", "--seconds", "0.1", "--out",
                                 self.out / "network.json"], env=environment(), capture_output=True, text=True, check=True)
        plan = subprocess.run([os.environ["STARLING"], "plan", "--json", "--profile", self.out / "network.json",
                               "--compute", path], env=environment(), capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(plan.stdout)["worlds"][0]["workers"], 2, stdout)

    def test_two_vectors_with_any_number_of_workers(self):
        self.train("--mixing.scheme", "ceca-2p", "--run.steps", "14", "--checkpoint-every", "7")
        summary = self.summary()
        self.assertEqual((summary["scheme"], summary["schedule"], summary["directed_aborted"]), ("ceca-2p", "ceca-2p", 0))
        self.assertLess(summary["consensus_distance"], 0.01)
        whole = self.metrics()
        self.train("--mixing.scheme", "ceca-2p", "--run.steps", "14", "--checkpoint-every", "7",
                   "--resume", self.out / "checkpoints" / "step-7")  # in the middle of a cycle
        for rank, records in self.metrics().items():  # to the bit
            self.assertEqual([(record["step"], record["loss"]) for record in records],
                             [(record["step"], record["loss"]) for record in whole[rank]])

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
        plan = json.loads(subprocess.run([os.environ["STARLING"], "plan", "--json", "--profile", path], check=True,
                                         capture_output=True, text=True).stdout)
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

        self.assertEqual(self.usage_error("--topology", "auto", "--profile", path, workers=2),
                         f"{path}: it is of 3 workers, and there are 2: probe these")
        self.assertEqual(self.usage_error("--profile", path),
                         f"mixing.profile = {path}: it is for mixing.topology = auto, not base-2")
        path.write_text(path.read_text()[:200])
        self.assertIn(f"{path}:1: ", self.usage_error("--topology", "auto", "--profile", path))
        path.write_text(json.dumps({key: slow[key] for key in ("format", "version", "units", "blocks", "compute")}))
        self.assertEqual(self.usage_error("--topology", "auto", "--profile", path),
                         f"{path}: it holds no network (hosts): `starling probe` measures one")
        for key, value in (("scheme", "choco"), ("hierarchy", "node")):
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
    def test_torchrun_starts_it_too(self):
        command = [os.environ["TORCHRUN"], "--no-python", f"--nproc-per-node={WORKERS}", "--standalone",
                   os.environ["STARLING"], "train", self.recipe, "--out", self.out, "--json"]
        result = subprocess.run(command, env=environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL,
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout), self.check_run("cta"))

    def check_killed(self, rank):
        process = self.start()
        os.kill(self.until_step(process, 10)[rank], signal.SIGKILL)
        _, stderr = self.finish(process, 0)
        self.assertIn(f"starling: worker {rank} was killed by signal 9\n", stderr)
        summary = self.summary()
        self.assertEqual((summary["workers"], summary["workers_lost"]), (WORKERS, 1))
        self.assertGreater(summary["blocks_aborted"], 0)
        for other in range(WORKERS):
            if other != rank:
                self.assertEqual(self.metrics()[other][-1]["step"], summary["steps"])
        self.assertGreaterEqual(summary["accuracy"], 0.9)

    def test_a_killed_worker_does_not_stop_the_others(self):
        self.check_killed(2)

    def test_not_even_the_first(self):
        self.check_killed(0)

    def test_a_worker_killed_before_all_have_met_is_named_at_once(self):
        process = self.start()
        while len(processes_of(process.pid)) < WORKERS:
            time.sleep(0.01)
        os.kill(processes_of(process.pid)[2], signal.SIGKILL)
        _, stderr = process.communicate()
        if process.returncode != 0:  # else they had met already
            self.assertRegex(stderr, r"worker 2 (has not come: it was killed by signal 9|is gone)")
            self.assertNotIn(" within ", stderr)

    def test_a_killed_worker_ends_its_node_and_no_other(self):
        process = self.start("--mixing.hierarchy", "node", "--mixing.workers_per_node", "2", workers=4)
        os.kill(self.until_step(process, 10, workers=4)[1], signal.SIGKILL)
        _, stderr = self.finish(process, 1)
        self.assertRegex(stderr, r"(?m)^starling: \w+ failed on rank 0: worker 1 is gone$")
        summary = self.summary()
        self.assertEqual((summary["workers"], summary["workers_lost"]), (4, 2))
        for survivor in (2, 3):
            self.assertEqual(self.metrics()[survivor][-1]["step"], summary["steps"])
        self.assertGreaterEqual(summary["accuracy"], 0.9)

    def test_all_reduce_without_a_worker_names_it(self):
        process = self.start("--mixing.scheme", "all-reduce", "--run.epochs", "1000")
        os.kill(self.until_step(process, 5)[1], signal.SIGKILL)
        _, stderr = self.finish(process, 1)
        self.assertIn("starling: worker 1 was killed by signal 9\n", stderr)
        self.assertRegex(stderr, r"(?m)^starling: all-reduce failed on rank 0: worker 1 is gone$")
        self.assertFalse((self.out / "summary.json").exists())

    def test_sigterm_ends_all_of_them_even_one_that_cannot_answer(self):
        process = self.start("--run.epochs", "1000")
        os.kill(self.until_step(process, 3)[1], signal.SIGSTOP)
        process.terminate()
        _, stderr = self.finish(process, 128 + signal.SIGTERM)
        self.assertIn("starling: signal 15: ending the workers\n", stderr)

    def test_interrupting_one_worker_ends_all(self):
        process = self.start("--run.epochs", "1000")
        os.kill(self.until_step(process, 3)[2], signal.SIGINT)
        _, stderr = self.finish(process, 128 + signal.SIGINT)
        self.assertIn("starling: worker 2 was told to end by signal 2, so all do\n", stderr)

    def test_workers_end_with_their_launcher(self):
        process = self.start("--run.epochs", "1000")
        self.until_step(process, 3)
        self.kill(process)

    def test_wrong_input_is_one_line(self):
        self.assertEqual(self.usage_error("--run.epochs", "0"),
                         "command line: run.epochs = 0: out of range, allowed is a number above 0")
        self.assertTrue(self.usage_error("--optimizer.lrr", "1").startswith(
            'command line: unknown key "lrr" in section optimizer, did you mean lr?; there are: rule, lr, '))
        self.assertEqual(self.usage_error("--optimizer.lr", "-1"),
                         "command line: optimizer.lr = -1: out of range, allowed is a number above 0")
        self.assertIn("RANK", self.usage_error(RANK="0"))
        self.assertIn("one-peer-exponential", self.usage_error("--mixing.topology", "nonsense"))
        # Options that the optimizer would refuse are refused before any worker starts: in one line,
        # not one of each.
        for arguments, said in (
                ("--mixing.scheme choco", 'scheme "choco" needs a topology of one round that is symmetric'),
                ("--mixing.scheme choco --mixing.topology ring --mixing.wire int8", 'needs wire fp32, not "int8"'),
                ("--mixing.gamma 0.5", 'gamma = 0.5 is for scheme "choco", not "cta": use 0'),
                ("--mixing.rate 2", "rate = 2 is for schemes a2cid2, ad-psgd, ad-psgd-bipartite, swarm, "
                 "async-push-sum, async-push-pull, not"),
                ("--mixing.scheme a2cid2 --mixing.one_in 4", "needs one_in = 1, not 4"),
                ("--mixing.scheme all-reduce --mixing.wire int8",
                 'scheme "all-reduce" needs wire fp32, not "int8": it sends gradients'),
                ("--mixing.hierarchy node --mixing.scheme atc", 'needs scheme "cta", not "atc"'),
                ("--mixing.hierarchy node --mixing.workers_per_node 2",
                 "3 workers are no whole number of nodes with 2 workers each"),
                ("--mixing.scheme ad-psgd-bipartite --mixing.topology complete", "the graph has no two sides"),
                ("--mixing.local_steps 2", 'local_steps = 2 is for scheme "swarm", not "cta": use 1')):
            self.assertIn(said, self.usage_error(*arguments.split()))
        topology = self.folder / "five.toml"
        topology.write_text("workers = 5\n[[rounds]]\nedges = [[0, 1, 0.5]]\n")
        self.assertIn(f"{topology}:1: it is for 5 workers, and there are ",
                      self.usage_error("--mixing.topology", str(topology)))
        self.assertIn("not expected", self.usage_error("--nonsense"))
        self.assertEqual(self.usage_error("--mixing.topology", "a\nb\x1b[31m").count("a\\u000Ab\\u001B[31m"), 1)
        _, stderr = self.train(code=2, workers=0, STARLING_TOKN="secret")
        self.assertEqual(stderr, "starling: environment: STARLING_TOKN is unknown, did you mean STARLING_TOKEN?\n")
        bad = self.folder / "bad.toml"
        bad.write_text("[optimizer]\nlr = 'fast'\n")
        done = subprocess.run([os.environ["STARLING"], "train", bad], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr),
                         (2, f'starling: {bad}:2: optimizer.lr = "fast": wrong type, allowed is a number above 0\n'))

    def test_missing_data_names_the_script(self):
        _, stderr = self.train("--data.dir", "/nowhere", code=1)
        self.assertEqual(stderr, "starling: /nowhere/train-images-idx3-ubyte.gz: not there; "
                                 "scripts/fetch-fashion-mnist fetches it, data.dir names another folder\n")

    def test_a_loss_that_is_not_finite_ends_the_run(self):
        _, stderr = self.train("--optimizer.rule", "sgd", "--optimizer.lr", "1e30", "--optimizer.momentum", "0", code=1)
        self.assertRegex(stderr, r"(?m)^starling: rank [0-2]: step [2-4]: the loss is (nan|inf|-nan|-inf); "
                                 r"a lower optimizer\.lr or train\.clip may help$")
        self.assertFalse((self.out / "summary.json").exists())

    def test_print_config_is_a_recipe_that_prints_itself(self):
        for recipe in [self.recipe, *sorted((ROOT / "recipes").glob("*.toml"))]:
            printed = self.print_config(recipe, "--optimizer.betas", "0.5,0.25", "--run.out", 'a "name"')
            copy = self.folder / "printed.toml"
            copy.write_text(printed)
            self.assertEqual(self.print_config(copy), printed)
            self.assertRegex(printed, r"(?m)^betas = \[0\.5, 0\.25\]  # ")

    def print_config(self, recipe, *arguments):
        return subprocess.run([os.environ["STARLING"], "train", recipe, "--print-config", *arguments], check=True,
                              capture_output=True, text=True).stdout


# Each of these trains several times: `make test` leaves them out.
LONG = {"test_fewer_bytes_learn_as_fp32_does", "test_narrow_weights_learn_as_fp32_do",
        "test_asynchronous_gossip_resumes", "test_torchrun_starts_it_too",
        "test_a_run_that_ends_together_is_tested_and_goes_on_where_the_mean_of_its_workers_was"}


def load_tests(loader, tests, pattern):
    """STARLING_TESTS=short leaves out the tests of LONG, STARLING_TESTS=long selects them."""
    which = os.environ.get("STARLING_TESTS", "all")
    names = {name for name in dir(Train) if name.startswith("test_")}
    assert LONG < names, LONG - names
    chosen = {"short": names - LONG, "long": LONG, "all": names}[which]
    return unittest.TestSuite(Train(name) for name in sorted(chosen))


if __name__ == "__main__":
    unittest.main()
