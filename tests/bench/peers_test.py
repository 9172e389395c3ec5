"""bench/peers.py with a few steps on this host: a peer's algorithm and Starling's have the same
losses."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy

BENCH = pathlib.Path(__file__).parents[2] / "bench/peers.py"
VOCABULARY = 64


class Peers(unittest.TestCase):
    def test_both_have_the_same_losses(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for text, tokens in (("train", 20000), ("val", 2000)):
                (numpy.arange(tokens) ** 2 // 7 % VOCABULARY).astype("<u2").tofile(folder / f"{text}.bin")
            out = folder / "result.json"
            subprocess.run([sys.executable, "-B", BENCH, "--no-line", "--data", folder, "--vocabulary", str(VOCABULARY),
                            "--steps", "12", "--every", "4", "--test", "4", "--out", out], check=True, stdout=subprocess.DEVNULL)
            result = json.loads(out.read_text())
            self.assertEqual(out.with_suffix(".md").read_text().count("\n| "), 1 + len(result["pairs"]))
        for name, pair in result["pairs"].items():
            close = 1e-3 if pair["same"] else 0.5
            self.assertLess(abs(pair["ours"]["loss"] - pair["theirs"]["loss"]), close, name)
        losses = {name: pair["ours"]["loss"] for name, pair in result["pairs"].items()}
        self.assertEqual(len(set(losses.values())), len(losses), f"all are different algorithms: {losses}")
