import json
import os
import re
import tempfile
import xml.etree.ElementTree

from command import CommandTest


class Topology(CommandTest):
    def names(self):  # all of them: tests/topology/schedules_test.cpp
        return [schedule["name"] for schedule in json.loads(self.starling("topology", "--list", "--json"))]

    def test_table(self):
        self.assertEqual(self.starling("topology", "base-2", "--workers", "5"), """\
base-2, 5 workers, a period of 5 rounds
Neighbours of each worker, with the weights of their values; the rest is the weight of its own.

worker           round 0  round 1  round 2  round 3  round 4
0                1 (1/2)  2 (1/2)  4 (4/5)  1 (1/2)  2 (1/2)
1                0 (1/2)  3 (1/2)  2 (1/2)  0 (1/2)  3 (1/2)
2                3 (1/2)  0 (1/2)  1 (1/2)  3 (1/2)  0 (1/2)
3                2 (1/2)  1 (1/2)  -        2 (1/2)  1 (1/2)
4                -        -        0 (4/5)  -        -
most peers       1        1        1        1        1
2nd sing. value  1.0000   1.0000   1.0000   1.0000   1.0000

rounds to the exact average       5
2nd singular value of a period    0.0000
peers per round                   at most 1
sent per worker and round         0.8 times the model, at most 1
weights                           symmetric
""")

    def test_table_joins_neighbours_of_equal_weight(self):
        text = self.starling("topology", "alternating-exp-ring", "--workers", "8", "--workers-per-node", "4")
        self.assertIn("\n3                0-2 (1/4)    0-2 4-7 (1/8)\n", text)

    def test_directed_schedules_are_called_so(self):
        text = self.starling("topology", "one-peer-exponential-directed", "--workers", "3")
        self.assertIn("weights                           not symmetric: a failed exchange moves the mean\n", text)
        self.assertIn("rounds to the exact average       never exact\n", text)

    def test_json(self):
        result = json.loads(self.starling("topology", "base-2", "--workers", "5", "--json"))
        rounds = result.pop("rounds")
        self.assertLess(result.pop("second_singular_value"), 1e-12)
        self.assertAlmostEqual(result.pop("sent"), 20 / 25)
        self.assertEqual(result, {"schedule": "base-2", "workers": 5, "workers_per_node": 1, "period": 5,
                                  "rounds_to_exact_average": 5, "symmetric": True, "peers": 1, "wire": "fp32", "one_in": 1,
                                  "most_sent": 1})
        self.assertEqual([r["round"] for r in rounds], [0, 1, 2, 3, 4])
        self.assertEqual([r["peers"] for r in rounds], [1] * 5)
        for r in rounds:
            self.assertAlmostEqual(r["second_singular_value"], 1, delta=1e-12)
        first, second = rounds[2]["mixing"][0], rounds[2]["mixing"][3]
        self.assertAlmostEqual(first.pop("self_weight"), 0.2, delta=1e-12)
        self.assertEqual(first, {"worker": 0, "neighbours": [{"worker": 4, "weight": 0.8}]})
        self.assertEqual(second, {"worker": 3, "self_weight": 1.0, "neighbours": []})

    def test_json_contraction_of_the_ring(self):
        result = json.loads(self.starling("topology", "ring", "--workers", "8", "--json"))
        self.assertAlmostEqual(result["second_singular_value"], 0.8047, delta=5e-5)
        self.assertAlmostEqual(result["rounds"][0]["second_singular_value"], 0.8047, delta=5e-5)
        self.assertIsNone(result["rounds_to_exact_average"])

    def test_a_world_of_one(self):
        result = json.loads(self.starling("topology", "base-2", "--workers", "1", "--json"))
        self.assertEqual(result["rounds"][0]["mixing"], [{"worker": 0, "self_weight": 1.0, "neighbours": []}])
        self.assertEqual(result["rounds_to_exact_average"], 0)
        self.assertIn("base-2, 1 worker, a period of 1 round\n", self.starling("topology", "base-2", "--workers", "1"))

    def test_long_periods(self):
        text = self.starling("topology", "random-matching", "--workers", "5")
        self.assertIn("random-matching, 5 workers, a period of 1000 rounds\n", text)
        self.assertIn("round 11", text)
        self.assertNotIn("round 12", text)
        self.assertIn("\n... and 988 more rounds (--rounds R shows the first R)\n", text)
        self.assertIn("rounds to the exact average       never exact\n", text)
        self.assertLess(max(map(len, text.splitlines())), 150)
        self.assertIn("round 13", self.starling("topology", "random-matching", "--workers", "5", "--rounds", "14"))
        self.assertNotIn("more rounds", self.starling("topology", "base-2", "--workers", "5", "--rounds", "1000000"))
        whole = json.loads(self.starling("topology", "random-matching", "--workers", "5", "--json"))
        self.assertEqual(len(whole["rounds"]), 1000)
        self.assertAlmostEqual(whole["sent"], 4 / 5)  # one idles
        some = json.loads(self.starling("topology", "random-matching", "--workers", "5", "--json", "--rounds", "3"))
        self.assertEqual(some["period"], 1000)
        self.assertEqual(some["rounds"], whole["rounds"][:3])
        self.assertEqual(some["second_singular_value"], whole["second_singular_value"])
        self.assertEqual(self.usage_error("topology", "ring", "--workers", "4", "--rounds", "0"),
                         "--rounds: Value 0 not in range 1 to 1000000")

    def test_many_worlds(self):
        self.assertEqual(self.starling("topology", "one-peer-ring", "--workers", "4-6"), """\
one-peer-ring

workers  period  rounds to exact   most peers  sent (most)       2nd sing. value
4        2       2                 1           1 (1)             0.0000
5        does not exist
6        2       never             1           1 (1)             0.5000

Sent: times the model, per worker and round, and the maximum of one worker in a round. 2nd singular value of a period.
""")
        some = json.loads(self.starling("topology", "one-peer-ring", "--workers", "4-6", "--json", "--rounds", "1"))
        self.assertEqual(some[0], json.loads(self.starling("topology", "one-peer-ring", "--workers", "4", "--json",
                                                           "--rounds", "1")))
        self.assertEqual(some[1], {"workers": 5, "error": self.usage_error("topology", "one-peer-ring", "--workers",
                                                                           "5")})
        self.assertEqual(self.usage_error("topology", "hypercube", "--workers", "5-7"),
                         self.usage_error("topology", "hypercube", "--workers", "5"))

    def test_traffic_of_groups(self):
        result = json.loads(self.starling("topology", "alternating-exp-ring", "--workers", "8", "--workers-per-node",
                                          "4", "--json"))
        self.assertAlmostEqual(result["most_sent"], 2 * 7 / 8)  # both nodes
        self.assertAlmostEqual(result["sent"], (2 * 7 / 8 + 2 * 3 / 4) / 2)

    def test_what_wires_save(self):
        def sent(wire, name):
            return json.loads(self.starling("topology", name, "--workers", "8", "--wire", wire, "--json"))["sent"]

        self.assertAlmostEqual(sent("int8", "ring"), 2 / 4)
        # A group's mean stays fp32.
        self.assertAlmostEqual(sent("bf16", "complete"), 7 / 8 * (1 / 2 + 1))
        self.assertAlmostEqual(sent("int4", "complete"), 7 / 8)  # in pairs
        self.assertIn("sent per worker and round         0.25 times the model in fp32, as int8, at most 0.25\n",
                      self.starling("topology", "base-2", "--workers", "8", "--wire", "int8"))
        self.assertIn("sent per worker and round         0.125 times the model in fp32, as bf16, one value in 4, at most 0.125\n",
                      self.starling("topology", "base-2", "--workers", "8", "--wire", "bf16", "--one-in", "4"))
        self.assertIn("sent per worker and round         0.4375 times the model in fp32, one value in 4, at most 0.4375\n",
                      self.starling("topology", "complete", "--workers", "8", "--one-in", "4"))
        top_k = ("--wire", "top-k", "--one-in", "16")  # each value with its index
        self.assertIn("sent per worker and round         0.25 times the model in fp32, as top-k, one value in 16, at most 0.25\n",
                      self.starling("topology", "ring", "--workers", "8", *top_k))
        # In pairs; all values go without indices.
        self.assertAlmostEqual(sent("top-k", "complete"), 7)
        self.assertEqual(self.usage_error("topology", "base-2", "--workers", "8", *top_k),
                         "--wire top-k needs a topology of one round that is symmetric, such as ring, torus or complete: "
                         '"base-2" has 3 rounds')
        self.assertIn("--wire top-k is not allowed", self.usage_error("topology", "--compare", "--workers", "8", *top_k))
        self.assertIn("--one-in", self.usage_error("topology", "ring", "--workers", "4", "--one-in", "0"))
        self.assertEqual(self.usage_error("topology", "ring", "--workers", "4", "--wire", "int2"),
                         '--wire: "int2" is unknown, did you mean int8?, allowed is one of fp32, bf16, fp16, int8, int4, top-k')

    def test_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pairs.toml")
            with open(path, "w") as file:
                file.write("workers = 4\nsymmetric = true\n"
                           "[[rounds]]\nedges = [[0, 1, 0.5], [2, 3, 0.5]]\n"
                           "[[rounds]]\nedges = [[0, 2, '1/2'], [1, 3, '1/2']]\n")
            mine = self.starling("topology", path, "--workers", "4")
            self.assertEqual(mine.replace(path, "base-2"), self.starling("topology", "base-2", "--workers", "4"))
            strange = os.path.join(os.fsencode(folder), b"\x1b[31m\xff.toml")
            os.link(path, strange)
            shown = self.starling("topology", strange, "--workers", "4")
            self.assertEqual(shown.replace(folder + "/\\u001B[31m\\xFF.toml", "base-2"), mine.replace(path, "base-2"))
            name = json.loads(self.starling("topology", strange, "--workers", "4", "--json"))["schedule"]
            self.assertEqual(name, folder + "/\x1b[31m\ufffd.toml")
            self.assertEqual(self.usage_error("topology", path, "--workers", "5"),
                             f"{path}:1: it is for 4 workers, and there are 5")
        self.assertEqual(self.usage_error("topology", "no/such.json", "--workers", "4"),
                         "no/such.json: cannot be opened: No such file or directory")

    def test_the_fastest_weights_are_a_topology(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ring-8.json")
            shown = self.starling("topology", "ring", "--workers", "8", "--fastest", path)
            # (1 + c) / (3 - c), c = cos(2 pi / 8).
            self.assertIn("2nd singular value of a period    0.7445\n", shown)
            self.assertEqual(self.starling("topology", path, "--workers", "8"), shown)
            self.assertEqual(self.usage_error("topology", "base-2", "--workers", "8", "--fastest", path),
                             "--fastest needs a topology of one round that is symmetric, such as ring, torus or complete: "
                             '"base-2" has 3 rounds')
            self.assertEqual(self.usage_error("topology", "ring", "--workers", "8-9", "--fastest", path),
                             "topology --fastest: --workers must be one number")
            self.assertEqual(self.usage_error("topology", "ring", "--workers", "8", "--fastest", "ring.toml"),
                             "--fastest: Value ring.toml must end in .json, as a topology does")
            self.assertIn("cannot be written", self.usage_error("topology", "ring", "--workers", "4", "--fastest",
                                                                os.path.join(folder, "no/such.json"), code=1))

    def test_compare(self):
        lines = json.loads(self.starling("topology", "--compare", "--workers", "12", "--workers-per-node", "2", "--json"))
        self.assertEqual(lines, sorted(lines, key=lambda line: float("inf") if line["sent_to_consensus"] is None
                                       else line["sent_to_consensus"]))
        by_name = {name: line for line in lines if line["scheme"] is None for name in [line["schedule"], *line["same"]]}
        of_scheme = {line["scheme"]: line for line in lines if line["scheme"] is not None}
        self.assertNotIn("one-peer-exponential", by_name)  # it does not exist for 12
        # Two models leave a node in a round between nodes; base-2 over six nodes has four such
        # rounds.
        hierarchical = by_name["hierarchical:base-2"]
        self.assertEqual((hierarchical["rounds_to_consensus"], hierarchical["peers"]), (8, 1))
        self.assertLessEqual(hierarchical["sent_to_consensus"], 4 * 2)
        self.assertEqual(by_name["complete"]["rounds_to_consensus"], 1)
        # Two send ten others two shards.
        self.assertAlmostEqual(by_name["complete"]["sent_to_consensus"], 2 * 10 * 2 / 12)
        self.assertEqual(by_name["ring"]["sent_per_interface"], 2)
        self.assertFalse(by_name["od-equidyn"]["symmetric"])
        # A scheme with two vectors: exact after ceil(log2 12) rounds. In the first two, one model
        # leaves a node.
        ceca = of_scheme["ceca-2p"]
        self.assertEqual((ceca["rounds_to_consensus"], ceca["peers"], ceca["symmetric"]), (4, 1, False))
        self.assertEqual(ceca["sent_to_consensus"], 1 + 1 + 2 + 2)
        # Schemes that send something else. Those that send their parameters have no line.
        self.assertEqual(set(of_scheme), {"ceca-2p", "gradient-tracking", "momentum-tracking", "tracking-adam", "push-diging",
                                          "demo", "power-gossip"})
        base, tracking = by_name["base-2"], of_scheme["gradient-tracking"]
        self.assertEqual(tracking["schedule"], "base-2")
        self.assertEqual(tracking["rounds_to_consensus"], base["rounds_to_consensus"])
        self.assertAlmostEqual(tracking["sent_to_consensus"], 2 * base["sent_to_consensus"])
        power = of_scheme["power-gossip"]
        self.assertIsNone(power["rounds_to_consensus"])
        self.assertIsNone(power["sent_to_consensus"])
        # A product of a matrix of 1024 x 1024, and a checksum.
        self.assertAlmostEqual(power["sent_per_interface"], base["sent_per_interface"] * 1026 / 1024**2)
        text = self.starling("topology", "--compare", "--workers", "8")
        self.assertRegex(text, r"\ngradient-tracking on base-2 +3 +2 +6 +1 +symmetric\n")
        self.assertRegex(text, r"\npower-gossip on base-2 +- +0.0009785 +- +1 +symmetric\n")
        self.assertIn("The bytes of demo, power-gossip are those of matrices of 1024 x 1024.\n", text)
        few = self.starling("topology", "--compare", "--workers", "8", "--one-in", "64")
        for name in ("choco on ring", "sparse-loco on complete", "demo"):
            self.assertRegex(few, rf"\n{name} +- +0\.\d+ +- ")
        self.assertRegex(few, r"\nLeft out, since they refuse this wire or one-in: .*ceca-2p.*power-gossip.*\.\n")
        self.assertIn("The same as base-2: one-peer-exponential, hyper-hypercube-2, hyper-hypercube-3, base-3, simple-base-2, "
                      "simple-base-3, hierarchical:base-2, inner-outer:base-2.\n", text)
        self.assertRegex(text, r"\nbase-2 \(default\) +3 +1 +3 +1 +symmetric\n")
        # Schemes that do not mix by the rounds' matrices alone.
        self.assertRegex(text, r"\nWith a schedule's bytes, but not its rounds to consensus: .*exact-diffusion, .*quasi-global")
        # Modular codes form no groups: each worker sends to all others.
        self.assertIn("complete is an all-reduce: it sends the least, ", text)
        pairs = self.starling("topology", "--compare", "--workers", "8", "--wire", "int8")
        self.assertRegex(pairs, r"\ncomplete +1 +1.75 +1.75 +7 ")
        self.assertNotIn("complete is an all-reduce", pairs)
        self.assertRegex(self.starling("topology", "--compare", "--workers", "100"), r"\nring +~\d+ +2 ")

    def test_compare_with_a_file_and_its_mistakes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "links.json")
            with open(path, "w") as file:
                json.dump({"workers": 4, "bandwidth": [[0, 1, 9, 1], [1, 0, 1, 9], [9, 1, 0, 1], [1, 9, 1, 0]]}, file)
            lines = json.loads(self.starling("topology", path, "--compare", "--workers", "4", "--json"))
            mine = next(line for line in lines if line["schedule"] == path)
            self.assertEqual((mine["rounds_to_consensus"], mine["sent_to_consensus"]), (2, 2))
            self.assertEqual(self.usage_error("topology", path, "--compare", "--workers", "5"),
                             f"{path}:1: it is for 4 workers, and there are 5")
        self.assertEqual(self.usage_error("topology", "--compare"), "topology --compare: --workers N is needed")
        self.assertEqual(self.usage_error("topology", "--compare", "--workers", "2-4"),
                         "topology --compare: --workers must be one number")

    def test_plot(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rounds.svg")

            def plot(*arguments):
                self.assertEqual(self.starling("topology", *arguments, "--plot", path), "")
                return xml.etree.ElementTree.parse(path).getroot()

            def count(root, tag):
                return len(root.findall(f".//{{http://www.w3.org/2000/svg}}{tag}"))

            root = plot("base-2", "--workers", "5")  # 5 rounds with 2 pairs each
            self.assertEqual((count(root, "circle"), count(root, "g"), count(root, "path") - count(root, "marker")),
                             (25, 5, 10))
            self.assertIn("round 2: 4/5", "".join(root.itertext()))
            self.assertEqual(count(plot("random-matching", "--workers", "5"), "g"), 12)
            self.assertEqual(count(plot("random-matching", "--workers", "5", "--rounds", "3"), "g"), 3)
            self.assertEqual(len(plot("od-equidyn", "--workers", "40", "--rounds", "1").findall(".//*[@marker-end]")), 40)
            missing = os.path.join(folder, "no", "such.svg")
            self.assertEqual(self.usage_error("topology", "ring", "--workers", "4", "--plot", missing, code=1),
                             f"{missing}: cannot be written")
            self.assertEqual(self.usage_error("topology", "ring", "--workers", "4-5", "--plot", path),
                             "topology --plot: --workers must be one number")

    def test_list(self):
        text = self.starling("topology", "--list")
        self.assertEqual([line.split()[0] for line in text.splitlines()], self.names())
        self.assertEqual(self.starling("topology"), text)

    def test_wrong_worlds(self):
        self.assertEqual(self.usage_error("topology", "one-peer-exponential", "--workers", "6"),
                         "schedule one-peer-exponential needs a power of two workers, got 6: the nearest are 4 and 8 "
                         "(base-2 works for every number)")
        self.assertEqual(self.usage_error("topology", "one-peer-ring", "--workers", "7"),
                         "schedule one-peer-ring needs an even number of workers, got 7: the nearest are 6 and 8 "
                         "(base-2 works for every number)")
        self.assertEqual(self.usage_error("topology", "alternating-exp-ring", "--workers", "7",
                                          "--workers-per-node", "2"),
                         "schedule alternating-exp-ring needs whole nodes of 2 workers each, got 7 workers: "
                         "the nearest are 6 and 8 (base-2 works for every number)")

    def test_wrong_names(self):
        self.assertEqual(self.usage_error("topology", "hexagon", "--workers", "6"),
                         f"unknown schedule 'hexagon': known are {', '.join(self.names())}, and files that end in "
                         ".toml or .json")
        self.assertEqual(self.usage_error("topology", "base-1", "--workers", "6"),
                         "schedule 'base-1': base-K needs a whole number K of at least 2, as in base-2")

    def test_wrong_arguments(self):
        self.assertEqual(self.usage_error("topology", "ring"), "topology ring: --workers N is needed")
        self.assertEqual(self.usage_error("topology", "--workers", "4"),
                         "topology: the name of a schedule is needed (starling topology --list)")
        for value in ("0", "-1", "513", "four", "2.5", "4-3", "0-3", "2-", "2-513", "2-3-4", "99999999999"):
            self.assertEqual(self.usage_error("topology", "ring", "--workers", value),
                             f"--workers: Value {value} not in range 1 to 512" if re.fullmatch(r"-?[\d.]+", value)
                             else f'--workers: "{value}" is no number from 1 to 512')
        self.assertEqual(self.usage_error("topology", "ring", "--workers", "4", "--workers-per-node", "0"),
                         "--workers-per-node: Value 0 not in range 1 to 512")
        for ignored in (("--compare", "--workers", "4", "--rounds", "3"), ("--rounds", "3"), ("--plot", "ring.svg"),
                        ("--fastest", "ring.json"), ("--list", "ring"), ("--list", "--workers", "4"), ("--list", "--compare")):
            self.assertRegex(self.usage_error("topology", *ignored), " (requires|excludes) ")
        self.assertEqual(self.usage_error("topology", "ring", "4"),
                         "topology: '4' is one argument too many (starling topology --help shows all)")
