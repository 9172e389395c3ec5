"""The records of a run of three real workers: event files, read back by TensorBoard's own reader,
timelines, merged by the command, and the folder as `starling report` reads it."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios

from runs import Images, command, environment
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

WORKERS = 3
STEPS = 6
EVERY = 2  # steps per logged line
TESTS = [3, STEPS]  # steps after which the average model is tested


class Seeing(Images):
    recipe_text, train_images, test_images, flip = "[mixing]\ntopology = 'complete'\n", 300, 60, "true"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.out = cls.folder / "out"
        for steps in (1, STEPS):  # the second run replaces the files of the first
            cls.train("--log.timeline", "true", "--log.tensorboard", "true", "--run.steps", str(steps))
        cls.timeline_stdout = command("timeline", cls.out).stdout

    def setUp(self):
        """All tests read the same run."""

    @classmethod
    def train(cls, *arguments, out=None):
        command("train", cls.recipe, "--workers", WORKERS, "--train.batch", 4, "--log.every", EVERY, "--log.eval_every",
                TESTS[0], "--out", out or cls.out, *arguments)

    def scalars(self, rank):
        """tag -> {step: value}, of this worker's only event file."""
        [path] = (self.out / f"tensorboard/worker-{rank}").iterdir()
        first, *events = EventFileLoader(str(path)).Load()
        self.assertEqual(first.file_version, "brain.Event:2")
        found = {}
        for event in events:
            self.assertGreaterEqual(event.wall_time, first.wall_time)
            for value in event.summary.value:
                # The loader turns simple_value into a tensor.
                found.setdefault(value.tag, {})[event.step] = value.tensor.float_val[0]
        return found

    def test_the_event_file_of_worker_0_says_why_topology_auto_chose(self):
        out = self.out.with_name("auto")
        self.train("--log.tensorboard", "true", "--run.steps", "1", "--mixing.topology", "auto", out=out)
        chosen = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
        [path] = (out / "tensorboard/worker-0").iterdir()
        [value] = [value for event in EventFileLoader(str(path)).Load() for value in event.summary.value
                   if value.metadata.plugin_data.plugin_name == "text"]
        self.assertEqual((value.tag, value.tensor.string_val), ("mixing/topology", [chosen["why"].encode()]))

    def test_event_files_hold_what_metrics_jsonl_does(self):
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        for rank in range(WORKERS):
            scalars = self.scalars(rank)
            mine = {line["step"]: line for line in lines if line["rank"] == rank}
            self.assertEqual(sorted(mine), list(range(EVERY, STEPS + 1, EVERY)))
            for tag, key in [("train/loss", "loss"), ("train/lr", "lr"), ("exchange/bytes_sent", "bytes_sent"),
                             ("exchange/waiting_share", "waiting_share")]:
                self.assertEqual(sorted(scalars[tag]), sorted(mine))
                for step, value in scalars[tag].items():
                    self.assertAlmostEqual(value, mine[step][key], delta=1e-6 * abs(mine[step][key]))
            self.assertEqual(sorted(scalars["train/samples_per_second"]), sorted(mine))
            before = 0
            for step, value in sorted(scalars["train/samples_per_second"].items()):
                seconds = mine[step]["seconds"] - before
                self.assertAlmostEqual(value, 4 * EVERY / seconds, delta=1e-5 * value)
                before = mine[step]["seconds"]

    def test_tests_of_the_average_model_are_the_first_workers(self):
        scalars = self.scalars(0)
        summary = json.loads((self.out / "summary.json").read_text())
        for tag, key in [("test/accuracy", "accuracy"), ("test/loss", "test_loss"),
                         ("test/consensus_distance", "consensus_distance")]:
            self.assertEqual(sorted(scalars[tag]), TESTS)
            self.assertAlmostEqual(scalars[tag][STEPS], summary[key], delta=1e-6 * abs(summary[key]))
        for rank in range(1, WORKERS):
            self.assertNotIn("test/accuracy", self.scalars(rank))
        tests = [json.loads(line) for line in (self.out / "tests.jsonl").read_text().splitlines()]
        self.assertEqual([test["step"] for test in tests], TESTS)
        self.assertEqual({key: tests[-1][key] for key in ("accuracy", "test_loss", "consensus_distance")},
                         {key: summary[key] for key in ("accuracy", "test_loss", "consensus_distance")})
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        end = next(line for line in lines if (line["rank"], line["step"]) == (0, STEPS))
        self.assertEqual(tests[-1]["seconds"], end["seconds"])

    def test_the_folder_holds_its_recipe(self):
        kept = (self.out / "recipe.toml").read_text()
        self.assertEqual(kept, command("train", self.recipe, "--train.batch", 4, "--log.every", EVERY, "--log.eval_every",
                                       TESTS[0], "--out", self.out, "--log.timeline", "true", "--log.tensorboard", "true",
                                       "--run.steps", STEPS, "--print-config").stdout)
        self.assertEqual(command("train", self.out / "recipe.toml", "--print-config").stdout, kept)

    def test_the_report_reads_the_folder(self):
        said = command("report", self.out).stdout
        self.assertIn(f"written to {self.out}/report.html", said)
        page = (self.out / "report.html").read_text()
        summary = json.loads((self.out / "summary.json").read_text())
        self.assertIn(f"<td>test accuracy, average model</td><td>{100 * summary['accuracy']:.2f} %</td>", page)
        self.assertIn("<td>run</td><td>finished</td>", page)
        self.assertNotIn("No run has this", page)

    def test_the_timeline_shows_all_steps_of_all_workers(self):
        events = json.loads((self.out / "timeline.json").read_text())["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        self.assertTrue(self.timeline_stdout.startswith(f"{len(spans)} spans of {WORKERS} of {WORKERS} workers\n"))
        for rank in range(WORKERS):
            mine = [span for span in spans if span["pid"] == rank]
            blocks = {span["args"]["block"] for span in mine if span["name"] == "mix + update"}
            for step in range(1, STEPS + 1):
                training = sorted((span for span in mine if span["args"].get("step") == step), key=lambda s: s["ts"])
                names = [span["name"] for span in training if span["name"] != "average"]
                self.assertEqual(names, ["data", "forward", "backward"] + ["gradients"] * len(blocks) + ["optimizer step"] +
                                 ["wait", "mix + update"] * len(blocks))
                self.assertEqual("average" in [span["name"] for span in training], step in TESTS)
            swaps = sorted((span["args"]["round"], span["args"]["peer"], span["args"]["block"]) for span in mine
                           if span["args"].get("outcome") == "committed" and span["args"]["round"] <= STEPS)
            self.assertEqual(swaps, [(round, peer, block) for round in range(1, STEPS + 1)
                                     for peer in range(WORKERS) if peer != rank for block in sorted(blocks)])

    def test_spans_of_one_thread_nest_or_follow_each_other(self):
        threads = {}
        for event in json.loads((self.out / "timeline.json").read_text())["traceEvents"]:
            if event["ph"] == "X":
                begin = round(event["ts"] * 1000)  # whole nanoseconds
                threads.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
        self.assertGreater(len(threads), WORKERS)
        for spans in threads.values():
            around = []
            for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
                while around and around[-1] <= begin:
                    around.pop()
                self.assertTrue(not around or end <= around[-1])
                around.append(end)

    def test_the_progress_line_fits_the_terminal(self):
        ours, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        subprocess.run([os.environ["STARLING"], "train", self.recipe, "--workers", "1", "--run.steps", "3", "--train.batch", "4",
                        "--out", self.folder / "terminal"], stdout=subprocess.DEVNULL, stderr=terminal, check=True,
                       env=environment())
        os.close(terminal)
        said = os.read(ours, 1 << 16).decode()
        os.close(ours)
        shown = re.findall(r"\r([^\r\n]*)\x1b\[K", said)
        self.assertRegex(shown[-1], "^step 3/3  epoch 0.04/0.04  loss ")
        self.assertTrue(all(len(text) < 40 and not text.endswith(" ") for text in shown), said)

    def test_only_what_is_asked_for_is_written(self):
        out = self.folder / "plain"
        self.train("--run.steps", "4", out=out)
        self.assertEqual(sorted(path.name for path in out.iterdir()), ["metrics.jsonl", "phases", "recipe.toml", "summary.json",
                                                                         "tests.jsonl"])
        self.train("--run.steps", "4", "--log.timeline", "true", "--log.timeline_from", "2", "--log.timeline_to", "3",
                   out=out)
        for rank in range(WORKERS):
            events = json.loads((out / f"timeline-{rank}.json").read_text())["traceEvents"]
            self.assertEqual([event["args"]["step"] for event in events if event["name"] == "forward"], [2, 3])
