"""bench/time_to_loss.py with a few steps on this host. Systems with the same method have the same
losses: so all train the same model, on the same batches, from the same weights."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy

BENCH = pathlib.Path(__file__).parents[2] / "bench/time_to_loss.py"
VOCABULARY = 64


class TimeToLoss(unittest.TestCase):
    def losses(self, folder, *options):
        """Each system's, by its name."""
        out = folder / "result.json"
        size = ["--steps", "6", "--ratios", "1", "--test", "4", "--vocabulary", str(VOCABULARY)]
        subprocess.run([sys.executable, "-B", BENCH, "--no-line", "--quick", "--data", folder, *size, "--out", out, *options],
                       check=True, stdout=subprocess.DEVNULL)
        result = json.loads(out.read_text())
        self.assertIn("loss, link = 1 x compute", out.with_suffix(".md").read_text())
        [setting] = result["settings"]
        for run in setting["runs"]:
            self.assertEqual(run["curve"][-1]["step"], run["steps"])
            self.assertLess(run["curve"][-1]["loss"], run["curve"][0]["loss"], run["name"])
        return {run["name"]: [point["loss"] for point in run["curve"]] for run in setting["runs"]}

    def assert_alike(self, losses, one, other):
        self.assertTrue(numpy.allclose(losses[one], losses[other], rtol=1e-4), (one, other, losses))

    def test_text(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for text, tokens in (("train", 20000), ("val", 2000)):
                (numpy.arange(tokens) ** 2 // 7 % VOCABULARY).astype("<u2").tofile(folder / f"{text}.bin")
            losses = self.losses(folder, "--batch", "2", "--longer", "1", "--only", "DDP$|all-reduce|Adam$")
        self.assertEqual(len(losses), 6)
        self.assert_alike(losses, "DDP", "Starling all-reduce")
        self.assert_alike(losses, "Decent-DP, DAdam", "Starling DAdam")
        self.assert_alike(losses, "Decent-DP, AccumAdam", "Starling AccumAdam")
        # Different methods.
        self.assertFalse(numpy.allclose(losses["DDP"], losses["Starling DAdam"], rtol=1e-4))
        self.assertFalse(numpy.allclose(losses["Starling AccumAdam"], losses["Starling DAdam"], rtol=1e-4))

    def test_translation(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            generator = numpy.random.default_rng(1)
            for split, count in (("train", 100), ("val", 10)):
                sources = [generator.integers(2, VOCABULARY, 8).tolist() for _ in range(count)]
                sentences = [sentence for source in sources for sentence in (source, source[::-1])]
                places = numpy.cumsum([0, *map(len, sentences)], dtype="<u8").tobytes()
                (folder / f"{split}.pairs").write_bytes(b"PAIR" + struct.pack("<IQ", 1, count) + places +
                                                        numpy.array(sum(sentences, []), dtype="<u2").tobytes())
            losses = self.losses(folder, "--task", "translation", "--only", "DDP$|all-reduce")
        self.assert_alike(losses, "DDP", "Starling all-reduce")
