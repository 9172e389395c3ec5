"""Studies by the built command (its path is in the environment variable STARLING): small grids of
simulated and of real runs."""

import csv
import json
import math
import os
import signal
import statistics
import subprocess
import time
from xml.etree import ElementTree

from runs import Images, command, environment, load_tests, long  # noqa: F401  unittest calls load_tests

QUANTILE = {2: 12.7062047364321, 3: 4.302652729696144}  # of Student's t for n values, 95 %: scipy 1.14.1
GRID = """
[grid]
run.seed = [1, 2]
data.split = ["iid", "by-class"]
mixing.scheme = ["cta", "atc"]
[baseline]
mixing.scheme = "cta"
"""


class StudyCommand(Images):
    flip = "true"
    recipe_text = """
[run]
steps = 6
[optimizer]
rule = "sgd"
lr = 0.05
[train]
batch = 8
"""

    def setUp(self):
        super().setUp()
        self.out.mkdir()
        self.file = self.out / "study.toml"

    def write(self, text=GRID, head="workers = 2"):
        self.file.write_text(f"recipe = '../recipe.toml'\nout = '{self.out}/results'\n{head}\n{text}")

    def study(self, *arguments, code=0):
        return command("study", self.file, *arguments, code=code)

    def states(self):
        return dict(reversed(line.split(None, 1)) if not line.startswith(("to do", "not finished", "settings changed"))
                    else (line[17:], line[:17].strip()) for line in self.study("--list").stdout.splitlines())

    def results(self, name="results"):
        folder = self.out / name
        rows = list(csv.DictReader((folder / "study.csv").read_text().splitlines()))
        page = folder / "study.html"
        self.assertNotIn("http", page.read_text())  # it loads nothing
        self.assertNotIn("<script", page.read_text())
        return json.loads((folder / "study.json").read_text()), rows, ElementTree.parse(page).getroot()

    def summaries(self):
        return {path.parent.name: path for path in sorted((self.out / "results/runs").glob("*/summary.json"))}

    def start(self, *arguments):
        return subprocess.Popen([os.environ["STARLING"], "study", self.file, *arguments], env=environment(),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def until_some_are_finished(self, process):
        while len(self.summaries()) < 2:
            self.assertIsNone(process.poll(), "it ended")
            time.sleep(0.01)

    def test_the_results_are_those_of_the_runs(self):
        self.write()
        said = self.study()
        self.assertEqual(said.stderr, "")
        self.assertIn("8 runs, 0 of them finished before\n", said.stdout)
        told, rows, page = self.results()
        runs = {name: json.loads(path.read_text()) for name, path in self.summaries().items()}
        self.assertEqual(len(runs), 8)

        def accuracy(split, scheme, seed):
            return runs[f"split={split},scheme={scheme},seed={seed}"]["accuracy"]

        self.assertEqual([arm["name"] for arm in told["arms"]],
                         [f"split {split}, scheme {scheme}" for split in ("iid", "by-class") for scheme in ("cta", "atc")])
        self.assertEqual((told["seeds"], told["task"], told["unfinished"]), ([1, 2], "fashion-mnist", []))
        tested = []
        for arm in told["arms"]:
            split, scheme = arm["values"]
            figure = arm["figures"]["accuracy"]
            values = [accuracy(split, scheme, seed) for seed in (1, 2)]
            half = QUANTILE[2] * statistics.stdev(values) / math.sqrt(2)
            self.assertEqual(figure["values"], values)
            self.assertAlmostEqual(figure["mean"], statistics.mean(values))
            self.assertAlmostEqual(figure["deviation"], statistics.stdev(values))
            self.assertAlmostEqual(figure["low"], statistics.mean(values) - half)
            self.assertAlmostEqual(figure["high"], statistics.mean(values) + half)
            self.assertEqual(arm["baseline"], None if scheme == "cta" else f"split {split}, scheme cta")
            if scheme == "atc":
                differences = [accuracy(split, "atc", seed) - accuracy(split, "cta", seed) for seed in (1, 2)]
                self.assertAlmostEqual(figure["difference"]["mean"], statistics.mean(differences))
                if statistics.stdev(differences) > 0:
                    # With one degree of freedom t follows the Cauchy distribution.
                    t = statistics.mean(differences) / (statistics.stdev(differences) / math.sqrt(2))
                    self.assertAlmostEqual(figure["p"], 1 - 2 * math.atan(abs(t)) / math.pi)
                    tested.append((figure["p"], figure["p_holm"]))
            for curve in ("loss", "score"):
                points = arm["curves"][curve]
                self.assertGreater(len(points), 0)
                self.assertEqual(points[-1][0], 6)  # steps
                self.assertTrue(all(least <= mean <= most for *_, mean, least, most in points))
            self.assertAlmostEqual(arm["curves"]["score"][-1][3], figure["mean"])
        if len(tested) == 2:
            (p, corrected), (other, other_corrected) = sorted(tested)
            self.assertAlmostEqual(corrected, min(1, 2 * p))
            self.assertAlmostEqual(other_corrected, min(1, max(2 * p, other)))

        for row in rows:
            if row["measure"] == "accuracy":
                self.assertEqual([float(row["seed_1"]), float(row["seed_2"])],
                                 [accuracy(row["data.split"], row["mixing.scheme"], seed) for seed in (1, 2)])
        self.assertEqual(sum(row["measure"] == "seconds" for row in rows), 4)

        head, *body = [[cell.text for cell in row] for row in page.find(".//table[@class='results']").iter("tr")]
        self.assertEqual(head[:4], ["split", "scheme", "runs", "test accuracy, %"])
        self.assertEqual([row[:3] for row in body],
                         [[split, scheme, "2 of 2"] for split in ("iid", "by-class") for scheme in ("cta", "atc")])
        self.assertEqual([row[5] for row in body if row[1] == "cta"], ["baseline"] * 2)
        mean = told["arms"][1]["figures"]["accuracy"]
        self.assertEqual(body[1][3], f"{100 * mean['mean']:.2f} ± {100 * mean['deviation']:.2f}")
        # Charts for each split, against each axis; in each a line for each scheme.
        titles = [h2.text for h2 in page.iter("h2")]
        self.assertEqual(titles, ["Results", "split iid", "split by-class"])
        charts = [div for div in page.iter("div") if div.get("class") == "by-bytes"]
        self.assertGreaterEqual(len(charts), 2 * 3)
        self.assertEqual([group.get("class") for group in charts[0].iter("g")], ["c0", "c1"])

    def test_each_workers_classes_are_in_the_summary(self):
        self.write()
        self.study("--jobs", 1)
        labels = json.loads(self.summaries()["split=by-class,scheme=cta,seed=1"].read_text())["class_counts"]
        self.assertEqual([len(row) for row in labels], [10, 10])
        self.assertEqual([sum(row) for row in labels], [480, 480])
        # Sorted by class: one class at most is on both.
        self.assertLessEqual(sum(a > 0 and b > 0 for a, b in zip(*labels, strict=True)), 1)
        iid = json.loads(self.summaries()["split=iid,scheme=cta,seed=1"].read_text())["class_counts"]
        self.assertEqual([a + b for a, b in zip(*iid, strict=True)], [a + b for a, b in zip(*labels, strict=True)])
        # Real workers have the same shares.
        real = json.loads(command("train", self.recipe, "--workers", 2, "--data.split", "by-class", "--json", "--out",
                                  self.out / "real").stdout)
        self.assertEqual(real["class_counts"], labels)
        _, _, page = self.results()
        tables = [details for details in page.iter("details") if "Images of each class" in details[0].text]
        self.assertIn(["0", *map(str, labels[0])], [[cell.text for cell in row] for row in tables[-1].iter("tr")])

    def test_a_figure_that_is_not_finite_is_counted(self):
        self.write('[grid]\nrun.seed = [1, 2, 3]\nmixing.scheme = ["cta"]\n')
        self.study()
        folder = self.out / "results/runs/scheme=cta,seed=2"
        *looks, last = (folder / "simulate.jsonl").read_text().splitlines()
        last = json.dumps({**json.loads(last), "accuracy": None})
        (folder / "simulate.jsonl").write_text("\n".join([*looks, last, ""]))
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "versions": {"starling": "0.0.1", "torch": "1.0"}}))
        self.assertIn("3 runs, 3 of them finished before", self.study().stdout)
        told, rows, page = self.results()
        [arm] = told["arms"]
        self.assertEqual([value is None for value in arm["figures"]["accuracy"]["values"]], [False, True, False])
        self.assertEqual(arm["figures"]["accuracy"]["runs"], 2)
        self.assertIsNone(arm["curves"]["score"][-1][3])  # no mean of those that are left
        [row] = [row for row in rows if row["measure"] == "accuracy"]
        self.assertEqual((row["runs"], row["seed_2"]), ("2", ""))
        [body] = [[cell.text for cell in row] for row in page.find(".//table[@class='results']").iter("tr")][1:]
        self.assertEqual(body[0], "3 of 3")
        self.assertRegex(body[1], r"^\d+\.\d\d ± \d+\.\d\d, 2 of 3 finite$")
        self.assertRegex(body[-1], r" s ± [\d.]+ s$")
        self.assertEqual(told["versions"]["starling"].split(", ")[0], "0.0.1")
        self.assertRegex(told["versions"]["torch"], r"^1\.0, \d")

    @long
    def test_lines_that_look_alike_are_in_different_charts(self):
        rates = [0.01 * k for k in range(1, 18)]
        self.write(f"[set]\nrun.steps = 1\n[grid]\noptimizer.lr = {rates}\n", "workers = 1")
        self.study()
        _, _, page = self.results()
        self.assertEqual([h2.text for h2 in page.iter("h2")], ["Results", "Curves", "Curves"])
        for div in page.iter("div"):
            if div.get("class") == "by-steps":
                shown = [group.get("class") for group in div.iter("g")]
                self.assertEqual(len(shown), len(set(shown)))

    def test_no_name_writes_codes_to_a_terminal(self):
        self.write('[grid]\nrun.seed = [1]\n[ablation."\\u001b[2J"]\noptimizer.lr = 0.1\n')
        said = self.study()
        self.assertNotIn("\x1b", said.stdout + said.stderr)
        self.assertIn(r"\u001B[2J", said.stdout)
        self.results()

    def test_a_study_that_is_killed_goes_on(self):
        self.write()
        process = self.start("--jobs", "2")
        self.until_some_are_finished(process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        finished = {name: path.stat().st_mtime_ns for name, path in self.summaries().items()}
        self.assertTrue(2 <= len(finished) < 8, finished)
        deadline = time.monotonic() + 60
        while self.has_processes():  # its runs end, too
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        said = self.study("--jobs", 2).stdout
        before = int(said.split(" runs, ")[1].split()[0])
        self.assertGreaterEqual(before, len(finished))
        for name, changed in finished.items():
            self.assertEqual(self.summaries()[name].stat().st_mtime_ns, changed, name)
        self.assertEqual(len(self.summaries()), 8)
        interrupted = (self.out / "results/study.csv").read_text()
        self.study("--jobs", 2, "--out", self.out / "whole")
        self.assertEqual((self.out / "whole/study.csv").read_text(), interrupted)
        # Nothing is left to do.
        self.assertIn("8 runs, 8 of them finished before\n", self.study().stdout)

    @long
    def test_what_a_killed_study_leaves_behind_is_removed(self):
        self.write()
        self.study("--jobs", 2)
        results = self.out / "results"
        run = next(iter(self.summaries().values())).parent
        (run / "summary.json").unlink()  # it is made anew
        for name in ("new", "old"):
            (results / name).mkdir()
            (results / name / "metrics.jsonl").write_text("half")
        self.assertIn("8 runs, 7 of them finished before\n", self.study("--jobs", 2).stdout)
        self.assertEqual(len(self.summaries()), 8)
        self.assertFalse((results / "new").exists() or (results / "old").exists())
        # A folder of somebody else's is left alone.
        (run / "settings.txt").unlink()
        self.assertIn("is no folder of a study's run: remove it", self.study(code=2).stderr)
        self.assertTrue((run / "summary.json").exists())

    def has_processes(self):
        """Whether a process works for this test's study."""
        return subprocess.run(["pgrep", "-f", f"run.out={self.out}/results"], capture_output=True).returncode == 0

    def test_an_interrupt_ends_all_runs(self):
        self.write()
        process = self.start("--jobs", "1")
        self.until_some_are_finished(process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        self.assertEqual(process.returncode, 130, said)
        self.assertRegex(said, r"^starling: signal 2: \d of 8 runs are finished; the same command goes on\n$")
        self.assertFalse(self.has_processes())
        self.assertFalse((self.out / "results/study.csv").exists())

    @long
    def test_runs_whose_settings_changed_are_run_again(self):
        text = GRID.replace('"atc"', '"d2"').replace("[1, 2]", "[1]")
        self.write(text + "[set]\nmixing.topology = 'complete'\n")
        self.study()
        before = {name: path.stat().st_mtime_ns for name, path in self.summaries().items()}
        self.write(text.replace("[1]", "[1, 2]") + "[set]\nmixing.topology = 'complete'\n")
        self.assertEqual(set(self.states().values()), {"finished", "to do"})
        self.study()
        after = {name: path.stat().st_mtime_ns for name, path in self.summaries().items()}
        self.assertEqual({name: after[name] for name in before}, before)
        self.write(text + "[set]\nmixing.topology = 'complete'\noptimizer.lr = 0.04\n")
        self.assertEqual(set(self.states().values()), {"settings changed"})
        said = self.study()
        self.assertIn("4 runs, 0 of them finished before\n", said.stdout)
        told, _, _ = self.results()
        self.assertEqual(told["arms"][0]["figures"]["accuracy"].get("deviation"), None)  # of one seed
        self.assertNotIn("p", told["arms"][0]["figures"]["accuracy"])

    def test_a_run_that_fails_does_not_stop_the_others(self):
        self.write('[grid]\nrun.seed = [1, 2]\noptimizer.lr = [0.05, 1e30]\n[baseline]\noptimizer.lr = 0.05\n')
        done = self.study(code=1)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 2, lines)
        for line in lines:
            self.assertRegex(line, r"^starling: \d of 4: lr=1e\+30,seed=[12] failed with exit code 1: .*the loss is ")
        told, rows, page = self.results()
        self.assertEqual(len(told["unfinished"]), 2)
        self.assertEqual(told["arms"][1]["figures"]["accuracy"], {"values": [None, None]})
        self.assertEqual(told["arms"][0]["figures"]["accuracy"]["runs"], 2)
        self.assertEqual([row["mean"] for row in rows if row["optimizer.lr"] == "1e+30"], [""] * 7)
        self.assertEqual(len(page.find(".//ul[@class='failed']")), 2)
        # They are tried again, the others are not.
        self.assertIn("4 runs, 2 of them finished before\n", self.study(code=1).stdout)

    def test_the_list_marks_runs_that_would_be_refused(self):
        nowhere = "[set]\ndata.dir = '/nowhere'\n"  # nobody looks for it
        self.write(nowhere + '[grid]\nrun.seed = [1, 2]\nmixing.scheme = ["cta", "choco"]\n', "workers = 3")
        lines = self.study("--list").stdout.splitlines()
        self.assertEqual(lines[:2], [f"to do            scheme=cta,seed={seed}" for seed in (1, 2)])
        self.assertEqual([line.split(": ")[0] for line in lines[2:]],
                         [f"refused          scheme=choco,seed={seed}" for seed in (1, 2)])
        train = "run = 'train'\nworkers = "
        for head, text, said in (
                ("workers = 3", "mixing.topology = ['rign']", "rign,seed=1: unknown schedule 'rign', did you mean ring?"),
                ("workers = 3", "checkpoint.every = [5]", "every=5,seed=1: simulate: checkpoint.every is for workers that are"),
                ("workers = 3", "train.batch = [8]\n[simulate]\ngradient = -1", "--gradient: Value -1 not in range "),
                (train + "3", "mixing.scheme = ['choco']", 'scheme=choco,seed=1: scheme "choco" needs a topology of one round'),
                (train + "300", "train.batch = [8]", "--workers: Value 300 not in range 1 to ")):
            self.write(f"{nowhere}[grid]\n{text}\n", head)
            [line] = self.study("--list").stdout.splitlines()
            self.assertTrue(line.startswith("refused "), line)
            self.assertIn(said, line)
        self.write("[set]\nmixing.outer_lr_at = ''\n[grid]\ntrain.batch = [8]\n")  # a value may be empty
        self.assertEqual(self.study("--list").stdout.split(None, 2)[:2], ["to", "do"])

    def test_real_workers(self):
        self.write('[grid]\nrun.seed = [3]\nmixing.scheme = ["cta"]\n[ablation.bf16]\nmixing.wire = "bf16"\n',
                   "run = 'train'\nworkers = 2")
        self.study()
        told, _, page = self.results()
        whole, ablated = told["arms"]
        self.assertEqual((whole["name"], ablated["name"]), ("ablation none", "ablation bf16"))
        self.assertEqual(ablated["baseline"], "ablation none")
        self.assertEqual([summary["wire"] for summary in map(lambda path: json.loads(path.read_text()),
                                                             self.summaries().values())], ["bf16", "fp32"])
        self.assertIsNotNone(whole["figures"]["worst_accuracy"]["mean"])
        self.assertLess(ablated["figures"]["bytes_sent_per_worker"]["mean"],
                        0.7 * whole["figures"]["bytes_sent_per_worker"]["mean"])
        self.assertIn("of real workers", "".join(page.find(".//p").itertext()))
        # A run that has lost a worker is not the one that was asked for.
        [path, *_] = self.summaries().values()
        path.write_text(json.dumps({**json.loads(path.read_text()), "workers_lost": 1}))
        self.assertEqual(sorted(self.states().values()), ["finished", "not finished"])
        self.assertIn("2 runs, 1 of them finished before\n", self.study().stdout)
        self.assertEqual(json.loads(path.read_text())["workers_lost"], 0)

    def test_one_study_at_a_time_works_in_a_folder(self):
        self.write()
        process = self.start("--jobs", "1")
        self.until_some_are_finished(process)
        said = self.study(code=2).stderr
        process.send_signal(signal.SIGTERM)
        process.communicate()
        self.assertEqual(process.returncode, 143)
        self.assertEqual(said, f"starling: {self.out}/results: another `starling study` works in this folder\n")

    def test_a_strange_folder_is_left_alone(self):
        self.write('[grid]\nmixing.scheme = ["cta"]\n')
        strange = self.out / "results/runs/scheme=cta,seed=1"
        strange.mkdir(parents=True)
        (strange / "letter.txt").write_text("dear")
        self.assertEqual(self.study(code=2).stderr, f"starling: {strange}: is no folder of a study's run: remove it, or "
                         "give another --out\n")
        self.assertEqual((strange / "letter.txt").read_text(), "dear")

    def test_bad_input_is_one_line(self):
        self.write('[grid]\nmixing.scheme = ["cta", "act"]\n')
        said = self.study(code=2).stderr
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("study.toml:5: mixing.scheme = \"act\": unknown, did you mean atc?", said)
        missing = command("study", self.out / "none.toml", code=2).stderr
        self.assertEqual(missing.count("\n"), 1)
        self.assertIn("none.toml", missing)
