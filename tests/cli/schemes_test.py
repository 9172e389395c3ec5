import ast
import functools
import json
import pathlib
import re

from command import CommandTest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Schemes(CommandTest):
    @staticmethod
    @functools.cache  # a start of the command takes a while
    def described():
        """Name -> its description, in the order of the list."""
        self = Schemes()
        names = [line.split()[0] for line in self.starling("schemes").split("\n\n")[0].splitlines()]
        self.assertEqual(len(names), len(set(names)))
        return {name: self.starling("schemes", name) for name in names}

    def test_lists_all_and_describes_each(self):
        described = Schemes.described()
        self.assertEqual(next(iter(described)), "cta")
        for name, text in described.items():
            self.assertTrue(text.startswith(f"{name}\n"))
            for row in ("exchange", "edges", "wires", "one_in", "sends", "optimizer", "GPU", "hierarchy", "a death",
                        "a join"):
                self.assertRegex(text, rf"\n  {row} +\S")
        self.assertIn("gamma: number, at least 0 and at most 1, default 0\n", described["choco"])
        self.assertIn("trigger: number, at least 0, default 0\n", described["choco"])
        self.assertIn("mu: number, at least 0 and below 1, default automatic: beta\n", described["quasi-global"])

    def test_says_what_each_sends(self):
        for name, sends in (
                ("cta", "1 x the parameters in fp32, 0.5 over bf16, 0.25 over int8, 0.125 over int4, 0.0156 with "
                        "one_in = 64; to each neighbour of a round"),
                ("gradient-tracking", "2 x the parameters in fp32, 1 over bf16, 0.0312 with one_in = 64; to each "
                                      "neighbour of a round"),
                ("choco", "1 x the parameters in fp32, 0.0312 with one_in = 64; to each neighbour of a round"),
                ("power-gossip", "0.000978 x the parameters in fp32; to each neighbour of a round; for matrices of "
                                 "1024 x 1024"),
                ("demo", "2 x the parameters in fp32, 0.0254 with one_in = 64; to each neighbour of a round; for "
                         "matrices of 1024 x 1024"),
                ("async-push-pull", "2 x the parameters in fp32, 1 over bf16; in each averaging"),
                ("local", "nothing between two means"),
                ("all-reduce", "2 (n - 1) / n x the parameters in fp32, in each step")):
            self.assertIn(f"\n  sends       {sends}\n", Schemes.described()[name])

    def test_a_wrong_name_is_told_the_nearest(self):
        self.assertTrue(self.usage_error("schemes", "chocco").startswith(
            'scheme "chocco" is unknown, did you mean choco?: cta, '))

    def test_what_is_made_from_the_table_has_all_of_it(self):
        markdown, python, cpp = (self.starling("schemes", flag) for flag in ("--markdown", "--python", "--cpp"))
        keys = {"scheme"}
        for name, text in Schemes.described().items():
            self.assertIn(f"\n| `{name}` | ", markdown)
            self.assertIn(f'SchemeChoice choice("{name}");', cpp)
            self.assertIn(f'- "{name}"', python)
            options = text.split("\n\n")[2:]
            keys |= {option.split(":")[0].strip() for option in options}
        [options] = [node for node in ast.parse(python).body if isinstance(node, ast.ClassDef)]
        self.assertEqual({node.target.id for node in options.body if isinstance(node, ast.AnnAssign)}, keys)

    def test_it_suggests_schemes_for_a_situation(self):
        situation = ("--for", "--workers", "8", "--link-over-compute", "3", "--skew", "strong")
        said = json.loads(self.starling("schemes", *situation, "--json"))
        self.assertEqual(set(said), {"suggestions", "left_out", "steps_measured"})
        names = [one["mixing"]["scheme"] for one in said["suggestions"]] + [one["scheme"] for one in said["left_out"]]
        self.assertEqual(sorted(names), sorted(Schemes.described()))
        for one in said["suggestions"]:
            self.assertEqual(set(one), {"mixing", "step", "bytes_per_parameter", "reasons", "measured", "to_measure"})
            self.assertGreaterEqual(one["step"], 0.99)
            self.assertTrue(one["reasons"])
        best = said["suggestions"][0]
        self.assertIn("A constant learning rate reaches the optimum of all workers' losses.", best["reasons"])
        self.assertIn({"what": "skewed classes", "where": "recipes/studies/skew.toml"}, best["to_measure"])

        text = self.starling("schemes", *situation)
        self.assertIn("1. " + " ".join(f"--mixing.{key} {value}" for key, value in best["mixing"].items()) + "\n", text)
        self.assertIn(f"   step        {best['step']:.2f} x a worker's compute", text)
        for one in said["suggestions"][:5]:
            for reason in one["reasons"]:
                self.assertIn(reason + "\n", text)
            for evidence in one["measured"] + one["to_measure"]:
                self.assertIn(f"{evidence['what']}: {evidence['where']}\n", text)
        self.assertEqual(text.count("   measured    nothing in this repository\n"),
                         sum(not one["measured"] for one in said["suggestions"][:5]))
        self.assertNotIn("6. ", text)
        for one in said["left_out"]:
            self.assertIn(f"Left out: {one['scheme']}: {one['why']}\n", text)

    def test_a_recipe_takes_what_it_suggests(self):
        [first, *_] = json.loads(self.starling("schemes", "--for", "--json"))["suggestions"]
        self.assertEqual(first["mixing"], {"scheme": "cta", "topology": "base-2"})

    def test_the_evidence_is_there(self):
        everything = set()
        for situation in ((), ("--straggler", "3"), ("--skew", "some", "--link-over-compute", "2"),
                          ("--workers-per-node", "4", "--memory", "20"), ("--link-over-compute", "100")):
            said = json.loads(self.starling("schemes", "--for", *situation, "--json"))
            everything.add(said["steps_measured"])
            everything |= {one["where"] for s in said["suggestions"] for one in s["measured"] + s["to_measure"]}
        self.assertGreater(len(everything), 6)
        for where in everything:
            path, _, section = where.partition("#")
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE) if section else []
            slugs = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            self.assertTrue((ROOT / path).is_file() and (not section or section in slugs), where)

    def test_a_wrong_situation_is_one_line(self):
        for arguments, said in ((("--skew", "much"), '--skew: "much" is unknown, allowed is one of none, some, strong'),
                                (("--workers", "1"), "workers = 1 is not allowed: it must be at least 2"),
                                (("--workers", "6", "--workers-per-node", "4"), "6 workers are no whole number of nodes"),
                                (("--link-over-compute", "slow"), "link-over-compute"),
                                (("--link-over-compute", "nan"), "link-over-compute = nan is not allowed"),
                                (("--rule", "adamm"), 'rule "adamm" is unknown, did you mean adam?: sgd, '),
                                (("--topology", "rign"), "rign")):
            self.assertIn(said, self.usage_error("schemes", "--for", *arguments), arguments)
        self.assertIn("--for", self.usage_error("schemes", "--skew", "strong"))
        self.assertIn("--for", self.usage_error("schemes", "cta", "--for"))
