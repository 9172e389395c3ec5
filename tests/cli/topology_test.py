import json
import unittest

from command import CommandTest

NAMES = ("complete, ring, one-peer-ring, one-peer-exponential, one-peer-exponential-directed, base-K, "
         "alternating-exp-ring")


class Topology(CommandTest):
    def test_table(self):
        self.assertEqual(self.starling("topology", "base-2", "--workers", "5"), """\
base-2, 5 workers, a period of 5 rounds
Whose values each worker mixes in, and with which weight each; the rest stays on its own.

worker           round 0  round 1  round 2  round 3  round 4
0                1 (1/2)  2 (1/2)  4 (4/5)  1 (1/2)  2 (1/2)
1                0 (1/2)  3 (1/2)  -        0 (1/2)  3 (1/2)
2                3 (1/2)  0 (1/2)  -        3 (1/2)  0 (1/2)
3                2 (1/2)  1 (1/2)  -        2 (1/2)  1 (1/2)
4                -        -        0 (4/5)  -        -
most peers       1        1        1        1        1
2nd sing. value  1.0000   1.0000   1.0000   1.0000   1.0000

one period is the exact average   yes
2nd singular value of a period    0.0000
peers per round                   at most 1
weights                           symmetric
""")

    def test_table_joins_neighbours_of_equal_weight(self):
        text = self.starling("topology", "alternating-exp-ring", "--workers", "8", "--workers-per-node", "4")
        self.assertIn("\n3                0-2 (1/4)    0-2 4-7 (1/8)\n", text)

    def test_directed_schedules_are_called_so(self):
        text = self.starling("topology", "one-peer-exponential-directed", "--workers", "3")
        self.assertIn("weights                           not symmetric: a failed exchange moves the mean\n", text)
        self.assertIn("one period is the exact average   no\n", text)

    def test_json(self):
        result = json.loads(self.starling("topology", "base-2", "--workers", "5", "--json"))
        rounds = result.pop("rounds")
        self.assertLess(result.pop("second_singular_value"), 1e-12)
        self.assertEqual(result, {"schedule": "base-2", "workers": 5, "workers_per_node": 1, "period": 5,
                                  "exact_average": True, "symmetric": True, "peers": 1})
        self.assertEqual([r["round"] for r in rounds], [0, 1, 2, 3, 4])
        self.assertEqual([r["peers"] for r in rounds], [1] * 5)
        for r in rounds:
            self.assertAlmostEqual(r["second_singular_value"], 1, delta=1e-12)
        first, second = rounds[2]["mixing"][0], rounds[2]["mixing"][1]
        self.assertAlmostEqual(first.pop("self_weight"), 0.2, delta=1e-12)
        self.assertEqual(first, {"worker": 0, "neighbours": [{"worker": 4, "weight": 0.8}]})
        self.assertEqual(second, {"worker": 1, "self_weight": 1.0, "neighbours": []})

    def test_json_contraction_of_the_ring(self):
        result = json.loads(self.starling("topology", "ring", "--workers", "8", "--json"))
        self.assertAlmostEqual(result["second_singular_value"], 0.8047, delta=5e-5)
        self.assertAlmostEqual(result["rounds"][0]["second_singular_value"], 0.8047, delta=5e-5)
        self.assertFalse(result["exact_average"])

    def test_a_world_of_one(self):
        result = json.loads(self.starling("topology", "base-2", "--workers", "1", "--json"))
        self.assertEqual(result["rounds"][0]["mixing"], [{"worker": 0, "self_weight": 1.0, "neighbours": []}])
        self.assertTrue(result["exact_average"])
        self.assertIn("base-2, 1 worker, a period of 1 round\n", self.starling("topology", "base-2", "--workers", "1"))

    def test_list(self):
        text = self.starling("topology", "--list")
        self.assertEqual([line.split()[0] for line in text.splitlines()], NAMES.split(", "))
        self.assertEqual(self.starling("topology"), text)
        listed = json.loads(self.starling("topology", "--list", "--json"))
        self.assertEqual([schedule["name"] for schedule in listed], NAMES.split(", "))

    def test_wrong_worlds(self):
        self.assertEqual(self.usage_error("topology", "one-peer-exponential", "--workers", "6"),
                         "schedule one-peer-exponential needs a power of two workers, got 6: the nearest are 4 and 8 "
                         "(base-2 works for every number)")
        self.assertEqual(self.usage_error("topology", "one-peer-ring", "--workers", "7"),
                         "schedule one-peer-ring needs an even number of workers, got 7: the nearest are 6 and 8 "
                         "(base-2 works for every number)")
        self.assertEqual(self.usage_error("topology", "alternating-exp-ring", "--workers", "6",
                                          "--workers-per-node", "2"),
                         "schedule alternating-exp-ring needs a power of two nodes of 2 workers each, got 6 workers: "
                         "the nearest are 4 and 8 (base-2 works for every number)")

    def test_wrong_names(self):
        self.assertEqual(self.usage_error("topology", "hexagon", "--workers", "6"),
                         f"unknown schedule 'hexagon': known are {NAMES}")
        self.assertEqual(self.usage_error("topology", "base-1", "--workers", "6"),
                         "schedule 'base-1': base-K needs a whole number K of at least 2, as in base-2")

    def test_wrong_arguments(self):
        self.assertEqual(self.usage_error("topology", "ring"), "topology ring: --workers N is needed")
        self.assertEqual(self.usage_error("topology", "--workers", "4"),
                         "topology: the name of a schedule is needed (starling topology --list)")
        for value in ("0", "-1", "513", "four", "2.5"):
            self.assertEqual(self.usage_error("topology", "ring", "--workers", value),
                             f"--workers: Value {value} not in range 1 to 512")
        self.assertEqual(self.usage_error("topology", "ring", "--workers", "4", "--workers-per-node", "0"),
                         "--workers-per-node: Value 0 not in range 1 to 512")
        self.assertEqual(self.usage_error("topology", "ring", "4"), "The following argument was not expected: 4")


if __name__ == "__main__":
    unittest.main()
