import json

from command import CommandTest

WAYS = ["complete", "ring", "one-peer-exponential", "alternating-exp-ring", "base-2", "all-reduce"]


class Bench(CommandTest):
    def averaging(self, *arguments):
        return self.starling("bench", "averaging", "--rounds", "4", "--megabytes", "0.25", *arguments)

    def test_averaging(self):
        result = json.loads(self.averaging("--workers", "2", "--json"))
        self.assertEqual((result["workers"], result["rounds"], result["tensors"], result["bytes"]), (2, 4, 3, 1 << 18))
        self.assertEqual([row["way"] for row in result["averaging"]], WAYS)
        for row in result["averaging"]:
            self.assertGreater(row["mean"], 0)
            self.assertLess(row["spread"], 1e-5)  # 1 at first

    def test_table_and_what_does_not_exist_for_so_many(self):
        text = self.averaging("--workers", "3")
        self.assertTrue(text.startswith("3 workers average 3 tensors of 0.25 MB (fp32), 4 rounds\n"), text)
        self.assertRegex(text, r"\nbase-2 +[\d.]+ ms +[\d.]+ ms\n")
        self.assertRegex(text, r"\none-peer-exponential +\D[^\n]*3[^\n]*\n")

    def test_wrong_arguments(self):
        self.assertIn("bench: a command is needed: averaging ", self.usage_error("bench"))
        self.assertIn("--rounds: Value 0 not in range", self.usage_error("bench", "averaging", "--rounds", "0"))
