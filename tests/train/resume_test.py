"""Runs that stop and go on, and their checkpoints."""

import json
import os
import shutil
import signal
import struct
import subprocess
import unittest

from runs import WORKERS, Run, command, files_below, load_tests, long  # noqa: F401  unittest calls load_tests


def tensors_in(file):
    """The bytes of each tensor in a safetensors file."""
    text = file.read_bytes()
    data = 8 + struct.unpack("<Q", text[:8])[0]
    places = {name: tensor["data_offsets"] for name, tensor in json.loads(text[8:data]).items() if name != "__metadata__"}
    return {name: text[data + begin : data + end] for name, (begin, end) in places.items()}


class Resume(Run):
    def test_a_killed_run_resumes_to_the_bit(self):
        # In the middle of an accumulation window and of an epoch, in base-2, whose rounds differ.
        arguments = ("--run.steps", "40", "--optimizer.window", "4", "--data.flip", "true", "--data.split", "dirichlet:0.5",
                     "--checkpoint-every", "15", "--checkpoint.keep", "3")
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

    @long
    def test_the_moving_average_and_the_means_go_on_to_the_bit(self):
        arguments = ("--run.steps", "20", "--checkpoint-every", "9", "--checkpoint.keep", "3", "--train.ema", "0.9",
                     "--mixing.topology", "ring", "--mixing.mean_every", "7")
        self.train(*arguments)
        whole, losses, summary = self.states(20), self.losses(), self.summary()
        folder = self.out / "checkpoints"
        self.train(*arguments, "--resume", folder / "step-9")
        self.assertEqual(self.states(20), whole)
        self.assertEqual(self.losses(), losses)
        for key in ("accuracy", "test_loss", "worst_accuracy", "consensus_distance"):
            self.assertEqual(self.summary()[key], summary[key])
        # The test is of the moving averages, and so is the checkpoint's model.
        self.assertAlmostEqual(json.loads(command("eval", folder, "--json").stdout)["test_loss"], summary["test_loss"],
                               places=5)
        said = self.usage_error(*arguments, "--train.ema", "0.99", "--resume", folder / "step-9")
        self.assertIn("train.ema = 0.99, but the run of ", said)
        self.out = self.out.with_name("without")
        self.train(*arguments, "--train.ema", "0")
        self.assertEqual(self.losses(), losses)
        self.assertNotEqual(self.summary()["test_loss"], summary["test_loss"])

    @long
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

    @long
    def test_fewer_and_more_workers_go_on_with_the_rest_of_the_epoch(self):
        # 960 images in batches of 16: an epoch has 15 steps of 4 workers.
        arguments = ("--run.epochs", "4", "--checkpoint.keep", "9", "--train.ema", "0.5")
        self.train(*arguments, "--checkpoint-every", "9", workers=4)
        whole = self.metrics()
        folder = self.out / "checkpoints"
        last = {}
        for rule in ("copy", "average"):
            self.out = self.out.with_name(rule)
            shutil.copytree(folder.parent, self.out)
            mine = self.out / "checkpoints"
            # 9 steps of 4 are 576 images. 384 of the epoch are left: 12 steps of 2.
            self.train(*arguments, "--checkpoint-every", "19", "--resume", mine / "step-9", "--checkpoint.workers", rule,
                       workers=2)
            two = self.metrics()
            before, all_steps = [*range(1, 9 + 1)], [*range(1, 9 + 12 + 90 + 1)]
            self.assertEqual({rank: [line["step"] for line in lines] for rank, lines in two.items()},
                             {0: all_steps, 1: all_steps, 2: before, 3: before})
            self.assertEqual([line["epoch"] for line in two[0]][8 + 12], 1)
            self.assertEqual(two[0][-1]["epoch"], 4)
            self.assertEqual((self.summary()["samples"], self.summary()["workers"]), (4 * 960, 2))
            # The learning rate goes on at the same part of the run: 9 of 60 steps.
            whole_rates = [line["lr"] for line in whole[0]]
            rates = [line["lr"] for line in two[0]]
            self.assertLess(rates[9], whole_rates[8])
            self.assertGreater(rates[9], whole_rates[10])
            self.assertAlmostEqual(rates[-1], whole_rates[-1], delta=1e-5)
            # Then 3 workers, from 2 epochs and 6 of 30 steps on. 768 images are left, 16 steps.
            self.train(*arguments, "--checkpoint-every", "30", "--resume", mine / "step-57", "--checkpoint.workers", rule,
                       workers=3)
            three = self.metrics()
            self.assertEqual([line["step"] for line in three[2]], [*range(1, 10), *range(58, 57 + 16 + 20 + 1)])
            self.assertEqual({lines[-1]["step"] for rank, lines in three.items() if rank < 3}, {57 + 16 + 20})
            self.assertGreaterEqual(self.summary()["accuracy"], 0.9)
            last[rule] = self.states(93)
            shown = json.loads(command("checkpoint", "show", mine, "--json").stdout)
            self.assertEqual(shown["before"], [{"step": 9, "steps": [9] * 4}, {"step": 57, "steps": [57] * 2}])
            self.assertIn("before: 4 workers until step 9, 2 until step 57", command("checkpoint", "show", mine).stdout)
            # Three workers go on as ever.
            self.train(*arguments, "--checkpoint-every", "30", "--resume", mine / "step-60", workers=3)
            self.assertEqual(self.states(93), last[rule])
            self.assertEqual(self.losses(), {rank: [line["loss"] for line in lines] for rank, lines in three.items()})
        self.assertNotEqual(last["copy"], last["average"])
        said = self.usage_error(*arguments, "--resume", mine / "step-60", workers=4)
        self.assertIn("is of 3 workers, this run has 4: the number must be the same, or checkpoint.workers must be copy", said)

    @long
    def test_workers_at_different_steps_go_on_as_others(self):
        arguments = ("--run.epochs", "4", "--mixing.scheme", "a2cid2", "--mixing.topology", "ring", "--run.ends", "together",
                     "--checkpoint-every", "25", "--checkpoint.keep", "9")
        self.train(*arguments, workers=4)
        self.train(*arguments, "--resume", self.out / "checkpoints" / "step-25", "--checkpoint.workers", "average", workers=2)
        self.assertGreaterEqual(self.summary()["accuracy"], 0.9)
        for rank, lines in self.metrics().items():
            steps = [line["step"] for line in lines]
            self.assertEqual(steps, sorted(set(steps)))
            if rank > 1:
                self.assertLessEqual(max(steps), 25)
        command("report", self.out, "--out", self.out / "report.html")

    @long
    def test_a_run_goes_on_without_the_worker_that_it_lost(self):
        arguments = ("--mixing.topology", "complete", "--checkpoint-every", "10", "--run.epochs", "16", "--checkpoint.keep", "9")
        process = self.start(*arguments)
        os.kill(self.until_step(process, 3)[1], signal.SIGKILL)
        self.until(process, lambda steps: steps[0] >= 25)
        self.kill(process)
        latest = self.out / "checkpoints" / "step-20"
        self.assertEqual(len(list(latest.glob("worker-*"))), 2)
        _, stderr = self.train(*arguments, "--resume", latest, code=2)
        self.assertIn("has no file of worker 1", stderr)
        self.train(*arguments, "--resume", latest, "--checkpoint.workers", "copy", workers=2)
        self.assertGreaterEqual(self.summary()["accuracy"], 0.9)

    def whole_state(self, arguments):
        self.out = self.out.with_name("whole")
        self.train(*arguments, "--mixing.hierarchy", "none", "--run.steps", "1", workers=1)
        return self.states(1, 1)[0]

    @long
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
            records = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
            last = records[-1]
            self.assertEqual([edge["rank"] for edge in last["edges"]], [r for r in range(3) if r != last["rank"]])
            averaged = sum(edge["averaged"] for edge in last["edges"])
            gradients = (last["step"] - 40) // (2 if more else 1)
            self.assertAlmostEqual(last["rate"], averaged / gradients)
            self.assertGreater(averaged, 0)
            for edge in last["edges"]:
                self.assertLessEqual(edge["gap"] * edge["averaged"], gradients + 1e-6)
                self.assertLessEqual(edge["gap"], edge["longest_gap"])
            # The last steps are so small that bf16 may not see them.
            self.assertGreater(max(record["distance"] for record in records), 0)

    def check_refusals(self, arguments, first):
        root = first.parent
        self.assertEqual(self.usage_error(*arguments),
                         f"{root} holds the checkpoints of another run: resume it (--resume {root}), remove them, or "
                         "give another folder (--out)")
        _, stderr = self.train(*arguments, "--resume", root, code=2)  # the latest
        self.assertIn("step-40 is of step 40: the run was done, there is nothing to resume\n", stderr)
        for change in (("--run.steps", "41"), ("--optimizer.window", "2"), ("--mixing.topology", "ring"),
                       ("--run.seed", "2"), ("--data.split", "dirichlet:0.6")):
            said = self.usage_error(*arguments, *change, "--resume", first)
            self.assertTrue(said.startswith(f"checkpoint.resume: {change[0][2:]} = "), said)
            self.assertIn(change[1], said)
            self.assertTrue(said.endswith(": it must be the same"), said)
        self.assertIn("is of 3 workers, this run has 2: the number must be the same",
                      self.usage_error(*arguments, "--resume", first, workers=2))
        _, stderr = self.train(*arguments, "--resume", "/nowhere", code=2)
        self.assertEqual(stderr, "starling: /nowhere: there is no checkpoint: neither manifest.json nor latest is there\n")
        file = first / "worker-1.safetensors"
        text = bytearray(file.read_bytes())
        text[-1] ^= 1
        file.write_bytes(text)
        _, stderr = self.train(*arguments, "--resume", first, code=2)
        self.assertIn(f"starling: {file}: offset 0: damaged", stderr)

    def test_a_full_disk_costs_the_checkpoint_and_not_the_run(self):
        self.train("--run.steps", "10", "--checkpoint-every", "5")
        size = (self.out / "checkpoints" / "step-5" / "worker-0.safetensors").stat().st_size
        done = command("train", self.recipe, "--out", self.out, "--workers", WORKERS, "--run.steps", 10,
                       "--checkpoint-every", 5, "--resume", self.out / "checkpoints" / "step-5",
                       preexec_fn=files_below(size))  # no file may become as large as a worker's
        self.assertEqual(done.stderr.count("no checkpoint of step 10, the ones before it are kept"), 1, done.stderr)
        self.assertIn("File too large", done.stderr)
        self.assertEqual(self.summary()["steps"], 10)
        self.assertEqual((self.out / "checkpoints" / "latest").read_text(), "step-10\n")
        shown = json.loads(command("checkpoint", "show", self.out / "checkpoints", "--json").stdout)
        self.assertEqual((shown["step"], shown["workers"], shown["verified"]), (10, WORKERS, True))
        self.assertEqual([file["file"] for file in shown["files"]],
                         [f"worker-{rank}.safetensors" for rank in range(WORKERS)])
        self.assertEqual(shown["recipe"]["run.steps"], "10")

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
    def test_pythons_safetensors_reads_the_consensus(self):
        self.train("--run.steps", "4", "--checkpoint-every", "4")
        file = self.out / "mean.safetensors"
        folder = self.out / "checkpoints"
        done = command("checkpoint", "consensus", folder, file)
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

    def test_eval_finds_the_score_of_the_run(self):
        self.train("--run.steps", "8", "--checkpoint-every", "8")
        summary = self.summary()
        folder, file = self.out / "checkpoints", self.out / "mean.safetensors"
        command("checkpoint", "consensus", folder, file)
        for model in (folder, folder / "step-8", file):
            score = json.loads(command("eval", model, "--json").stdout)
            self.assertEqual((score["examples"], score["accuracy"]), (self.test_images, summary["accuracy"]))
            self.assertAlmostEqual(score["test_loss"], summary["test_loss"], places=5)
        self.assertIn(f"{100 * summary['accuracy']:.2f} %", command("eval", file).stdout)

        names = sorted(path.name for path in self.out.iterdir())
        worker = folder / "step-8" / "worker-0.safetensors"
        for arguments, code, message in (
                ([worker], 2, f"{worker} does not say with which recipe it was trained: name one, --recipe FILE"),
                ([worker, "--recipe", self.recipe], 2, f'{worker}: the model of the recipe has no tensor "'),
                ([file, "--model.width", 16], 2, f"{file}: tensor "),
                ([file, "--model.width", 0], 2, "model.width = 0"),
                ([file, "--data.dir", "/nowhere"], 2, "/nowhere")):
            with self.subTest(message):
                stderr = command("eval", *arguments, code=code).stderr
                self.assertIn(message, stderr)
                self.assertEqual(stderr.count("\n"), 1, stderr)
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), names)

    @long
    def test_a_run_begins_with_the_weights_of_a_file(self):
        self.train("--run.steps", "16", "--checkpoint-every", "8")
        file = self.out / "mean.safetensors"
        command("checkpoint", "consensus", self.out / "checkpoints" / "step-8", file)
        folder = self.out / "checkpoints"
        self.out = self.out.with_name("begun")
        # A step so small that it changes nothing.
        small = ("--run.steps", "1", "--optimizer.lr", "1e-30")
        self.train(*small, "--checkpoint-every", "1", "--checkpoint.model", file)
        given = tensors_in(file)
        for rank in range(WORKERS):
            mine = tensors_in(self.out / "checkpoints" / "step-1" / f"worker-{rank}.safetensors")
            parameters = [name for name in given if name.endswith((".weight", ".bias"))]
            self.assertGreater(len(parameters), 5)
            for name in parameters:
                self.assertEqual(mine["model." + name], given[name], name)
        shutil.rmtree(self.out)
        # A run that is resumed does not read it.
        self.train("--run.steps", "16", "--resume", folder / "step-8", "--checkpoint.model", "/nowhere")

        other = self.out / "other.safetensors"
        whole = file.read_bytes()
        names = sorted(name for name in given if name.endswith(".weight"))

        def renamed(before, after):
            other.write_bytes(whole.replace(f'"{before}"'.encode(), f'"{after}"'.encode(), 1))
            return ("--checkpoint.model", other)

        wrong = names[0].replace("weight", "weigth")
        for arguments, code, message in (
                (renamed(names[0], wrong), 2,
                 f'{other}: the model of the recipe has no tensor "{wrong}"; the nearest name there is "{names[0]}"'),
                (("--checkpoint.model", file, "--model.width", "16"), 2, f"{file}: tensor "),
                (("--checkpoint.model", "/nowhere"), 2, "/nowhere: cannot be opened: No such file or directory"),
                (("--checkpoint.model", folder), 2, f"checkpoint.model = {folder}: is a folder: wants a safetensors file"),
                (("--checkpoint.model", self.recipe), 2, f"{self.recipe}: offset ")):
            with self.subTest(message):
                _, stderr = self.train(*small, *arguments, code=code)
                self.assertIn(message, stderr)
                self.assertEqual(stderr.count("\n"), 1, stderr)

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
