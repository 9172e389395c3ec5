"""Workers that are killed or told to end, full disks, and wrong input."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

from runs import WORKERS, Run, command, load_tests, long, may_mount, on_full_disk, processes_of  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Failures(Run):
    @unittest.skipUnless(may_mount(), "no rights to mount a disk")
    def test_a_full_disk_costs_the_outputs_and_not_the_run(self):
        done = command("train", self.recipe, "--out", self.out, "--workers", WORKERS, "--json", "--run.steps", 12,
                       "--log.timeline", "true", "--log.tensorboard", "true", "--profile-out",
                       self.out / "compute.json", inside=on_full_disk(self.out))
        self.assertEqual(json.loads(done.stdout)["steps"], 12)
        for file, count in (("metrics.jsonl", WORKERS), ("summary.json", 1), ("tfevents", WORKERS),
                            ("compute.json", 1), ("timeline-0.json", 1)):
            named = [line for line in done.stderr.splitlines() if file in line]
            self.assertEqual(len(named), count, done.stderr)
            self.assertTrue(all("cannot be written: No space left on device" in line for line in named), named)

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

    @long  # tests/faults/ has it among its smoke tests
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

    def stopped_worker(self, *arguments):
        """A run with a checkpoint every 20 steps, and its worker 2, which stands still."""
        process = self.start("--checkpoint.every", "20", "--checkpoint.keep", "100", "--log.eval_every", "20", *arguments)
        stopped = self.until_step(process, 5)[2]
        os.kill(stopped, signal.SIGSTOP)
        return process, stopped

    def checkpoints(self):
        """The workers whose files each checkpoint has, by its step."""
        return {int(file.parent.name.removeprefix("step-")):
                [part["worker"] for part in json.loads(file.read_text())["files"]]
                for file in (self.out / "checkpoints").glob("step-*/manifest.json")
                if not file.parent.name.endswith(".tmp")}

    @long
    def test_a_worker_that_was_away_spoils_no_checkpoint(self):
        process, stopped = self.stopped_worker("--run.epochs", "1000")
        latest = []

        def survivors_are_at(step):
            def done(steps):
                with contextlib.suppress(OSError):
                    latest.append(int((self.out / "checkpoints/latest").read_text().strip().removeprefix("step-")))
                return min(steps.get(rank, 0) for rank in (0, 1)) >= step
            return done

        # The survivors have waited for the stopped worker until it was silent for too long.
        self.until(process, survivors_are_at(85))
        without = {step: files for step, files in self.checkpoints().items() if step >= 40}
        self.assertGreaterEqual(len(without), 2)
        self.assertTrue(all(files == [0, 1] for files in without.values()), without)
        os.kill(stopped, signal.SIGCONT)
        self.until(process, lambda steps: survivors_are_at(85)(steps) and steps[2] >= 100)
        self.until(process, survivors_are_at(max(latest) + 45))
        after = self.checkpoints()
        self.assertEqual({step: after[step] for step in without}, without)
        self.assertEqual(latest, sorted(latest))
        process.terminate()
        process.communicate()

    @long
    def test_a_worker_that_returns_after_the_end_spoils_no_result(self):
        process, stopped = self.stopped_worker("--run.epochs", "4")
        self.until(process, lambda steps: (self.out / "summary.json").exists())
        before = {file: (self.out / file).read_text() for file in ("summary.json", "tests.jsonl", "checkpoints/latest")}
        kept = self.checkpoints()
        self.assertEqual(self.summary()["workers_lost"], 1)
        os.kill(stopped, signal.SIGCONT)
        process.communicate()
        self.assertEqual({file: (self.out / file).read_text() for file in before}, before)
        self.assertEqual(self.checkpoints(), kept)

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

    def test_a_worker_that_is_told_to_end_leaves(self):
        process = self.start("--run.epochs", "20")
        os.kill(self.until_step(process, 3)[2], signal.SIGTERM)
        _, stderr = self.finish(process, 0)
        self.assertIn("starling: worker 2 was told to end by signal 15\n", stderr)
        self.assertEqual(self.summary()["workers_lost"], 1)

    def test_a_worker_ends_after_its_step_if_its_grace_is_long_enough(self):
        self.assertEqual(self.usage_error(STARLING_GRACE="0"), "environment: STARLING_GRACE='0' is not allowed: a whole number "
                         "from 1 to 3600, the seconds that a worker has for its step when it is told to end")
        for grace, last in (("1", 9), ("3600", 10)):
            shutil.rmtree(self.out, ignore_errors=True)
            process = self.start("--run.epochs", "20", STARLING_GRACE=grace, STARLING_FAIL="forward:10:2:sleep=4")
            worker = self.until_step(process, 9)[2]
            while True:
                phase = json.loads(command("status", self.out, "--json").stdout)["workers"][2]["phase"]
                if (phase["name"], phase["step"]) == ("forward", 10):
                    break
                self.assertLess(phase["step"], 11, "too late")
                time.sleep(0.05)
            os.kill(worker, signal.SIGTERM)
            _, stderr = self.finish(process, 0)
            self.assertIn("starling: worker 2 was told to end by signal 15\n", stderr)
            self.assertEqual(self.metrics()[2][-1]["step"], last)

    def test_workers_end_with_their_launcher(self):
        process = self.start("--run.epochs", "1000")
        self.until_step(process, 3)
        self.kill(process)

    def test_wrong_input_is_one_line(self):
        self.assertEqual(self.usage_error("--run.epochs", "0"),
                         "command line: run.epochs = 0: out of range, allowed is a number above 0 and at most 1000000")
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
                ("--mixing.scheme all-reduce --mixing.mean_every 5",
                 'scheme "all-reduce" takes no mean_every: its workers are equal after each step'),
                ("--mixing.hierarchy node --mixing.scheme atc", 'needs scheme "cta", not "atc"'),
                ("--mixing.hierarchy node --mixing.workers_per_node 2",
                 "3 workers are no whole number of nodes with 2 workers each"),
                ("--mixing.scheme ad-psgd-bipartite --mixing.topology complete", "the graph has no two sides"),
                ("--mixing.local_steps 2", 'local_steps = 2 is for scheme "swarm", not "cta": use 1')):
            self.assertIn(said, self.usage_error(*arguments.split()))
        for arguments, said in (("--restart 0", "--restart: Value 0 not in range 1 to "),
                                ("--restart --mixing.scheme all-reduce", "--restart is not for scheme all-reduce: ")):
            self.assertIn(said, self.usage_error(*arguments.split()))
        self.assertIn("--restart needs --workers N", self.usage_error("--restart", workers=0))
        self.assertIn("--restart needs at least two workers", self.usage_error("--restart", workers=1))
        topology = self.folder / "five.toml"
        topology.write_text("workers = 5\n[[rounds]]\nedges = [[0, 1, 0.5]]\n")
        self.assertIn(f"{topology}:1: it is for 5 workers, and there are ",
                      self.usage_error("--mixing.topology", str(topology)))
        self.assertIn("unknown option '--nonsense'", self.usage_error("--nonsense"))
        self.assertEqual(self.usage_error("--mixing.topology", "a\nb\x1b[31m").count("a\\u000Ab\\u001B[31m"), 1)
        _, stderr = self.train(code=2, workers=0, STARLING_TOKN="secret")
        self.assertEqual(stderr, "starling: environment: STARLING_TOKN is unknown, did you mean STARLING_TOKEN?\n")
        bad = self.folder / "bad.toml"
        bad.write_text("[optimizer]\nlr = 'fast'\n")
        self.assertEqual(command("train", bad, code=2).stderr,
                         f'starling: {bad}:2: optimizer.lr = "fast": wrong type, allowed is a number above 0\n')

    def test_missing_data_names_the_script(self):
        _, stderr = self.train("--data.dir", "/nowhere", code=2)
        self.assertEqual(stderr, "starling: /nowhere/train-images-idx3-ubyte.gz: not there; "
                                 "scripts/fetch-fashion-mnist fetches it, data.dir names another folder\n")

    def test_a_wrong_option_is_told_before_missing_data(self):
        missing, wrong = ("--data.dir", "/nowhere"), ("--mixing.topology", "rign")
        for arguments, said in ((wrong, "unknown schedule 'rign', did you mean ring?"),
                                (("--mixing.scheme", "choco"), 'scheme "choco" needs a topology of one round'),
                                (("--run.ends", "together"), "run.ends = together: with scheme cta"),
                                (("--restart", "2", "--mixing.scheme", "all-reduce"), "--restart is not for scheme")):
            self.assertIn(said, self.usage_error(*missing, *arguments))
        self.assertIn("did you mean ring?", self.usage_error(*missing, *wrong, workers=0))
        for name in ("drill", "simulate"):
            said = command(name, self.recipe, "--workers", 3, "--out", self.out, *missing, *wrong, code=2).stderr
            self.assertTrue(said.startswith("starling: unknown schedule 'rign', did you mean ring?"), said)

    def test_a_check_of_the_settings_looks_for_no_data(self):
        for name in ("train", "simulate"):
            asked = (name, self.recipe, "--out", self.out, "--data.dir", "/nowhere", "--check", "--workers", 3)
            done = command(*asked)
            self.assertEqual((done.stdout, done.stderr), ("", ""))
            self.assertIn("did you mean ring?", command(*asked, "--mixing.topology", "rign", code=2).stderr)
        self.assertFalse(self.out.exists())
        self.assertIn("--restart needs at least two", self.usage_error("--check", "--restart", "2", workers=1))
        self.assertIn("--check requires --workers", self.usage_error("--check", workers=0))

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
        return command("train", recipe, "--print-config", *arguments).stdout
