"""The benches' summaries of synthetic times."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

import planner  # noqa: E402
import step  # noqa: E402


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


if __name__ == "__main__":
    unittest.main()
