"""The benches' summaries of synthetic times."""
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

import planner  # noqa: E402
import step  # noqa: E402
import time_to_loss  # noqa: E402


def row(system, predicted, measured):
    return {"system": system, "predicted_ms": predicted, "measured_ms": measured}


class Planner(unittest.TestCase):
    def test_first_choice(self):
        rows = [row("base-2 fp32", 101.5, 103), row("ring fp32", 101, 101), row("base-2 bf16", 100, 99), row("base-2 atc", 1, 1),
                row("all-reduce fp32", 1, 1), row("ddp", 1, 1)]
        # 103, more than 3 % above 99.
        self.assertFalse(planner.good_choice(rows, "base-2 fp32", planner.WIRES))
        self.assertTrue(planner.good_choice(rows, "ring fp32", planner.WIRES))
        self.assertTrue(planner.good_choice(rows, "base-2 bf16", planner.WIRES))
        # Compared with the ring only.
        self.assertTrue(planner.good_choice(rows, "base-2 fp32", ("fp32",)))
        self.assertIsNone(planner.good_choice(rows, "complete fp32", planner.WIRES))
        self.assertEqual(planner.share_of([True, None, False]), 0.5)
        self.assertIsNone(planner.share_of([None]))

    def test_of_several_tries_the_most_idle_counts(self):
        tries = planner.MostIdle({"idle_enough": 0.75}, {"kept": {"idle": 0.5}})
        self.assertFalse(tries.wants("kept"))
        for idle, better in ((0.6, True), (0.5, False), (0.7, True)):
            self.assertTrue(tries.wants("new"))
            self.assertEqual(tries.takes("new", {"idle": idle}), better)
        self.assertFalse(tries.wants("new"))  # three times in all
        self.assertEqual(tries.of["new"], {"idle": 0.7})
        self.assertTrue(tries.takes("other", {"idle": 0.8}))
        self.assertFalse(tries.wants("other"))

    def test_configurations_are_what_was_asked_for(self):
        configurations = planner.CONFIGURATIONS
        self.assertGreaterEqual(len(configurations), 24)
        self.assertEqual({c["hosts"] for c in configurations}, {2, 4, 6, 8})
        self.assertEqual({c["ranks"] for c in configurations}, {1, 2})
        for one in configurations:
            self.assertLessEqual(one["hosts"] * planner.rate_of(one["rate"]), 6e9, one["name"])
            self.assertTrue(0.2 <= one["compute"] <= 3, one["name"])
            self.assertIn(planner.RECORDED, planner.systems(one))
        self.assertTrue(any("," in c["rate"] for c in configurations))
        self.assertTrue(any(c["vary"] == "a straggler" for c in configurations))

    def test_compute_of_a_job(self):
        one = planner.configuration(2, 2, "500mbit,100mbit", 0.5, "a straggler")
        job = planner.job_of(one)
        link = 2 * 4 * one["parameters"] / 12.5e6  # both workers' models over the slower card
        for rank, seconds in enumerate(job["compute"]):
            slower = planner.STRAGGLER if rank == 1 else 1
            self.assertAlmostEqual(sum(seconds) / len(seconds) / (0.5 * link * slower), 1, delta=0.02)


class Step(unittest.TestCase):
    def cell(self, ratio, hosts=2, jitter=False, ranks=1, **changed):
        cell = step.cell("a cell", step.SMALL, ratio, hosts, jitter, ranks)
        ms = dict.fromkeys(step.systems(cell), 100.0)
        # 50 ms for a model.
        return cell | {"line_bytes_per_second": 4 * step.SMALL / 0.05, "ms": ms | changed}

    def test_of_nothing_there_is_nothing(self):
        self.assertEqual(set(step.summary([]).values()), {None})

    def test_summary(self):
        steady = self.cell(1, **{"alone": 80.0, "cta base-2 fp32": 84.0, "cta complete fp32": 88.0, "ddp 25 MB": 130.0,
                                 "ddp 2.00 MB": 110.0, "decent-dp complete": 99.0})
        slow_link = self.cell(6, **{"alone": 20.0, "decent-dp ring": 180.0, "cta base-2 bf16": 90.0, "cta base-2 int8": 45.0})
        jitter = self.cell(0.3, jitter=True, **{"ddp 25 MB": 120.0, "cta one-peer-exponential fp32": 80.0})
        of_four = self.cell(0.3, hosts=4, jitter=True, **{"cta one-peer-exponential fp32": 1.0})
        shared = self.cell(1, ranks=2, **{"cta alternating-exp-ring fp32": 150.0})
        said = step.summary([steady, slow_link, jitter, of_four, shared])
        # The link, if compute takes less.
        self.assertAlmostEqual(said["worst_over_limit"], 100 / 50)
        self.assertAlmostEqual(said["vs_decent_dp"], 1)
        self.assertAlmostEqual(said["vs_ddp_at_equal"], 130 / 100)
        self.assertAlmostEqual(said["vs_tuned_ddp_at_equal"], 110 / 100)
        self.assertAlmostEqual(said["all_reduce_vs_ddp"], 1)
        # The faster DDP, and not that of four hosts.
        self.assertAlmostEqual(said["vs_ddp_jitter"], 100 / 80)
        self.assertAlmostEqual(said["hierarchy_vs_ring"], 1.5)
        self.assertAlmostEqual(said["bf16_vs_decent_dp"], 2)
        self.assertAlmostEqual(said["int8_vs_decent_dp"], 4)

    def test_limit(self):
        cell = self.cell(1, alone=30.0)
        self.assertAlmostEqual(step.limit(cell, "base-2"), 50)
        # 2 (n - 1) / n models.
        self.assertAlmostEqual(step.limit(cell | {"hosts": 4}, "complete"), 75)
        self.assertAlmostEqual(step.limit(self.cell(1, alone=60.0), "base-2"), 60)


def curve(*points):
    return [{"step": step, "seconds": seconds, "bytes": 10 * step, "loss": loss} for step, seconds, loss in points]


class TimeToLoss(unittest.TestCase):
    # DDP ends at a loss of 4, after 100 s.
    DDP = curve((10, 50, 5), (20, 100, 4))

    def setting(self, ratio, **curves):
        names = {"ddp": "DDP", "decent": "Decent-DP, DAdam", "fp32": "Starling DAdam", "accum": "Starling AccumAdam",
                 "int8": "Starling DAdam, int8", "all_reduce": "Starling all-reduce"}
        runs = [{"name": names[key]} | time_to_loss.SYSTEMS[names[key]] |
                {"rule": {"lr": 0.002}, "steps": 20, "step_ms": 9, "curve": one} for key, one in curves.items()]
        return {"link_over_compute": ratio, "goal": time_to_loss.judged(runs), "runs": runs}

    def test_way_to_a_loss(self):
        self.assertEqual(time_to_loss.reached(self.DDP, 4), {"step": 20, "seconds": 100, "bytes": 200})
        self.assertEqual(time_to_loss.reached(self.DDP, 4.5), {"step": 15, "seconds": 75, "bytes": 150})
        self.assertEqual(time_to_loss.reached(self.DDP, 6), {"step": 10, "seconds": 50, "bytes": 100})
        self.assertIsNone(time_to_loss.reached(self.DDP, 3.9))
        unknown = [point | {"bytes": None} for point in self.DDP]
        self.assertEqual(time_to_loss.reached(unknown, 4.5), {"step": 15, "seconds": 75, "bytes": None})

    def test_summary(self):
        equal = self.setting(1, ddp=self.DDP, decent=curve((10, 40, 5), (30, 90, 4)), fp32=curve((10, 35, 5), (30, 80, 4)),
                             accum=curve((10, 35, 5), (30, 80, 3)), all_reduce=curve((10, 5, 5), (20, 10, 4)))
        slow = self.setting(3, ddp=self.DDP, decent=curve((10, 40, 5), (30, 90, 4)), fp32=curve((10, 5, 5), (30, 10, 4)),
                            int8=curve((10, 15, 5), (30, 30, 4)))
        said = time_to_loss.summary([equal, slow])
        self.assertAlmostEqual(said["fp32_vs_ddp"], 0.575)  # of AccumAdam: at 4 after 57.5 s. No all-reduce counts
        self.assertAlmostEqual(said["int8_vs_ddp"], 0.3)
        self.assertAlmostEqual(said["vs_decent_dp"], 57.5 / 90)
        self.assertEqual(said["missing"], {})
        self.assertEqual(equal["runs"][2]["over_ddp"], {"step": 1.5, "seconds": 0.8, "bytes": 1.5})

    def test_what_was_not_reached_has_no_value(self):
        above = curve((10, 35, 5), (30, 80, 4.1))
        said = time_to_loss.summary([self.setting(1, ddp=self.DDP, decent=self.DDP, fp32=above), self.setting(3, fp32=self.DDP)])
        self.assertEqual([said[key] for key in ("fp32_vs_ddp", "int8_vs_ddp", "vs_decent_dp")], [None] * 3)
        self.assertEqual(set(said["missing"]), {"fp32_vs_ddp", "int8_vs_ddp", "vs_decent_dp"})

    def test_the_best_learning_rate_of_ddp_sets_the_goal(self):
        slower = self.setting(1, ddp=curve((10, 40, 5), (20, 90, 4.5)))
        runs = slower["runs"] + self.setting(1, ddp=self.DDP)["runs"]
        self.assertEqual(time_to_loss.judged(runs), {"loss": 4, "seconds": 100})
        self.assertIsNone(runs[0]["goal"])

    def test_tables(self):
        setting = self.setting(1, ddp=self.DDP, fp32=curve((10, 35, 5), (30, 80, 3.9)))
        about = {"date": "today", "device": "a machine", "hosts": 2, "parameters": 1000, "batch": 4, "seed": 1, "compute_ms": 9.6,
                 "steps": 20}
        with tempfile.TemporaryDirectory() as name:
            result, page = pathlib.Path(name, "result.json"), pathlib.Path(name, "page.md")
            result.write_text(json.dumps(about | {"settings": [setting]}))
            page.write_text(f"before\n{time_to_loss.BEGIN}old\n{time_to_loss.END}after\n")
            with mock.patch.object(time_to_loss, "PAGE", page):
                time_to_loss.document(result)
                said = page.read_text()
                time_to_loss.document(result)
                self.assertEqual(page.read_text(), said)
                page.write_text("nothing")
                self.assertRaisesRegex(SystemExit, "there is no place for the tables", time_to_loss.document, result)
        self.assertTrue(said.startswith("before\n") and said.endswith("\n<!-- end -->\nafter\n") and "old" not in said)
        self.assertIn("A step computes for 10 ms.", said)
        self.assertIn("| Starling DAdam | 0.002 | 9 | 20 | 3.900 | 75.9 | 0.76 | 1.41 | 1.41 |\n", said)
        falling = "".join(f" {5 - i / 10:.3f} |" for i in range(11))
        self.assertIn("| DDP |" + 9 * "  |" + falling + "\n", said)
        for line in said.splitlines():
            self.assertIn(line.count("|"), (0, 10, 22))

    def test_recipes_give_the_rules(self):
        rules = time_to_loss.rules_of("text")
        self.assertEqual({kind: rule["name"] for kind, rule in rules.items()}, {"adam": "AdamW", "accum": "AccumAdamW"})
        twice = time_to_loss.rules_of("text", 2 * rules["adam"]["lr"])
        self.assertEqual(twice["accum"], rules["accum"] | {"lr": 2 * rules["accum"]["lr"]})
        self.assertEqual(time_to_loss.rules_of("text", None, 3), {"adam": rules["adam"], "accum": rules["accum"] | {"window": 3}})
        self.assertEqual(time_to_loss.rules_of("translation")["accum"]["name"], "AccumAdam")
